// UNISONO_CHECK aborts the process if Unisono itself has a bug. It is active in every build. Input from users, files or the
// network must never trigger it.
#pragma once

#include <cstdio>
#include <cstdlib>

#define UNISONO_CHECK(condition)                                                                             \
  do {                                                                                                       \
    if (!(condition)) [[unlikely]] {                                                                         \
      std::fprintf(stderr, "unisono: internal check failed at %s:%d: %s\n", __FILE__, __LINE__, #condition); \
      std::abort();                                                                                          \
    }                                                                                                        \
  } while (0)

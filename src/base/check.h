// UNISONO_CHECK: for our own bugs only, in every build. Nothing that a user, a file or a packet contains reaches it.
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

// The outcome of an operation. The operation shares it with the threads that wait for it.
#pragma once

#include "unisono/report.h"
#include "unisono/status.h"

namespace unisono {

struct Completion {
  bool done = false;
  Status status;
  Report report;

  Result<Report> outcome() const {
    if (!status.ok()) return status;
    return report;
  }
};

}  // namespace unisono

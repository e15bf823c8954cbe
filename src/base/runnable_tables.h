// SIMD code is compiled once for each instruction set. Each compilation gives one table of functions. This class keeps those
// tables that this processor can run.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace unisono {

// Table::target is Highway's bit for the instruction set of the table, or 0 if the table cannot be used. The argument
// `compiled` of the constructor lists the tables, the best one first. Null entries in it are skipped.
template <typename Table, size_t most>
class RunnableTables {
 public:
  using Function = const Table& (*)();
  RunnableTables(const Function (&compiled)[most], int64_t supported) {
    for (const Function table : compiled) {
      if (table == nullptr || (table().target & supported) == 0) continue;
      if (count_ > 0 && tables_[count_ - 1] == &table()) continue;  // the fallback table may be in the list twice
      tables_[count_++] = &table();
    }
  }
  std::span<const Table* const> all() const { return {tables_, count_}; }

 private:
  const Table* tables_[most] = {};
  size_t count_ = 0;
};

}  // namespace unisono

// Code that is compiled once per instruction set leaves one table of functions for each. This class keeps the tables that this
// processor can run.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace unisono {

// Table::target is Highway's bit for its instruction set; 0 means that the table is of no use. `compiled` lists the tables,
// best first; an entry may be null.
template <typename Table, size_t most>
class RunnableTables {
 public:
  using Function = const Table& (*)();
  RunnableTables(const Function (&compiled)[most], int64_t supported) {
    for (const Function table : compiled) {
      if (table == nullptr || (table().target & supported) == 0) continue;
      if (count_ > 0 && tables_[count_ - 1] == &table()) continue;  // the fallback may be in the list too
      tables_[count_++] = &table();
    }
  }
  std::span<const Table* const> all() const { return {tables_, count_}; }

 private:
  const Table* tables_[most] = {};
  size_t count_ = 0;
};

}  // namespace unisono

// The ranks form a grid with two rows. Each row is a sub-group, and so is each column, and each of them computes its own sum.
#include <unisono/unisono.h>

#include <cstdio>
#include <vector>

int main() {
  auto group = unisono::Group::join();
  if (!group) return std::fprintf(stderr, "%s\n", group.status().to_string().c_str()), 1;
  const uint32_t rank = group->rank(), columns = group->world_size() / 2;

  // --8<-- [start:body]
  std::vector<uint32_t> my_row, my_column;
  for (uint32_t other = 0; other < group->world_size(); ++other) {
    if (other / columns == rank / columns) my_row.push_back(other);
    if (other % columns == rank % columns) my_column.push_back(other);
  }
  auto row = group->split(my_row);  // this sends nothing, but all members must split in the same order
  auto column = group->split(my_column);
  if (!row || !column) return std::fprintf(stderr, "%s\n", (row ? column : row).status().to_string().c_str()), 1;

  int64_t in_row[] = {rank}, in_column[] = {rank};
  auto first = row->all_reduce_async(std::span<int64_t>(in_row));
  auto second = column->all_reduce_async(std::span<int64_t>(in_column));
  // until these waits return, the values must not be touched
  const auto in_row_sum = first.wait(), in_column_sum = second.wait();
  const bool ok = in_row_sum.ok() && in_column_sum.ok();
  // --8<-- [end:body]
  std::printf("rank %u of its row, %u of its column: %lld in the row, %lld in the column\n", row->rank(), column->rank(),
              static_cast<long long>(in_row[0]), static_cast<long long>(in_column[0]));
  return ok ? 0 : 1;
}

// Calls each collective once, on three ranks, with two elements per rank. Rank r contributes 10 r plus the index of the
// element. Rank 1 prints the results.
#include <unisono/unisono.h>

#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <string>
#include <vector>

using Values = std::vector<int32_t>;

static unisono::ConstTensor in(const Values& values) { return std::span<const int32_t>(values); }
static unisono::Tensor out(Values& values) { return std::span<int32_t>(values); }

static void show(const unisono::Group& group, const char* what, const unisono::Result<unisono::Report>& report,
                 const Values& values) {
  if (!report) {
    std::fprintf(stderr, "%s: %s\n", what, report.status().to_string().c_str());
    std::exit(1);
  }
  if (group.rank() != 1) return;
  std::string text;
  for (const auto value : values) text += " " + std::to_string(value);
  std::printf("%-21s%s\n", what, text.c_str());
}

int main() {
  auto joined = unisono::Group::join();
  if (!joined) return std::fprintf(stderr, "%s\n", joined.status().to_string().c_str()), 1;
  auto& group = *joined;
  const auto rank = static_cast<int32_t>(group.rank());
  const size_t world = group.world_size();

  // --8<-- [start:body]
  const Values mine = {10 * rank, 10 * rank + 1};  // one block
  Values blocks(2 * world);                        // one block per rank, in rank order
  std::iota(blocks.begin(), blocks.end(), 100 * rank);
  Values one(2), all(2 * world);

  show(group, "all_reduce", group.all_reduce(in(mine), out(one)), one);
  show(group, "all_reduce, maximum", group.all_reduce(in(mine), out(one), {.op = unisono::ReduceOp::max}), one);
  show(group, "reduce_scatter", group.reduce_scatter(in(blocks), out(one)), one);
  show(group, "all_gather", group.all_gather(in(mine), out(all)), all);
  show(group, "all_to_all", group.all_to_all(in(blocks), out(all)), all);
  show(group, "reduce to 1", group.reduce(in(mine), out(one), 1), one);
  show(group, "gather to 1", group.gather(in(mine), out(all), 1), all);
  show(group, "scatter from 0", group.scatter(in(blocks), out(one), 0), one);
  Values copied = mine;
  show(group, "broadcast from 2", group.broadcast(out(copied), 2), copied);
  show(group, "barrier", group.barrier(), {});

  // blocks may have different sizes, even 0; this is the number of elements of each rank
  const std::vector<size_t> counts = {3, 0, 1};
  const Values uneven(counts[group.rank()], rank);
  Values gathered(4);
  show(group, "all_gather, uneven", group.all_gather(in(uneven), out(gathered), counts), gathered);
  // --8<-- [end:body]
  return 0;
}

// Messages between two ranks, and barriers.
#include "torch_call.h"

#include <algorithm>
#include <numeric>
#include <span>

namespace unisono::torch_backend {

namespace {

constexpr uint32_t arrival_tag = 32766, departure_tag = 32767;  // of monitored barriers; users have the tags below

uint32_t checked_tag(int tag) {
  TORCH_CHECK_VALUE(tag >= 0 && static_cast<uint32_t>(tag) < arrival_tag, "unisono: tag ", tag, "; 0 to ", arrival_tag - 1,
                    " are possible");
  return static_cast<uint32_t>(tag);
}
}  // namespace

WorkPointer UnisonoBackend::send(Tensors& tensors, int to, int tag) {
  auto& tensor = only(tensors, "send");
  Call call{.type = OpType::SEND, .title = "unisono:send", .inputs = tensors};
  const auto dense = dense_input(tensor);
  call.kept = {dense};
  const auto number = checked_tag(tag);
  auto group = checked_group();
  auto options = call_options(c10d::kUnsetTimeout, call.type);
  options.id = 0;
  return issue(setup_of(std::move(call)), {group.send_async(moved(dense), to, number, options)});
}

WorkPointer UnisonoBackend::recv(Tensors& tensors, int from, int tag) {
  auto& tensor = only(tensors, "recv");
  Call call{.type = OpType::RECV,
            .title = "unisono:recv",
            .inputs = tensors,
            .outputs = tensors};  // profilers show the received tensors
  const auto dense = dense_output(tensor, false, call.copies);
  call.kept = {dense};
  const auto number = checked_tag(tag);
  TORCH_CHECK_VALUE(from >= 0 && from < size_, "unisono: recv from rank ", from, " of ", size_);
  auto group = checked_group();
  auto options = call_options(c10d::kUnsetTimeout, call.type);
  options.id = 0;
  return issue(setup_of(std::move(call)), {group.recv_async(moved_into(dense), from, number, options)});
}

WorkPointer UnisonoBackend::recvAnysource(Tensors& tensors, int tag) {
  auto& tensor = only(tensors, "recv");
  Call call{.type = OpType::RECVANYSOURCE, .title = "unisono:recvAnySource", .inputs = tensors, .outputs = tensors};
  const auto dense = dense_output(tensor, false, call.copies);
  call.kept = {dense};
  const auto number = checked_tag(tag);
  auto group = checked_group();
  auto options = call_options(c10d::kUnsetTimeout, call.type);
  options.id = 0;
  return issue(setup_of(std::move(call)), {group.recv_any_async(moved_into(dense), number, options)});
}

WorkPointer UnisonoBackend::barrier(const c10d::BarrierOptions& options) {
  Call call{.type = OpType::BARRIER, .title = "unisono:barrier", .async = options.asyncOp, .timeout = options.timeout};
  return run(
      std::move(call), [](Group& g, const CallOptions& o) { return g.barrier_async(o); },
      [](Group& g, const CallOptions& o) { return g.barrier(o); });
}

// "1, 2"; and their locations: "rank 1: host a, pid 41; rank 2: host b, pid 7"
std::pair<std::string, std::string> UnisonoBackend::names_of(const std::vector<uint32_t>& ranks) const {
  std::string numbers, processes;
  const auto members = checked_group().members();
  for (const auto rank : ranks) {
    numbers += (numbers.empty() ? "" : ", ") + std::to_string(rank);
    if (rank < members.size())
      processes += (processes.empty() ? "" : "; ") + std::string("rank ") + std::to_string(rank) + ": host " +
                   members[rank].host + ", pid " + std::to_string(members[rank].pid);
  }
  return {numbers, processes};
}

// Every rank reports to rank 0, which then notifies all of the missing ranks.
void UnisonoBackend::monitoredBarrier(const c10d::BarrierOptions& options, bool wait_for_all) {
  auto group = checked_group();
  auto with = call_options(options.timeout, OpType::UNKNOWN);
  with.id = 0;
  const auto started = std::chrono::steady_clock::now();
  std::vector<uint8_t> missing(size_, 0);
  const auto bytes = std::span(missing);
  if (rank_ > 0) {
    const uint8_t here = 1;
    auto status = group.send(std::span(&here, 1), 0, arrival_tag, with).status();
    with.timeout *= 2;  // rank 0 may wait this long before it notifies the others
    if (status.ok()) status = group.recv(bytes, 0, departure_tag, with).status();
    if (!status.ok())
      fail(status, "monitored_barrier: rank " + std::to_string(rank_) + " reached it, but has no answer from rank 0");
  } else {
    const auto arrived = std::make_shared<std::vector<uint8_t>>(size_);
    std::vector<unisono::Work> works;
    for (int rank = 1; rank < size_; ++rank) {
      works.push_back(group.recv_async(std::span(arrived->data() + rank, 1), rank, arrival_tag, with));
      works.back().notify([arrived] {});  // a late rank still writes there
    }
    for (int rank = 1; rank < size_; ++rank) {
      missing[rank] = works[rank - 1].wait().ok() ? 0 : 1;
      if (missing[rank] != 0 && !wait_for_all) break;
    }
    std::vector<unisono::Work> told;
    for (int rank = 1; rank < size_; ++rank) {
      if (missing[rank] == 0) told.push_back(group.send_async(std::span<const uint8_t>(missing), rank, departure_tag, with));
    }
    for (auto& work : told) (void)work.wait();
  }
  std::vector<uint32_t> who;
  for (int rank = 0; rank < size_; ++rank) {
    if (missing[rank] != 0) who.push_back(rank);
  }
  ++sequence_;
  if (who.empty()) return;
  const auto waited = std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::steady_clock::now() - started).count();
  const auto [numbers, processes] = names_of(who);
  fail({Code::late, "rank" + std::string(who.size() > 1 ? "s " : " ") + numbers + " did not reach it in " +
                        std::to_string(waited) + " ms (" + processes + ")"},
       "monitored_barrier");
}

}  // namespace unisono::torch_backend

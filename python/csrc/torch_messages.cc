// Messages between two ranks, and barriers.
#include "torch_call.h"

#include <algorithm>
#include <memory>
#include <numeric>
#include <span>

namespace unisono::torch_backend {

namespace {

// These tags are for monitored barriers. torch's tags are below 2^31.
constexpr uint32_t arrival_tag = 1u << 31, departure_tag = arrival_tag + 1;

}  // namespace

void UnisonoBackend::check_message(const Message& message) const {
  const auto* what = message.what;
  TORCH_CHECK_VALUE(message.tensors.size() == 1, "unisono: ", what, " takes one tensor; ", message.tensors.size(),
                    " were given");
  const auto& tensor = message.tensors.front();
  TORCH_CHECK_TYPE(tensor.layout() == at::kStrided, "unisono: ", what, " takes dense tensors");
  if (message.receives) check_output(tensor, what);
  TORCH_CHECK_VALUE(message.tag >= 0, "unisono: ", what, ": tag ", message.tag, " is negative");
  if (!message.peer) return;
  TORCH_CHECK_VALUE(*message.peer >= 0 && *message.peer < size_, "unisono: ", what, ": rank ", *message.peer,
                    " is not in this group of ", size_);
  TORCH_CHECK_VALUE(*message.peer != rank_, "unisono: ", what, ": rank ", rank_, " cannot send to itself");
}

WorkPointer UnisonoBackend::send(Tensors& tensors, int to, int tag) {
  check_message({.what = "send", .tensors = tensors, .peer = to, .tag = tag});
  auto& tensor = only(tensors, "send");
  Call call{.type = OpType::SEND, .title = "unisono:send", .inputs = tensors};
  const auto dense = dense_input(tensor);
  call.kept = {dense};
  auto group = checked_group();
  auto options = call_options(c10d::kUnsetTimeout, call.type);
  options.id = 0;
  return issue(setup_of(std::move(call)), {group.send_async(moved(dense), to, tag, options)});
}

WorkPointer UnisonoBackend::recv(Tensors& tensors, int from, int tag) {
  check_message({.what = "recv", .receives = true, .tensors = tensors, .peer = from, .tag = tag});
  auto& tensor = only(tensors, "recv");
  Call call{.type = OpType::RECV,
            .title = "unisono:recv",
            .inputs = tensors,
            .outputs = tensors};  // profilers show the tensors that were received
  const auto dense = dense_output(tensor, false, "recv", call.copies);
  call.kept = {dense};
  auto group = checked_group();
  auto options = call_options(c10d::kUnsetTimeout, call.type);
  options.id = 0;
  return issue(setup_of(std::move(call)), {group.recv_async(moved_into(dense), from, tag, options)});
}

WorkPointer UnisonoBackend::recvAnysource(Tensors& tensors, int tag) {
  check_message({.what = "recv", .receives = true, .tensors = tensors, .tag = tag});
  auto& tensor = only(tensors, "recv");
  Call call{.type = OpType::RECVANYSOURCE, .title = "unisono:recvAnySource", .inputs = tensors, .outputs = tensors};
  const auto dense = dense_output(tensor, false, "recv", call.copies);
  call.kept = {dense};
  auto group = checked_group();
  auto options = call_options(c10d::kUnsetTimeout, call.type);
  options.id = 0;
  return issue(setup_of(std::move(call)), {group.recv_any_async(moved_into(dense), tag, options)});
}

WorkPointer UnisonoBackend::barrier(const c10d::BarrierOptions& options) {
  Call call{.type = OpType::BARRIER, .title = "unisono:barrier", .async = options.asyncOp, .timeout = options.timeout};
  return run(std::move(call), [](Group& g, const CallOptions& o) { return g.barrier_async(o); });
}

// Returns two texts: the ranks ("1, 2"), and their processes ("rank 1: host a, pid 41; rank 2: host b, pid 7").
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

namespace {

// A message of a monitored barrier, and its memory. After a signal has ended the barrier, a late message may still be written
// to this memory.
using Bytes = std::shared_ptr<std::vector<uint8_t>>;
Status ended(unisono::Work work, const Bytes& bytes) {
  work.notify([bytes] {});
  (void)wait_interruptibly(far_future(), [&](Clock::duration time) { return wait_for(work, time); });
  return work.wait().status();
}

}  // namespace

// Every other rank tells rank 0 that it has arrived. Then rank 0 tells these ranks which ranks are missing.
void UnisonoBackend::monitoredBarrier(const c10d::BarrierOptions& options, bool wait_for_all) {
  auto group = checked_group();
  auto with = call_options(options.timeout, OpType::UNKNOWN);
  with.id = 0;
  const auto started = std::chrono::steady_clock::now();
  const auto answer = std::make_shared<std::vector<uint8_t>>(size_, 0);
  auto& missing = *answer;
  if (rank_ > 0) {
    const auto here = std::make_shared<std::vector<uint8_t>>(1, 1);
    auto status = ended(group.send_async(std::span<const uint8_t>(*here), 0, arrival_tag, with), here);
    with.timeout *= 2;  // rank 0 may wait for the whole timeout before it answers
    if (status.ok()) status = ended(group.recv_async(std::span(missing), 0, departure_tag, with), answer);
    if (!status.ok())
      fail(status, "monitored_barrier: rank " + std::to_string(rank_) + " reached it, but has no answer from rank 0");
  } else {
    const auto arrived = std::make_shared<std::vector<uint8_t>>(size_);
    std::vector<unisono::Work> works;
    for (int rank = 1; rank < size_; ++rank) {
      works.push_back(group.recv_async(std::span(arrived->data() + rank, 1), rank, arrival_tag, with));
      // this keeps the memory alive, because a message of a late rank may still be written to it
      works.back().notify([arrived] {});
    }
    for (int rank = 1; rank < size_; ++rank) {
      missing[rank] = ended(works[rank - 1], arrived).ok() ? 0 : 1;
      if (missing[rank] != 0 && !wait_for_all) break;
    }
    std::vector<unisono::Work> notifications;
    for (int rank = 1; rank < size_; ++rank) {
      if (missing[rank] == 0)
        notifications.push_back(group.send_async(std::span<const uint8_t>(missing), rank, departure_tag, with));
    }
    for (const auto& work : notifications) (void)ended(work, answer);
  }
  std::vector<uint32_t> missing_ranks;
  for (int rank = 0; rank < size_; ++rank) {
    if (missing[rank] != 0) missing_ranks.push_back(rank);
  }
  ++sequence_;
  if (missing_ranks.empty()) return;
  const auto waited = std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::steady_clock::now() - started).count();
  const auto [numbers, processes] = names_of(missing_ranks);
  fail({Code::late, "rank" + std::string(missing_ranks.size() > 1 ? "s " : " ") + numbers + " did not reach it in " +
                        std::to_string(waited) + " ms (" + processes + ")"},
       "monitored_barrier");
}

}  // namespace unisono::torch_backend

// Receives that accept a message from any rank. Each takes the first message with its tag. They wait here in the order of the
// calls. When a message is available, the engine turns the first receive that matches it into an ordinary receive from the
// sender.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "base/clock.h"
#include "engine/group_core.h"
#include "engine/operations/early_frames.h"
#include "engine/operations/failure_protocol.h"
#include "executor/completion.h"
#include "executor/request.h"
#include "unisono/status.h"

namespace unisono {

inline constexpr Rank any_source = UINT32_MAX;  // a receive from any rank has this as its OperationRequest::root

struct AnySourceReceive {
  GroupCore* group = nullptr;
  OperationRequest request;
  uint32_t tag = 0;
  std::shared_ptr<Completion> completion;
  Nanos started = 0, deadline = 0;
};

class AnySourceReceives {
 public:
  static constexpr size_t waiting_max = 1024;

  void add(AnySourceReceive&& receive) { waiting_.push_back(std::move(receive)); }
  bool empty() const { return waiting_.empty(); }
  size_t size() const { return waiting_.size(); }
  Nanos next_deadline() const;

  // Calls `sender` for each waiting receive. Removes and returns the first one for which it finds a sender, and sets the root
  // of this receive to that sender.
  template <typename Sender>
  std::optional<AnySourceReceive> take_first(Sender&& sender) {
    for (size_t i = 0; i < waiting_.size(); ++i) {
      const std::optional<Rank> from = sender(waiting_[i]);
      if (!from) continue;
      auto taken = std::move(waiting_[i]);
      waiting_.erase(waiting_.begin() + static_cast<std::ptrdiff_t>(i));
      taken.request.root = *from;
      return taken;
    }
    return std::nullopt;
  }
  // Ends each receive for which `why(receive)` is not ok. Returns true if there was one.
  template <typename Why>
  bool end(Why&& why) {
    return std::erase_if(waiting_, [&](AnySourceReceive& receive) {
             const Status status = why(receive);
             if (!status.ok()) fail(receive, status);
             return !status.ok();
           }) > 0;
  }
  // Ends the receives whose deadline has passed, and those in groups in which no other rank is alive.
  bool end_late(const FailureProtocol& failures, Nanos now);
  static void fail(AnySourceReceive& receive, const Status& why);
  // Finds the first early message with this tag that no ordinary receive has claimed, and returns its sender.
  static std::optional<Rank> sender_of_first(const EarlyFrames& early, const GroupCore& group, uint32_t tag);

 private:
  std::vector<AnySourceReceive> waiting_;
};

}  // namespace unisono

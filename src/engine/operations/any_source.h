// Receives that take the first message with their tag from any rank. They wait here in the order of calls. When a message is
// there, the engine makes an ordinary receive from its sender out of the first that fits. The engine owns it.
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

inline constexpr Rank any_source = UINT32_MAX;  // OperationRequest::root of such a receive

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

  // Takes out the first receive that `sender(receive)` finds a sender for, with that sender as its root.
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
  // Ends those that `why(receive)` is not ok for. True if there were any.
  template <typename Why>
  bool end(Why&& why) {
    return std::erase_if(waiting_, [&](AnySourceReceive& receive) {
             const Status status = why(receive);
             if (!status.ok()) fail(receive, status);
             return !status.ok();
           }) > 0;
  }
  // Ends those whose deadline has passed, and those that no other rank is left for.
  bool end_late(const FailureProtocol& failures, Nanos now);
  static void fail(AnySourceReceive& receive, const Status& why);
  // The rank whose message with this tag arrived first among those that no receive has asked for.
  static std::optional<Rank> sender_of_first(const EarlyFrames& early, const GroupCore& group, uint32_t tag);

 private:
  std::vector<AnySourceReceive> waiting_;
};

}  // namespace unisono

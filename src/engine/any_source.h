// Receives that take the first message with their tag, whoever sends it. They wait here, in the order of calls, until one is
// there; then they are ordinary receives from its sender. Part of the engine: called by it, and under the same rules.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "base/clock.h"
#include "engine/group_core.h"
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

  // Takes out the first one that `sender(receive)` finds a sender for, and names him.
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
  // Ends those for which `why(receive)` is not ok.
  template <typename Why>
  bool end(Why&& why) {
    return std::erase_if(waiting_, [&](AnySourceReceive& receive) {
             const Status status = why(receive);
             if (!status.ok()) fail(receive, status);
             return !status.ok();
           }) > 0;
  }
  static void fail(AnySourceReceive& receive, const Status& why);

 private:
  std::vector<AnySourceReceive> waiting_;
};

}  // namespace unisono

// What an operation says when it cannot go on: who is missing, in which phase, how many bytes.
#include <algorithm>
#include <map>
#include <string>
#include <utility>

#include "collectives/operation.h"

namespace unisono {

bool Operation::needs(Rank peer) const {
  if (done_ || peer >= flows_.size()) return false;
  const auto& flow = flows_[peer];
  if (flow.send_used < flow.send_total || flow.recv_arrived < flow.recv_total || flow.queue_head >= 0) return true;
  // Messages without bytes (empty blocks, barriers) do not show in the flows.
  for (const auto& lane : lanes_) {
    const auto& chunk = plan_->chunks[lane.chunk];
    for (auto s = lane.stage; s < chunk.stage_end && !lane.finished; ++s) {
      const auto& stage = plan_->stages[s];
      const auto ranks = plan_->receives(stage);
      for (size_t i = 0; i < ranks.size(); ++i) {
        if (ranks[i] == peer && !arrivals_.arrived(lane.arrivals + stage.recv_before + i)) return true;
      }
      const auto sends = plan_->sends(stage);
      const bool still_to_send = s > lane.stage || !lane.entered;  // what was entered is in the queue, or with the transport
      if (still_to_send && std::find(sends.begin(), sends.end(), peer) != sends.end()) return true;
    }
  }
  return false;
}

void Operation::peer_lost(Rank peer, const Status& why, Nanos now) {
  if (!needs(peer)) return;
  now_ = now;
  const auto& flow = flows_[peer];
  fail_here({Code::peer_lost, setup_.label + ": rank " + std::to_string(peer) + " was lost: " + why.message() + "; " +
                                  std::to_string(flow.recv_total - flow.recv_arrived) + " of " + std::to_string(flow.recv_total) +
                                  " bytes from it are missing; call reform()"});
}

// Who holds all up: the ranks whose missing messages are of the first round and, there, of the first slice. Others may only be
// waiting for these in turn, or be held back by us because we cannot use what they have without these; they are not named.
std::string Operation::missing_text() const {
  struct Missing {
    uint64_t bytes = 0, messages = 0, unsent_bytes = 0;
    std::pair<uint32_t, uint32_t> first{UINT32_MAX, UINT32_MAX};  // round and slice
  };
  std::map<Rank, Missing> missing;
  for (const auto& lane : lanes_) {
    if (lane.finished) continue;
    const auto& chunk = plan_->chunks[lane.chunk];
    for (auto s = lane.stage; s < chunk.stage_end; ++s) {
      const auto& stage = plan_->stages[s];
      const auto ranks = plan_->receives(stage);
      for (size_t i = 0; i < ranks.size(); ++i) {
        if (arrivals_.arrived(lane.arrivals + stage.recv_before + i)) continue;
        auto& m = missing[ranks[i]];
        m.bytes += lane_bytes(lane);
        ++m.messages;
        m.first = std::min(m.first, {stage.round, lane.slice});
      }
    }
  }
  for (const auto rank : plan_->partners) {
    const auto& flow = flows_[rank];
    if (flow.queue_head >= 0) missing[rank].unsent_bytes = flow.send_total - flow.send_used;
  }
  std::pair<uint32_t, uint32_t> first{UINT32_MAX, UINT32_MAX};
  for (const auto& [rank, m] : missing) first = std::min(first, m.first);
  std::string text;
  for (const auto& [rank, m] : missing) {
    if (m.first != first) continue;
    if (!text.empty()) text += "; ";
    text += "rank " + std::to_string(rank) + " (" + port_->place(rank) + ")";
    if (m.messages > 0) {
      const auto& flow = flows_[rank];
      text += flow.first_arrival == never ? " has sent nothing" : " has sent " + std::to_string(flow.recv_arrived) + " bytes";
      text += ", missing " + std::to_string(m.bytes) + " bytes (" + std::to_string(m.messages) + " messages, phase: round " +
              std::to_string(m.first.first) + ")";
    }
    if (m.unsent_bytes > 0) text += (m.messages > 0 ? std::string(" and") : std::string()) + " takes no more data, " + std::to_string(m.unsent_bytes) + " bytes unsent";
  }
  return text.empty() ? "this rank's own sends are not finished" : text;
}

void Operation::deadline(Nanos now) {
  if (done_) return;
  now_ = now;
  fail_here({Code::late, setup_.label + ": not finished after " + std::to_string((now - started_) / millisecond) + " ms: " + missing_text()});
}

}  // namespace unisono

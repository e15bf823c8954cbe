#include "sim/event_queue.h"

#include <algorithm>

namespace unisono::sim {
namespace {

constexpr size_t branches = 4;

}  // namespace

void EventQueue::add(Nanos at, EventKind kind, PeerIndex rank, uint64_t index) {
  const Event event{.at = std::max(at, now_), .sequence = next_sequence_++, .index = index, .rank = rank, .kind = kind};
  if (event.at == now_) return due_.push_back(event);
  if (kind != EventKind::arrive) return sift_in(event);
  auto& line = lines_[rank];
  if (line.first == no_event) {
    line.first = event.sequence;
    line.last = event.at;
    sift_in(event);
  } else if (event.at >= line.last) {
    line.last = event.at;
    line.behind.push_back(event);
  } else {
    sift_in(event);  // the event is earlier than the last event of the line, so it goes into the heap
  }
}

void EventQueue::sift_in(const Event& event) {
  size_t hole = heap_.size();
  heap_.push_back(event);
  while (hole > 0) {
    const auto parent = (hole - 1) / branches;
    if (!before(event, heap_[parent])) break;
    heap_[hole] = heap_[parent];
    hole = parent;
  }
  heap_[hole] = event;
}

Event EventQueue::pop() {
  if (due_.empty() || (!heap_.empty() && before(heap_.front(), due_.front()))) return pop_heap();
  const auto first = due_.front();
  due_.pop_front();
  return first;
}

Event EventQueue::pop_heap() {
  const auto first = heap_.front();
  now_ = first.at;
  auto& line = lines_[first.rank];
  if (first.kind == EventKind::arrive && line.first == first.sequence) {
    line.first = no_event;
    if (!line.behind.empty()) {
      const auto next = line.behind.front();
      line.behind.pop_front();
      line.first = next.sequence;
      sift_down(next);
      return first;
    }
  }
  const auto last = heap_.back();
  heap_.pop_back();
  if (!heap_.empty()) sift_down(last);
  return first;
}

// Replaces the first event of the heap by `event` and restores the heap's order.
void EventQueue::sift_down(const Event& event) {
  size_t hole = 0;
  for (;;) {
    const auto begin = hole * branches + 1;
    if (begin >= heap_.size()) break;
    const auto end = std::min(begin + branches, heap_.size());
    auto least = begin;
    for (auto child = begin + 1; child < end; ++child) {
      if (before(heap_[child], heap_[least])) least = child;
    }
    if (!before(heap_[least], event)) break;
    heap_[hole] = heap_[least];
    hole = least;
  }
  heap_[hole] = event;
}

void EventQueue::request_poll(PeerIndex rank, Nanos at) {
  at = std::max(at, now_);
  if (polls_[rank] <= at) return;
  polls_[rank] = at;
  add(at, EventKind::poll, rank, 0);
}

bool EventQueue::take_poll(const Event& event) {
  if (polls_[event.rank] != event.at) return false;
  polls_[event.rank] = never;
  return true;
}

}  // namespace unisono::sim

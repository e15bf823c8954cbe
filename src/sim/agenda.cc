#include "sim/agenda.h"

#include <algorithm>

namespace unisono::sim {
namespace {

constexpr size_t branches = 4;

}  // namespace

void Agenda::add(Nanos at, EventKind kind, PeerIndex rank, uint64_t index) {
  const Event event{.at = std::max(at, now_), .sequence = next_sequence_++, .index = index, .rank = rank, .kind = kind};
  if (event.at == now_) due_.push_back(event);
  else sift_in(event);
}

void Agenda::sift_in(const Event& event) {
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

Event Agenda::pop() {
  if (due_.empty() || (!heap_.empty() && before(heap_.front(), due_.front()))) return pop_heap();
  const auto first = due_.front();
  due_.pop_front();
  return first;
}

Event Agenda::pop_heap() {
  const auto first = heap_.front();
  const auto last = heap_.back();
  heap_.pop_back();
  now_ = first.at;
  if (heap_.empty()) return first;
  size_t hole = 0;
  for (;;) {
    const auto begin = hole * branches + 1;
    if (begin >= heap_.size()) break;
    const auto end = std::min(begin + branches, heap_.size());
    auto least = begin;
    for (auto child = begin + 1; child < end; ++child) {
      if (before(heap_[child], heap_[least])) least = child;
    }
    if (!before(heap_[least], last)) break;
    heap_[hole] = heap_[least];
    hole = least;
  }
  heap_[hole] = last;
  return first;
}

void Agenda::request_poll(PeerIndex rank, Nanos at) {
  at = std::max(at, now_);
  if (polls_[rank] <= at) return;
  polls_[rank] = at;
  add(at, EventKind::poll, rank, 0);
}

bool Agenda::take_poll(const Event& event) {
  if (polls_[event.rank] != event.at) return false;
  polls_[event.rank] = never;
  return true;
}

}  // namespace unisono::sim

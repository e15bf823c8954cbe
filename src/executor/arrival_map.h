// Says which messages of an operation have arrived, and where their bytes are. There is one entry for each lane (one slice of
// one chunk) and each message that the lane expects.
//
// Because of the map, a message that arrives twice is not added twice. The error texts of late operations list the messages
// that the map lacks.
#pragma once

#include <cstdint>
#include <vector>

#include "executor/port.h"

namespace unisono {

class ArrivalMap {
 public:
  enum class State : uint8_t { missing, receiving, held, used };

  void reset(size_t entries) {
    states_.assign(entries, State::missing);
    pieces_.resize(entries);
  }
  size_t size() const { return states_.size(); }
  State state(size_t entry) const { return states_[entry]; }
  Piece& piece(size_t entry) { return pieces_[entry]; }
  const Piece& piece(size_t entry) const { return pieces_[entry]; }

  void receiving(size_t entry, const Piece& where) { set(entry, State::receiving, where); }
  void hold(size_t entry, const Piece& where) { set(entry, State::held, where); }
  void used(size_t entry) { states_[entry] = State::used; }
  bool arrived(size_t entry) const { return states_[entry] == State::held || states_[entry] == State::used; }

 private:
  void set(size_t entry, State state, const Piece& where) {
    states_[entry] = state;
    pieces_[entry] = where;
  }
  std::vector<State> states_;
  std::vector<Piece> pieces_;
};

}  // namespace unisono

// The text of a call, with all arguments that must be equal on all ranks. Ranks whose calls differ send it to each other,
// because their frames show only a hash of some arguments. Each rank then says what differs, with both values.
#pragma once

#include <string>
#include <string_view>

#include "executor/request.h"

namespace unisono {

inline constexpr size_t call_text_max = 64u << 10;  // bytes; longer texts are cut

// The call of one rank, for an error text.
struct CallOfRank {
  Rank rank = 0;
  std::string_view location{};  // for example "host b, pid 42"; empty for the rank that makes the text
  std::string_view text{};      // result of call_text() or of to_string(CallDescriptor)
};

// Returns the call and its arguments, separated by "; ". For a lossy call, `slice_bytes` is the size of the largest datagram.
// For example
// "broadcast(f32, 10 elements, direct); root 1; slices of 65536 bytes; no codec; no agreement".
std::string call_text(const OperationRequest& request, const CallDescriptor& descriptor, uint64_t slice_bytes, uint32_t world);
// Returns both calls with those arguments that differ, for example "calls differ: rank 1 (host b, pid 42) calls broadcast(f32,
// 10 elements, direct) with root 1, rank 0 calls broadcast(f32, 10 elements, direct) with root 0; all ranks must make the same
// call". It names this rank by its number, because other ranks show the text, too.
std::string call_difference(const CallOfRank& theirs, const CallOfRank& ours);
// The same for a call of which only the descriptor is known. If the descriptors differ in their hash only, the text says which
// arguments may differ.
struct DescriptorOfRank {
  Rank rank = 0;
  std::string_view location{};
  CallDescriptor descriptor{};
  bool receives = false;  // true: a receive, and not the send with the same descriptor
};
std::string descriptor_difference(const DescriptorOfRank& theirs, const DescriptorOfRank& ours);

}  // namespace unisono

#include "executor/call_text.h"

#include <algorithm>
#include <vector>

#include "base/concat.h"
#include "schedules/collective_facts.h"

namespace unisono {
namespace {

constexpr std::string_view separator = "; ";
constexpr size_t differences_shown_max = 4;

std::vector<std::string_view> arguments_of(std::string_view text) {
  std::vector<std::string_view> arguments;
  for (;;) {
    const auto end = text.find(separator);
    arguments.push_back(text.substr(0, end));
    if (end == std::string_view::npos) return arguments;
    text.remove_prefix(end + separator.size());
  }
}

// Returns the block sizes on which all ranks must agree. Empty: the blocks have equal sizes, or only two ranks know a size.
std::span<const size_t> agreed_counts(const OperationRequest& q) {
  if (q.collective == Collective::reduce_scatter) return q.send_counts;
  if (q.collective == Collective::all_gather) return q.recv_counts;
  return {};
}

// Returns the call, and " with" those of its arguments that the other call does not have.
std::string call_with_arguments(const std::vector<std::string_view>& arguments, const std::vector<std::string_view>& other) {
  std::string text(arguments.front());
  size_t shown = 0, more = 0;
  for (size_t i = 1; i < arguments.size(); ++i) {
    if (std::find(other.begin(), other.end(), arguments[i]) != other.end()) continue;
    if (shown == differences_shown_max) ++more;
    else text += concat(shown++ == 0 ? " with " : ", ", arguments[i]);
  }
  return more == 0 ? text : concat(text, " and ", more, " more differences");
}

}  // namespace

std::string call_text(const OperationRequest& q, const CallDescriptor& descriptor, uint64_t slice_bytes, uint32_t world) {
  auto text = to_string(descriptor, q.collective == Collective::recv);
  const auto add = [&](const std::string& argument) { text += std::string(separator) + argument; };
  if (is_rooted(q.collective)) add(concat("root ", q.root));
  const auto counts = agreed_counts(q);
  const bool lossy = q.delivery != Delivery::reliable;
  const bool has_agreed_blocks =
      !lossy && (q.collective == Collective::reduce_scatter || q.collective == Collective::all_gather);
  if (lossy && q.shard_unit != 0) add(concat("shards of whole units of ", q.shard_unit, " elements"));
  for (size_t i = 0; i < world && has_agreed_blocks; ++i)
    add(concat("block ", i, " of ", counts.empty() ? q.count : counts[i], " elements"));
  add(concat(lossy ? "datagrams of at most " : "slices of ", slice_bytes, " bytes"));
  add(q.codec->is_plain() ? "no codec" : "codec " + q.codec->to_string());
  add(q.agreement == 0 ? "no agreement" : concat("agreement ", q.agreement));
  return text.substr(0, call_text_max);
}

std::string call_difference(const CallOfRank& theirs, const CallOfRank& ours) {
  const auto their_arguments = arguments_of(theirs.text), our_arguments = arguments_of(ours.text);
  const auto part = [](const CallOfRank& call, const std::string& text) {
    return concat("rank ", call.rank, call.location.empty() ? "" : concat(" (", call.location, ")"), " calls ", text);
  };
  const bool same = their_arguments.front() == our_arguments.front();
  return concat("calls differ: ",
                part(theirs, same ? call_with_arguments(their_arguments, our_arguments) : std::string(their_arguments.front())),
                ", ",
                part(ours, same ? call_with_arguments(our_arguments, their_arguments) : std::string(our_arguments.front())),
                "; all ranks must make the same call");
}

std::string descriptor_difference(const DescriptorOfRank& theirs, const DescriptorOfRank& ours) {
  const auto their_text = to_string(theirs.descriptor, theirs.receives), our_text = to_string(ours.descriptor, ours.receives);
  const auto text = call_difference({.rank = theirs.rank, .location = theirs.location, .text = their_text},
                                    {.rank = ours.rank, .location = ours.location, .text = our_text});
  return differ_visibly(theirs.descriptor, ours.descriptor)
             ? text
             : text + ": these two differ in root, block sizes, slice size, agreement, or options of the codec";
}

}  // namespace unisono

#include "training/settings/same_settings.h"

#include <algorithm>
#include <string_view>

#include "base/concat.h"
#include "base/hash.h"

namespace unisono::internal {
namespace {

// The texts are exchanged as bytes, and the hashes as integers, so no codec of the group changes them.
class Exchange {
 public:
  Exchange(Group& group, Milliseconds timeout) : group_(group), options_{.timeout = timeout, .codec = Codec()} {}

  Result<std::vector<uint64_t>> numbers(const std::vector<uint64_t>& own) {
    std::vector<uint64_t> all(own.size() * group_.world_size());
    if (auto done = group_.all_gather(std::span<const uint64_t>(own), std::span<uint64_t>(all), {}, options_); !done.ok())
      return done.status();
    return all;
  }
  Result<std::vector<std::string>> texts(const std::string& own) {
    const auto sizes = numbers({own.size()});
    if (!sizes.ok()) return sizes.status();
    const std::vector<size_t> counts(sizes->begin(), sizes->end());
    size_t total = 0;
    for (const auto count : counts) total += count;
    std::string all(total, 0);
    const ConstTensor mine(own.data(), own.size(), DType::u8);
    if (auto done = group_.all_gather(mine, Tensor(all.data(), all.size(), DType::u8), counts, options_); !done.ok())
      return done.status();
    std::vector<std::string> texts;
    size_t begin = 0;
    for (const auto count : counts) texts.push_back(all.substr(begin, count)), begin += count;
    return texts;
  }

 private:
  Group& group_;
  const CallOptions options_;
};

std::string text_of(const Setting& setting) {
  std::string text;
  for (const auto& value : setting.values) text += value + '\0';
  return text;
}

// Returns the value that begins at `at`.
std::string_view value_at(std::string_view text, size_t at) {
  return at >= text.size() ? "nothing" : text.substr(at, text.find('\0', at) - at);
}

// Returns where the first value that differs begins. The texts must differ.
size_t first_difference(std::string_view a, std::string_view b) {
  const auto [end, unused] = std::mismatch(a.begin(), a.end(), b.begin(), b.end());
  const auto last = a.substr(0, static_cast<size_t>(end - a.begin())).rfind('\0');
  return last == std::string_view::npos ? 0 : last + 1;
}

std::string name_of(const Group& group, uint32_t rank) {
  for (const auto& member : group.members()) {
    if (member.rank == rank) return concat("rank ", rank, " (host ", member.host, ", pid ", member.pid, ")");
  }
  return concat("rank ", rank);
}

Status difference(Exchange& exchange, const Group& group, const Setting& setting) {
  const auto own = text_of(setting);
  const auto texts = exchange.texts(own);
  if (!texts.ok()) return texts.status();
  const auto other = std::find_if(texts->begin(), texts->end(), [&](const auto& text) { return text != own; });
  const auto what = concat("config_mismatch: ", setting.name, " differ");
  if (other == texts->end()) return {Code::invalid, what + " between other ranks"};
  const auto at = first_difference(own, *other);
  const auto rank = static_cast<uint32_t>(other - texts->begin());
  return {Code::invalid, concat(what, ": ", name_of(group, rank), " has ", value_at(*other, at), ", rank ", group.rank(),
                                " has ", value_at(own, at), "; give all ranks the same")};
}

}  // namespace

Status check_same_settings(Group& group, std::span<const Setting> settings, Milliseconds timeout) {
  Exchange exchange(group, timeout);
  std::vector<uint64_t> own;
  for (const auto& setting : settings) {
    const auto text = text_of(setting);
    own.push_back(hash_of(std::as_bytes(std::span(text))));
  }
  const auto all = exchange.numbers(own);
  if (!all.ok()) return all.status();
  for (size_t i = 0; i < settings.size(); ++i) {
    for (size_t rank = 1; rank < group.world_size(); ++rank) {
      if ((*all)[rank * settings.size() + i] != (*all)[i]) return difference(exchange, group, settings[i]);
    }
  }
  return {};
}

}  // namespace unisono::internal

#include "sim/loss_model.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <iterator>
#include <span>

#include "base/concat.h"

namespace unisono::sim {
namespace {

using Kind = LossModel::Kind;

constexpr double burst_max = 1e9;
constexpr double rounding = 1e-9;  // decimal numbers are inexact, so comparisons tolerate this difference

struct Key {
  const char* name;
  double LossModel::*value;
  bool required = true;
};
struct KindText {
  Kind kind;
  const char* name;
  std::span<const Key> keys;
};
constexpr Key iid_keys[] = {{"p", &LossModel::loss}};
constexpr Key gilbert_elliott_keys[] = {
    {"p", &LossModel::loss}, {"burst", &LossModel::burst}, {"good", &LossModel::good, false}, {"bad", &LossModel::bad, false}};
constexpr Key chain_keys[] = {{"p", &LossModel::loss}, {"recovery", &LossModel::recovery}};
constexpr Key joint_keys[] = {{"p", &LossModel::loss}, {"both", &LossModel::both}};
constexpr Key links_keys[] = {{"p", &LossModel::loss, false}};
constexpr KindText kinds[] = {
    {Kind::none, "none", {}},
    {Kind::iid, "iid", iid_keys},
    {Kind::gilbert_elliott, "gilbert_elliott", gilbert_elliott_keys},
    {Kind::chain, "chain", chain_keys},
    {Kind::joint, "joint", joint_keys},
    {Kind::links, "links", links_keys},
};
static_assert([] {
  for (size_t i = 0; i < std::size(kinds); ++i) {
    if (static_cast<size_t>(kinds[i].kind) != i) return false;
  }
  return true;
}());

Status wrong(const std::string& what) { return {Code::invalid, "bad_loss_model: " + what}; }

template <typename Number>
bool read(Number& number, std::string_view text) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  return error == std::errc() && end == text.data() + text.size();
}

bool read_share(double& share, std::string_view text) { return read(share, text) && share >= 0 && share <= 1; }

bool read_rank_or_any(int64_t& rank, std::string_view text) {
  uint32_t number = 0;
  rank = -1;
  if (text == "*") return true;
  if (!read(number, text)) return false;
  rank = number;
  return true;
}

// Returns the shortest text that parses to the same number.
std::string shortest(double number) {
  char text[32];
  return {text, std::to_chars(std::begin(text), std::end(text), number).ptr};
}

std::string rank_or_any_text(int64_t rank) { return rank < 0 ? "*" : std::to_string(rank); }

// Parses text such as "0>1=0.3".
Status read_link(LossModel& model, std::string_view part) {
  const auto arrow = part.find('>'), equals = part.find('=');
  LossModel::Link link;
  if (equals == part.npos || arrow > equals || !read_rank_or_any(link.sender, part.substr(0, arrow)) ||
      !read_rank_or_any(link.receiver, part.substr(arrow + 1, equals - arrow - 1)) ||
      !read_share(link.loss, part.substr(equals + 1)))
    return wrong(std::string(part) + ": expected a link such as 0>1=0.3 or 2>*=0.1: sender, receiver, and loss from 0 to 1");
  if (link.sender >= 0 && link.sender == link.receiver) return wrong(std::string(part) + ": a rank has no link to itself");
  model.links.push_back(link);
  return {};
}

// Parses text such as "3@100" or "3@100-200".
Status read_dead(LossModel& model, std::string_view value) {
  const auto at = value.find('@'), dash = value.find('-');
  LossModel::Outage outage{.to = LossModel::no_end};
  const bool good = at != value.npos && read(outage.rank, value.substr(0, at)) &&
                    read(outage.from, value.substr(at + 1, dash == value.npos ? dash : dash - at - 1)) &&
                    (dash == value.npos || read(outage.to, value.substr(dash + 1)));
  if (!good || outage.to < outage.from)
    return wrong("dead=" + std::string(value) +
                 ": expected an outage such as 3@100 or 3@100-200: a rank, the first step, and the last step");
  model.dead.push_back(outage);
  return {};
}

// Parses text such as "3x0.2".
Status read_slow(LossModel& model, std::string_view value) {
  const auto cross = value.find('x');
  LossModel::Slow slow;
  if (cross == value.npos || !read(slow.rank, value.substr(0, cross)) || !read_share(slow.share, value.substr(cross + 1)))
    return wrong("slow=" + std::string(value) +
                 ": expected 3x0.2: a rank, and the fraction of its streams that arrive too late");
  model.slow.push_back(slow);
  return {};
}

Status read_granularity(LossModel& model, std::string_view value) {
  if (value != "datagram" && value != "shard")
    return wrong("granularity=" + std::string(value) + ": expected datagram or shard");
  model.granularity = value == "shard" ? LossModel::Granularity::shard : LossModel::Granularity::datagram;
  return {};
}

Status read_number(LossModel& model, const Key& key, std::string_view value) {
  double& number = model.*key.value;
  const bool is_burst = key.value == &LossModel::burst;
  if (!read(number, value) || !(number >= (is_burst ? 1 : 0) && number <= (is_burst ? burst_max : 1)))
    return wrong(std::string(key.name) + "=" + std::string(value) + ": not a number from " +
                 (is_burst ? "1 to 1e9" : "0 to 1"));
  return {};
}

Status read_part(LossModel& model, const KindText& kind, std::string_view part) {
  const auto equals = std::min(part.find('='), part.size());
  const auto key = part.substr(0, equals), value = part.substr(std::min(equals + 1, part.size()));
  if (key == "dead") return read_dead(model, value);
  if (key == "slow") return read_slow(model, value);
  if (key == "granularity") return read_granularity(model, value);
  if (kind.kind == Kind::links && part.find('>') != part.npos) return read_link(model, part);
  std::string known;
  for (const auto& each : kind.keys) {
    if (key == each.name) return read_number(model, each, value);
    known += each.name + std::string(", ");
  }
  if (kind.kind == Kind::links) known += "SENDER>RECEIVER, ";
  return wrong("\"" + std::string(part) + "\" is none of " + known + "granularity, dead, slow");
}

Status check_law(const LossModel& model) {
  const double p = model.loss;
  switch (model.kind) {
    case Kind::none:
    case Kind::iid:
    case Kind::links: return {};
    case Kind::gilbert_elliott:
      if (!(p >= model.good && p < model.bad))
        return wrong("p=" + shortest(p) + ": it must be at least good=" + shortest(model.good) +
                     " and less than bad=" + shortest(model.bad));
      if (model.fall() > 1 + rounding)
        return wrong("burst=" + shortest(model.burst) + ": bursts must be longer for so much loss: at least " +
                     shortest((p - model.good) / (model.bad - p)));
      return {};
    case Kind::chain:
      if (p >= 1) return wrong("p=" + shortest(p) + ": a chain that recovers cannot lose everything, so p must be less than 1");
      if (!(model.recovery > 0)) return wrong("recovery=0: what was lost would never arrive again");
      if (model.fall() > 1 + rounding)
        return wrong("recovery=" + shortest(model.recovery) + ": at most " + shortest((1 - p) / p) +
                     " is possible with this much loss");
      return {};
    case Kind::joint:
      if (p >= 1) return wrong("p=" + shortest(p) + ": it must be less than 1");
      if (!(model.both >= p * p - rounding && model.both <= p + rounding))
        return wrong("both=" + shortest(model.both) + ": it must lie between " + shortest(p * p) +
                     " (independent receivers) and p=" + shortest(p));
      return {};
  }
  return {};
}

// Parses the parts after the colon. If the first part has no name, it is the value of `p`.
Status read_parts(LossModel& model, const KindText& kind, std::string_view parts) {
  std::string seen = ",";
  for (size_t begin = 0; begin <= parts.size();) {
    const size_t end = std::min(parts.find(',', begin), parts.size());
    const auto part = parts.substr(begin, end - begin);
    const bool bare = begin == 0 && !kind.keys.empty() && part.find_first_of("=>@") == part.npos;
    if (auto status = bare ? read_number(model, kind.keys[0], part) : read_part(model, kind, part); !status.ok()) return status;
    const auto key = bare ? std::string(kind.keys[0].name) : std::string(part.substr(0, part.find('=')));
    if (key != "dead" && key != "slow" && seen.find("," + key + ",") != seen.npos)
      return wrong(std::string(part) + ": is given twice");
    seen += key + ",";
    begin = end + 1;
  }
  for (const auto& key : kind.keys) {
    if (key.required && seen.find("," + std::string(key.name) + ",") == seen.npos)
      return wrong(std::string(kind.name) + ": " + key.name + "= is missing");
  }
  return {};
}

}  // namespace

Result<LossModel> LossModel::parse(std::string_view text) {
  LossModel model;
  if (double number = 0; read(number, text)) {
    model.kind = Kind::iid;
    if (auto status = read_number(model, iid_keys[0], text); !status.ok()) return status;
    return model;
  }
  const auto colon = std::min(text.find(':'), text.size());
  const auto* kind = std::find_if(std::begin(kinds), std::end(kinds),
                                  [&](const KindText& each) { return text.substr(0, colon) == each.name; });
  if (kind == std::end(kinds))
    return wrong("\"" + std::string(text.substr(0, colon)) +
                 "\" is neither a loss from 0 to 1 nor one of none, iid, gilbert_elliott, chain, joint, links");
  model.kind = kind->kind;
  if (colon < text.size()) {
    if (auto status = read_parts(model, *kind, text.substr(colon + 1)); !status.ok()) return status;
  } else if (std::any_of(kind->keys.begin(), kind->keys.end(), [](const Key& key) { return key.required; })) {
    return wrong(std::string(kind->name) + ": " + kind->keys[0].name + "= is missing");
  }
  if (auto status = check_law(model); !status.ok()) return status;
  return model;
}

std::string LossModel::to_string() const {
  const auto& text = kinds[static_cast<size_t>(kind)];
  const LossModel usual;
  std::string all = text.name;
  const auto add = [&](const std::string& part) { all += (all.find(':') == all.npos ? ":" : ",") + part; };
  for (const auto& key : text.keys) {
    if (kind == Kind::iid) add(shortest(loss));
    else if (key.required || this->*key.value != usual.*key.value)
      add(std::string(key.name) + "=" + shortest(this->*key.value));
  }
  for (const auto& link : links)
    add(rank_or_any_text(link.sender) + ">" + rank_or_any_text(link.receiver) + "=" + shortest(link.loss));
  if (granularity == Granularity::shard) add("granularity=shard");
  for (const auto& outage : dead)
    add(concat("dead=", outage.rank, "@", outage.from, outage.to == no_end ? "" : concat("-", outage.to)));
  for (const auto& one : slow) add(concat("slow=", one.rank, "x", shortest(one.share)));
  return all;
}

Status LossModel::check(uint32_t world) const {
  int64_t last = -1;
  for (const auto& link : links) last = std::max({last, link.sender, link.receiver});
  for (const auto& outage : dead) last = std::max<int64_t>(last, outage.rank);
  for (const auto& one : slow) last = std::max<int64_t>(last, one.rank);
  return last < world ? Status() : wrong(concat("names rank ", last, ", but the ranks are 0 to ", world - 1));
}

double LossModel::link_loss(Rank sender, Rank receiver) const {
  if (kind == Kind::none) return 0;
  double found = loss;
  for (const auto& link : links) {
    if ((link.sender < 0 || link.sender == sender) && (link.receiver < 0 || link.receiver == receiver)) found = link.loss;
  }
  return found;
}

// Let a link spend the fraction s of the time in the bad state. It turns bad with probability a, and recovers with probability
// r. In the stationary state, a (1 - s) = r s, and the mean loss is p = (1 - s) h_g + s h_b. Let L = 1 / r be the mean length
// of a burst. With h_g = 0 and h_b = 1 it follows that a = p / (L (1 - p)).
double LossModel::fall() const {
  if (kind == Kind::gilbert_elliott) return (loss - good) / (burst * (bad - loss));
  return kind == Kind::chain ? loss * recovery / (1 - loss) : 0;
}

// Let x be the probability that all receivers lose a range together, and y the probability that one receiver loses it
// independently. One receiver loses a range with probability p = x + (1 - x) y, and two receivers both lose it with probability
// c = x + (1 - x) y^2. It follows that 1 - c = (1 - p)(1 + y).
double LossModel::own_loss() const { return std::clamp((loss - both) / (1 - loss), 0., 1.); }
double LossModel::common_loss() const { return std::clamp(1 - (1 - loss) / (1 - own_loss()), 0., 1.); }

}  // namespace unisono::sim

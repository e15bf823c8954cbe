#include "rendezvous/rendezvous_refusal_log.h"

#include "base/concat.h"

namespace unisono::rendezvous {
namespace {

constexpr size_t claimed_bytes_max = 64;

std::string printable(std::string_view text) {
  std::string out(text.substr(0, claimed_bytes_max));
  for (char& c : out) {
    if (c < 0x20 || c > 0x7e) c = '?';
  }
  return out;
}

}  // namespace

std::string claim_of(const Hello& hello) {
  const auto host = concat("host ", printable(hello.host));
  if (hello.protocol != protocol_version || hello.role == Role::joiner) return "a process of " + host;
  return concat("rank ", hello.member.rank, " (", host, ")");
}

std::optional<std::string> RefusalLog::add(const std::string& text, Nanos now) {
  ++count_;
  if (kept_.size() < kept_max) kept_.push_back(text);
  if (count_ == 1 || now - period_begin_ >= period) {
    period_begin_ = now;
    reported_ = 0;
  }
  if (reported_ == reports_max) {
    ++left_out_;
    return std::nullopt;
  }
  ++reported_;
  const auto left_out = std::exchange(left_out_, 0);
  return left_out == 0 ? text : concat(text, " (", left_out, " more before it)");
}

std::string RefusalLog::summary() const {
  if (kept_.empty()) return {};
  std::string text = "; not authenticated:";
  for (const auto& each : kept_) text += " [" + each + "]";
  return count_ == kept_.size() ? text : concat(text, " and ", count_ - kept_.size(), " more");
}

}  // namespace unisono::rendezvous

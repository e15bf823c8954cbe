#include "transports/tcp/tcp_verdict.h"

namespace unisono {
namespace {

constexpr uint32_t suspicious_repeats = 2;
constexpr Nanos suspicious_silence = 1 * second;

// The peer sent its last frame. Its end may still lack this side's confirmation, and it may be unable to dial.
TcpVerdict judge_leaving(const TcpEvidence& seen, const TcpVerdictLimits& limits) {
  const bool needs_nothing = seen.no_session || seen.refused || seen.gone || seen.process_there == false;
  if (seen.end == TcpEnd::clean || needs_nothing || seen.down_for >= limits.link_timeout) return TcpVerdict::left;
  return TcpVerdict::outage;
}

bool is_dead(const TcpEvidence& seen, const TcpVerdictLimits& limits) {
  if (seen.process_there) return !*seen.process_there;
  if (seen.gone) return true;
  if (seen.refused && (seen.answered_before || seen.refused_for >= limits.refused_timeout)) return true;
  return seen.end == TcpEnd::clean && seen.down_for >= limits.silence_after_end;
}

}  // namespace

TcpVerdict judge(const TcpEvidence& seen, const TcpVerdictLimits& limits) {
  if (seen.confirmed && seen.end != TcpEnd::none) return TcpVerdict::left;
  if (seen.leaving && seen.end != TcpEnd::none) return judge_leaving(seen, limits);
  if (seen.successor) return TcpVerdict::dead;
  if (seen.no_session) return TcpVerdict::lost;
  if (seen.end == TcpEnd::none) return TcpVerdict::outage;
  if (is_dead(seen, limits)) return TcpVerdict::dead;
  return seen.down_for >= limits.link_timeout ? TcpVerdict::lost : TcpVerdict::outage;
}

bool is_suspicious(uint64_t unacknowledged_bytes, uint32_t repeats, Nanos since_acknowledged) {
  return unacknowledged_bytes > 0 && repeats >= suspicious_repeats && since_acknowledged >= suspicious_silence;
}

}  // namespace unisono

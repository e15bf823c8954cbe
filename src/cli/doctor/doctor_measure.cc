#include "cli/doctor/doctor_measure.h"

#include <linux/tcp.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "cli/common/monotonic.h"
#include "cli/doctor/doctor_responder.h"

namespace unisono::cli {
namespace {

constexpr Nanos connect_timeout = 2500 * millisecond;
constexpr Nanos short_timeout = 3 * second;
// TCP sends a lost segment again after 0.2 s, and once more after another 0.4 s. If full frames can pass at all, one of them
// has passed by this time.
constexpr Nanos stuck_after = 1500 * millisecond;
constexpr Nanos slow_timeout = 5 * second;
constexpr uint32_t echo_bytes = 64;
constexpr uint32_t long_bytes = 64 << 10;
// Short frames have fewer bytes than this. So if this many bytes are acknowledged, long frames pass.
constexpr uint32_t moved_bytes = 4096;
constexpr int echoes = 40, echoes_unmeasured = 4;
constexpr uint32_t span_ms = 240;
constexpr int attempts_max = 3;
// If the rates of the two directions differ by more than this factor, both are measured again. The factor is smaller than
// slow_factor in doctor_findings_pairs.cc, so a single disturbed measurement does not make a link look slow.
constexpr double asymmetry_max = 2.5;
// The TCP segment sizes that fit into IP packets of 1440, 1400, 1300, 1200, 1000, 800 and 576 bytes.
constexpr uint32_t smaller_segments[] = {1400, 1360, 1260, 1160, 960, 760, 536};

uint64_t acknowledged(const ByteStream& stream, uint32_t* segment = nullptr) {
  tcp_info info{};
  socklen_t size = sizeof info;
  if (::getsockopt(stream.get(), IPPROTO_TCP, TCP_INFO, &info, &size) != 0) return 0;
  if (segment != nullptr) *segment = info.tcpi_snd_mss;
  return info.tcpi_bytes_acked;
}

Result<ByteStream> open_stream(const RankFacts& other, const DialRequest& dial) {
  auto dialled = dial_all(std::span(&dial, 1), monotonic_now() + connect_timeout);
  auto& one = dialled.front();
  if (one.attempt.outcome == Outcome::reached) greet(one, other, monotonic_now() + short_timeout);
  if (one.attempt.outcome != Outcome::reached) return Status(Code::unavailable, one.attempt.address + ": " + one.attempt.error);
  return std::move(one.stream);
}

Status ask(ByteStream& stream, ProbeRequest request, Nanos deadline) { return stream.send(object_bytes(request), deadline); }

struct Echo {
  int64_t sent_ns = 0, received_ns = 0;  // CLOCK_REALTIME of this process
  Nanos took = 0;
  Stamp stamp;
};

Result<Echo> echo(ByteStream& stream, uint32_t bytes, Nanos deadline) {
  std::vector<std::byte> payload(bytes);
  Echo result;
  result.sent_ns = realtime_ns();
  const auto began = monotonic_now();
  auto status = ask(stream, {.kind = ProbeRequest::Kind::echo, .bytes = bytes}, deadline);
  if (status.ok()) status = stream.send(payload, deadline);
  if (status.ok()) status = stream.receive(object_bytes(result.stamp), deadline);
  if (!status.ok()) return status;
  result.took = monotonic_now() - began;
  result.received_ns = realtime_ns();
  return result;
}

Status measure_round_trip(ByteStream& stream, Measured& measured) {
  std::vector<Nanos> times;
  Nanos best = never;
  const auto deadline = monotonic_now() + short_timeout;
  for (int i = 0; i < echoes; ++i) {
    auto one = echo(stream, echo_bytes, deadline);
    if (!one.ok()) return {one.status().code(), "short frames: " + one.status().message()};
    if (i < echoes_unmeasured) continue;
    times.push_back(one->took);
    if (one->took >= best) continue;
    best = one->took;
    // The difference of the clocks, estimated as NTP does (RFC 5905, section 8). The exchange with the shortest round trip is
    // used.
    measured.clock_ahead_us =
        static_cast<double>((one->stamp.received_ns - one->sent_ns) + (one->stamp.answered_ns - one->received_ns)) / 2000.0;
  }
  std::nth_element(times.begin(), times.begin() + static_cast<ptrdiff_t>(times.size() / 2), times.end());
  measured.round_trip_us = static_cast<double>(times[times.size() / 2]) / 1000.0;
  return {};
}

// Sends long frames to the other side. Sets `stuck` if none of them arrives. If some bytes are acknowledged, the link is slow
// but not stuck, so it gets more time.
Status long_frames_forth(ByteStream& stream, uint32_t bytes, bool& stuck) {
  const auto before = acknowledged(stream);
  const auto began = monotonic_now();
  std::vector<std::byte> payload(bytes);
  Stamp stamp;
  auto status = ask(stream, {.kind = ProbeRequest::Kind::echo, .bytes = bytes}, began + stuck_after);
  if (status.ok()) status = stream.send(payload, began + slow_timeout);
  if (status.ok()) status = stream.receive(object_bytes(stamp), began + stuck_after);
  if (status.code() == Code::late && acknowledged(stream) - before >= moved_bytes) {
    status = stream.receive(object_bytes(stamp), began + slow_timeout);
  }
  stuck = status.code() == Code::late && acknowledged(stream) - before < moved_bytes;
  return status;
}

Status long_frames_back(ByteStream& stream, uint32_t bytes, bool& stuck) {
  const auto began = monotonic_now();
  std::vector<std::byte> payload(bytes);
  auto status = ask(stream, {.kind = ProbeRequest::Kind::burst, .bytes = bytes}, began + stuck_after);
  if (status.ok()) status = stream.receive(payload, began + stuck_after);
  const auto come = stream.received();
  if (status.code() == Code::late && come > 0) {
    status = stream.receive(std::span(payload).subspan(come), began + slow_timeout);
  }
  stuck = status.code() == Code::late && come == 0;
  return status;
}

bool passes(const RankFacts& other, DialRequest dial, uint32_t segment) {
  dial.segment_bytes_max = segment;
  auto stream = open_stream(other, dial);
  if (!stream.ok()) return false;
  bool stuck = false;
  const bool both =
      long_frames_forth(*stream, long_bytes / 4, stuck).ok() && long_frames_back(*stream, long_bytes / 4, stuck).ok();
  stream->abort();
  return both;
}

// Sends bytes until the other side reports how many of them have arrived.
Result<Count> push(ByteStream& stream) {
  const auto deadline = monotonic_now() + short_timeout;
  if (auto status = ask(stream, {.kind = ProbeRequest::Kind::sink, .ms = span_ms}, deadline); !status.ok()) return status;
  const std::vector<std::byte> piece(256 << 10);
  Count count;
  for (auto now = monotonic_now(); now < deadline; now = monotonic_now()) {
    pollfd ready{stream.get(), POLLIN | POLLOUT, 0};
    if (::poll(&ready, 1, poll_milliseconds(deadline, now)) < 1) continue;
    if ((ready.revents & POLLIN) != 0) {
      auto status = stream.receive(object_bytes(count), deadline);
      return status.ok() ? Result<Count>(count) : Result<Count>(status);
    }
    if (const auto sent = send_some(stream.get(), piece); sent < 0) {
      return Status(Code::peer_lost, error_text(static_cast<int>(-sent)));
    }
  }
  return Status(Code::late, "no answer in time");
}

double rate_of(const Count& count) {
  return count.took_ns > 0 ? static_cast<double>(count.bytes) * 1e9 / static_cast<double>(count.took_ns) : 0;
}

Status measure_rate_forth(ByteStream& stream, Measured& measured) {
  auto forth = push(stream);
  stream.abort();
  if (!forth.ok()) return {forth.status().code(), "bandwidth forth: " + forth.status().message()};
  measured.forth_rate = rate_of(*forth);
  return {};
}

Status measure_rate_back(ByteStream& stream, Measured& measured) {
  auto status = ask(stream, {.kind = ProbeRequest::Kind::source, .ms = 2 * span_ms}, monotonic_now() + short_timeout);
  if (!status.ok()) return status;
  auto back = count_incoming(stream, span_ms, short_timeout);
  stream.abort();
  if (!back.ok()) return {back.status().code(), "bandwidth back: " + back.status().message()};
  measured.back_rate = rate_of(*back);
  return {};
}

// Runs one stage of the measurement on a new connection. So data that is stuck in one stage does not disturb the next stage.
template <typename Stage>
bool run_stage(const RankFacts& other, const DialRequest& dial, Measured& measured, Stage stage) {
  auto stream = open_stream(other, dial);
  const auto status = stream.ok() ? stage(*stream) : stream.status();
  if (!status.ok() && measured.error.empty()) measured.error = status.message();
  return status.ok();
}

}  // namespace

void greet(Dialled& dialled, const RankFacts& other, Nanos deadline) {
  ProbeHello hello;
  auto greeting = probe_greeting;
  greeting.fill('\0');
  std::memcpy(hello.key.data(), other.key.data(), std::min(other.key.size(), hello.key.size()));
  auto status = dialled.stream.send(object_bytes(hello), deadline);
  if (status.ok()) status = dialled.stream.receive(object_bytes(greeting), deadline);
  if (status.ok() && greeting == probe_greeting) return;
  const bool silent = status.code() == Code::late;
  dialled.attempt.outcome = silent ? Outcome::no_answer : Outcome::unauthenticated;
  dialled.attempt.error = silent ? "connected, but no answer to the greeting" : "another program answers there";
  dialled.stream.abort();
}

Measured measure_pair(uint32_t from, const RankFacts& other, const DialRequest& dial) {
  Measured measured{.from = from, .to = other.rank, .address = dial.to.to_string()};
  const auto run = [&](auto stage) { return run_stage(other, dial, measured, stage); };
  if (!run([&](ByteStream& stream) {
        (void)acknowledged(stream, &measured.segment_bytes);
        return measure_round_trip(stream, measured);
      }))
    return measured;
  run([&](ByteStream& stream) { return long_frames_forth(stream, long_bytes, measured.forth_stuck); });
  run([&](ByteStream& stream) { return long_frames_back(stream, long_bytes, measured.back_stuck); });
  if (measured.forth_stuck || measured.back_stuck) {
    measured.error = "long frames do not pass";
    for (const auto segment : smaller_segments) {
      if (segment >= measured.segment_bytes || !passes(other, dial, segment)) continue;
      measured.segment_passes = segment;
      break;
    }
    return measured;
  }
  // A processor that is busy for a moment makes one direction look slow. So if the two rates differ much, both are measured
  // again, up to three times in all. The best rate of each direction is kept.
  for (int attempt = 0; attempt < attempts_max && measured.error.empty(); ++attempt) {
    const auto before = measured;
    if (!run([&](ByteStream& stream) { return measure_rate_forth(stream, measured); })) break;
    if (!run([&](ByteStream& stream) { return measure_rate_back(stream, measured); })) break;
    measured.forth_rate = std::max(measured.forth_rate, before.forth_rate);
    measured.back_rate = std::max(measured.back_rate, before.back_rate);
    if (std::max(measured.forth_rate, measured.back_rate) < asymmetry_max * std::min(measured.forth_rate, measured.back_rate))
      break;
  }
  return measured;
}

}  // namespace unisono::cli

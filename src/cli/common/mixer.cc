#include "cli/common/mixer.h"

#include <fmt/format.h>

namespace unisono::cli {
namespace {

constexpr std::string_view erase_line = "\r\x1b[K";
// Colours that are readable on dark and on light backgrounds. Red is left for errors.
constexpr int colours[] = {36, 32, 33, 35, 34, 96, 92, 95};

// If a line was rewritten with '\r', a terminal shows only the text after the last '\r'. Returns this text. A '\r' at the end
// of the line does not count.
std::string_view last_state(std::string_view line) {
  while (line.ends_with('\r')) line.remove_suffix(1);
  const auto at = line.rfind('\r');
  return at == std::string_view::npos ? line : line.substr(at + 1);
}

}  // namespace

Mixer::Mixer(const MixerOptions& options) : options_(options), unfinished_(options.world_size) {}

void Mixer::push(uint32_t rank, Stream stream, std::string_view bytes) {
  if (rank >= unfinished_.size()) return;
  auto& unfinished = unfinished_[rank][stream == Stream::out ? 0 : 1];
  while (!bytes.empty()) {
    const auto end = bytes.find('\n');
    const auto room = line_bytes_max - unfinished.size();
    const auto piece = bytes.substr(0, std::min(end, room));
    unfinished += piece;
    bytes.remove_prefix(piece.size());
    const bool complete = !bytes.empty() && bytes.front() == '\n';
    if (!complete && unfinished.size() < line_bytes_max) break;
    emit_line(rank, stream, unfinished);
    unfinished.clear();
    if (complete) bytes.remove_prefix(1);
  }
  if (rank == 0 && is_terminal(stream)) show_progress(stream, unfinished);
}

void Mixer::show_progress(Stream stream, std::string& unfinished) {
  auto& rewriting = rewriting_[stream == Stream::out ? 0 : 1];
  rewriting = !unfinished.empty() && (rewriting || unfinished.find('\r') != std::string::npos);
  if (!rewriting) return;
  // Keeps a '\r' at the end. It makes the next bytes replace this text instead of continuing it.
  const bool begins_anew = unfinished.ends_with('\r');
  unfinished = std::string(last_state(unfinished)) + (begins_anew ? "\r" : "");
  emit_live(0, stream, unfinished);
}

void Mixer::finish(uint32_t rank) {
  for (const auto stream : {Stream::out, Stream::error}) {
    auto& unfinished = unfinished_.at(rank)[stream == Stream::out ? 0 : 1];
    if (!unfinished.empty()) emit_line(rank, stream, unfinished);
    unfinished.clear();
  }
}

void Mixer::notice(std::string_view line) {
  leave_live_line();
  auto& out = pending(Stream::error);
  out += line;
  out += '\n';
}

void Mixer::emit_prefix(uint32_t rank, Stream stream) {
  if (!options_.prefix) return;
  auto& out = pending(stream);
  if (options_.colour && is_terminal(stream)) {
    out += fmt::format("\x1b[{}m[{}]\x1b[0m ", colours[rank % std::size(colours)], rank);
  } else {
    out += fmt::format("[{}] ", rank);
  }
}

void Mixer::emit_line(uint32_t rank, Stream stream, std::string_view line) {
  leave_live_line();
  emit_prefix(rank, stream);
  auto& out = pending(stream);
  out += is_terminal(stream) ? last_state(line) : line;
  out += '\n';
}

void Mixer::emit_live(uint32_t rank, Stream stream, std::string_view line) {
  leave_live_line();
  emit_prefix(rank, stream);
  pending(stream) += last_state(line);
  live_ = true;
  live_stream_ = stream;
}

void Mixer::leave_live_line() {
  if (live_) pending(live_stream_) += erase_line;
  live_ = false;
}

}  // namespace unisono::cli

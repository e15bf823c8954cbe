// Turns the byte streams of many ranks into two text streams in which no line is torn.
//
// A line of a rank leaves as one piece, behind "[rank] ". An unfinished line leaves when its rank ends. On a terminal, a
// line that rank 0 keeps rewriting (a progress bar with '\r') is shown as it changes, and gives way to other lines; the
// others' rewritten lines show their last state. Elsewhere every byte is passed on. Pure: bytes in, bytes out.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace unisono::cli {

enum class Stream : uint8_t { out = 1, error = 2 };

struct MixerOptions {
  uint32_t world_size = 1;
  bool prefix = true;
  bool colour = false;
  bool out_is_terminal = false;
  bool error_is_terminal = false;
};

// Lines above this are cut, each piece behind its own prefix: a rank that never ends its line must not fill the memory.
inline constexpr size_t line_bytes_max = 4u << 20;

class Mixer {
 public:
  explicit Mixer(const MixerOptions& options);

  // Appends what can be shown now to out (standard output) or error (standard error).
  void push(uint32_t rank, Stream stream, std::string_view bytes);
  // The rank has ended: its unfinished lines are shown, with a line end.
  void finish(uint32_t rank);
  // A line of the tool itself, for standard error.
  void notice(std::string_view line);

  std::string& pending(Stream stream) { return pending_[stream == Stream::out ? 0 : 1]; }

 private:
  bool is_terminal(Stream stream) const {
    return stream == Stream::out ? options_.out_is_terminal : options_.error_is_terminal;
  }
  void emit_line(uint32_t rank, Stream stream, std::string_view line);
  void emit_live(uint32_t rank, Stream stream, std::string_view line);
  void leave_live_line();
  void show_progress(Stream stream, std::string& unfinished);
  void emit_prefix(uint32_t rank, Stream stream);

  MixerOptions options_;
  std::vector<std::array<std::string, 2>> unfinished_;  // [rank][stream]
  std::array<std::string, 2> pending_;
  std::array<bool, 2> rewriting_{};  // rank 0's unfinished line on this stream has had a '\r'
  bool live_ = false;                // the cursor stands behind an unfinished line
  Stream live_stream_ = Stream::out;
};

}  // namespace unisono::cli

// Merges the output of many ranks into two streams of text, and keeps each line whole. The class does no I/O.
//
// Each line is written as a whole, with the prefix "[rank] ". A line without a line end is written when its rank ends. On a
// terminal, rank 0 may rewrite a line with '\r', for example to show a progress bar. This line is shown whenever it changes,
// and it is erased when another line is written. If another rank rewrites a line, only its last text is shown. If the output is
// not a terminal, every byte is passed on.
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

// A longer line is cut into pieces, and each piece gets its own prefix. So a rank that never ends its line cannot fill the
// memory.
inline constexpr size_t line_bytes_max = 4u << 20;

class Mixer {
 public:
  explicit Mixer(const MixerOptions& options);

  // Takes bytes that a rank has written. Appends to pending(stream) whatever can be shown now.
  void push(uint32_t rank, Stream stream, std::string_view bytes);
  // Shows the unfinished lines of the rank, and ends them. Call this when the rank has ended.
  void finish(uint32_t rank);
  // Shows a line on standard error that comes from the tool itself.
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
  std::vector<std::array<std::string, 2>> unfinished_;  // unfinished_[rank][stream]: the line that the rank has not ended yet
  std::array<std::string, 2> pending_;
  std::array<bool, 2> rewriting_{};  // for each stream: whether rank 0's unfinished line has contained a '\r'
  bool live_ = false;                // whether the cursor of the terminal is at the end of an unfinished line
  Stream live_stream_ = Stream::out;
};

}  // namespace unisono::cli

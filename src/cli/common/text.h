// Words and numbers as people type and read them at a command line. Pure functions.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "unisono/status.h"

namespace unisono::cli {

// "64M", "1K", "512", "1.5G": powers of 1024, as the nccl-tests take them. At most 2^62.
Result<uint64_t> parse_bytes(std::string_view text);
// "5s", "200ms", "30ns", "2m", "1h", "0"; a bare number means seconds. To the nearest nanosecond; not negative, at most a year.
Result<Nanos> parse_duration(std::string_view text);
// A decimal number of at most `limit`, nothing else around it.
Result<uint64_t> parse_count(std::string_view text, uint64_t limit);
// The same behind an option, which the message names with what it takes.
Result<uint64_t> parse_between(std::string_view option, std::string_view text, uint64_t low, uint64_t high);

// "1.24 s", "85 ms".
std::string format_duration(Nanos duration);
// "64 KiB", "1.5 GiB", "100 B".
std::string format_bytes(uint64_t bytes);
// "rank 3"; "ranks 0, 1, 3"; runs of three and more as "ranks 0-61, 63". Expects sorted ranks.
std::string format_ranks(std::span<const uint32_t> ranks);
// "SIGKILL"; "SIGRTMIN+2"; "signal 99" where there is no name.
std::string signal_name(int signal);

// "a,b": what stands between commas; one empty word if there is nothing.
std::vector<std::string> split_list(std::string_view list);

// The candidate that a typing error most likely meant; empty if none is near (more than a third of the letters differ).
std::string nearest_name(std::string_view typed, std::span<const std::string> candidates);

// The word such that a POSIX shell reads exactly its bytes.
std::string shell_quote(std::string_view word);
// The words of a command as a POSIX shell would split them: blanks, '…', "…" and \. No variables, no globs.
Result<std::vector<std::string>> split_words(std::string_view command);

}  // namespace unisono::cli

// Parses and formats the words and numbers of a command line. All functions are pure.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "unisono/status.h"

namespace unisono::cli {

// Parses a size such as "64M", "1K", "512" or "1.5G". The letters mean powers of 1024, as in nccl-tests. The size may be at
// most 2^62.
Result<uint64_t> parse_bytes(std::string_view text);
// Parses a time such as "5s", "200ms", "30ns", "2m", "1h" or "0". A number without a unit is in seconds. The result is rounded
// to the nearest nanosecond. The time may be from zero to one year.
Result<Nanos> parse_duration(std::string_view text);
// Parses a decimal number that is at most `limit`. The text must contain nothing else.
Result<uint64_t> parse_count(std::string_view text, uint64_t limit);
// Parses the value of an option. It must be at least `low` and at most `high`. The error message names the option and this
// range.
Result<uint64_t> parse_between(std::string_view option, std::string_view text, uint64_t low, uint64_t high);

// Returns text such as "1.24 s", "85 ms".
std::string format_duration(Nanos duration);
// Returns text such as "64 KiB", "1.5 GiB", "100 B".
std::string format_bytes(uint64_t bytes);
// Returns a text such as "rank 3" or "ranks 0, 1, 3". If three or more ranks are consecutive, they become a range: "ranks 0-61,
// 63". The ranks must be sorted.
std::string format_ranks(std::span<const uint32_t> ranks);
// Returns the name of a signal, such as "SIGKILL" or "SIGRTMIN+2". For a number that has no name, returns a text such as
// "signal 99".
std::string signal_name(int signal);

// Splits a text at commas. For an empty text, the result is one empty word.
std::vector<std::string> split_list(std::string_view list);

// Returns the candidate that is most similar to the mistyped word. Returns an empty text if even this candidate differs in more
// than a third of the letters of the word.
std::string nearest_name(std::string_view typed, std::span<const std::string> candidates);

// Quotes a word so that a POSIX shell reads exactly its bytes.
std::string shell_quote(std::string_view word);
// Splits a command into words as a POSIX shell does: at blanks, with '…', "…" and \ for quoting. Variables and globs are not
// expanded.
Result<std::vector<std::string>> split_words(std::string_view command);

}  // namespace unisono::cli

#include "cli/common/result_writer.h"

#include <fmt/format.h>

#include <cerrno>
#include <cstring>

namespace unisono::cli {

Status Sink::open(bool first) {
  open_ = true;
  table_ = json_path_ != "-";
  if (json_path_.empty()) return {};
  json_ = json_path_ == "-" ? stdout : std::fopen(json_path_.c_str(), first ? "we" : "ae");
  return json_ != nullptr ? Status()
                          : Status(Code::invalid, fmt::format("cannot write {}: {}", json_path_, strerrordesc_np(errno)));
}

Sink::~Sink() {
  if (json_ != nullptr && json_ != stdout) std::fclose(json_);
}

void Sink::write(std::FILE* file, const std::string& text) {
  const bool written = std::fwrite(text.data(), 1, text.size(), file) == text.size() && std::fflush(file) == 0;
  if (!written && error_ == 0) error_ = errno;
}

void Sink::table(const std::string& text) {
  if (table_) write(stdout, text);
}

void Sink::json(const std::string& text) {
  if (!open_) return;
  lines_ += text;
  if (json_ != nullptr) write(json_, text);
}

Status Sink::finish() {
  return error_ == 0 ? Status()
                     : Status(Code::unavailable, fmt::format("not all results could be written: {}", strerrordesc_np(error_)));
}

}  // namespace unisono::cli

// Where `unisono bench` writes: the table on standard output, JSON lines to a file or instead of the table. One rank writes at
// a time.
#pragma once

#include <cstdio>
#include <string>

#include "unisono/status.h"

namespace unisono::cli {

class Sink {
 public:
  // json: a file, "-" for standard output, or empty.
  explicit Sink(std::string json) : json_path_(std::move(json)) {}
  ~Sink();
  Sink(const Sink&) = delete;

  // From now on this rank writes; `first` begins the file, another one goes on with it. invalid: the file cannot be opened.
  Status open(bool first);
  bool is_open() const { return open_; }
  void table(const std::string& text);
  void json(const std::string& text);
  // All JSON lines so far of this rank.
  const std::string& lines() const { return lines_; }
  // unavailable: not all could be written, and why.
  Status finish();

 private:
  void write(std::FILE* file, const std::string& text);
  std::string json_path_;
  std::string lines_;
  bool open_ = false;
  bool table_ = false;
  std::FILE* json_ = nullptr;
  int error_ = 0;
};

}  // namespace unisono::cli

// Where the results of a command go: the options --json and --output, and the writers behind them.
//
// Two kinds of commands have results. Most have a text for people and JSON for programs (OutputOptions, Sink): standard output
// gets the text, or with --json the JSON; the file of --output gets the JSON in either case. The others have one form only
// (write_result): it goes to the file of --output, or else to standard output. The file name - means standard output.
#pragma once

#include <cstdio>
#include <string>
#include <string_view>

#include "unisono/status.h"

namespace CLI {
class App;
}

namespace unisono::cli {

struct OutputOptions {
  bool json = false;
  std::string output = {};  // path of a file; empty: none
  friend bool operator==(const OutputOptions&, const OutputOptions&) = default;
};

// Adds --json and --output. `names` are those of --output. Most commands have the letter -o; in others it means the operation.
void add_output_options(CLI::App& app, OutputOptions& options, const std::string& names = "-o,--output");
// Adds --output to a command whose result has one form only. `what` is the result: "the trace".
void add_output_file(CLI::App& app, std::string& path, const std::string& what);

// An option and the file that it names.
struct OutputFile {
  std::string option;
  std::string path;
};
// Returns an error if the file cannot be written, as far as this is known without opening it. An empty path and - are ok. Call
// this before a long run, so that its results are not lost.
Status check_writable(const OutputFile& file);
// Returns the error "OPTION: cannot write PATH: REASON". `error` is an errno.
Status not_writable(const OutputFile& file, int error);

// Writes a whole result to the file of --output. If the path is empty or -, writes it to standard output. Returns
// Code::unavailable if this fails.
Status write_result(const std::string& path, std::string_view text);
// Replaces the contents of a file. Returns Code::unavailable if this fails.
Status write_output_file(const OutputFile& file, std::string_view text);

// Writes results as text and as JSON lines. Of several ranks, only one writes at a time.
class Sink {
 public:
  explicit Sink(OutputOptions options);
  ~Sink();
  Sink(const Sink&) = delete;

  // Makes this rank the one that writes. The first writer (first = true) begins the file, and a later writer continues it.
  // Returns Code::invalid if the file cannot be opened.
  Status open(bool first);
  bool is_open() const { return open_; }
  void table(const std::string& text);  // written to standard output, unless JSON is written there
  void json(const std::string& text);
  // Returns ok if all output so far could be written, and Code::unavailable if some of it could not; the message says why.
  Status finish();

 private:
  void write(std::FILE* file, const std::string& text);

  OutputOptions options_;
  bool open_ = false;
  std::FILE* file_ = nullptr;
  Status failure_;
};

}  // namespace unisono::cli

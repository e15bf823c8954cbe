#include "cli/common/result_writer.h"

#include <fmt/format.h>
#include <unistd.h>

#include <CLI/App.hpp>
#include <cerrno>
#include <cstring>

namespace unisono::cli {
namespace {

constexpr const char* output_name = "--output";

bool means_standard_output(const std::string& path) { return path.empty() || path == "-"; }

bool write_whole(std::FILE* file, std::string_view text) {
  return std::fwrite(text.data(), 1, text.size(), file) == text.size() && std::fflush(file) == 0;
}

Status standard_output_failed(int error) {
  return {Code::unavailable, fmt::format("cannot write standard output: {}", strerrordesc_np(error))};
}

}  // namespace

void add_output_options(CLI::App& app, OutputOptions& options, const std::string& names) {
  app.add_flag("--json", options.json, "JSON lines on standard output, instead of text");
  app.add_option(names, options.output, "write the JSON lines to FILE, too")->type_name("FILE");
}

void add_output_file(CLI::App& app, std::string& path, const std::string& what) {
  app.add_option("-o,--output", path, fmt::format("write {} to FILE, instead of standard output", what))->type_name("FILE");
}

Status not_writable(const OutputFile& file, int error) {
  return {Code::unavailable, fmt::format("{}: cannot write {}: {}", file.option, file.path, strerrordesc_np(error))};
}

Status check_writable(const OutputFile& file) {
  if (means_standard_output(file.path)) return {};
  const auto slash = file.path.rfind('/');
  const auto folder = slash == std::string::npos ? "." : file.path.substr(0, slash + 1);
  const bool is_there = ::access(file.path.c_str(), F_OK) == 0;
  return ::access(is_there ? file.path.c_str() : folder.c_str(), W_OK) == 0 ? Status() : not_writable(file, errno);
}

Status write_output_file(const OutputFile& file, std::string_view text) {
  std::FILE* const opened = std::fopen(file.path.c_str(), "we");
  if (opened == nullptr) return not_writable(file, errno);
  int error = write_whole(opened, text) ? 0 : errno;
  if (std::fclose(opened) != 0 && error == 0) error = errno;
  return error == 0 ? Status() : not_writable(file, error);
}

Status write_result(const std::string& path, std::string_view text) {
  if (!means_standard_output(path)) return write_output_file({output_name, path}, text);
  return write_whole(stdout, text) ? Status() : standard_output_failed(errno);
}

Sink::Sink(OutputOptions options) : options_(std::move(options)) {
  // The file name - asks for JSON on standard output, as --json does.
  if (options_.output != "-") return;
  options_.json = true;
  options_.output.clear();
}

Status Sink::open(bool first) {
  open_ = true;
  if (options_.output.empty()) return {};
  file_ = std::fopen(options_.output.c_str(), first ? "we" : "ae");
  return file_ != nullptr ? Status() : Status(Code::invalid, not_writable({output_name, options_.output}, errno).message());
}

Sink::~Sink() {
  if (file_ != nullptr) std::fclose(file_);
}

void Sink::write(std::FILE* file, const std::string& text) {
  if (write_whole(file, text) || !failure_.ok()) return;
  failure_ = file == stdout ? standard_output_failed(errno) : not_writable({output_name, options_.output}, errno);
}

void Sink::table(const std::string& text) {
  if (open_ && !options_.json) write(stdout, text);
}

void Sink::json(const std::string& text) {
  if (open_ && options_.json) write(stdout, text);
  if (file_ != nullptr) write(file_, text);
}

Status Sink::finish() { return failure_; }

}  // namespace unisono::cli

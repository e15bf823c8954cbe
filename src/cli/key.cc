// `unisono key` makes the secret key of a job.
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "cli/common/command_line.h"
#include "cli/common/commands.h"
#include "cli/common/descriptor.h"
#include "cli/common/result_writer.h"
#include "tls/secret_key.h"

namespace unisono::cli {
namespace {

const CommandLineText key_text{.name = "unisono key",
                               .usage = "unisono key [OPTIONS]",
                               .description = "Makes a new secret key for a job, and prints it: 64 hexadecimal digits.",
                               .footer = R"(Examples:
  unisono key --output job.key                         a file that only you can read
  UNISONO_KEY_FILE=job.key RANK=0 WORLD_SIZE=2 MASTER_ADDR=a MASTER_PORT=29500 ./train
  unisono launch -n 4 --key-file job.key -- ./train    without --key-file, launch makes a key itself
  unisono rendezvous --listen :29500 --key-file job.key
  unisono key | kubectl create secret generic unisono --from-file=key=/dev/stdin

All processes of a job need the same key. Whoever has it can read what they send, and can join.

Exit code: 0; 1 if the key cannot be written; 2 for a wrong command line.)"};

struct KeyOptions {
  std::string output;
  bool force = false;
};

void add_key_options(CLI::App& app, KeyOptions& options) {
  add_output_file(app, options.output, "the key");
  app.add_flag("--force", options.force, "replace an existing file");
}

Status write_and_close(Descriptor file, const std::string& path, std::string_view text) {
  const auto put = ::write(file.get(), text.data(), text.size());
  if (put != static_cast<ssize_t>(text.size())) return not_writable({"--output", path}, put < 0 ? errno : ENOSPC);
  return ::fsync(file.get()) == 0 || errno == EINVAL ? Status() : not_writable({"--output", path}, errno);
}

// Makes the file with a mode that lets nobody else read it, not even for a moment.
Status write_new(const std::string& path, std::string_view text) {
  Descriptor file(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, S_IRUSR | S_IWUSR));
  if (!file && errno == EEXIST)
    return {Code::invalid, fmt::format("--output: {} exists, and may be in use; --force replaces it", path)};
  if (!file) return not_writable({"--output", path}, errno);
  auto written = write_and_close(std::move(file), path, text);
  if (!written.ok()) ::unlink(path.c_str());
  return written;
}

// Makes a new file, and gives it the name of the old one. The old file keeps its contents until then, and its mode has no
// effect on the new one.
Status replace(const std::string& path, std::string_view text) {
  struct stat facts {};
  if (::lstat(path.c_str(), &facts) != 0)
    return errno == ENOENT ? write_new(path, text) : not_writable({"--output", path}, errno);
  if (!S_ISREG(facts.st_mode)) return {Code::invalid, fmt::format("--output: {} is not a file, and is not replaced", path)};
  auto name = path + ".XXXXXX";
  Descriptor file(::mkostemp(name.data(), O_CLOEXEC));
  if (!file) return not_writable({"--output", path}, errno);
  auto written = write_and_close(std::move(file), path, text);
  if (written.ok() && ::rename(name.c_str(), path.c_str()) == 0) return {};
  if (written.ok()) written = not_writable({"--output", path}, errno);
  ::unlink(name.c_str());
  return written;
}

}  // namespace

CommandSyntax key_syntax() { return syntax_of(key_text, add_key_options); }

int run_key(const Arguments& arguments) {
  KeyOptions options;
  const auto app = make_app(key_text);
  add_key_options(*app, options);
  if (const auto code = parse_arguments(*app, arguments)) return *code;
  const auto key = SecretKey::draw();
  if (!key.ok()) return failed(key_text, key.status());
  auto text = key->hex() + "\n";
  const bool to_standard_output = options.output.empty() || options.output == "-";
  const auto written = to_standard_output ? write_result({}, text)
                       : options.force    ? replace(options.output, text)
                                          : write_new(options.output, text);
  ::explicit_bzero(text.data(), text.size());
  return written.ok() ? 0 : failed(key_text, written);
}

}  // namespace unisono::cli

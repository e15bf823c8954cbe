#include "cli/launch/agent_link.h"

#include <fmt/format.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>

#include "base/error_text.h"
#include "cli/common/spawn.h"
#include "cli/common/text.h"

namespace unisono::cli {
namespace {

constexpr size_t link_read_bytes = 128u << 10;
constexpr size_t error_line_bytes_max = 4096;

Status no_descriptors() { return Status(Code::unavailable, "no pipes to its agent: " + error_text(errno)); }

}  // namespace

Status AgentLink::start(const AgentCommand& command) {
  Pipe orders;
  Pipe reports;
  Pipe errors;
  const bool remote = !placement_.host.empty();
  if (!make_pipe(orders) || !make_pipe(reports) || (remote && !make_pipe(errors))) return no_descriptors();
  program_ = command.program;
  SpawnOptions options;
  if (remote) {
    options.arguments = command.ssh;
    options.arguments.push_back(placement_.host);
    // ssh passes its remaining arguments to the remote login shell as a single text, so the path is quoted.
    options.arguments.push_back("exec " + shell_quote(command.program) + " agent");
    ssh_name_ = command.ssh.at(0);
    options.error = errors.write.get();
    options.death_signal = SIGKILL;
  } else {
    // A local agent gets no death signal, because it must end its ranks after the launcher has died.
    options.arguments = {command.program, "agent"};
  }
  options.environment = environment_with({});
  options.input = orders.read.get();
  options.output = reports.write.get();
  options.new_session = true;  // a Ctrl-C then reaches only the launcher, which forwards it
  const auto spawned = spawn(options);
  if (spawned.pid < 0) return Status(Code::unavailable, spawned.message);
  pid_ = spawned.pid;
  from_agent_ = std::move(reports.read);
  to_agent_ = std::move(orders.write);
  errors_ = std::move(errors.read);
  set_nonblocking(from_agent_.get());
  set_nonblocking(to_agent_.get());
  if (errors_) set_nonblocking(errors_.get());
  return {};
}

Result<size_t> AgentLink::read(std::vector<Record>& records) {
  std::string bytes(link_read_bytes, '\0');
  const auto got = ::read(from_agent_.get(), bytes.data(), bytes.size());
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return size_t{0};
  if (got <= 0) {
    close_stream();
    return size_t{0};
  }
  reader_.push(std::string_view(bytes).substr(0, static_cast<size_t>(got)));
  while (true) {
    auto next = reader_.next();
    if (!next.ok()) return next.status();
    if (!next->has_value()) return static_cast<size_t>(got);
    records.push_back(*std::move(*next));
  }
}

void AgentLink::flush() {
  while (to_agent_ && !pending_.empty()) {
    const auto put = ::write(to_agent_.get(), pending_.data(), pending_.size());
    if (put < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (put < 0) return to_agent_.reset();  // the agent is gone; read() will see that its stream has ended, too
    pending_.erase(0, static_cast<size_t>(put));
  }
}

void AgentLink::read_errors(std::vector<std::string>& lines) {
  std::string bytes(link_read_bytes, '\0');
  const auto got = ::read(errors_.get(), bytes.data(), bytes.size());
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
  const bool ended = got <= 0;
  if (ended) errors_.reset();
  else error_line_.append(bytes, 0, static_cast<size_t>(got));
  while (!error_line_.empty()) {
    auto end = error_line_.find('\n');
    if (end == std::string::npos && !ended && error_line_.size() < error_line_bytes_max) break;
    auto line = error_line_.substr(0, end);
    error_line_.erase(0, end == std::string::npos ? end : end + 1);
    while (line.ends_with('\r')) line.pop_back();
    if (line.empty()) continue;
    last_error_ = line;
    lines.push_back(std::move(line));
  }
}

void AgentLink::send(RecordKind kind, ByteView payload) {
  append_record(pending_, kind, placement_.first_rank, payload);
  flush();
}

void AgentLink::send_signal(int signal) {
  ByteWriter writer;
  writer.write(static_cast<uint32_t>(signal));
  send(RecordKind::signal, writer.view());
}

void AgentLink::close_stream() {
  from_agent_.reset();
  to_agent_.reset();
}

void AgentLink::kill_process() {
  if (pid_ > 0) ::kill(pid_, SIGKILL);
}

void AgentLink::reaped(int wait_status) {
  pid_ = -1;
  wait_status_ = wait_status;
}

std::string AgentLink::why_it_ended() const {
  const bool remote = !placement_.host.empty();
  const auto how = WIFSIGNALED(wait_status_) ? fmt::format("was killed by {}", signal_name(WTERMSIG(wait_status_)))
                                             : fmt::format("exited with code {}", WEXITSTATUS(wait_status_));
  if (!remote) return fmt::format("its supervisor (unisono agent) {}", how);
  const auto detail = last_error_.empty() ? std::string{} : ": " + last_error_;
  if (greeted) return fmt::format("the connection to {} ended: {} {}{}", name(), ssh_name_, how, detail);
  if (WIFEXITED(wait_status_) && (WEXITSTATUS(wait_status_) == 127 || WEXITSTATUS(wait_status_) == 126)) {
    return fmt::format("{} cannot start {}, which must be at the same path on all hosts{}", name(), program_, detail);
  }
  return fmt::format("{} could not be reached: {} {}{}", name(), ssh_name_, how, detail);
}

}  // namespace unisono::cli

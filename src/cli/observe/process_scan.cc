#include "cli/observe/process_scan.h"

#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <map>

#include "cli/common/descriptor.h"
#include "cli/common/text.h"
#include "record/process.h"

namespace unisono::cli {
namespace {

Nanos wall_now() {
  timespec time{};
  ::clock_gettime(CLOCK_REALTIME, &time);
  return time.tv_sec * second + time.tv_nsec;
}

std::string host_name() {
  char name[HOST_NAME_MAX + 1] = {};
  ::gethostname(name, sizeof(name) - 1);
  return name;
}

bool is_record_name(std::string_view name) { return name.ends_with(record::file_suffix); }

// Returns true if the target of an open descriptor is a record. A record is either in memory, or in a file whose name is one
// that the library gives to records.
bool is_record(const std::string& target) {
  if (target.starts_with(fmt::format("/memfd:{} ", record::area_name))) return true;
  return is_record_name(target) && std::filesystem::path(target).filename().string().starts_with("unisono-");
}

// Returns the state of the process that wrote the record. `pid` is the number of the process as this tool sees it. Inside a
// container, the process may have another number.
Life life_of(const record::Snapshot& record, pid_t pid) {
  if (record.left_at != 0) return Life::left;
  const auto process = record::process_state(pid);
  if (!process || process->has_ended() || (record.process_started != 0 && process->started != record.process_started))
    return Life::gone;
  return process->is_stopped() ? Life::stopped : Life::runs;
}

void add_process(pid_t pid, std::map<std::pair<dev_t, ino_t>, ScanEntry>& found, std::vector<std::string>& read_errors) {
  const auto folder = fmt::format("/proc/{}/fd", pid);
  const auto process = record::process_state(pid);
  std::error_code error;
  for (std::filesystem::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error)) {
    std::error_code gone;
    const auto target = std::filesystem::read_symlink(entry->path(), gone).string();
    if (gone || !is_record(target)) continue;
    const Descriptor file(::open(entry->path().c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
    struct stat info {};
    if (!file || ::fstat(file.get(), &info) != 0) continue;  // the process has ended in the meantime
    auto record = record::read(file.get());
    if (!record) {
      read_errors.push_back(fmt::format("pid {}: {}", pid, record.status().message()));
      continue;
    }
    // A child process inherits the descriptor of its parent's record. This record is not the child's, so it is skipped.
    if (process && record->process_started != 0 && process->started != record->process_started) continue;
    ScanEntry scan_entry{
        .record = std::move(*record), .source = fmt::format("pid {}", pid), .life = Life::runs, .seen = wall_now()};
    scan_entry.life = life_of(scan_entry.record, pid);
    found.insert_or_assign({info.st_dev, info.st_ino}, std::move(scan_entry));
  }
}

ProcessScan sorted(std::vector<ScanEntry> all, std::vector<std::string> read_errors) {
  const auto key = [](const ScanEntry& s) { return std::tuple(s.record.run, s.record.epoch, s.record.group, s.record.rank); };
  std::stable_sort(all.begin(), all.end(), [&](const ScanEntry& a, const ScanEntry& b) { return key(a) < key(b); });
  return {std::move(all), std::move(read_errors)};
}

void add_file(const std::string& path, ProcessScan& found) {
  const Descriptor file(::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  if (!file) {
    found.read_errors.push_back(fmt::format("{}: {}", path, std::strerror(errno)));
    return;
  }
  auto record = record::read(file.get());
  if (!record) {
    found.read_errors.push_back(fmt::format("{}: {}", path, record.status().message()));
    return;
  }
  ScanEntry scan_entry{.record = std::move(*record), .source = path, .life = Life::unknown, .seen = wall_now()};
  if (scan_entry.record.left_at != 0 || scan_entry.record.host == host_name())
    scan_entry.life = life_of(scan_entry.record, scan_entry.record.pid);
  found.all.push_back(std::move(scan_entry));
}

}  // namespace

ProcessScan scan_processes(const std::vector<pid_t>& pids) {
  std::map<std::pair<dev_t, ino_t>, ScanEntry> found;
  std::vector<std::string> read_errors;
  for (const auto pid : pids) add_process(pid, found, read_errors);
  if (pids.empty()) {
    std::error_code error;
    for (std::filesystem::directory_iterator entry("/proc", error), end; !error && entry != end; entry.increment(error)) {
      const auto pid = parse_count(entry->path().filename().string(), INT_MAX);
      if (pid.ok()) add_process(static_cast<pid_t>(*pid), found, read_errors);
    }
  }
  std::vector<ScanEntry> all;
  for (auto& [file, scan_entry] : found) all.push_back(std::move(scan_entry));
  return sorted(std::move(all), std::move(read_errors));
}

ProcessScan scan_files(const std::vector<std::string>& paths) {
  ProcessScan found;
  for (const auto& path : paths) {
    std::error_code error;
    if (!std::filesystem::is_directory(path, error)) {
      add_file(path, found);
      continue;
    }
    size_t count = 0;
    for (std::filesystem::directory_iterator entry(path, error), end; !error && entry != end; entry.increment(error)) {
      if (!is_record_name(entry->path().string())) continue;
      add_file(entry->path().string(), found);
      ++count;
    }
    if (error) found.read_errors.push_back(fmt::format("{}: {}", path, error.message()));
    else if (count == 0) found.read_errors.push_back(fmt::format("{}: no file there ends with {}", path, record::file_suffix));
  }
  return sorted(std::move(found.all), std::move(found.read_errors));
}

void add_record_sources(CLI::App& app, RecordSources& sources) {
  app.add_option("sources", sources.paths, "files and folders with records; none: the processes of this host")
      ->type_name("FILE");
  app.add_option("--pid", sources.pids, "only the groups of this process; may be given several times")
      ->type_name("PID")
      ->allow_extra_args(false);
}

Result<ProcessScan> scan_records(const RecordSources& sources) {
  if (!sources.paths.empty() && !sources.pids.empty()) return Status(Code::invalid, "--pid and files do not go together");
  if (!sources.paths.empty()) return scan_files(sources.paths);
  std::vector<pid_t> pids;
  for (const auto& text : sources.pids) {
    const auto pid = parse_count(text, INT_MAX);
    if (!pid.ok() || *pid == 0)
      return Status(Code::invalid, fmt::format("--pid is '{}'; needed: the number of a process", text));
    if (::access(fmt::format("/proc/{}/fd", *pid).c_str(), R_OK) != 0)
      return Status(Code::invalid, fmt::format("--pid {}: {}", *pid, std::strerror(errno)));
    pids.push_back(static_cast<pid_t>(*pid));
  }
  return scan_processes(pids);
}

}  // namespace unisono::cli

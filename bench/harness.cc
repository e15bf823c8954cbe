#include "harness.h"

#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <memory>

#include "base/concat.h"

namespace unisono::bench {
namespace {

using Clock = std::chrono::steady_clock;

double microseconds_since(Clock::time_point start) {
  return std::chrono::duration<double, std::micro>(Clock::now() - start).count();
}

// The beginning of the memory that all ranks share. The samples (measured times) of the ranks follow it. It has a barrier, the
// stop word, and the progress of the run. Rank 0 writes the stop word and the progress.
struct BoardHead {
  alignas(64) std::atomic<uint32_t> arrived;
  alignas(64) std::atomic<uint32_t> generation;
  alignas(64) std::atomic<uint32_t> stop;    // Rank 0 writes one of three values: go on, skip the warm-up, or stop the job.
  alignas(64) std::atomic<uint32_t> failed;  // A rank that fails sets this, and then all ranks abort.
  // If bench/versus has to kill the run, it reads `job`, `calls` and `job_began_ns` from the file.
  alignas(64) std::atomic<uint32_t> job;  // index of the job in the plan
  std::atomic<uint32_t> calls;            // How many calls of this job have begun so far. A call begins with its barrier.
  std::atomic<uint64_t> job_began_ns;     // when the job began, in ns of CLOCK_MONOTONIC
};
static_assert(std::atomic<uint64_t>::is_always_lock_free);
// versus_lib/compare.py reads the board at these offsets.
static_assert(offsetof(BoardHead, job) == 256 && offsetof(BoardHead, job_began_ns) == 264);

class Board {
 public:
  static Result<Board> make(const std::string& path, Subject& subject, uint32_t calls) {
    const size_t bytes = sizeof(BoardHead) + size_t{subject.world_size()} * calls * sizeof(double);
    const int file = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (file < 0) return Status(Code::unavailable, "board " + path + ": " + std::strerror(errno));
    // All ranks set the same length. New bytes of a file are zero, which is the initial state of the barrier.
    void* memory = MAP_FAILED;
    if (::ftruncate(file, static_cast<off_t>(bytes)) == 0) {
      memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, file, 0);
    }
    const Status failure(Code::unavailable, "board " + path + ": " + std::strerror(errno));
    ::close(file);
    if (memory == MAP_FAILED) return failure;
    return Board(static_cast<BoardHead*>(memory), subject, calls);
  }

  BoardHead& head() { return *head_; }
  double* samples(uint32_t rank) { return reinterpret_cast<double*>(head_ + 1) + size_t{rank} * calls_; }

  // A barrier. Returns false if a rank has failed. The barrier spins, so that all ranks leave it at almost the same time. If
  // there are more ranks than cores, it also yields the core.
  bool meet() {
    const uint32_t generation = head_->generation.load(std::memory_order_acquire);
    if (head_->arrived.fetch_add(1, std::memory_order_acq_rel) + 1 == subject_->world_size()) {
      head_->arrived.store(0, std::memory_order_relaxed);
      head_->generation.store(generation + 1, std::memory_order_release);
      return head_->failed.load(std::memory_order_acquire) == 0;
    }
    for (uint32_t spins = 1; head_->generation.load(std::memory_order_acquire) == generation; ++spins) {
      if (head_->failed.load(std::memory_order_acquire) != 0) return false;
      if (spins % 4096 == 0) subject_->progress();
      if (crowded_ && spins % 4 == 0) ::sched_yield();
#if defined(__x86_64__)
      __builtin_ia32_pause();
#endif
    }
    return head_->failed.load(std::memory_order_acquire) == 0;
  }

 private:
  Board(BoardHead* head, Subject& subject, uint32_t calls) : head_(head), subject_(&subject), calls_(calls) {
    crowded_ = static_cast<long>(subject.world_size()) > ::sysconf(_SC_NPROCESSORS_ONLN);
  }
  BoardHead* head_;  // The memory is never unmapped, because the process ends with the run.
  Subject* subject_;
  uint32_t calls_;
  bool crowded_ = false;
};

uint32_t calls_for(size_t bytes) {
  if (bytes <= 8u << 10) return 2000;
  if (bytes <= 128u << 10) return 1000;
  if (bytes <= 2u << 20) return 200;
  if (bytes <= 16u << 20) return 20;
  return 8;
}

// Returns the sample at the quantile `part` (0.5 is the median). `sorted` must not be empty.
double at(const std::vector<double>& sorted, double part) {
  return sorted[std::min(sorted.size() - 1, static_cast<size_t>(part * static_cast<double>(sorted.size())))];
}

Status others_failed() { return {Code::peer_lost, "another rank failed; its own message has the reason"}; }

class JobRun {
 public:
  JobRun(Subject& subject, Board& board, const BenchOptions& options, size_t index, const Buffers& buffers)
      : subject_(subject),
        board_(board),
        options_(options),
        job_(options.jobs[index]),
        index_(index),
        self_{subject.rank(), subject.world_size()},
        buffers_(buffers) {}

  Status run() {
    begin();
    auto status = refused(subject_.prepare(job_, buffers_));
    if (status.code() == Code::unsupported) return {};
    if (status.ok()) status = verified_call("first");
    if (status.ok()) status = timed_calls();
    if (status.ok()) status = verified_call("last");
    if (status.ok() && subject_.rank() == 0) print();
    // The other ranks wait here until rank 0 has read their samples.
    if (status.ok() && !board_.meet()) status = others_failed();
    return status;
  }

 private:
  void begin() {
    if (subject_.rank() == 0) write_board();
  }
  // Returns its argument. If this rank has failed, the board must name this job. Normally rank 0 writes that, but it may still
  // be in the previous job and never reach this one. Therefore this rank writes it.
  Status refused(Status status) {
    const bool fails = !status.ok() && status.code() != Code::unsupported;
    if (fails && board_.head().job.load(std::memory_order_relaxed) != index_) write_board();
    return status;
  }
  void write_board() {
    const auto now = std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now().time_since_epoch());
    board_.head().job_began_ns.store(static_cast<uint64_t>(now.count()), std::memory_order_relaxed);
    board_.head().job.store(static_cast<uint32_t>(index_), std::memory_order_relaxed);
    board_.head().calls.store(0, std::memory_order_relaxed);
  }
  void count_call() {
    if (subject_.rank() == 0) board_.head().calls.fetch_add(1, std::memory_order_relaxed);
  }

  Status verified_call(const char* which) {
    fill(job_, self_, buffers_);
    count_call();
    if (!board_.meet()) return others_failed();
    if (auto status = subject_.call(); !status.ok()) return status;
    if (auto status = verify(job_, self_, buffers_, subject_.tolerance()); !status.ok()) {
      return {status.code(), std::string(which) + " result: " + status.message()};
    }
    return subject_.barrier();
  }

  Status timed_calls() {
    fill_for_timing(job_, self_, buffers_);
    const uint32_t wanted = options_.calls_max != 0 ? options_.calls_max : calls_for(job_.buffer_bytes());
    const uint32_t calls = std::min(std::max(wanted, calls_min), options_.reserve_calls);
    const uint32_t warm_up = std::max<uint32_t>(1, calls / 20);
    const auto start = Clock::now();
    auto first_timed = start;
    timed_ = 0;
    for (uint32_t call = 0; call < warm_up + calls; ++call) {
      count_call();
      if (!options_.keeps_input) renew_input(job_, self_, buffers_);
      if (auto status = subject_.barrier(); !status.ok()) return status;
      if (subject_.rank() == 0) decide_stop(call, warm_up, microseconds_since(start), microseconds_since(first_timed));
      if (!board_.meet()) return others_failed();
      const uint32_t stop = board_.head().stop.load(std::memory_order_acquire);
      if (stop == stop_job) break;
      const auto begin = Clock::now();
      if (auto status = subject_.call(); !status.ok()) return status;
      const double took = microseconds_since(begin);
      if (call < warm_up && stop != skip_warm_up) {
        first_timed = Clock::now();
        continue;
      }
      board_.samples(subject_.rank())[timed_++] = took;
      if (timed_ == calls) break;
    }
    return board_.meet() ? Status() : others_failed();
  }

  // Decides for all ranks. The warm-up ends when it has taken a tenth of the job's time. The job ends when its time is over.
  void decide_stop(uint32_t call, uint32_t warm_up, double all_us, double timed_us) {
    uint32_t stop = go_on;
    if (call < warm_up && call > 0 && all_us > options_.seconds * 1e5) stop = skip_warm_up;
    if (timed_ >= calls_min && timed_us > options_.seconds * 1e6) stop = stop_job;
    board_.head().stop.store(stop, std::memory_order_release);
  }

  // Prints statistics of three durations of a call: the mean over the ranks (the main result), the duration on the slowest
  // rank, and the duration on rank 0.
  void print() {
    std::vector<double> mean(timed_), slowest(timed_), first(timed_);
    for (uint32_t call = 0; call < timed_; ++call) {
      for (uint32_t rank = 0; rank < subject_.world_size(); ++rank) {
        const double sample = board_.samples(rank)[call];
        mean[call] += sample / subject_.world_size();
        slowest[call] = std::max(slowest[call], sample);
      }
      first[call] = board_.samples(0)[call];
    }
    for (auto* list : {&mean, &slowest, &first}) std::sort(list->begin(), list->end());
    std::printf(
        "RESULT {\"job\": %zu, \"collective\": \"%s\", \"element\": \"%s\", \"parts\": %u, \"bytes\": %zu, "
        "\"algorithm\": \"%s\", \"calls\": %u, \"median_us\": %.3f, \"p99_us\": %.3f, \"min_us\": %.3f, "
        "\"slowest_median_us\": %.3f, \"rank0_median_us\": %.3f, \"verified\": true}\n",
        index_, name(job_.collective), name(job_.element), job_.parts, job_.bytes, job_.algorithm.c_str(), timed_,
        at(mean, 0.5), at(mean, 0.99), mean.front(), at(slowest, 0.5), at(first, 0.5));
    std::fflush(stdout);
  }

  static constexpr uint32_t go_on = 0, skip_warm_up = 1, stop_job = 2;
  Subject& subject_;
  Board& board_;
  const BenchOptions& options_;
  const Job& job_;
  size_t index_;
  RankOfWorld self_;
  Buffers buffers_;
  uint32_t timed_ = 0;
};

void sleep_for_seconds(double seconds) {
  timespec rest{};
  rest.tv_sec = static_cast<time_t>(seconds);
  rest.tv_nsec = static_cast<long>((seconds - static_cast<double>(rest.tv_sec)) * 1e9);
  while (::nanosleep(&rest, &rest) != 0 && errno == EINTR) {}
}

// Measures what it costs to be an idle process in a group: the CPU time and the context switches of all threads of the process,
// from getrusage().
Status measure_idle(Subject& subject, Board& board, double seconds) {
  if (auto status = subject.barrier(); !status.ok()) return status;
  sleep_for_seconds(0.5);  // Before the measurement, work that the last call has left over must end.
  rusage before{}, after{};
  ::getrusage(RUSAGE_SELF, &before);
  const auto start = Clock::now();
  sleep_for_seconds(seconds);
  ::getrusage(RUSAGE_SELF, &after);
  const double slept_us = microseconds_since(start);
  const auto cpu_us = [](const rusage& usage) {
    return static_cast<double>(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) * 1e6 +
           static_cast<double>(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec);
  };
  double* mine = board.samples(subject.rank());
  mine[0] = (cpu_us(after) - cpu_us(before)) / slept_us * 100;
  // Subtract 1, because the sleep of the measurement itself is a voluntary context switch.
  mine[1] = static_cast<double>(after.ru_nvcsw - before.ru_nvcsw - 1) / slept_us * 1e6;
  if (!board.meet()) return others_failed();
  if (subject.rank() == 0) {
    double cpu_percent = 0, switches = 0;
    for (uint32_t rank = 0; rank < subject.world_size(); ++rank) {
      cpu_percent = std::max(cpu_percent, board.samples(rank)[0]);
      switches = std::max(switches, board.samples(rank)[1]);
    }
    std::printf("IDLE {\"seconds\": %.3f, \"cpu_percent_max\": %.4f, \"switches_per_second_max\": %.2f}\n", slept_us / 1e6,
                cpu_percent, switches);
    std::fflush(stdout);
  }
  return board.meet() ? Status() : others_failed();
}

}  // namespace

std::string argument(int argc, char** argv, const std::string& name, const std::string& fallback) {
  for (int i = 1; i + 1 < argc; ++i) {
    if (name == argv[i]) return argv[i + 1];
  }
  return fallback;
}

Result<BenchOptions> parse_options(int argc, char** argv) {
  BenchOptions options;
  auto jobs = parse_plan(argument(argc, argv, "--plan", "1024,65536,1048576,16777216,67108864"));
  if (!jobs) return jobs.status();
  options.jobs = *jobs;
  options.board = argument(argc, argv, "--board", "");
  if (options.board.empty())
    return Status(Code::invalid, "--board is missing: give a path that all ranks share, new for every run");
  options.seconds = std::atof(argument(argc, argv, "--seconds", "2").c_str());
  const auto input = argument(argc, argv, "--input", "new");
  if (input != "new" && input != "kept") return Status(Code::invalid, "--input " + input + "; allowed: new or kept");
  options.keeps_input = input == "kept";
  options.idle_seconds = std::atof(argument(argc, argv, "--idle", "0").c_str());
  options.calls_max = static_cast<uint32_t>(std::atoi(argument(argc, argv, "--calls", "0").c_str()));
  options.limit_seconds = static_cast<uint32_t>(std::atoi(argument(argc, argv, "--limit", "120").c_str()));
  return options;
}

void end_in_time(const BenchOptions& options) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  ::signal(SIGALRM, SIG_DFL);
  ::alarm(options.limit_seconds);
}

Status run(Subject& subject, const BenchOptions& options) {
  auto board = Board::make(options.board, subject, options.reserve_calls);
  if (!board) return board.status();
  size_t bytes_max = 0;
  for (const auto& job : options.jobs) bytes_max = std::max(bytes_max, job.buffer_bytes());
  struct Free {
    void operator()(std::byte* memory) const { std::free(memory); }
  };
  using Memory = std::unique_ptr<std::byte, Free>;
  const auto allocate = [bytes = (bytes_max + 63) / 64 * 64] {
    return Memory(static_cast<std::byte*>(std::aligned_alloc(64, bytes)));
  };
  const Memory input = allocate(), output = allocate();
  if (!input || !output) return {Code::unavailable, concat("no memory for ", bytes_max, " bytes twice")};
  Status status;
  for (size_t index = 0; index < options.jobs.size() && status.ok(); ++index) {
    const auto& job = options.jobs[index];
    if (job.elements() % subject.world_size() != 0 && !job.in_place()) {
      status = {Code::invalid,
                concat(job.elements(), " elements cannot be divided into ", subject.world_size(), " equal blocks")};
    } else {
      status = JobRun(subject, *board, options, index, {input.get(), job.in_place() ? input.get() : output.get()}).run();
    }
  }
  if (status.ok() && options.idle_seconds > 0) status = measure_idle(subject, *board, options.idle_seconds);
  if (!status.ok()) board->head().failed.store(1, std::memory_order_release);
  return status;
}

}  // namespace unisono::bench

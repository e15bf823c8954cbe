#include "harness.h"

#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>

namespace unisono::bench {
namespace {

using Clock = std::chrono::steady_clock;

double microseconds_since(Clock::time_point start) {
  return std::chrono::duration<double, std::micro>(Clock::now() - start).count();
}

// What the ranks share: a barrier, one "stop" word that rank 0 writes, and every rank's samples.
struct BoardHead {
  alignas(64) std::atomic<uint32_t> arrived;
  alignas(64) std::atomic<uint32_t> generation;
  alignas(64) std::atomic<uint32_t> stop;    // rank 0: this job has had its time
  alignas(64) std::atomic<uint32_t> failed;  // any rank: give up
};
static_assert(std::atomic<uint32_t>::is_always_lock_free);

class Board {
 public:
  static Result<Board> make(const std::string& path, Subject& subject, uint32_t calls) {
    const size_t bytes = sizeof(BoardHead) + size_t{subject.world_size()} * calls * sizeof(double);
    const int file = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (file < 0) return Status(Code::unavailable, "board " + path + ": " + std::strerror(errno));
    // Every rank sets the same length; new bytes are zero, the state in which a barrier starts.
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

  // False if a rank has failed. Spins, so that all leave within a cache miss of each other; yields where ranks outnumber cores.
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
      if (crowded_ && spins % 64 == 0) ::sched_yield();
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
  BoardHead* head_;  // never unmapped: the process ends with it
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

// Contribution of one rank, an integer below 512 in magnitude, and the sum of all.
float contribution(uint32_t rank, size_t index) {
  return static_cast<float>(static_cast<int>((index * 31 + rank * 257 + (index >> 9)) % 1023) - 511);
}

float total(uint32_t world_size, size_t index) {
  float sum = 0;
  for (uint32_t rank = 0; rank < world_size; ++rank) sum += contribution(rank, index);
  return sum;
}

class JobRun {
 public:
  JobRun(Subject& subject, Board& board, const BenchOptions& options, const Job& job, float* data)
      : subject_(subject), board_(board), options_(options), job_(job), data_(data), count_(job.bytes / sizeof(float)) {}

  Status run() {
    auto status = subject_.prepare(job_.algorithm, data_, count_);
    if (status.ok()) status = verified_call("first");
    if (status.ok()) status = timed_calls();
    if (status.ok()) status = verified_call("last");
    if (status.ok() && subject_.rank() == 0) print();
    // Rank 0 reads the samples of the others before they write the next ones.
    if (status.ok() && !board_.meet()) status = others_failed();
    return status;
  }

 private:
  static Status others_failed() { return {Code::peer_lost, "another rank gave up"}; }

  Status verified_call(const char* which) {
    for (size_t i = 0; i < count_; ++i) data_[i] = contribution(subject_.rank(), i);
    if (!board_.meet()) return others_failed();
    if (auto status = subject_.all_reduce(); !status.ok()) return status;
    for (size_t i = 0; i < count_; ++i) {
      const float expected = total(subject_.world_size(), i);
      if (data_[i] == expected) continue;
      return {Code::internal, std::string(which) + " result of " + std::to_string(job_.bytes) + " bytes is wrong on rank " +
                                  std::to_string(subject_.rank()) + ", element " + std::to_string(i) + ": " +
                                  std::to_string(data_[i]) + " instead of " + std::to_string(expected)};
    }
    return subject_.barrier();
  }

  Status timed_calls() {
    // Rank 0 holds minus the sum of the others: the first call leaves zeros, and zeros stay.
    const auto others = static_cast<float>(subject_.world_size() - 1);
    for (size_t i = 0; i < count_; ++i) {
      data_[i] = (subject_.rank() == 0 ? -others : 1.0f) * static_cast<float>(i % 97);
    }
    const uint32_t wanted = options_.calls_max != 0 ? options_.calls_max : calls_for(job_.bytes);
    const uint32_t calls = std::min(std::max(wanted, calls_min), options_.reserve_calls);
    const uint32_t warm_up = std::max<uint32_t>(1, calls / 20);
    const auto start = Clock::now();
    auto first_timed = start;
    timed_ = 0;
    for (uint32_t call = 0; call < warm_up + calls; ++call) {
      if (auto status = subject_.barrier(); !status.ok()) return status;
      if (subject_.rank() == 0) decide_stop(call, warm_up, microseconds_since(start), microseconds_since(first_timed));
      if (!board_.meet()) return others_failed();
      const uint32_t stop = board_.head().stop.load(std::memory_order_acquire);
      if (stop == stop_job) break;
      const auto begin = Clock::now();
      if (auto status = subject_.all_reduce(); !status.ok()) return status;
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

  // Warm-up ends early when it has used a tenth of the time; the job ends when its time is over.
  void decide_stop(uint32_t call, uint32_t warm_up, double all_us, double timed_us) {
    uint32_t stop = go_on;
    if (call < warm_up && call > 0 && all_us > options_.seconds * 1e5) stop = skip_warm_up;
    if (timed_ >= calls_min && timed_us > options_.seconds * 1e6) stop = stop_job;
    board_.head().stop.store(stop, std::memory_order_release);
  }

  static double at(const std::vector<double>& sorted, double part) {
    return sorted[std::min(sorted.size() - 1, static_cast<size_t>(part * static_cast<double>(sorted.size())))];
  }

  // Per call: the mean over the ranks (the headline), the slowest rank, and rank 0 alone.
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
        "RESULT {\"bytes\": %zu, \"algorithm\": \"%s\", \"calls\": %u, \"median_us\": %.3f, \"p99_us\": %.3f, "
        "\"min_us\": %.3f, \"slowest_median_us\": %.3f, \"rank0_median_us\": %.3f, \"verified\": true}\n",
        job_.bytes, job_.algorithm.c_str(), timed_, at(mean, 0.5), at(mean, 0.99), mean.front(), at(slowest, 0.5),
        at(first, 0.5));
    std::fflush(stdout);
  }

  static constexpr uint32_t go_on = 0, skip_warm_up = 1, stop_job = 2;
  Subject& subject_;
  Board& board_;
  const BenchOptions& options_;
  const Job& job_;
  float* data_;
  size_t count_;
  uint32_t timed_ = 0;
};

Result<std::vector<Job>> parse_plan(const std::string& plan) {
  std::vector<Job> jobs;
  for (size_t at = 0; at <= plan.size();) {
    const size_t end = std::min(plan.find(',', at), plan.size());
    const std::string entry = plan.substr(at, end - at);
    const bool has_digit = !entry.empty() && entry[0] >= '0' && entry[0] <= '9';  // strtoull would take a sign
    const size_t equals = std::min(entry.find('='), entry.size());
    char* rest = nullptr;
    const unsigned long long bytes = std::strtoull(entry.c_str(), &rest, 10);
    if (!has_digit || rest != entry.c_str() + equals || bytes == 0 || bytes % sizeof(float) != 0) {
      return Status(Code::invalid, "--plan: \"" + entry + "\" is not BYTES or BYTES=ALGORITHM with BYTES a multiple of 4");
    }
    jobs.push_back({static_cast<size_t>(bytes), equals < entry.size() ? entry.substr(equals + 1) : ""});
    at = end + 1;
  }
  return jobs;
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
  if (options.board.empty()) return Status(Code::invalid, "--board: a path that all ranks share, new for every run");
  options.seconds = std::atof(argument(argc, argv, "--seconds", "2").c_str());
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
  for (const auto& job : options.jobs) bytes_max = std::max(bytes_max, job.bytes);
  struct Free {
    void operator()(float* memory) const { std::free(memory); }
  };
  const std::unique_ptr<float, Free> data(static_cast<float*>(std::aligned_alloc(64, (bytes_max + 63) / 64 * 64)));
  if (!data) return {Code::unavailable, "no memory for " + std::to_string(bytes_max) + " bytes"};
  for (const auto& job : options.jobs) {
    auto status = JobRun(subject, *board, options, job, data.get()).run();
    if (!status.ok()) {
      board->head().failed.store(1, std::memory_order_release);
      return status;
    }
  }
  return {};
}

}  // namespace unisono::bench

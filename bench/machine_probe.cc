// Measures physical limits of this machine, with which the results of the libraries can be compared.
//
//   machine_probe            JSON: memcpy of 64 MiB on one core, and the hand-over between two cores; takes a quarter of a
//   second machine_probe cores      JSON: only the hand-over between two cores; takes about 20 ms machine_probe full SIZES
//   --workers N   JSON: the hand-over, and three measurements for each size in bytes
// The three measurements are copies, exchanges through memory, and exchanges over loopback TCP. A copy of B bytes counts as
// B bytes, although it reads B bytes and writes B bytes.

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

// Allocates memory that begins at a page boundary, because the speed of a copy depends on the offsets of the buffers in their
// pages.
template <typename T>
struct PageAllocator {
  using value_type = T;
  T* allocate(size_t count) { return static_cast<T*>(::operator new (count * sizeof(T), std::align_val_t{4096})); }
  void deallocate(T* memory, size_t) { ::operator delete (memory, std::align_val_t{4096}); }
  friend bool operator==(PageAllocator, PageAllocator) = default;
};
using Memory = std::vector<char, PageAllocator<char>>;

// Returns the median rate of single copies between two buffers of `bytes` bytes on one core.
double copy_gigabytes_per_second(size_t bytes, double seconds) {
  Memory from(bytes, 1), to(bytes, 2);
  std::vector<double> rates;
  // A copy of few bytes is too short for the clock, so several copies are timed together.
  const size_t bundle = std::max<size_t>(1, (64u << 10) / bytes);
  const auto start = Clock::now();
  do {
    const auto begin = Clock::now();
    for (size_t i = 0; i < bundle; ++i) {
      std::memcpy(to.data(), from.data(), bytes);
      asm volatile("" : : "r"(to.data()) : "memory");
    }
    rates.push_back(static_cast<double>(bytes * bundle) / seconds_since(begin) / 1e9);
  } while (seconds_since(start) < seconds);
  std::sort(rates.begin(), rates.end());
  return rates[rates.size() / 2];
}

// Returns the rates of several cores that copy at the same time, added up.
double copy_of_workers(size_t bytes, unsigned workers, double seconds) {
  std::vector<double> rates(workers);
  std::vector<std::thread> threads;
  for (unsigned i = 0; i < workers; ++i) {
    threads.emplace_back([&rates, i, bytes, seconds] { rates[i] = copy_gigabytes_per_second(bytes, seconds); });
  }
  for (auto& thread : threads) thread.join();
  double sum = 0;
  for (const double rate : rates) sum += rate;
  return sum;
}

// Returns how many microseconds pass until one core sees what another core has written. This is half of a round trip between
// two threads. If a thread loses its core, the current batch is spoiled, so the result is that of the best batch.
double hand_over_us() {
  if (std::thread::hardware_concurrency() < 2) return 0;  // Two threads that spin on one core would take too long.
  struct alignas(64) Line {
    std::atomic<uint32_t> value{0};
  };
  Line ping, pong;
  constexpr uint32_t batch = 5'000, batches = 20;
  std::thread other([&] {
    for (uint32_t i = 1; i <= batch * batches; ++i) {
      while (ping.value.load(std::memory_order_acquire) != i) {}
      pong.value.store(i, std::memory_order_release);
    }
  });
  double best = 1e9;
  auto start = Clock::now();
  for (uint32_t i = 1; i <= batch * batches; ++i) {
    ping.value.store(i, std::memory_order_release);
    while (pong.value.load(std::memory_order_acquire) != i) {}
    if (i % batch != 0) continue;
    best = std::min(best, seconds_since(start) * 1e6 / batch / 2);
    start = Clock::now();
  }
  other.join();
  return best;
}

// How two cores exchange bytes through slots in memory. Each core writes to its own slots, and copies from the slots of the
// other core. past_caches: the core writes with non-temporal stores.
struct SlotWay {
  size_t slice;
  bool past_caches;
};

void write_slot(char* slot, const char* from, size_t bytes, bool past_caches) {
#if defined(__SSE2__)
  if (past_caches && bytes % 16 == 0) {
    for (size_t i = 0; i < bytes; i += 16)
      _mm_stream_si128(reinterpret_cast<__m128i*>(slot + i), _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + i)));
    _mm_sfence();
    return;
  }
#endif
  std::memcpy(slot, from, bytes);
}

class SlotExchange {
 public:
  SlotExchange(size_t bytes, SlotWay way) : bytes_(bytes), way_(way) {
    for (auto& side : sides_) side.memory = static_cast<char*>(std::aligned_alloc(4096, slots * way.slice));
  }
  ~SlotExchange() {
    for (auto& side : sides_) std::free(side.memory);
  }
  SlotExchange(const SlotExchange&) = delete;

  // Exchanges `bytes` bytes in both directions at once, repeatedly. Returns the median time in microseconds.
  double run(double seconds) {
    std::atomic<bool> stop{false};
    std::thread other([&] {
      Memory out(bytes_, 1), in(bytes_, 2);
      while (meet(1) && !stop.load(std::memory_order_relaxed)) exchange(1, out, in);
    });
    Memory out(bytes_, 1), in(bytes_, 2);
    std::vector<double> times;
    const auto start = Clock::now();
    while (times.size() < 5 || seconds_since(start) < seconds) {
      meet(0);
      const auto begin = Clock::now();
      exchange(0, out, in);
      times.push_back(seconds_since(begin) * 1e6);
    }
    stop = true;
    meet(0);
    other.join();
    std::sort(times.begin(), times.end());
    return times[times.size() / 2];
  }

 private:
  static constexpr uint32_t slots = 8;
  struct alignas(64) Count {
    std::atomic<uint32_t> value{0};
  };
  struct Side {
    char* memory = nullptr;
    // number of slots written, number of the other side's slots that were read, and number of calls of meet()
    Count written, read, round;
    uint32_t next_written = 0, next_read = 0;
  };

  bool meet(int me) {
    const auto round = sides_[me].round.value.fetch_add(1, std::memory_order_acq_rel) + 1;
    while (sides_[1 - me].round.value.load(std::memory_order_acquire) < round) {}
    return true;
  }

  void exchange(int me, const Memory& out, Memory& in) {
    auto& mine = sides_[me];
    auto& theirs = sides_[1 - me];
    for (size_t sent = 0, got = 0; sent < bytes_ || got < bytes_;) {
      if (sent < bytes_ && mine.next_written - theirs.read.value.load(std::memory_order_acquire) < slots) {
        const auto piece = std::min(way_.slice, bytes_ - sent);
        write_slot(mine.memory + mine.next_written % slots * way_.slice, out.data() + sent, piece, way_.past_caches);
        mine.written.value.store(++mine.next_written, std::memory_order_release);
        sent += piece;
      }
      if (got < bytes_ && mine.next_read != theirs.written.value.load(std::memory_order_acquire)) {
        const auto piece = std::min(way_.slice, bytes_ - got);
        std::memcpy(in.data() + got, theirs.memory + mine.next_read % slots * way_.slice, piece);
        mine.read.value.store(++mine.next_read, std::memory_order_release);
        got += piece;
      }
    }
  }

  const size_t bytes_;
  const SlotWay way_;
  Side sides_[2];
};

// Tries several slice sizes, with normal and with non-temporal stores, because the best way depends on the machine and its
// load.
double best_slot_exchange_us(size_t bytes, double seconds) {
  if (std::thread::hardware_concurrency() < 2) return -1;
  double best = -1;
  for (const SlotWay way : {SlotWay{16u << 10, false}, SlotWay{64u << 10, false}, SlotWay{256u << 10, false},
                            SlotWay{64u << 10, true}, SlotWay{256u << 10, true}}) {
    const double us = SlotExchange(bytes, way).run(seconds / 5);
    if (best < 0 || us < best) best = us;
  }
  return best;
}

bool fail(const char* what) {
  std::fprintf(stderr, "machine_probe: %s: %s\n", what, std::strerror(errno));
  return false;
}

// Selects the congestion control Reno. Other ones may turn on pacing, and then the socket keeps it. Pacing is not a limit of
// the machine.
void begin_without_pacing(int socket) { (void)::setsockopt(socket, IPPROTO_TCP, TCP_CONGESTION, "reno", 4); }

// Makes a non-blocking TCP connection over 127.0.0.1, and returns both of its ends.
bool connect_pair(int ends[2]) {
  const int listener = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof(address);
  auto* generic = reinterpret_cast<sockaddr*>(&address);
  if (listener >= 0) begin_without_pacing(listener);
  if (listener < 0 || ::bind(listener, generic, sizeof(address)) != 0 || ::listen(listener, 1) != 0) return fail("listen");
  if (::getsockname(listener, generic, &length) != 0) return fail("getsockname");
  ends[0] = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (ends[0] >= 0) begin_without_pacing(ends[0]);
  if (ends[0] < 0 || ::connect(ends[0], generic, sizeof(address)) != 0) return fail("connect");
  ends[1] = ::accept(listener, nullptr, nullptr);
  ::close(listener);
  if (ends[1] < 0) return fail("accept");
  const int on = 1;
  for (int i = 0; i < 2; ++i) {
    ::setsockopt(ends[i], IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    ::fcntl(ends[i], F_SETFL, O_NONBLOCK);
  }
  return true;
}

// Sends `out` and receives `in` at the same time, with at most `piece` bytes in each system call. Returns false if the other
// end has closed the connection.
bool exchange(int end, Memory& out, Memory& in, size_t piece) {
  size_t sent = 0, received = 0;
  while (sent < out.size() || received < in.size()) {
    bool moved = false;
    if (sent < out.size()) {
      const auto n = ::send(end, out.data() + sent, std::min(out.size() - sent, piece), MSG_NOSIGNAL);
      if (n > 0) sent += static_cast<size_t>(n), moved = true;
      else if (n < 0 && errno != EAGAIN) return false;
    }
    if (received < in.size()) {
      const auto n = ::recv(end, in.data() + received, std::min(in.size() - received, piece), 0);
      if (n > 0) received += static_cast<size_t>(n), moved = true;
      else if (n == 0 || errno != EAGAIN) return false;
    }
    if (!moved) ::sched_yield();
  }
  return true;
}

// Exchanges `bytes` bytes in both directions at once, repeatedly. Returns the median time in microseconds, or a negative number
// on failure.
double exchange_us(size_t bytes, size_t piece, double seconds) {
  int ends[2] = {-1, -1};
  if (!connect_pair(ends)) return -1;
  std::thread other([&] {
    Memory out(bytes, 1), in(bytes, 2);
    while (exchange(ends[1], out, in, piece)) {}
  });
  Memory out(bytes, 1), in(bytes, 2);
  std::vector<double> times;
  const auto start = Clock::now();
  bool good = true;
  while (good && (times.size() < 3 || seconds_since(start) < seconds)) {
    const auto begin = Clock::now();
    good = exchange(ends[0], out, in, piece);
    times.push_back(seconds_since(begin) * 1e6);
  }
  ::shutdown(ends[0], SHUT_RDWR);
  other.join();
  ::close(ends[0]);
  ::close(ends[1]);
  std::sort(times.begin(), times.end());
  return good ? times[times.size() / 2] : -1;
}

// Tries three lengths for a single send or recv, because the best one depends on the machine and its load.
double best_exchange_us(size_t bytes, double seconds) {
  double best = -1;
  for (const size_t piece : {size_t{128} << 10, size_t{256} << 10, size_t{1} << 20}) {
    const double us = exchange_us(bytes, piece, seconds);
    if (us >= 0 && (best < 0 || us < best)) best = us;
    if (bytes <= piece) break;
  }
  return best;
}

int print_full(const std::vector<size_t>& sizes, unsigned workers) {
  std::printf("{\"hand_over_us\": %.4f, \"workers\": %u, \"tcp_byte_us\": %.3f, \"sizes\": {", hand_over_us(), workers,
              best_exchange_us(1, 0.1));
  for (size_t i = 0; i < sizes.size(); ++i) {
    std::printf(
        "%s\"%zu\": {\"copy_gbs\": %.2f, \"copy_workers_gbs\": %.2f, \"tcp_exchange_us\": %.2f, \"slot_exchange_us\": %.2f}",
        i == 0 ? "" : ", ", sizes[i], copy_gigabytes_per_second(sizes[i], 0.1), copy_of_workers(sizes[i], workers, 0.1),
        best_exchange_us(sizes[i], 0.1), best_slot_exchange_us(sizes[i], 0.2));
    std::fflush(stdout);
  }
  std::printf("}}\n");
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  ::alarm(60);
  if (argc < 2) {
    const double hand_over = hand_over_us();
    std::printf("{\"copy_gbs\": %.2f, \"hand_over_us\": %.4f}\n", copy_gigabytes_per_second(64u << 20, 0.2), hand_over);
    return 0;
  }
  if (std::string(argv[1]) == "cores") {
    std::printf("{\"hand_over_us\": %.4f}\n", hand_over_us());
    return 0;
  }
  std::vector<size_t> sizes;
  unsigned workers = std::max(1u, std::thread::hardware_concurrency());
  for (int i = 2; i < argc; ++i) {
    if (std::string(argv[i]) == "--workers" && i + 1 < argc) {
      workers = static_cast<unsigned>(std::max(1, std::atoi(argv[++i])));
    } else {
      sizes.push_back(std::max<size_t>(1, std::strtoull(argv[i], nullptr, 10)));
    }
  }
  return print_full(sizes, workers);
}

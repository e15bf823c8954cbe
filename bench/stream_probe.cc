// Measures the goodput of one TCP stream between two hosts. It is a reference for an all-reduce over slow links.
//
//   stream_probe serve ADDRESS             prints "PORT n", serves one client, and then exits
//   stream_probe ADDRESS PORT BYTES TIMES  makes TIMES transfers of BYTES; prints the median in megabytes per second, as JSON
// The time of a transfer begins with its first send, and ends when the other end confirms that all bytes have arrived. All
// transfers share one connection, so its congestion window is open, as in a group. The only option that is set is TCP_NODELAY.

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

namespace {

using Clock = std::chrono::steady_clock;
constexpr size_t piece = 1u << 20;

int fail(const char* what) {
  std::fprintf(stderr, "stream_probe: %s: %s\n", what, std::strerror(errno));
  return 1;
}

bool send_all(int end, const void* data, size_t bytes) {
  const char* at = static_cast<const char*>(data);
  while (bytes > 0) {
    const auto n = ::send(end, at, bytes, MSG_NOSIGNAL);
    if (n <= 0) return false;
    at += n;
    bytes -= static_cast<size_t>(n);
  }
  return true;
}

bool receive_all(int end, void* data, size_t bytes) {
  char* at = static_cast<char*>(data);
  while (bytes > 0) {
    const auto n = ::recv(end, at, bytes, 0);
    if (n <= 0) return false;
    at += n;
    bytes -= static_cast<size_t>(n);
  }
  return true;
}

bool send_bytes(int end, uint64_t bytes, const std::vector<char>& memory) {
  for (uint64_t left = bytes; left > 0; left -= std::min<uint64_t>(left, piece)) {
    if (!send_all(end, memory.data(), std::min<uint64_t>(left, piece))) return false;
  }
  return true;
}

bool receive_bytes(int end, uint64_t bytes, std::vector<char>& memory) {
  for (uint64_t left = bytes; left > 0; left -= std::min<uint64_t>(left, piece)) {
    if (!receive_all(end, memory.data(), std::min<uint64_t>(left, piece))) return false;
  }
  return true;
}

sockaddr_in address_of(const char* text, uint16_t port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  if (::inet_pton(AF_INET, text, &address.sin_addr) != 1) address.sin_family = AF_UNSPEC;
  return address;
}

// Serves one client. Reads a length, receives that many bytes, and answers with one byte. Repeats this until the client closes
// the connection.
int serve(const char* text) {
  auto address = address_of(text, 0);
  socklen_t length = sizeof(address);
  auto* generic = reinterpret_cast<sockaddr*>(&address);
  const int listener = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (listener < 0 || ::bind(listener, generic, sizeof(address)) != 0 || ::listen(listener, 1) != 0) return fail(text);
  if (::getsockname(listener, generic, &length) != 0) return fail("getsockname");
  std::printf("PORT %u\n", ntohs(address.sin_port));
  std::fflush(stdout);
  const int end = ::accept(listener, nullptr, nullptr);
  if (end < 0) return fail("accept");
  const int on = 1;
  ::setsockopt(end, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  std::vector<char> memory(piece);
  for (uint64_t bytes; receive_all(end, &bytes, sizeof(bytes));) {
    const char done = 1;
    if (!receive_bytes(end, bytes, memory) || !send_all(end, &done, 1)) return fail("transfer");
  }
  return 0;
}

// Returns how many seconds one transfer takes. Returns a negative number on failure.
double transfer(int end, uint64_t bytes, const std::vector<char>& memory) {
  const auto start = Clock::now();
  char done = 0;
  if (!send_all(end, &bytes, sizeof(bytes)) || !send_bytes(end, bytes, memory) || !receive_all(end, &done, 1)) return -1;
  return std::chrono::duration<double>(Clock::now() - start).count();
}

int measure(const char* text, uint16_t port, uint64_t bytes, int times) {
  const auto address = address_of(text, port);
  const int end = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (end < 0 || ::connect(end, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) return fail(text);
  const int on = 1;
  ::setsockopt(end, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  const std::vector<char> memory(piece, 1);
  std::vector<double> rates;
  for (int i = 0; i <= times; ++i) {  // The first transfer opens the congestion window and is not counted.
    const double seconds = transfer(end, bytes, memory);
    if (seconds < 0) return fail("transfer");
    if (i > 0) rates.push_back(static_cast<double>(bytes) / seconds / 1e6);
  }
  std::sort(rates.begin(), rates.end());
  std::printf("{\"goodput_mbs\": %.2f}\n", rates[rates.size() / 2]);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  ::alarm(120);
  if (argc == 3 && std::string(argv[1]) == "serve") return serve(argv[2]);
  const long port = argc == 5 ? std::atol(argv[2]) : 0;
  const long long bytes = argc == 5 ? std::atoll(argv[3]) : 0;
  const int times = argc == 5 ? std::atoi(argv[4]) : 0;
  if (port <= 0 || port > 65535 || bytes <= 0 || times <= 0) {
    std::fprintf(stderr, "stream_probe serve ADDRESS | stream_probe ADDRESS PORT BYTES TIMES\n");
    return 2;
  }
  return measure(argv[1], static_cast<uint16_t>(port), static_cast<uint64_t>(bytes), times);
}

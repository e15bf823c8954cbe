// Fuzzes a TCP stream that is already established. The state machine that receives it must deliver only frames whose checks
// were right, and write only into the buffers that it was given. At the first damage, it must stop for good. The first byte of
// the input selects how the other bytes are split into reads, and how the sink handles frames.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "base/bytes.h"
#include "base/check.h"
#include "transports/tcp/tcp_decoder.h"
#include "transports/tcp/tcp_greeting.h"

namespace unisono {
namespace {

class FuzzSink final : public Sink {
 public:
  FuzzSink(PayloadPool& pool, uint8_t mode) : pool_(pool), mode_(mode) {}
  std::byte* receive_buffer(PeerIndex, const FrameHeader& header) override {
    if ((mode_ & 1) == 0) return nullptr;
    // The buffer has exactly the announced size, so that the sanitizer notices any write beyond it.
    target_.assign(header.payload_bytes, std::byte{0});
    return target_.data();
  }
  void received(PeerIndex, const FrameHeader& header, const View& view) override {
    UNISONO_CHECK(check_frame(header) == FrameFault::none);
    UNISONO_CHECK(view.bytes == header.payload_bytes);
    unsigned sum = 0;
    for (size_t i = 0; i < view.bytes; ++i) sum += static_cast<unsigned>(view.data[i]);
    sum_ = sum_ + sum;
    if (view.handle == 0) return;
    if ((mode_ & 2) != 0) kept_.push_back(view.handle);
    else pool_.give(view.handle);
  }
  void sent(uint64_t) override {}
  void lost(PeerIndex, const Status&, PeerFate) override {}
  void credit(PeerIndex) override {}
  void release_all() {
    for (const auto handle : kept_) pool_.give(handle);
    kept_.clear();
  }

 private:
  PayloadPool& pool_;
  uint8_t mode_;
  std::vector<std::byte> target_;
  std::vector<uint64_t> kept_;
  volatile unsigned sum_ = 0;
};

// Repairs the checksums. Random input rarely has valid ones, and would be refused because of them.
void repair_checks(std::vector<std::byte>& bytes) {
  for (size_t at = 0; at + sizeof(FrameHeader) <= bytes.size();) {
    FrameHeader header;
    std::memcpy(&header, bytes.data() + at, sizeof header);
    header.magic = frame_magic;
    header.version = frame_version;
    header.payload_bytes %= 200'000;
    seal_frame(header);
    std::memcpy(bytes.data() + at, &header, sizeof header);
    at += sizeof header + header.payload_bytes;
  }
}

void feed(TcpDecoder& decoder, FuzzSink& sink, const std::vector<std::byte>& bytes, uint8_t mode) {
  const size_t steps[] = {1, 63, 4096, SIZE_MAX};
  size_t at = 0;
  while (at < bytes.size()) {
    const auto space = decoder.space();
    UNISONO_CHECK(space.bytes() > 0);
    const size_t count = std::min({steps[(mode >> 3) & 3], bytes.size() - at, space.bytes()});
    const size_t first = std::min(count, space.parts[0].iov_len);
    std::memcpy(space.parts[0].iov_base, bytes.data() + at, first);
    if (count > first) std::memcpy(space.parts[1].iov_base, bytes.data() + at + first, count - first);
    at += count;
    auto progress = decoder.took(count, sink);
    if (progress == TcpDecoder::Progress::no_memory) {
      sink.release_all();
      progress = decoder.resume(sink);
    }
    if (progress == TcpDecoder::Progress::fault) {
      UNISONO_CHECK(decoder.took(0, sink) == TcpDecoder::Progress::fault);
      return;
    }
    if ((mode & 32) != 0 && at % 7 == 0) decoder.cancel(0, at % 3);
  }
}

// Reads the bytes as the greeting of a connection that resumes a stream.
void read_greeting(const std::vector<std::byte>& bytes, bool repair) {
  ByteReader reader(bytes);
  auto preamble = reader.read<TcpPreamble>();
  auto hello = reader.read<TcpSessionHello>();
  std::vector<TcpWireAddress> addresses;
  for (size_t i = 0; i < hello.addresses && i < tcp_hello_addresses_max && reader.ok(); ++i) {
    addresses.push_back(reader.read<TcpWireAddress>());
  }
  if (repair) {
    seal(preamble);
    seal(hello, addresses);
  }
  const bool calls = check(preamble) == TcpRefusal::none;
  UNISONO_CHECK(!calls || may_become_hello(reinterpret_cast<const std::byte*>(&preamble), sizeof preamble));
  (void)may_become_hello(bytes.data(), bytes.size());
  const bool sound = calls && check(hello, preamble) == TcpRefusal::none;
  UNISONO_CHECK(!sound || (hello.stream_index < hello.stream_count && hello.addresses <= tcp_hello_addresses_max));
  if (check_addresses(hello, addresses)) {
    for (const auto& address : addresses) UNISONO_CHECK(to_wire(from_wire(address)).port == address.port);
  }
  (void)is_sound(reader.read<TcpSessionReply>());
  (void)is_sound(reader.read<TcpBegin>());
}

}  // namespace
}  // namespace unisono

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace unisono;
  if (size == 0) return 0;
  const uint8_t mode = data[0];
  std::vector<std::byte> bytes(reinterpret_cast<const std::byte*>(data) + 1, reinterpret_cast<const std::byte*>(data) + size);
  if ((mode & 4) != 0) repair_checks(bytes);
  PayloadPool pool({.owner_bytes_max = 1u << 20});
  TcpReceiveCounters counters;
  FuzzSink sink(pool, mode);
  {
    TcpDecoder decoder(0, pool, counters);
    feed(decoder, sink, bytes, mode);
  }
  sink.release_all();
  UNISONO_CHECK(pool.blocks_out() == 0);
  read_greeting(bytes, (mode & 4) != 0);
  return 0;
}

// The keys of one encrypted link: one for each series of sequence numbers (UdpFlow) and direction. The datagrams of lossy
// groups belong to the series of their link, too, so they are sealed with these keys, and not with the key of their group. A
// member can therefore not be impersonated by another member.
#pragma once

#include <array>
#include <cstring>
#include <span>

#include "tls/datagram_seal.h"
#include "transports/udp/udp_handshake.h"
#include "wire/datagram.h"

namespace unisono {

enum class UdpSeries : uint8_t { numbers = 0, answers = 1 };

// Returns the series to which datagrams of this kind belong.
constexpr UdpSeries series_of(DatagramKind kind) {
  switch (kind) {
    case DatagramKind::data:
    case DatagramKind::end:
    case DatagramKind::fragment:
    case DatagramKind::control: return UdpSeries::numbers;
    default: return UdpSeries::answers;
  }
}

class UdpLinkSeal {
 public:
  // `self` is this process's rank in the link: 0 or 1.
  UdpLinkSeal(const UdpLinkSecret& link, Rank self, uint64_t numbers_per_key)
      : cipher_(link.cipher),
        out_{sealer(link, self, UdpSeries::numbers, numbers_per_key), sealer(link, self, UdpSeries::answers, numbers_per_key)},
        in_{opener(link, self, UdpSeries::numbers, numbers_per_key), opener(link, self, UdpSeries::answers, numbers_per_key)} {}

  SealCipher cipher() const { return cipher_; }
  DatagramSealer& out(UdpSeries series) { return out_[static_cast<size_t>(series)]; }
  // Decrypts a datagram where it lies. Returns false if its sender is not the peer, or if it was altered.
  bool open(const DatagramHeader& header, std::span<std::byte> datagram) {
    SealTag tag;
    std::memcpy(tag.data(), datagram.data() + datagram_tagged_bytes, sizeof tag);
    return in_[static_cast<size_t>(series_of(header.kind))]
        .open(header.flow_seq, datagram.first(datagram_tagged_bytes), datagram.subspan(encrypted_header_bytes), tag)
        .has_value();
  }

 private:
  static SealSecret secret(const UdpLinkSecret& link, Rank sender, UdpSeries series) {
    const std::array<std::byte, 2> which{static_cast<std::byte>(sender), static_cast<std::byte>(series)};
    return link.secret.derive("unisono udp series", which);
  }
  static DatagramSealer sealer(const UdpLinkSecret& link, Rank self, UdpSeries series, uint64_t numbers_per_key) {
    return DatagramSealer(link.cipher, secret(link, self, series), numbers_per_key);
  }
  static DatagramOpener opener(const UdpLinkSecret& link, Rank self, UdpSeries series, uint64_t numbers_per_key) {
    return DatagramOpener(link.cipher, secret(link, 1 - self, series), numbers_per_key);
  }

  SealCipher cipher_;
  std::array<DatagramSealer, 2> out_;
  std::array<DatagramOpener, 2> in_;
};

}  // namespace unisono

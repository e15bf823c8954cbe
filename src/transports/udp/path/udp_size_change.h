// A change of the size of a link's datagrams while the link was up, for messages.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace unisono {

struct DatagramSizeChange {
  uint64_t count = 0;    // number of changes so far; 0: the other fields have no meaning
  uint32_t bytes = 0;    // the size now
  uint32_t before = 0;   // the size before the last change
  uint32_t largest = 0;  // the largest size that was in use
  bool refused = false;  // true: the kernel of this host refuses longer datagrams. false: they get no acknowledgement.
  // Returns true if the path carries shorter datagrams than it did at some earlier time.
  bool is_reduced() const { return bytes < largest; }
  friend bool operator==(const DatagramSizeChange&, const DatagramSizeChange&) = default;
};

// Returns a text such as "datagrams to rank 3 on host b are now 1200 bytes, because larger ones get no acknowledgement". `to`
// names the receiver. change.count must not be 0.
std::string describe_size_change(std::string_view to, const DatagramSizeChange& change);

}  // namespace unisono

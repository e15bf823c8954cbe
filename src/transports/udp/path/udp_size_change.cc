#include "transports/udp/path/udp_size_change.h"

#include "base/concat.h"

namespace unisono {

std::string describe_size_change(std::string_view to, const DatagramSizeChange& change) {
  const auto* const why = !change.is_reduced() ? "datagrams of this size get acknowledgements"
                          : change.refused     ? "the network of this host refuses larger ones"
                                               : "larger ones get no acknowledgement";
  return concat("datagrams to ", to, " are now ", change.bytes, " bytes, because ", why);
}

}  // namespace unisono

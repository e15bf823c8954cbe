// Makes an ordinary group from an elastic run. The ranks of the group are the peers that a layout lists, in the layout's order.
// The group has all collectives of an ordinary group.
//
// The layout's first peer runs the group's rendezvous in a thread, which starts when this peer first calls Elastic::group. The
// peer publishes the address of the rendezvous in its roster entry. Peers join the same group if they call Elastic::group after
// the same averaging step. If some peers do not come, the rendezvous reports them.
#pragma once

#include <atomic>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>

#include "elastic/layout/layout.h"
#include "tls/tls_context.h"
#include "unisono/group.h"
#include "unisono/status.h"

namespace unisono {

// Among a peer's addresses, that of a rendezvous begins with this text, as in "group://10.0.0.1:4711".
inline constexpr std::string_view group_address_begin = "group://";

class ElasticRendezvous {
 public:
  ~ElasticRendezvous();
  // Begins to serve on a free port, if it does not serve yet. Other processes reach this process at `host`. With `tls`, only
  // processes with its key are served. Returns the address that is to be published.
  Result<std::string> serve(const std::string& host, const TlsContext* tls);

 private:
  std::atomic<bool> stop_{false};
  std::mutex mutex_;  // several threads may call serve() at the same time
  std::optional<std::string> address_;
  std::thread thread_;
};

// The data with which a peer joins the ordinary group.
struct ElasticGroupLocation {
  Layout layout;
  uint32_t rank = 0;
  int64_t step = -1;       // the averaging step that the peer finished last
  std::string rendezvous;  // address of the rendezvous; empty if it is not known yet
};

// Returns the host of an endpoint, for example "::1" for "tcp://[::1]:4040".
std::string host_of_endpoint(std::string_view endpoint);
// The group uses the key of the run, `tls`, or none if this is null, whatever `base` and the environment say.
Options group_options(const ElasticGroupLocation& location, const std::string& run_id, const TlsContext* tls,
                      const Options& base);

}  // namespace unisono

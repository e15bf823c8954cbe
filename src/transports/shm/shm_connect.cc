// The functions of ShmTransport that make, lose and end links, and that make the memory of ended links available again.
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>

#include "base/concat.h"
#include "base/error_text.h"
#include "transports/shm/shm_process.h"
#include "transports/shm/shm_transport.h"

namespace unisono {
namespace {

// Tags in epoll. A link's socket has the number of the link's region as its tag.
constexpr uint64_t acceptor_tag = uint64_t{1} << 32;
constexpr uint64_t process_tags = uint64_t{2} << 32;  // a process handle has this tag plus its descriptor
constexpr PeerIndex peer_index_max = 1u << 20;

Status system_error(const std::string& what) { return {Code::unavailable, "shm: " + what + ": " + error_text(errno)}; }

}  // namespace

Status ShmTransport::open_handles() {
  process_ = ::getpid();
  epoll_.reset(::epoll_create1(EPOLL_CLOEXEC));
  if (!epoll_ || !watch(acceptor_.handle(), acceptor_tag)) return system_error("epoll");
  return {};
}

ShmTransport::~ShmTransport() {
  if (::getpid() != process_) return;
  for (Link* link : active_) {
    if (link->stage == Link::Stage::up) (void)::send(link->socket.get(), &shm::goodbye_byte, 1, MSG_NOSIGNAL | MSG_DONTWAIT);
    // If a forked child also holds the socket, closing the socket does not end the connection. Therefore shut it down.
    if (link->socket) (void)::shutdown(link->socket.get(), SHUT_RDWR);
  }
}

bool ShmTransport::watch(int fd, uint64_t tag) {
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.u64 = tag;
  return ::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) == 0;
}

// Call this before every close. Without it, the kernel would keep watching a descriptor that a forked child also holds.
void ShmTransport::unwatch(int fd) {
  if (fd >= 0) (void)::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, fd, nullptr);
}

// Several links may lead to one process, which has one handle.
bool ShmTransport::is_shared(const Link& link) const {
  const auto same = [&](const Link* other) { return other != &link && other->process_handle == link.process_handle; };
  return std::any_of(active_.begin(), active_.end(), same);
}

bool ShmTransport::watch_process(const Link& link) {
  if (!link.process_handle || is_shared(link)) return true;
  const int handle = link.process_handle->get();
  return watch(handle, process_tags + static_cast<uint64_t>(handle));
}

void ShmTransport::unwatch_process(const Link& link) {
  if (link.process_handle && !is_shared(link)) unwatch(link.process_handle->get());
}

void ShmTransport::stop_listening() {
  unwatch(acceptor_.handle());
  acceptor_.close();
}

std::vector<std::string> ShmTransport::endpoints() const { return {endpoint_prefix_ + acceptor_.name()}; }

void ShmTransport::set_job(const JobKey& key) {
  key_ = key;
  has_key_ = true;
  check_now_ = true;
}

LinkState ShmTransport::state(PeerIndex peer) const { return peer < peers_.size() ? peers_[peer].state : LinkState::unknown; }

Status ShmTransport::add_peer(const LinkRequest& request) {
  if (request.peer > peer_index_max || request.id == options_.self)
    return {Code::invalid, "shm: " + request.label + " cannot be a peer"};
  const auto same = [&](const Link* link) { return link->stage != Link::Stage::ended && link->request.id == request.id; };
  if (link_of(request.peer) != nullptr || std::any_of(active_.begin(), active_.end(), same)) {
    return {Code::invalid, "shm: a link to " + request.label + " exists"};
  }
  const auto endpoint = std::find_if(request.endpoints.begin(), request.endpoints.end(),
                                     [&](const std::string& text) { return text.starts_with(endpoint_prefix_); });
  if (endpoint == request.endpoints.end()) {
    return {Code::unavailable, "shm: " + request.label + " is not on this host, or in another network name space"};
  }
  const auto free = std::find(links_.begin(), links_.end(), nullptr);
  if (free == links_.end()) {
    return {Code::unavailable, concat("shm: all ", links_.size(),
                                      " regions are in use (those of ended links whose process "
                                      "still holds the memory count); no link to ",
                                      request.label)};
  }
  const auto region = static_cast<uint16_t>(free - links_.begin());
  *free = std::make_unique<Link>(region, request);
  (*free)->socket_name = endpoint->substr(endpoint_prefix_.size());
  active_.push_back(free->get());
  if (request.peer >= peers_.size()) peers_.resize(request.peer + size_t{1});
  peers_[request.peer] = {.link = free->get(), .state = LinkState::connecting};
  check_now_ = true;
  return {};
}

shm::Hello ShmTransport::make_hello(const Link& link) const {
  shm::Hello hello;
  hello.key = key_;
  hello.from = options_.self;
  hello.to = link.request.id;
  hello.geometry = host_.arena.geometry();
  hello.region = link.region;
  shm::seal_hello(hello);
  return hello;
}

// Maps the peer's memory, and makes the two halves of the link, which send and receive.
Status ShmTransport::bring_up(Link& link, shm::Arrival& arrival) {
  if (arrival.hello.geometry.release_entries != host_.arena.geometry().release_entries) {
    return {Code::invalid, "shm: slots_per_peer differs between the processes"};
  }
  auto memory = shm::Arena::map(arrival.memory.get(), arrival.hello.geometry);
  if (!memory) return memory.status();
  link.memory = std::move(*memory);
  link.socket = std::move(arrival.socket);
  link.process = shm::process_number(link.socket.get());
  link.process_handle = shm::process_handle(link.socket.get());
  if (!link.process_handle && is_out_of_descriptors(errno)) {
    auto why = shm::no_descriptors("shm: no handle that shows when the process dies", errno);
    // A peer that waits for our hello reads this first. A peer that has our hello ignores it.
    shm::send_refusal(link.socket.get(), shm::Refusal::descriptors);
    return why;
  }
  // The system may provide no process handle. Then only the end of the socket shows that the peer has died.
  if (!watch_process(link)) return system_error("epoll");
  unwatch(link.socket.get());
  if (!watch(link.socket.get(), link.region)) return system_error("epoll");
  const shm::LinkMemory link_memory{.region = link.region, .peer_region = arrival.hello.region, .peer = &link.memory};
  link.outbound = std::make_unique<shm::Outbound>(host_, link_memory, link.socket.get());
  link.inbound = std::make_unique<shm::Inbound>(host_, link_memory, link.request.peer, link.socket.get());
  return {};
}

void ShmTransport::step_dial(Link& link, Sink& sink) {
  const std::string& label = link.request.label;
  if (!link.socket) {
    auto socket = shm::dial(link.socket_name);
    if (!socket) return lose(link, {Code::unavailable, label + ": " + socket.status().message() + " (shm)"}, sink);
    if (!*socket) {
      link.last_error = "the listener of the peer is busy";
      return;
    }
    if (options_.same_user && !shm::is_of_this_user(socket->get()))
      return lose(link, {Code::unavailable, label + ": a process of another user listens there; shm @" + link.socket_name},
                  sink);
    link.socket = std::move(*socket);
  }
  if (!link.hello_sent) {
    link.hello_sent = true;
    link.last_error = "the peer did not answer the hello";
    const Status status = shm::send_hello(link.socket.get(), make_hello(link), host_.arena.memfd());
    if (!status.ok() || !watch(link.socket.get(), link.region)) {
      return lose(link, {Code::unavailable, label + ": " + status.message()}, sink);
    }
  }
  shm::Arrival answer;
  answer.socket = std::move(link.socket);
  shm::Refusal refusal = shm::Refusal::none;
  const auto state = shm::receive_hello(answer, refusal);
  if (state == shm::HelloState::waiting) {
    link.socket = std::move(answer.socket);
    return;
  }
  if (state == shm::HelloState::refused) refusal = answer.hello.refusal;
  const bool is_expected_peer =
      answer.hello.from == link.request.id && answer.hello.to == options_.self && answer.hello.key == key_;
  Status status;
  if (state == shm::HelloState::ended) status = {Code::unavailable, "the peer closed the connection before its hello"};
  else if (state == shm::HelloState::refused)
    status = {Code::unavailable, std::string("the peer refused the link: ") + shm::name(refusal)};
  else if (refusal == shm::Refusal::descriptors) status = shm::truncated_hello();
  else if (state == shm::HelloState::malformed)
    status = {Code::corrupt, std::string("the hello of the peer is invalid: ") + shm::name(refusal)};
  else if (!is_expected_peer) status = {Code::corrupt, "another process answered"};
  else status = bring_up(link, answer);
  if (status.ok()) {
    link.stage = Link::Stage::up;
    return;
  }
  if (!link.socket) link.socket = std::move(answer.socket);  // the peer may read our memory until this socket ends
  lose(link, {status.code(), label + ": " + status.message() + "; shm @" + link.socket_name}, sink);
}

void ShmTransport::step_wait(Link& link, const Status& accepting, Sink& sink) {
  auto arrival = acceptor_.take(link.request.id, key_);
  // Descriptors do not become free again while a group forms, so waiting until the deadline would not help.
  if (!arrival && !accepting.ok())
    return lose(link, {Code::unavailable, link.request.label + ": " + accepting.message() + " (shm)"}, sink);
  if (!arrival) {
    link.last_error = "the peer did not connect";
    return;
  }
  const int socket = arrival->socket.get();
  const Status status = bring_up(link, *arrival);
  if (!status.ok()) {
    shm::send_refusal(socket, shm::Refusal::memory);
    return lose(link, {status.code(), link.request.label + ": " + status.message() + " (shm)"}, sink);
  }
  link.hello_sent = true;
  link.stage = Link::Stage::up;
  const Status sent = shm::send_hello(socket, make_hello(link), host_.arena.memfd());
  if (!sent.ok()) return lose(link, {Code::unavailable, link.request.label + ": " + sent.message()}, sink);
}

void ShmTransport::step_connecting(Link& link, const Status& accepting, Nanos now, Sink& sink) {
  if (has_key_) link.request.dial ? step_dial(link, sink) : step_wait(link, accepting, sink);
  if (link.stage == Link::Stage::up) {
    peers_[link.request.peer].state = LinkState::up;
    sink.credit(link.request.peer);
  } else if (link.stage == Link::Stage::connecting && now >= link.request.deadline) {
    const std::string why = has_key_ ? link.last_error : "the job's key is not known yet";
    lose(link,
         {Code::unavailable, link.request.label + ": no shared-memory link in time; tried @" + link.socket_name + ": " + why},
         sink);
  }
}

void ShmTransport::handle_death(int handle) {
  for (Link* link : active_) {
    if (link->process_handle && link->process_handle->get() == handle) link->died = link->gone = true;
  }
  unwatch(handle);
}

void ShmTransport::handle_event(uint64_t tag) {
  if (tag == acceptor_tag) return;
  if (tag > process_tags) return handle_death(static_cast<int>(tag - process_tags));
  Link* link = links_[tag].get();
  if (link == nullptr || link->stage == Link::Stage::connecting) return;
  // Reads one message. If there are more, epoll reports them again.
  char byte = 0;
  const ssize_t size = ::recv(link->socket.get(), &byte, 1, MSG_DONTWAIT);
  if (size == 1 && byte == shm::goodbye_byte) {
    link->goodbye_received = true;
  } else if (size == 1 && byte == shm::given_up_byte) {
    link->given_up = true;
  } else if (size == 0 || (size < 0 && errno != EAGAIN && errno != EINTR)) {
    link->gone = true;
    unwatch(link->socket.get());
  }
}

bool ShmTransport::check_sockets(Nanos now, Sink& sink) {
  std::array<epoll_event, 32> events;
  const int count = ::epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()), 0);
  bool acceptor_has_work = acceptor_.next_deadline() != never;
  for (int i = 0; i < count; ++i) {
    acceptor_has_work = acceptor_has_work || events[i].data.u64 == acceptor_tag;
    handle_event(events[i].data.u64);
  }
  const Status accepting = acceptor_has_work ? acceptor_.step(now, has_key_ ? &key_ : nullptr) : Status();
  for (size_t i = 0; i < active_.size(); ++i) {
    Link& link = *active_[i];
    if (link.stage == Link::Stage::connecting) step_connecting(link, accepting, now, sink);
    else if (acceptor_has_work && link.stage == Link::Stage::up) acceptor_.refuse_duplicates(link.request.id);
  }
  reap();
  return count > 0;
}

Status ShmTransport::loss_status(const Link& link) const {
  const std::string traffic =
      concat("; shm, ", link.outbound->sent_bytes(), " bytes sent, ", link.inbound->received_bytes(), " received");
  const char* fault = link.inbound->fault() != nullptr ? link.inbound->fault() : link.outbound->fault();
  if (fault != nullptr) return {Code::corrupt, link.request.label + ": invalid data in its shared memory: " + fault + traffic};
  const char* how = link.goodbye_received ? ": the peer closed the link"
                    : link.given_up       ? ": the peer found invalid data in the shared memory"
                    : link.died           ? ": the process died"
                                          : ": the peer closed its socket without a goodbye";
  return {Code::peer_lost, link.request.label + how + traffic};
}

// Detaches the link from its peer. The link's region stays in use until neither process reads the other process's memory any
// more.
void ShmTransport::end_link(Link& link) {
  if (peers_[link.request.peer].link == &link) peers_[link.request.peer] = {.link = nullptr, .state = LinkState::lost};
  if (link.outbound) link.outbound->finish();
  if (link.inbound) link.inbound->stop();
  // The peer gets access to our memory with our hello. If no hello was sent, the peer cannot be reading our memory.
  if (!link.hello_sent) link.gone = true;
  link.stage = Link::Stage::ended;
  check_now_ = true;
}

void ShmTransport::lose(Link& link, const Status& why, Sink& sink) {
  const bool was_up = link.stage == Link::Stage::up;
  const bool fault = was_up && (link.inbound->fault() != nullptr || link.outbound->fault() != nullptr);
  if (fault) (void)::send(link.socket.get(), &shm::given_up_byte, 1, MSG_NOSIGNAL | MSG_DONTWAIT);
  const bool ended = was_up && why.code() == Code::peer_lost && !link.given_up;
  const auto fate = ended ? PeerFate::ended : PeerFate::unknown;
  end_link(link);
  report_sent(sink);
  sink.lost(link.request.peer, why, fate);
}

void ShmTransport::close(PeerIndex peer) {
  Link* link = link_of(peer);
  if (link == nullptr) return;
  if (link->stage == Link::Stage::up) {
    (void)link->outbound->service();
    (void)::send(link->socket.get(), &shm::goodbye_byte, 1, MSG_NOSIGNAL | MSG_DONTWAIT);
  }
  end_link(*link);
  peers_[peer].state = LinkState::unknown;
}

// Returns true if the link has ended and neither process reads the other process's memory any more. If the link has ended and
// the sink holds no views of it, this function also makes our process stop reading the peer's memory, and tells the peer so.
bool ShmTransport::may_reap(Link& link) {
  if (link.stage != Link::Stage::ended) return false;
  if (link.inbound && link.inbound->views_out() > 0) return false;
  if (link.reading) {
    link.reading = false;
    if (link.socket) (void)::shutdown(link.socket.get(), SHUT_WR);
  }
  return link.gone;
}

void ShmTransport::reap() {
  for (size_t i = 0; i < active_.size();) {
    Link& link = *active_[i];
    if (!may_reap(link)) {
      ++i;
      continue;
    }
    active_.erase(active_.begin() + static_cast<std::ptrdiff_t>(i));
    unwatch(link.socket.get());
    unwatch_process(link);
    if (link.outbound) link.outbound->release_peer_slots();
    host_.arena.clear_region(link.region);
    links_[link.region].reset();
  }
}

}  // namespace unisono

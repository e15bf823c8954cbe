// The links of ShmTransport: how they are made, lost and ended, and how their memory is reclaimed.
#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <string_view>

#include "transports/shm/shm_transport.h"

namespace unisono {
namespace {

constexpr uint64_t bell_tag = 0;
constexpr uint64_t reception_tag = 1;
constexpr uint64_t link_tags = 2;  // socket of a link: + 2 * region; its process: + 1
constexpr PeerIndex peer_index_max = 1u << 20;

Status system_error(const std::string& what) { return {Code::unavailable, "shm: " + what + ": " + std::strerror(errno)}; }

// We write to the peer's bell without knowing what it is, so only an event counter is accepted: it never blocks.
bool is_bell(int fd) {
  std::array<char, 64> target{};
  const std::string path = "/proc/self/fd/" + std::to_string(fd);
  if (::readlink(path.c_str(), target.data(), target.size() - 1) < 0) return false;
  const int flags = ::fcntl(fd, F_GETFL);
  return std::string_view(target.data()) == "anon_inode:[eventfd]" && flags >= 0 &&
         ::fcntl(fd, F_SETFL, flags | O_NONBLOCK) == 0;
}

}  // namespace

Status ShmTransport::open_handles() {
  process_ = ::getpid();
  epoll_.reset(::epoll_create1(EPOLL_CLOEXEC));
  bell_.reset(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!epoll_ || !bell_) return system_error("epoll and eventfd");
  // Edge-triggered: the counter is never read, each ring is an edge.
  if (!watch(bell_.get(), bell_tag, EPOLLIN | EPOLLET) || !watch(reception_.handle(), reception_tag, EPOLLIN))
    return system_error("epoll");
  return {};
}

ShmTransport::~ShmTransport() {
  if (::getpid() != process_) return;
  for (Link* link : active_) {
    if (link->stage == Link::Stage::up) (void)::send(link->socket.get(), &shm::goodbye_byte, 1, MSG_NOSIGNAL | MSG_DONTWAIT);
    // Closing is not enough: a forked child may hold the socket, too.
    if (link->socket) (void)::shutdown(link->socket.get(), SHUT_RDWR);
  }
}

bool ShmTransport::watch(int fd, uint64_t tag, uint32_t events) {
  epoll_event event{};
  event.events = events;
  event.data.u64 = tag;
  return ::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) == 0;
}

// Call this before every close: the kernel forgets a descriptor only when no forked child holds it, either.
void ShmTransport::unwatch(int fd) {
  if (fd >= 0) (void)::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, fd, nullptr);
}

std::vector<std::string> ShmTransport::endpoints() const { return {endpoint_prefix_ + reception_.name()}; }

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
    return {Code::unavailable, "shm: all " + std::to_string(links_.size()) +
                                   " regions are in use (those of ended links whose process "
                                   "still holds the memory count); no link to " +
                                   request.label};
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

// Maps the peer's memory and makes both halves of the link.
Status ShmTransport::bring_up(Link& link, shm::Arrival& arrival) {
  if (arrival.hello.geometry.release_entries != host_.arena.geometry().release_entries) {
    return {Code::invalid, "shm: slots_per_peer differs between the processes"};
  }
  auto memory = shm::Arena::map(arrival.memory.get(), arrival.hello.geometry);
  if (!memory) return memory.status();
  if (!is_bell(arrival.bell.get())) return {Code::corrupt, "shm: the peer's bell is not an event counter"};
  link.memory = std::move(*memory);
  link.bell = std::move(arrival.bell);
  link.socket = std::move(arrival.socket);
  link.process = shm::process_number(link.socket.get());
  link.process_handle = shm::process_handle(link.socket.get());
  const uint64_t tag = link_tags + 2 * uint64_t{link.region};
  // Without a process handle, only the end of the socket shows a death.
  if (link.process_handle && !watch(link.process_handle.get(), tag + 1, EPOLLIN)) return system_error("epoll");
  unwatch(link.socket.get());
  if (!watch(link.socket.get(), tag, EPOLLIN)) return system_error("epoll");
  const shm::LinkMemory both{.region = link.region, .peer_region = arrival.hello.region, .peer = &link.memory};
  link.outbound = std::make_unique<shm::Outbound>(host_, both, link.bell.get());
  link.inbound = std::make_unique<shm::Inbound>(host_, both, link.request.peer, link.bell.get());
  return {};
}

void ShmTransport::step_dial(Link& link, Sink& sink) {
  const std::string& label = link.request.label;
  if (!link.socket) {
    auto socket = shm::dial(link.socket_name);
    if (!socket) return lose(link, {Code::unavailable, label + ": " + socket.status().message() + " (shm)"}, sink);
    if (!*socket) {
      link.last_error = "its listener is busy";
      return;
    }
    link.socket = std::move(*socket);
  }
  if (!link.greeted) {
    link.greeted = true;
    link.last_error = "no answer to the hello";
    const Status status = shm::send_hello(link.socket.get(), make_hello(link), host_.arena.memfd(), bell_.get());
    if (!status.ok() || !watch(link.socket.get(), link_tags + 2 * uint64_t{link.region}, EPOLLIN)) {
      return lose(link, {Code::unavailable, label + ": " + status.message()}, sink);
    }
  }
  shm::Arrival answer;
  answer.socket = std::move(link.socket);
  shm::Refusal refusal = shm::Refusal::none;
  const auto state = shm::receive_hello(answer, refusal);
  if (state == shm::Incoming::waiting) {
    link.socket = std::move(answer.socket);
    return;
  }
  if (state == shm::Incoming::refused) refusal = answer.hello.refusal;
  const bool right = answer.hello.from == link.request.id && answer.hello.to == options_.self && answer.hello.key == key_;
  Status status;
  if (state == shm::Incoming::ended) status = {Code::unavailable, "it closed the connection before its hello"};
  else if (state == shm::Incoming::refused) status = {Code::unavailable, std::string("it refused: ") + shm::name(refusal)};
  else if (state == shm::Incoming::malformed)
    status = {Code::corrupt, std::string("its hello is wrong: ") + shm::name(refusal)};
  else if (!right) status = {Code::corrupt, "another process answered"};
  else status = bring_up(link, answer);
  if (status.ok()) {
    link.stage = Link::Stage::up;
    return;
  }
  if (!link.socket) link.socket = std::move(answer.socket);  // the peer has our memory until this socket ends
  lose(link, {status.code(), label + ": " + status.message() + "; shm @" + link.socket_name}, sink);
}

void ShmTransport::step_wait(Link& link, Sink& sink) {
  auto arrival = reception_.take(link.request.id, key_);
  if (!arrival) {
    link.last_error = "it did not connect";
    return;
  }
  const int socket = arrival->socket.get();
  const Status status = bring_up(link, *arrival);
  if (!status.ok()) {
    shm::send_refusal(socket, shm::Refusal::memory);
    return lose(link, {status.code(), link.request.label + ": " + status.message() + " (shm)"}, sink);
  }
  link.greeted = true;
  link.stage = Link::Stage::up;
  const Status sent = shm::send_hello(socket, make_hello(link), host_.arena.memfd(), bell_.get());
  if (!sent.ok()) return lose(link, {Code::unavailable, link.request.label + ": " + sent.message()}, sink);
}

void ShmTransport::step_connecting(Link& link, Nanos now, Sink& sink) {
  if (has_key_) link.request.dial ? step_dial(link, sink) : step_wait(link, sink);
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

void ShmTransport::take_event(uint64_t tag) {
  if (tag < link_tags) return;
  Link* link = links_[(tag - link_tags) / 2].get();
  if (link == nullptr || link->stage == Link::Stage::connecting) return;
  const bool process = (tag - link_tags) % 2 == 1;
  if (process) {
    link->died = link->gone = true;
    unwatch(link->process_handle.get());
    return;
  }
  char byte = 0;
  const ssize_t size = ::recv(link->socket.get(), &byte, 1, MSG_DONTWAIT);
  if (size == 1 && byte == shm::goodbye_byte) {
    link->said_goodbye = true;
  } else if (size == 0 || (size < 0 && errno != EAGAIN && errno != EINTR)) {
    link->gone = true;
    unwatch(link->socket.get());
  }
}

bool ShmTransport::check_sockets(Nanos now, Sink& sink) {
  std::array<epoll_event, 32> events;
  const int count = ::epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()), 0);
  bool visitors = reception_.next_deadline() != never;
  for (int i = 0; i < count; ++i) {
    visitors = visitors || events[i].data.u64 == reception_tag;
    take_event(events[i].data.u64);
  }
  if (visitors) reception_.step(now, has_key_ ? &key_ : nullptr);
  for (size_t i = 0; i < active_.size(); ++i) {
    Link& link = *active_[i];
    if (link.stage == Link::Stage::connecting) step_connecting(link, now, sink);
    else if (visitors && link.stage == Link::Stage::up) reception_.refuse_duplicates(link.request.id);
  }
  reap();
  return count > 0;
}

Status ShmTransport::loss_of(const Link& link) const {
  const std::string traffic = "; shm, " + std::to_string(link.outbound->sent_bytes()) + " bytes sent, " +
                              std::to_string(link.inbound->received_bytes()) + " received";
  const char* fault = link.inbound->fault() != nullptr ? link.inbound->fault() : link.outbound->fault();
  if (fault != nullptr) return {Code::corrupt, link.request.label + ": bad words in its shared memory: " + fault + traffic};
  const char* how = link.said_goodbye ? ": it ended the link"
                    : link.died       ? ": the process died"
                                      : ": its end of the link is gone";
  return {Code::peer_lost, link.request.label + how + traffic};
}

// Detaches the link from its peer. Its region stays in use until neither side reads the other's memory.
void ShmTransport::end_link(Link& link) {
  if (peers_[link.request.peer].link == &link) peers_[link.request.peer] = {.link = nullptr, .state = LinkState::lost};
  if (link.outbound) link.outbound->finish();
  if (link.inbound) link.inbound->stop();
  // Before our hello, no peer has our memory.
  if (!link.greeted) link.gone = true;
  link.stage = Link::Stage::ended;
  check_now_ = true;
}

void ShmTransport::lose(Link& link, const Status& why, Sink& sink) {
  end_link(link);
  report_sent(sink);
  sink.lost(link.request.peer, why);
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

// Stops reading the peer's memory when no view of it is left. True if the peer has stopped reading ours, too.
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
    unwatch(link.process_handle.get());
    if (link.outbound) link.outbound->forget();
    host_.arena.clear_region(link.region);
    links_[link.region].reset();
  }
}

}  // namespace unisono

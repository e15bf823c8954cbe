#include "elastic/peer/elastic_run.h"

#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "elastic/round/round_messages.h"
#include "rendezvous/rendezvous_socket.h"

namespace unisono::internal {

namespace {

constexpr Nanos drain_time = 2 * second;  // after leaving: time to send the last messages
constexpr size_t blobs_max = 64;
constexpr uint64_t blob_bytes_max = uint64_t{1} << 30;

Status not_here() { return {Code::unavailable, "SHUTTING_DOWN: this process has left the run"}; }

// Calls each(tensor, index of its first element in the joined vector).
template <typename Each>
void for_each_piece(std::span<const std::span<float>> tensors, Each each) {
  size_t at = 0;
  for (const auto& tensor : tensors) each(tensor, at), at += tensor.size();
}

// Adds the mean to what the caller changed since the values were contributed. If the contribution had no weight, the mean
// replaces the tensor.
void add_step(std::span<float> tensor, std::span<const float> mean, std::span<const float> given, bool replaced) {
  if (replaced) {
    std::ranges::copy(mean, tensor.begin());
    return;
  }
  for (size_t i = 0; i < tensor.size(); ++i) tensor[i] = tensor[i] == given[i] ? mean[i] : tensor[i] + (mean[i] - given[i]);
}

}  // namespace

// An element that the caller has not changed meanwhile becomes the mean, bit for bit, as on all peers. To a changed element the
// caller's change is added.
Result<AveragingReport> ElasticCall::take() {
  taken = true;
  if (!status.ok()) return status;
  const auto values = std::exchange(step.values, {});
  const auto contributed = std::exchange(step.contributed, {});
  if (!overlaps) {
    for_each_piece(tensors, [&](std::span<float> tensor, size_t at) { values.read(at, tensor); });
    return step.report;
  }
  const auto* const given_values = reinterpret_cast<const float*>(contributed.data());
  const auto chunk_elements = values.table().chunk_elements();
  for_each_piece(tensors, [&](std::span<float> tensor, size_t at) {
    for (size_t i = 0; i < tensor.size();) {
      // Up to the end of one chunk.
      const auto chunk = static_cast<uint32_t>((at + i) / chunk_elements);
      const auto mean = std::span(values.chunk(chunk), values.table().count(chunk)).subspan((at + i) % chunk_elements);
      const auto count = std::min(mean.size(), tensor.size() - i);
      add_step(tensor.subspan(i, count), mean.first(count), {given_values + at + i, count}, step.replaced[chunk]);
      i += count;
    }
  });
  return step.report;
}

ElasticRun::ElasticRun(const ElasticOptions& options, std::unique_ptr<ElasticDriver> driver, int wake_fd)
    : options_(options), driver_(std::move(driver)), wake_fd_(wake_fd) {}

ElasticRun::~ElasticRun() {
  (void)leave();
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  (void)command([](Nanos) {});
  if (thread_.joinable()) thread_.join();
  ::close(wake_fd_);
}

Result<std::shared_ptr<ElasticRun>> ElasticRun::join(const ElasticOptions& options) {
  auto driver = ElasticDriver::make(options);
  if (!driver.ok()) return driver.status();
  const int wake_fd = ::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
  if (wake_fd < 0) return Status(Code::unavailable, std::string("eventfd: ") + std::strerror(errno));
  std::shared_ptr<ElasticRun> run(new ElasticRun(options, std::move(*driver), wake_fd));
  run->thread_ = std::thread([raw = run.get()] { raw->drive(); });
  if (auto status = run->wait_joined(); !status.ok()) return status;
  return run;
}

Status ElasticRun::wait_joined() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return joined_ || !failure_.ok() || ended_; });
  if (!joined_) return failure_.ok() ? not_here() : failure_;
  state_ = std::move(*loaded_);
  loaded_.reset();
  return {};
}

bool ElasticRun::command(Command what) {
  {
    const std::lock_guard lock(mutex_);
    if (ended_) return false;
    commands_.push_back(std::move(what));
  }
  const uint64_t one = 1;
  [[maybe_unused]] const auto written = ::write(wake_fd_, &one, sizeof(one));
  return true;
}

void ElasticRun::drive() {
  ::pthread_setname_np(::pthread_self(), "unisono-elastic");
  auto now = monotonic_now();
  driver_->start(now);
  Nanos parted_at = never;
  for (;;) {
    now = monotonic_now();
    bool acted = run_commands(now);
    acted |= driver_->poll(now);
    publish();
    if (driver_->peer().left() && parted_at == never) driver_->part(), parted_at = now, acted = true;
    {
      const std::lock_guard lock(mutex_);
      const bool over = driver_->peer().left() ? !driver_->draining() || now >= parted_at + drain_time : stop_;
      if (over) break;
    }
    if (!acted) sleep(now, parted_at == never ? never : parted_at + drain_time);
  }
  driver_->stop_looking();
  while (!end(now)) run_commands(now);
}

// False: new commands have come, and each must be answered.
bool ElasticRun::end(Nanos now) {
  end_call(not_here(), std::nullopt);
  const std::lock_guard lock(mutex_);
  if (!commands_.empty()) return false;
  last_status_ = driver_->status(now);
  left_ = ended_ = true;
  changed_.notify_all();
  return true;
}

bool ElasticRun::run_commands(Nanos now) {
  std::vector<Command> commands;
  {
    const std::lock_guard lock(mutex_);
    commands.swap(commands_);
  }
  for (const auto& one : commands) one(now);
  return !commands.empty();
}

void ElasticRun::end_call(Status status, std::optional<FinishedStep> step) {
  const auto call = std::exchange(call_, nullptr);
  if (call == nullptr) return;
  const std::lock_guard lock(call->mutex);
  call->status = std::move(status);
  if (step) call->step = std::move(*step);
  call->done = true;
  call->ended.notify_all();
}

void ElasticRun::publish() {
  auto& peer = driver_->peer();
  if (auto step = peer.take_step()) end_call({}, std::move(step));
  const bool joined = peer.joined(), ready = peer.ready(), left = peer.left();
  const std::lock_guard lock(mutex_);
  const bool given_up = !joined_ && !joined && !driver_->failure().ok() && driver_->next_attempt() == never;
  if (joined == joined_ && ready == ready_ && left == left_ && given_up == !failure_.ok()) return;
  if (joined && !joined_) loaded_ = peer.take_state();
  joined_ |= joined;
  ready_ = ready;
  left_ = left;
  if (given_up) failure_ = driver_->failure();
  changed_.notify_all();
}

void ElasticRun::sleep(Nanos now, Nanos at_most_until) {
  const auto until = std::min(driver_->next_deadline(), at_most_until);
  if (until <= now) return;
  std::array<pollfd, 2> fds{{{wake_fd_, POLLIN, 0}, {driver_->wait_handle(), POLLIN, 0}}};
  if (driver_->arm()) {
    const auto left = std::min(until == never ? 3600 * second : until - now, 3600 * second);
    const timespec time{.tv_sec = left / second, .tv_nsec = left % second};
    (void)::ppoll(fds.data(), fds.size(), &time, nullptr);
  }
  driver_->disarm();
  uint64_t count = 0;
  if ((fds[0].revents & POLLIN) != 0) [[maybe_unused]]
    const auto got = ::read(wake_fd_, &count, sizeof(count));
}

bool ElasticRun::ready(Nanos timeout) {
  std::unique_lock lock(mutex_);
  return changed_.wait_for(lock, std::chrono::nanoseconds(timeout), [this] { return ready_ || ended_; }) && ready_ && !ended_;
}

Status ElasticRun::check_tensors(std::span<const std::span<float>> tensors) const {
  if (options_.role == ElasticOptions::Role::reducer && tensors.empty()) return {};
  if (tensors.size() != options_.tensor_elements.size())
    return {Code::invalid, std::to_string(tensors.size()) + " tensors were given, and the run averages " +
                               std::to_string(options_.tensor_elements.size())};
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (tensors[i].size() != options_.tensor_elements[i])
      return {Code::invalid, "tensor " + std::to_string(i) + " has " + std::to_string(tensors[i].size()) +
                                 " elements, and the run averages " + std::to_string(options_.tensor_elements[i])};
  }
  return {};
}

SharedBuffer ElasticRun::joined(std::span<const std::span<float>> tensors) const {
  if (options_.role == ElasticOptions::Role::reducer) return {};
  size_t bytes = 0;
  for (const auto& tensor : tensors) bytes += tensor.size_bytes();
  auto values = SharedBuffer::make(bytes);
  for_each_piece(tensors, [&](std::span<float> tensor, size_t at) {
    if (!tensor.empty()) std::memcpy(values.data() + at * sizeof(float), tensor.data(), tensor.size_bytes());
  });
  return values;
}

Result<std::shared_ptr<ElasticCall>> ElasticRun::begin(std::vector<std::span<float>> tensors, double weight, bool overlaps) {
  if (auto status = check_tensors(tensors); !status.ok()) return status;
  if (auto status = check_step_weight(weight); !status.ok()) return status;
  auto call = std::make_shared<ElasticCall>();
  auto values = joined(tensors);
  call->tensors = options_.role == ElasticOptions::Role::reducer ? std::vector<std::span<float>>{} : std::move(tensors);
  call->overlaps = overlaps;
  call->run = weak_from_this();
  const bool taken = command([this, call, values, weight, overlaps](Nanos now) {
    auto status = call_ != nullptr
                      ? Status(Code::invalid, "another averaging step is under way at this peer")
                      : driver_->peer().begin_step({.values = values, .weight = weight, .keep_contributed = overlaps}, now);
    if (status.ok()) {
      call_ = call;
      return;
    }
    const std::lock_guard lock(call->mutex);
    call->status = std::move(status);
    call->done = true;
    call->ended.notify_all();
  });
  if (!taken) return not_here();
  return call;
}

void ElasticRun::cancel() {
  (void)command([this](Nanos now) { driver_->peer().cancel_step(now); });
}

Status ElasticRun::set_blobs(std::vector<NamedBlob> blobs) {
  uint64_t bytes = 0;
  for (size_t i = 0; i < blobs.size(); ++i) {
    bytes += blobs[i].second.size();
    if (blobs[i].first.size() > state_blob_name_bytes_max)
      return {Code::invalid, "a blob's name has " + std::to_string(blobs[i].first.size()) + " bytes: up to 255 are possible"};
    for (size_t j = 0; j < i; ++j) {
      if (blobs[i].first == blobs[j].first) return {Code::invalid, "two blobs are called " + blobs[i].first};
    }
  }
  if (blobs.size() > blobs_max || bytes > blob_bytes_max)
    return {Code::invalid, "up to 64 blobs of 1 GiB together are possible"};
  auto shared = std::make_shared<std::vector<NamedBlob>>(std::move(blobs));
  return command([this, shared](Nanos) { driver_->peer().set_blobs(std::move(*shared)); }) ? Status() : not_here();
}

Status ElasticRun::offer(std::span<const std::span<float>> tensors) {
  if (auto status = check_tensors(tensors); !status.ok()) return status;
  auto values = joined(tensors);
  return command([this, values = std::move(values)](Nanos now) { driver_->peer().offer_values(values, now); }) ? Status()
                                                                                                               : not_here();
}

template <typename Answer>
std::optional<Answer> ElasticRun::ask(std::function<Answer(Nanos now)> question) {
  struct Asked {
    std::mutex mutex;
    std::condition_variable given;
    std::optional<Answer> answer;
  };
  const auto asked = std::make_shared<Asked>();
  const bool taken = command([asked, question = std::move(question)](Nanos now) {
    auto answer = question(now);
    const std::lock_guard lock(asked->mutex);
    asked->answer = std::move(answer);
    asked->given.notify_all();
  });
  if (!taken) return std::nullopt;
  std::unique_lock lock(asked->mutex);
  asked->given.wait(lock, [&] { return asked->answer.has_value(); });
  return asked->answer;
}

ElasticStatus ElasticRun::status() {
  if (auto status = ask<ElasticStatus>([this](Nanos now) { return driver_->status(now); })) return *status;
  const std::lock_guard lock(mutex_);
  return last_status_;
}

Result<Group> ElasticRun::group(Nanos timeout, const Options& options) {
  const auto until = monotonic_now() + timeout;
  for (;;) {
    const auto place = ask<Result<ElasticGroupLocation>>([this](Nanos) { return driver_->peer().group_location(); });
    if (!place) return not_here();
    if (!place->ok()) return place->status();
    if (!(*place)->rendezvous.empty()) {
      auto own = group_options(**place, options_.run_id, options);
      own.join_timeout = Milliseconds(std::max<Nanos>(1, (until - monotonic_now()) / millisecond));
      return Group::join(own);
    }
    if ((*place)->rank == 0) {
      const auto address = rendezvous_.serve(host_of_endpoint(status().endpoints.front()));
      if (!address.ok()) return address.status();
      (void)command([this, address = *address](Nanos now) { driver_->peer().tell_address(address, now); });
    }
    if (monotonic_now() >= until)
      return Status(Code::late, "the first peer of layout " + std::to_string((*place)->layout.version) +
                                    " has not published the group's rendezvous: it did not call group()");
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, std::chrono::milliseconds(20), [this] { return ended_; });
  }
}

Status ElasticRun::leave() {
  (void)command([this](Nanos now) { driver_->peer().leave(now); });
  std::unique_lock lock(mutex_);
  if (!joined_) {
    stop_ = true;
    return {};
  }
  changed_.wait(lock, [this] { return ended_; });
  return {};
}

}  // namespace unisono::internal

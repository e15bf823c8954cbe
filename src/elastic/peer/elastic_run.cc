#include "elastic/peer/elastic_run.h"

#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/concat.h"
#include "base/error_text.h"
#include "elastic/round/round_messages.h"
#include "events/process_log.h"
#include "rendezvous/environment.h"
#include "rendezvous/rendezvous_socket.h"
#include "rendezvous/security_options.h"

namespace unisono::internal {

namespace {

constexpr Nanos drain_time = 2 * second;  // a leaving process may take this long to send its last messages
constexpr size_t blobs_max = 64;
constexpr uint64_t blob_bytes_max = uint64_t{1} << 30;

// A process that joins one run after the other reports once that they have no key.
std::atomic<bool>& has_warned() {
  static std::atomic<bool> warned{false};
  return warned;
}

Status left_run_status() { return {Code::unavailable, "SHUTTING_DOWN: this process has left the run"}; }

// Calls each(tensor, at) for every tensor. `at` is the number of elements that all tensors before this one have together.
template <typename Each>
void for_each_piece(std::span<const std::span<float>> tensors, Each each) {
  size_t at = 0;
  for (const auto& tensor : tensors) each(tensor, at), at += tensor.size();
}

// Replaces the contributed values by the mean, but keeps what the caller has added to the tensor since then. If `replaced` is
// true, the contribution had no weight, and the mean overwrites the tensor.
void add_step(std::span<float> tensor, std::span<const float> mean, std::span<const float> contributed, bool replaced) {
  if (replaced) {
    std::ranges::copy(mean, tensor.begin());
    return;
  }
  for (size_t i = 0; i < tensor.size(); ++i)
    tensor[i] = tensor[i] == contributed[i] ? mean[i] : tensor[i] + (mean[i] - contributed[i]);
}

}  // namespace

// Writes the result. An element that the caller has not changed since begin() becomes the mean, with the same bits on all
// peers. If the caller has changed the element, (mean - contributed value) is added to it.
Result<AveragingReport> ElasticCall::take() {
  taken = true;
  if (!status.ok()) return status;
  const auto values = std::exchange(step.values, {});
  const auto contributed = std::exchange(step.contributed, {});
  if (!overlaps) {
    for_each_piece(tensors, [&](std::span<float> tensor, size_t at) { values.read(at, tensor); });
    return step.report;
  }
  const auto* const contributed_values = reinterpret_cast<const float*>(contributed.data());
  const auto chunk_elements = values.table().chunk_elements();
  for_each_piece(tensors, [&](std::span<float> tensor, size_t at) {
    for (size_t i = 0; i < tensor.size();) {
      // Each pass of the loop goes up to the end of a chunk or to the end of the tensor, whichever comes first.
      const auto chunk = static_cast<uint32_t>((at + i) / chunk_elements);
      const auto mean = std::span(values.chunk(chunk), values.table().count(chunk)).subspan((at + i) % chunk_elements);
      const auto count = std::min(mean.size(), tensor.size() - i);
      // A chunk that no average has replaced still has the memory of the contribution. The tensor then stays as it is: the sum
      // of NaN and a difference would make NaN of an element that the caller has mended meanwhile.
      if (mean.data() != contributed_values + at + i)
        add_step(tensor.subspan(i, count), mean.first(count), {contributed_values + at + i, count}, step.replaced[chunk]);
      i += count;
    }
  });
  return step.report;
}

ElasticRun::ElasticRun(const ElasticOptions& options, std::unique_ptr<ElasticDriver> driver, EventLog& log, int wake_fd)
    : options_(options),
      driver_(std::move(driver)),
      wake_fd_(wake_fd),
      events_(options.on_event, &log),
      run_events_(events_, options.run_id) {}

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
  const auto environment = process_environment();
  const auto chosen = environment.find("UNISONO_LOG");
  const auto target = parse_log_target(chosen == environment.end() ? "" : chosen->second);
  if (!target.ok()) return target.status();
  auto driver = ElasticDriver::make(options);
  if (!driver.ok()) return driver.status();
  const int wake_fd = ::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
  if (wake_fd < 0) return Status(Code::unavailable, "eventfd: " + error_text(errno));
  Status problem;
  auto& log = process_log(*target, monotonic_now, problem);
  // In a child made by fork(), the run is left alone: it has no thread there, and its links belong to the parent.
  std::shared_ptr<ElasticRun> run(new ElasticRun(options, std::move(*driver), log, wake_fd), [](const ElasticRun* made) {
    if (!made->process().forked()) delete made;
  });
  if (!problem.ok()) run->events_.add(EventKind::log_unavailable, -1, problem.message());
  if (run->driver_->is_unprotected() && !has_warned().exchange(true))
    run->events_.add(EventKind::unprotected, -1, unprotected_text("elastic run", "", "peers"));
  run->thread_ = std::thread([raw = run.get()] { raw->drive(); });
  if (auto status = run->wait_joined(); !status.ok()) return status;
  return run;
}

Status ElasticRun::wait_joined() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return joined_ || !failure_.ok() || ended_; });
  if (!joined_) return failure_.ok() ? left_run_status() : failure_;
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
  driving_thread_ = std::this_thread::get_id();
  auto now = monotonic_now();
  driver_->start(now);
  Nanos links_closed_at = never;
  for (;;) {
    now = monotonic_now();
    bool acted = run_commands(now);
    acted |= driver_->poll(now);
    publish();
    report_events(now);
    if (driver_->peer().left() && links_closed_at == never) driver_->close_links(), links_closed_at = now, acted = true;
    {
      const std::lock_guard lock(mutex_);
      // If joining failed, stop_ ends the thread at once: there is no peer to which this process owes a message.
      const bool over = stop_ || (driver_->peer().left() && (!driver_->draining() || now >= links_closed_at + drain_time));
      if (over) break;
    }
    if (!acted) sleep(now, links_closed_at == never ? never : links_closed_at + drain_time);
  }
  driver_->stop_look_ups();
  while (!end(now)) run_commands(now);
  events_.deliver();
}

void ElasticRun::report_events(Nanos now) {
  if (driver_->peer().joined() && run_events_.is_due(now)) run_events_.look(driver_->status(now), now);
  if (events_.is_waiting()) events_.deliver();
}

// Ends the run. Returns false if new commands have arrived, because each command must get an answer before the run ends.
bool ElasticRun::end(Nanos now) {
  end_call(left_run_status(), std::nullopt);
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
  const bool joining_failed = !joined_ && !joined && !driver_->failure().ok() && driver_->next_attempt() == never;
  if (joined == joined_ && ready == ready_ && left == left_ && joining_failed == !failure_.ok()) return;
  if (joined && !joined_) loaded_ = peer.take_state();
  joined_ |= joined;
  ready_ = ready;
  left_ = left;
  if (joining_failed) failure_ = driver_->failure();
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
    return {Code::invalid,
            concat(tensors.size(), " tensors were given, and the run averages ", options_.tensor_elements.size())};
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (tensors[i].size() != options_.tensor_elements[i])
      return {Code::invalid, concat("tensor ", i, " has ", tensors[i].size(), " elements, and the run averages ",
                                    options_.tensor_elements[i])};
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
  if (!taken) return left_run_status();
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
      return {Code::invalid, concat("a blob's name has ", blobs[i].first.size(), " bytes: up to 255 are possible")};
    for (size_t j = 0; j < i; ++j) {
      if (blobs[i].first == blobs[j].first) return {Code::invalid, "two blobs are called " + blobs[i].first};
    }
  }
  if (blobs.size() > blobs_max || bytes > blob_bytes_max)
    return {Code::invalid, "up to 64 blobs of 1 GiB together are possible"};
  auto shared = std::make_shared<std::vector<NamedBlob>>(std::move(blobs));
  return command([this, shared](Nanos) { driver_->peer().set_blobs(std::move(*shared)); }) ? Status() : left_run_status();
}

Status ElasticRun::offer(std::span<const std::span<float>> tensors) {
  if (auto status = check_tensors(tensors); !status.ok()) return status;
  auto values = joined(tensors);
  return command([this, values = std::move(values)](Nanos now) { driver_->peer().offer_values(values, now); })
             ? Status()
             : left_run_status();
}

template <typename Answer>
std::optional<Answer> ElasticRun::ask(std::function<Answer(Nanos now)> question) {
  if (std::this_thread::get_id() == driving_thread_) return question(monotonic_now());
  struct Asked {
    std::mutex mutex;
    std::condition_variable changed;
    std::optional<Answer> answer;
  };
  const auto asked = std::make_shared<Asked>();
  const bool taken = command([asked, question = std::move(question)](Nanos now) {
    auto answer = question(now);
    const std::lock_guard lock(asked->mutex);
    asked->answer = std::move(answer);
    asked->changed.notify_all();
  });
  if (!taken) return std::nullopt;
  std::unique_lock lock(asked->mutex);
  asked->changed.wait(lock, [&] { return asked->answer.has_value(); });
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
    const auto location = ask<Result<ElasticGroupLocation>>([this](Nanos) { return driver_->peer().group_location(); });
    if (!location) return left_run_status();
    if (!location->ok()) return location->status();
    if (!(*location)->rendezvous.empty()) {
      auto own = group_options(**location, options_.run_id, driver_->tls().get(), options);
      own.join_timeout = Milliseconds(std::max<Nanos>(1, (until - monotonic_now()) / millisecond));
      return Group::join(own);
    }
    if ((*location)->rank == 0) {
      const auto address = rendezvous_.serve(host_of_endpoint(status().endpoints.front()), driver_->tls().get());
      if (!address.ok()) return address.status();
      (void)command([this, address = *address](Nanos now) { driver_->peer().publish_address(address, now); });
    }
    if (monotonic_now() >= until)
      return Status(Code::late, concat("the first peer of layout ", (*location)->layout.version,
                                       " has not published the group's rendezvous: it did not call group()"));
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

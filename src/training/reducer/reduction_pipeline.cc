#include "training/reducer/reduction_pipeline.h"

#include <pthread.h>

#include <algorithm>
#include <chrono>
#include <new>
#include <utility>

#include "base/random.h"

namespace unisono {
namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t sent_at_once = 2;        // buckets: one is on its way, and the next one is there when it is through
constexpr Milliseconds glance{1};         // how long something else may go unnoticed
constexpr Milliseconds long_glance{100};  // if no more buckets will come

class Lap {
 public:
  explicit Lap(int64_t& us) : us_(us) {}
  ~Lap() { us_ += std::chrono::duration_cast<std::chrono::microseconds>(Clock::now() - start_).count(); }
  Lap(const Lap&) = delete;
  Lap& operator=(const Lap&) = delete;

 private:
  int64_t& us_;
  const Clock::time_point start_ = Clock::now();
};

// The text is short enough to need no memory itself.
template <typename Does>
void or_unavailable(Bucket& bucket, Does does) {
  try {
    does();
  } catch (const std::bad_alloc&) {
    bucket.status = Status(Code::unavailable, "out of memory");
  }
}

}  // namespace

ReductionPipeline::ReductionPipeline(Group group, const Calls& calls)
    : group_(std::move(group)), calls_(calls), thread_([this] { work(); }) {
  pthread_setname_np(thread_.native_handle(), "unisono-reduce");
}

ReductionPipeline::~ReductionPipeline() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  thread_.join();
  for (auto& flight : plain_) {
    if (flight.work) static_cast<void>(flight.work.wait());
  }
}

void ReductionPipeline::begin_step(uint64_t step, uint64_t round) {
  const std::lock_guard lock(mutex_);
  step_ = step;
  round_ = round;
  complete_ = false;
}

void ReductionPipeline::submit(Bucket& bucket) {
  std::list<Flight> flight;
  flight.push_back({.bucket = &bucket});
  if (bucket.sending == Sending::plain) {
    plain_.splice(plain_.end(), flight);
    return or_unavailable(bucket, [&] { sketch(plain_.back()); });
  }
  {
    const std::lock_guard lock(mutex_);
    queue_.splice(queue_.end(), flight);
    ++unfinished_;
  }
  changed_.notify_all();
}

void ReductionPipeline::finish() {
  {
    std::unique_lock lock(mutex_);
    complete_ = true;
    changed_.wait(lock, [&] { return unfinished_ == 0; });
  }
  for (auto& flight : plain_) or_unavailable(*flight.bucket, [&] { unpack(flight); });
  plain_.clear();
}

// Work that puts bytes on their way comes first.
void ReductionPipeline::work() {
  while (take_new()) {
    if (send_next() || sketch_next() || unpack_one()) continue;
    wait_a_little();
  }
}

// False: there is nothing more to do, ever.
bool ReductionPipeline::take_new() {
  std::unique_lock lock(mutex_);
  const bool idle =
      std::all_of(flights_.begin(), flights_.end(), [](const Flight& flight) { return flight.phase == Phase::over; });
  if (idle) {
    flights_.clear();
    changed_.wait(lock, [&] { return stop_ || !queue_.empty(); });
    if (queue_.empty()) return false;
  }
  flights_.splice(flights_.end(), queue_);
  return true;
}

// In order, on all ranks alike: else ranks that have others in flight would wait for each other.
bool ReductionPipeline::send_next() {
  const auto in_flight =
      std::count_if(flights_.begin(), flights_.end(), [](const Flight& flight) { return flight.phase == Phase::sent; });
  const auto next = std::find_if(flights_.begin(), flights_.end(), [](const Flight& flight) {
    return flight.phase == Phase::queued || flight.phase == Phase::sketched;
  });
  if (next == flights_.end() || next->phase != Phase::sketched || static_cast<size_t>(in_flight) >= sent_at_once ||
      (next->work && !next->work.done()))
    return false;
  next->phase = Phase::sent;
  or_unavailable(*next->bucket, [&] { send(*next); });
  return true;
}

bool ReductionPipeline::sketch_next() {
  const auto next =
      std::find_if(flights_.begin(), flights_.end(), [](const Flight& flight) { return flight.phase == Phase::queued; });
  if (next == flights_.end()) return false;
  const auto open = std::count_if(flights_.begin(), next, [](const Flight& flight) { return flight.phase != Phase::over; });
  if (next->bucket->sending == Sending::compressed && static_cast<size_t>(open) >= open_buckets) return false;
  next->phase = Phase::sketched;
  or_unavailable(*next->bucket, [&] { sketch(*next); });
  return true;
}

bool ReductionPipeline::unpack_one() {
  const auto done = std::find_if(flights_.begin(), flights_.end(), [](const Flight& flight) {
    return flight.phase == Phase::sent && (!flight.work || flight.work.done());
  });
  if (done == flights_.end()) return false;
  or_unavailable(*done->bucket, [&] { unpack(*done); });
  done->phase = Phase::over;
  {
    const std::lock_guard lock(mutex_);
    --unfinished_;
  }
  changed_.notify_all();
  return true;
}

// Waits a short time for the bucket on which the next piece of work depends. Meanwhile new buckets may come.
void ReductionPipeline::wait_a_little() {
  const auto in_phase = [&](Phase phase) {
    return std::find_if(flights_.begin(), flights_.end(),
                        [=](const Flight& flight) { return flight.phase == phase && flight.work && !flight.work.done(); });
  };
  const auto in_flight =
      std::count_if(flights_.begin(), flights_.end(), [](const Flight& flight) { return flight.phase == Phase::sent; });
  auto target = static_cast<size_t>(in_flight) < sent_at_once ? in_phase(Phase::sketched) : in_phase(Phase::sent);
  if (target == flights_.end()) target = in_phase(Phase::sent);
  if (target == flights_.end()) return;
  const bool complete = [&] {
    const std::lock_guard lock(mutex_);
    return complete_;
  }();
  try {
    static_cast<void>(target->work.wait_for(complete ? long_glance : glance));
  } catch (const std::bad_alloc&) {  // wait_for needs memory to say how the call ended; account() gets that result, too
  }
}

CallOptions ReductionPipeline::call(const CallOptions& base, const Bucket& bucket, uint64_t which, uint64_t agreement) const {
  auto options = base;
  options.op = ReduceOp::avg;
  options.id = round_ << 20 | uint64_t{bucket.number} << 1 | which;
  options.agreement = std::max<uint64_t>(1, mix64(agreement));
  return options;
}

void ReductionPipeline::sketch(Flight& flight) {
  auto& bucket = *flight.bucket;
  std::span<float> first;
  {
    const Lap lap(bucket.costs.sketch_us);
    first = bucket.feedback->begin(step_, bucket.gradients, bucket.sending);
    const auto notes = bucket.feedback->compressor().notes();
    if (bucket.sending == Sending::compressed && notes.size() == bucket.notes.size()) {
      std::copy(bucket.notes.begin(), bucket.notes.end(), notes.begin());
      if (!notes.empty()) notes[notes_per_rank * group_.rank()] = static_cast<float>(bucket.feedback->kept_energy());
    } else {
      bucket.notes.clear();
    }
  }
  if (first.empty()) return;
  auto options = call(calls_.sketch, bucket, 0, bucket.digest ^ mix64(step_) ^ static_cast<uint64_t>(bucket.sending));
  // An uncompressed step has no other call.
  if (bucket.feedback->is_whole()) options.codec = Codec{};
  flight.work = group_.all_reduce_async(first, options);
  bucket.costs.payload_elements += first.size() - bucket.notes.size();
}

void ReductionPipeline::account(Flight& flight, int64_t& us) {
  if (!flight.work) return;
  auto& bucket = *flight.bucket;
  const auto report = std::exchange(flight.work, {}).wait();
  if (!report.ok()) {
    const bool differ = report.status().code() == Code::invalid;
    bucket.status = differ ? Status(Code::invalid, flight.if_different + report.status().message()) : report.status();
    return;
  }
  us += report->total_us;
  ++bucket.costs.collectives;
  bucket.costs.sent_payload += report->sent_payload;
  bucket.costs.sent_headers += report->sent_bytes - report->sent_payload;
}

void ReductionPipeline::send(Flight& flight) {
  auto& bucket = *flight.bucket;
  if (bucket.feedback->is_whole()) return;  // its only all-reduce goes on
  account(flight, bucket.costs.sketch_reduce_us);
  if (!bucket.status.ok()) return;
  const auto notes = bucket.feedback->compressor().notes();
  if (!bucket.notes.empty()) bucket.notes.assign(notes.begin(), notes.end());
  Status chosen;
  {
    const Lap lap(bucket.costs.select_us);
    chosen = bucket.feedback->choose();
  }
  bucket.finite = chosen.ok();
  if (!bucket.finite) return;
  std::span<float> values;
  {
    const Lap lap(bucket.costs.pack_us);
    values = bucket.feedback->pack();
  }
  if (values.empty()) return;
  auto options = call(calls_.values, bucket, 1, bucket.digest ^ bucket.feedback->compressor().fingerprint());
  flight.if_different = "index_mismatch: ";
  options.encode_error = bucket.feedback->lost().data();
  flight.work = group_.all_reduce_async(values, options);
  bucket.costs.payload_elements += values.size();
}

void ReductionPipeline::unpack(Flight& flight) {
  auto& bucket = *flight.bucket;
  account(flight, bucket.costs.value_reduce_us);
  if (!bucket.status.ok() || !bucket.finite) return;
  const Lap lap(bucket.costs.unpack_us);
  bucket.finite = bucket.feedback->finish().ok();
}

}  // namespace unisono

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

// At most this many buckets are in their last all-reduce at once. While one of them completes, the next is already in
// flight.
constexpr size_t sends_in_flight_max = 2;
// While new buckets may be submitted, the thread waits at most this long for one call.
constexpr Milliseconds poll_interval{1};
// When no more buckets will be submitted, the thread waits at most this long for one call.
constexpr Milliseconds long_poll_interval{100};

class ScopedTimer {
 public:
  explicit ScopedTimer(int64_t& us) : us_(us) {}
  ~ScopedTimer() { us_ += std::chrono::duration_cast<std::chrono::microseconds>(Clock::now() - start_).count(); }
  ScopedTimer(const ScopedTimer&) = delete;
  ScopedTimer& operator=(const ScopedTimer&) = delete;

 private:
  int64_t& us_;
  const Clock::time_point start_ = Clock::now();
};

// Runs does(). If memory runs out, the bucket fails. The text of the error is so short that it needs no allocation.
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
    : group_(std::move(group)), calls_(calls), thread_([this] { run(); }) {
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

// Each pass does only one piece of work. Work that starts an all-reduce comes first.
void ReductionPipeline::run() {
  while (take_submitted()) {
    if (send_next() || sketch_next() || unpack_one()) continue;
    wait_for_progress();
  }
}

// Takes new buckets from the queue. If all earlier buckets are done, waits until there is a new one. Returns false when the
// thread must end.
bool ReductionPipeline::take_submitted() {
  std::unique_lock lock(mutex_);
  const bool idle =
      std::all_of(flights_.begin(), flights_.end(), [](const Flight& flight) { return flight.phase == Phase::done; });
  if (idle) {
    flights_.clear();
    changed_.wait(lock, [&] { return stop_ || !queue_.empty(); });
    if (queue_.empty()) return false;
  }
  flights_.splice(flights_.end(), queue_);
  return true;
}

// Starts the last all-reduce of the next bucket. All ranks must use the same order of buckets, because otherwise they could
// wait for each other forever.
bool ReductionPipeline::send_next() {
  const auto in_flight =
      std::count_if(flights_.begin(), flights_.end(), [](const Flight& flight) { return flight.phase == Phase::sent; });
  const auto next = std::find_if(flights_.begin(), flights_.end(), [](const Flight& flight) {
    return flight.phase == Phase::queued || flight.phase == Phase::sketched;
  });
  if (next == flights_.end() || next->phase != Phase::sketched || static_cast<size_t>(in_flight) >= sends_in_flight_max ||
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
  const auto open = std::count_if(flights_.begin(), next, [](const Flight& flight) { return flight.phase != Phase::done; });
  if (next->bucket->sending == Sending::compressed && static_cast<size_t>(open) >= open_buckets_max) return false;
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
  done->phase = Phase::done;
  {
    const std::lock_guard lock(mutex_);
    --unfinished_;
  }
  changed_.notify_all();
  return true;
}

// Waits for an all-reduce whose end makes the next piece of work possible. The wait is short, because the caller may submit new
// buckets meanwhile.
void ReductionPipeline::wait_for_progress() {
  const auto in_phase = [&](Phase phase) {
    return std::find_if(flights_.begin(), flights_.end(),
                        [=](const Flight& flight) { return flight.phase == phase && flight.work && !flight.work.done(); });
  };
  const auto in_flight =
      std::count_if(flights_.begin(), flights_.end(), [](const Flight& flight) { return flight.phase == Phase::sent; });
  auto target = static_cast<size_t>(in_flight) < sends_in_flight_max ? in_phase(Phase::sketched) : in_phase(Phase::sent);
  if (target == flights_.end()) target = in_phase(Phase::sent);
  if (target == flights_.end()) return;
  const bool complete = [&] {
    const std::lock_guard lock(mutex_);
    return complete_;
  }();
  try {
    static_cast<void>(target->work.wait_for(complete ? long_poll_interval : poll_interval));
    // Out of memory: wait_for() could not allocate its report. account() gets the result later.
  } catch (const std::bad_alloc&) {}
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
    const ScopedTimer timer(bucket.costs.sketch_us);
    first = bucket.feedback->begin(step_, bucket.gradients, bucket.sending);
    const auto side_values = bucket.feedback->compressor().side_values();
    if (bucket.sending == Sending::compressed && side_values.size() == bucket.side_values.size()) {
      std::copy(bucket.side_values.begin(), bucket.side_values.end(), side_values.begin());
      if (!side_values.empty())
        side_values[side_values_per_rank * group_.rank()] = static_cast<float>(bucket.feedback->residual_energy());
    } else {
      bucket.side_values.clear();
    }
  }
  if (first.empty()) return;
  auto options = call(calls_.sketch, bucket, 0, bucket.digest ^ mix64(step_) ^ static_cast<uint64_t>(bucket.sending));
  // In an uncompressed step, this all-reduce carries the gradients, so the codec for sketches must not be used.
  if (bucket.feedback->is_whole()) options.codec = Codec{};
  flight.work = group_.all_reduce_async(first, options);
  bucket.costs.payload_elements += first.size() - bucket.side_values.size();
}

void ReductionPipeline::account(Flight& flight, int64_t& us) {
  if (!flight.work) return;
  auto& bucket = *flight.bucket;
  const auto report = std::exchange(flight.work, {}).wait();
  if (!report.ok()) {
    const bool differ = report.status().code() == Code::invalid;
    bucket.status = differ ? Status(Code::invalid, flight.mismatch_prefix + report.status().message()) : report.status();
    return;
  }
  us += report->total_us;
  ++bucket.costs.collectives;
  bucket.costs.sent_payload += report->sent_payload;
  bucket.costs.sent_headers += report->sent_bytes - report->sent_payload;
}

void ReductionPipeline::send(Flight& flight) {
  auto& bucket = *flight.bucket;
  if (bucket.feedback->is_whole()) return;  // The only all-reduce of such a bucket is already in flight.
  account(flight, bucket.costs.sketch_reduce_us);
  if (!bucket.status.ok()) return;
  const auto side_values = bucket.feedback->compressor().side_values();
  if (!bucket.side_values.empty()) bucket.side_values.assign(side_values.begin(), side_values.end());
  Status chosen;
  {
    const ScopedTimer timer(bucket.costs.select_us);
    chosen = bucket.feedback->choose();
  }
  bucket.finite = chosen.ok();
  if (!bucket.finite) return;
  std::span<float> values;
  {
    const ScopedTimer timer(bucket.costs.pack_us);
    values = bucket.feedback->pack();
  }
  if (values.empty()) return;
  auto options = call(calls_.values, bucket, 1, bucket.digest ^ bucket.feedback->compressor().fingerprint());
  flight.mismatch_prefix = "index_mismatch: ";
  options.encode_error = bucket.feedback->encode_errors().data();
  flight.work = group_.all_reduce_async(values, options);
  bucket.costs.payload_elements += values.size();
}

void ReductionPipeline::unpack(Flight& flight) {
  auto& bucket = *flight.bucket;
  account(flight, bucket.costs.value_reduce_us);
  if (!bucket.status.ok() || !bucket.finite) return;
  const ScopedTimer timer(bucket.costs.unpack_us);
  bucket.finite = bucket.feedback->finish().ok();
}

}  // namespace unisono

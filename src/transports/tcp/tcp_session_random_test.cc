// Random runs of both ends of a stream over connections that break: the real greetings, sessions, queues and decoders, over
// byte pipes that lose what has not arrived, acknowledge late, and lose the notice of a reset. Payloads are overwritten as soon
// as they are given back. No byte may be missing, come twice, or be wrong, and no end may give up.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <deque>
#include <map>
#include <memory>

#include "base/random.h"
#include "tests/conformance/transport_cluster.h"
#include "transports/tcp/tcp_confirm_clock.h"
#include "transports/tcp/tcp_greeting.h"
#include "transports/tcp/tcp_resend_queue.h"
#include "transports/tcp/tcp_session.h"

namespace unisono::conformance {
namespace {

constexpr size_t pipe_bytes_max = 24'000;
constexpr size_t copied_budget = 32u << 10;

// One direction of a connection.
struct BytePipe {
  std::deque<std::byte> under_way, arrived;
  size_t unacknowledged = 0;
  bool shut = false;  // the writer has closed

  void arrive(size_t limit) {
    const size_t count = std::min(limit, under_way.size());
    const auto end = under_way.begin() + static_cast<ptrdiff_t>(count);
    arrived.insert(arrived.end(), under_way.begin(), end);
    under_way.erase(under_way.begin(), end);
    unacknowledged -= count;
  }
};

struct BytePair {
  std::array<BytePipe, 2> from;  // from[i] carries what end i writes
  std::array<bool, 2> open{true, true}, error{false, false};
  bool dead = false;
  int dialler = 0;
  bool greeted = false;  // the acceptor has read the hello
  bool begun = false;    // the acceptor has read begin

  size_t write(int end, const void* data, size_t bytes) {
    auto& pipe = from[static_cast<size_t>(end)];
    if (error[static_cast<size_t>(end)] || pipe.under_way.size() >= pipe_bytes_max) return 0;
    const auto* begin = static_cast<const std::byte*>(data);
    if (!dead) pipe.under_way.insert(pipe.under_way.end(), begin, begin + bytes);
    pipe.unacknowledged += bytes;
    return bytes;
  }
  template <typename T>
  bool read(int end, T& message) {
    auto& bytes = from[static_cast<size_t>(1 - end)].arrived;
    if (bytes.size() < sizeof message) return false;
    std::array<std::byte, sizeof(T)> copy;
    std::copy_n(bytes.begin(), sizeof message, copy.begin());
    std::memcpy(static_cast<void*>(&message), copy.data(), sizeof message);
    bytes.erase(bytes.begin(), bytes.begin() + sizeof message);
    return true;
  }
  // Returns true if nothing more can be read.
  bool over(int end) const {
    const auto& pipe = from[static_cast<size_t>(1 - end)];
    return pipe.arrived.empty() && (error[static_cast<size_t>(end)] || (pipe.shut && pipe.under_way.empty()));
  }
  void reset(Random& random) {
    dead = true;
    for (size_t i = 0; i < 2; ++i) {
      from[i].under_way.clear();
      if (random.below(5) > 0) error[i] = true;
    }
  }
  void close(int end) {
    open[static_cast<size_t>(end)] = false;
    from[static_cast<size_t>(end)].shut = true;
    from[static_cast<size_t>(1 - end)].arrived.clear();
  }
};

using Pair = std::shared_ptr<BytePair>;

class StreamEnd final : private Sink, private TcpDecoder::Confirmations {
 public:
  StreamEnd(int index, Random& random)
      : index_(index),
        random_(random),
        session_({.number = 100 + static_cast<uint64_t>(index), .smaller_id = index == 0}),
        queue_(pool_, memory_, 4),
        decoder_(0, inbound_, counters_, this) {}

  StreamEnd* peer = nullptr;
  std::vector<Pair> calls;  // connections that the peer has dialled

  bool at_rest() const { return session_.may_write() && !queue_.has_unconfirmed() && expected_.empty() && !clock_due_; }
  bool lost() const { return lost_; }
  size_t connections() const { return connections_; }
  size_t copied_less() const { return believed_; }
  std::vector<Pair> pairs() const {
    auto all = calls;
    if (current_) all.push_back(current_);
    if (dialled_) all.push_back(dialled_);
    return all;
  }

  void push() {
    if (queue_.unwritten_frames() > 20) return;
    const size_t sizes[] = {0, 100, TcpResendQueue::copied_bytes_max + 1, 12'000};
    const uint64_t id = ++last_id_;
    auto payload = pattern(sizes[random_.below(4)], id + static_cast<uint64_t>(index_) * 1'000'000);
    peer->expected_.push_back(payload);
    clock_.said(decoder_.position());
    if (queue_.push({.operation = id}, payload, id, decoder_.position())) return poison(payload);
    payloads_[id] = std::move(payload);
  }
  void release_early() {
    believe();
    queue_.release_early(0, 0, sent_);
    report();
  }
  void poll(Nanos now) {
    now_ = now;
    session_.step(now);
    answer_calls();
    step_dial();
    read_current();
    confirm_if_due();
    write_current();
    if (current_ && current_->over(index_)) {
      believe();
      current_->close(index_);
      current_.reset();
      session_.ended(now_);
    }
    look_for_silence();
  }

 private:
  void fail(const Status& status) {
    if (status.ok()) return;
    ADD_FAILURE() << "end " << index_ << ": " << status.to_string();
    lost_ = true;
  }
  // Asks the kernel what the peer's kernel has, if its word is believed.
  void believe() {
    if (!current_ || !session_.believes()) return;
    const size_t unacknowledged = current_->from[static_cast<size_t>(index_)].unacknowledged;
    const uint64_t position = queue_.written() - std::min<uint64_t>(unacknowledged, queue_.written());
    believed_ += position > queue_.confirmed() ? 1 : 0;
    queue_.acknowledged(position, sent_);
    report();
  }
  // Reads the connection in use to its end, and closes it. Between the two, more may arrive and be acknowledged.
  void retire() {
    if (!current_) return;
    read_current();
    if (!current_->dead && random_.below(2) == 0) current_->from[static_cast<size_t>(1 - index_)].arrive(random_.below(5000));
    current_->close(index_);
    current_.reset();
  }
  void answer_calls() {
    for (size_t i = 0; i < calls.size() && !lost_;) {
      const auto call = calls[i];
      if (!call->greeted) {
        TcpPreamble preamble;
        constexpr size_t greeting = sizeof(TcpPreamble) + sizeof(TcpSessionHello);
        const bool whole = call->from[static_cast<size_t>(1 - index_)].arrived.size() >= greeting;
        if (!whole && call->over(index_)) {
          call->close(index_);
          calls.erase(calls.begin() + static_cast<ptrdiff_t>(i));
          continue;
        }
        if (!whole || !call->read(index_, preamble)) {
          ++i;
          continue;
        }
        call->read(index_, hellos_[call.get()]);
        ASSERT_EQ(check(hellos_[call.get()], preamble), TcpRefusal::none);
        call->greeted = true;
      }
      if (settle(call)) calls.erase(calls.begin() + static_cast<ptrdiff_t>(i));
      else ++i;
    }
  }
  bool settle(const Pair& call) {
    const auto hello = hellos_[call.get()];
    believe();  // the last word, before the hello is judged
    const auto verdict = session_.judge(hello, random_.below(8) > 0, now_);
    if (verdict == TcpHelloVerdict::hold) return false;
    hellos_.erase(call.get());
    if (verdict != TcpHelloVerdict::accept) {
      EXPECT_EQ(verdict, TcpHelloVerdict::refuse) << "the peer never begins a new link";
      EXPECT_EQ(session_.refusal(), TcpRefusal::stale);
      reply(call, false);
      call->close(index_);
      return true;
    }
    if (dialled_) dialled_->close(index_);
    dialled_.reset();
    retire();
    if (lost_) return true;
    current_ = call;
    reply(call, true);
    session_.accepted(now_);
    return true;
  }
  void reply(const Pair& call, bool accepted) {
    TcpSessionReply reply{.accepted = accepted ? uint8_t{1} : uint8_t{0}, .position = decoder_.position()};
    reply.reason = accepted ? TcpRefusal::none : session_.refusal();
    reply.attempt = session_.attempt();
    seal(reply);
    call->write(index_, &reply, sizeof reply);
  }

  void step_dial() {
    if (session_.dial_due(now_)) {
      const auto attempt = session_.begin_dial(now_);
      dialled_ = std::make_shared<BytePair>();
      dialled_->dialler = index_;
      if (random_.below(6) == 0) dialled_->dead = true;  // the connection is never made
      else peer->calls.push_back(dialled_);
      if (dialled_->dead) return;
      TcpPreamble preamble{.to = {1, 2}};
      TcpSessionHello hello{.session = session_.number(), .attempt = attempt, .from = {3, 4}, .to = {1, 2}};
      hello.resumes = session_.resumes() ? 1 : 0;
      seal(preamble);
      seal(hello, {});
      believe();
      session_.send_hello(now_);
      dialled_->write(index_, &preamble, sizeof preamble);
      dialled_->write(index_, &hello, sizeof hello);
    }
    if (!dialled_) return;
    TcpSessionReply reply;
    if (dialled_->read(index_, reply)) return take_reply(reply);
    if (session_.dial_expired(now_) || dialled_->over(index_)) end_dial();
  }
  void end_dial() {
    dialled_->close(index_);
    dialled_.reset();
    session_.end_dial();
  }
  void take_reply(const TcpSessionReply& reply) {
    ASSERT_TRUE(is_sound(reply));
    const auto verdict = session_.judge(reply, now_);
    if (verdict != TcpReplyVerdict::adopt) {
      EXPECT_EQ(verdict, TcpReplyVerdict::again);
      return end_dial();
    }
    retire();
    if (lost_) return;
    current_ = std::exchange(dialled_, nullptr);
    fail(queue_.rewind(reply.position, decoder_.position(), sent_));
    report();
    TcpBegin begin{.position = decoder_.position()};
    seal(begin);
    current_->write(index_, &begin, sizeof begin);
    go_on();
    session_.adopted(true, now_);
  }
  void go_on() {
    ++connections_;
    progress_at_ = now_;
    clock_.ask();
  }

  void read_current() {
    if (!current_ || lost_) return;
    if (awaits_begin()) {
      TcpBegin begin;
      if (!current_->read(index_, begin)) {
        if (!session_.begin_expired(now_)) return;
        current_->close(index_);
        current_.reset();
        return session_.ended(now_);
      }
      ASSERT_TRUE(is_sound(begin));
      fail(queue_.rewind(begin.position, decoder_.position(), sent_));
      report();
      current_->begun = true;
      go_on();
      session_.begun(true, now_);
    }
    auto& bytes = current_->from[static_cast<size_t>(1 - index_)].arrived;
    const bool whole = session_.stage() == TcpSession::Stage::retiring;
    for (size_t budget = whole ? SIZE_MAX : random_.below(9000); budget > 0 && !bytes.empty();) {
      const auto space = decoder_.space();
      const size_t count = std::min({budget, bytes.size(), space.parts[0].iov_len});
      std::copy_n(bytes.begin(), count, static_cast<std::byte*>(space.parts[0].iov_base));
      bytes.erase(bytes.begin(), bytes.begin() + static_cast<ptrdiff_t>(count));
      ASSERT_EQ(decoder_.took(count, *this), TcpDecoder::Progress::more);
      budget -= count;
      session_.heard();
    }
    clock_.read(decoder_.take_request(), now_);
  }
  void confirmed(uint32_t low, Sink&) override {
    if (!queue_.confirm(low, sent_)) return;
    report();
    progress_at_ = now_;
    if (session_.progressed()) end_dial();
  }
  // This is so even if the successor is chosen already.
  bool awaits_begin() const { return current_->dialler != index_ && !current_->begun; }

  void confirm_if_due() {
    clock_due_ = clock_.due(decoder_.position(), now_) || queue_.wants_confirm();
    if (!clock_due_ || !session_.may_write()) return;
    if (queue_.push_confirm(decoder_.position())) clock_.said(decoder_.position());
  }
  void write_current() {
    if (!session_.may_write() || !current_) return;
    iovec parts[TcpResendQueue::gather_max];
    size_t bytes = 0, written = 0;
    const int count = queue_.gather(parts, bytes);
    for (int i = 0; i < count; ++i) {
      const size_t part = std::min<size_t>(parts[i].iov_len, 1 + random_.below(9000));
      const size_t taken = current_->write(index_, parts[i].iov_base, part);
      written += taken;
      if (taken < parts[i].iov_len) break;
    }
    queue_.wrote(written);
    believe();
    queue_.copy_early(sent_);
    report();
  }
  void look_for_silence() {
    if (!queue_.has_unconfirmed()) progress_at_ = now_;
    if (session_.may_write() && now_ - progress_at_ >= second) session_.suspect();
  }
  void report() {
    for (const auto id : sent_) {
      ASSERT_TRUE(payloads_.contains(id)) << "payload " << id << " was given back twice";
      poison(payloads_[id]);
      payloads_.erase(id);
    }
    sent_.clear();
  }
  // The memory stays, so that a queue that still reads it sends wrong bytes.
  void poison(Bytes& memory) {
    std::ranges::fill(memory, std::byte{0xDE});
    poisoned_.push_back(std::move(memory));
  }

  std::byte* receive_buffer(PeerIndex, const FrameHeader& header) override {
    target_.assign(header.payload_bytes, std::byte{});
    return target_.data();
  }
  void received(PeerIndex, const FrameHeader& header, const View& view) override {
    ASSERT_FALSE(expected_.empty());
    EXPECT_EQ(header.operation, ++received_id_);
    EXPECT_TRUE(std::ranges::equal(expected_.front(), std::span(view.data, view.bytes))) << "frame " << header.operation;
    inbound_.give(view.handle);
    expected_.pop_front();
  }
  void sent(uint64_t) override {}
  void lost(PeerIndex, const Status&, PeerFate) override {}
  void credit(PeerIndex) override {}

  int index_;
  Random& random_;
  Nanos now_ = 0;
  PayloadPool pool_{{}}, inbound_{{}};
  ResendMemory memory_{copied_budget};
  TcpSession session_;
  TcpResendQueue queue_;
  TcpReceiveCounters counters_;
  TcpDecoder decoder_;
  TcpConfirmClock clock_;
  Pair current_, dialled_;
  std::map<const BytePair*, TcpSessionHello> hellos_;  // of calls that are held
  std::deque<Bytes> expected_;                         // what the peer has sent
  std::map<uint64_t, Bytes> payloads_;
  std::vector<Bytes> poisoned_;
  std::vector<uint64_t> sent_;
  Bytes target_;
  uint64_t last_id_ = 0, received_id_ = 0;
  Nanos progress_at_ = 0;
  size_t connections_ = 0, believed_ = 0;
  bool lost_ = false, clock_due_ = false;
};

struct Totals {
  size_t connections = 0, believed = 0;
};

void run(uint64_t seed, Totals& totals) {
  Random random(seed);
  std::vector<Pair> all;
  StreamEnd a(0, random), b(1, random);
  a.peer = &b;
  b.peer = &a;
  Nanos now = second;
  const auto network = [&](size_t limit) {
    for (const auto& end : {&a, &b}) {
      for (const auto& pair : end->pairs()) {
        for (auto& pipe : pair->from) {
          if (!pair->dead) pipe.arrive(random.below(limit));
        }
        // Keepalive and retransmissions find a dead connection whose reset was lost.
        if (pair->dead && random.below(50) == 0) pair->error = {true, true};
      }
    }
  };
  for (int i = 0; i < 600 && !a.lost() && !b.lost(); ++i) {
    auto& end = random.below(2) == 0 ? a : b;
    const auto what = random.below(10);
    if (what < 4) end.poll(now);
    else if (what < 6) network(6000);
    else if (what < 8) end.push();
    else if (what == 8) end.release_early();
    else now += static_cast<Nanos>(random.below(random.below(20) == 0 ? 400 : 8)) * millisecond;
    if (random.below(40) > 0) continue;
    const auto pairs = end.pairs();
    if (!pairs.empty()) pairs[random.below(pairs.size())]->reset(random);
  }
  const Nanos calm = now;
  while (!(a.at_rest() && b.at_rest()) && !a.lost() && !b.lost()) {
    network(60'000);
    a.poll(now);
    b.poll(now);
    now += 5 * millisecond;
    ASSERT_LT(now - calm, 40 * second) << "the ends do not come to rest";
  }
  totals.connections += a.connections() + b.connections();
  totals.believed += a.copied_less() + b.copied_less();
}

TEST(TcpSessionRandom, a_stream_survives_every_sequence_of_resets) {
  Totals totals;
  for (uint64_t seed = 0; seed < 250; ++seed) {
    SCOPED_TRACE(seed);
    run(seed, totals);
    if (testing::Test::HasFailure()) return;
  }
  EXPECT_GT(totals.connections, 1000u);
  EXPECT_GT(totals.believed, 1000u);
}

}  // namespace
}  // namespace unisono::conformance

// One virtual connection: what the kernels of its two ends do. Sockets and faults of the simulator call it.
//
// The model keeps what a user of TCP can notice: the three segments that open a connection, kernel queues with bounds,
// acknowledgements as segments of their own, retransmission with growing intervals, probes of a closed window, keep-alive
// probes, the end of one direction (FIN) and resets. An end whose kernel does not know the connection any more answers every
// segment with a reset. There is no congestion control, and no segment overtakes another one, except that a reset may.
//
// Side 0 dialled, side 1 accepts. Segments "from" a side travel to the other one.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/random.h"
#include "net/socket_address.h"
#include "net/stream_socket.h"
#include "sim/tcp/stream_pipe.h"

namespace unisono::sim {

using HostIndex = uint32_t;
using ProcessIndex = uint32_t;
using ConnectionId = uint64_t;

struct StreamSettings {
  uint64_t seed = 1;
  Nanos delay = 50 * microsecond;          // the time of a segment from one end to the other
  Nanos jitter = 50 * microsecond;         // a random time of up to this is added to `delay`
  size_t send_queue_bytes = 64u << 10;     // A sender's kernel keeps at most this many bytes that are not acknowledged.
  size_t receive_queue_bytes = 64u << 10;  // A receiver's kernel keeps at most this many bytes that are not read.
  size_t segment_bytes_max = 1448;         // each segment has a random size of up to this
  size_t record_bytes_max = 0;             // The longest record; 0: bytes are delivered without records (stream_pipe.h).
  size_t backlog = 128;                    // how many connections wait for accept()
  double short_write = 0;  // Chance that a write takes only a part of what fits. The first bytes of a connection always fit.
  double short_read = 0;   // chance that a read returns only a part of what is there
  Nanos acknowledgement_delay = 0;  // a random time of up to this before the receiver's kernel acknowledges
  double late_arrival = 0;          // chance that bytes arrive, and are acknowledged, immediately before a socket is closed
};

enum class SegmentKind : uint8_t { syn, syn_reply, bytes, acknowledgement, probe, reset };

struct Segment {
  SegmentKind kind = SegmentKind::bytes;
  uint64_t from = 0, to = 0;  // positions of its bytes
  uint64_t acknowledged = 0;  // its sender has received everything before this position
  uint64_t window = 0;        // its sender takes bytes up to this position
};

// What the kernel of one end knows of the connection.
enum class EndState : uint8_t {
  none,       // nothing yet
  dialling,   // it has sent a SYN
  answering,  // it has answered a SYN
  open,
  finished,  // both directions have ended in order
  gone,      // reset, timed out or aborted
};

struct StreamEnd {
  HostIndex host = 0;
  ProcessIndex process = 0;
  TcpAddress address{};
  EndState state = EndState::none;
  bool held = false;     // a socket or the queue of a listener holds this end
  int error = 0;         // the error that the next call on the socket returns
  uint64_t next = 0;     // position of the next byte to send
  uint64_t window = 0;   // the other end takes bytes up to this position
  uint64_t offered = 0;  // the window that this end has told the other end
  uint32_t repeats = 0;  // retransmissions since the last progress
  uint32_t probes = 0;   // probes since the other end was last heard
  Nanos heard_at = 0;
  Nanos interval = 0;  // until the next retransmission
  uint64_t timer = 0;  // number of the timer that runs; timers with other numbers were replaced
  bool acknowledgement_due = false;
  struct Flight {
    Nanos at = 0;
    Segment segment{};
  };
  std::deque<Flight> flights;  // segments from this end that are on their way
  Nanos busy_until = 0;        // when the last segment has left this end
  Nanos blocked_until = 0;     // segments from this end are lost until then
};

class VirtualConnection;

// What a connection needs of the world around it.
class StreamKernel {
 public:
  virtual ~StreamKernel() = default;
  virtual Nanos now() const = 0;
  virtual Random& random() = 0;
  virtual const StreamSettings& settings() const = 0;
  enum class Alarm : uint8_t { arrival, timer, acknowledgement };
  virtual void set_alarm(Nanos at, VirtualConnection& connection, int side, Alarm alarm, uint64_t number) = 0;
  // Returns whether the network carries a segment from this side now.
  virtual bool carries(const VirtualConnection& connection, int from) const = 0;
  enum class Answer : uint8_t { silence, refusal, welcome };
  // A SYN has come to side 1. On welcome, address and process of side 1 are set.
  virtual Answer answer_syn(VirtualConnection& connection) = 0;
  // Side 1 is open. Returns false if nobody listens any more.
  virtual bool queue_for_accept(VirtualConnection& connection) = 0;
  virtual void note(const VirtualConnection& connection, const char* what, int side, const Segment& segment) = 0;
};

class VirtualConnection {
 public:
  VirtualConnection(StreamKernel& kernel, ConnectionId id);

  ConnectionId id() const { return id_; }
  StreamEnd& end(int side) { return ends_[static_cast<size_t>(side)]; }
  const StreamEnd& end(int side) const { return ends_[static_cast<size_t>(side)]; }
  const StreamPipe& pipe(int from) const { return pipes_[static_cast<size_t>(from)]; }

  // Functions of sockets. They follow StreamSocket.
  void dial();
  ptrdiff_t write(int side, const iovec* parts, int count);
  ptrdiff_t read(int side, const iovec* parts, int count, bool keep, bool& ended);
  void shut_down(int side);
  // The socket is closed. Its kernel resets the connection if the socket says so, or if it has unread bytes.
  void close(int side, bool aborts = false);
  // Side 1 waits for accept(), and nobody listens any more.
  void close_unaccepted();
  bool is_readable(int side) const;
  bool is_writable(int side) const;
  int take_error(int side) { return std::exchange(end(side).error, 0); }
  bool host_is_silent(int side, Nanos silence) const;
  bool awaits_host(int side, Nanos silence) const;
  Unacknowledged unacknowledged(int side) const;

  // Events.
  void arrive_due(int side);
  void timer_due(int side, uint64_t number);
  void acknowledgement_due(int side);

  // Faults.
  // The connection is reset on its way. The sides with `told` notice it at once. Later segments of another side are answered
  // with a reset.
  void reset(bool tell_dialler, bool tell_acceptor);
  // The kernel of this side forgets the connection and sends nothing.
  void vanish(int side);
  void slow_down(double bytes_per_second) { bytes_per_second_ = bytes_per_second; }
  // Somebody on the path changes bytes that this side has written, and that the other side has not read.
  void alter(int from) { (void)out(from).alter(kernel_.random()); }
  // Returns true if no end holds the connection, so that it can be deleted.
  bool is_over() const;

 private:
  StreamPipe& out(int side) { return pipes_[static_cast<size_t>(side)]; }
  const StreamPipe& out(int side) const { return pipes_[static_cast<size_t>(side)]; }
  StreamPipe& in(int side) { return pipes_[static_cast<size_t>(1 - side)]; }
  const StreamPipe& in(int side) const { return pipes_[static_cast<size_t>(1 - side)]; }
  uint64_t free_window(int side) const;
  void send(int side, Segment segment);
  void send_control(int side, SegmentKind kind);
  void transmit(int side);
  void start_timer(int side);
  bool has_pending(int side) const { return out(side).acknowledged() < out(side).last(); }
  void retransmit(int side);
  void probe(int side, uint32_t probes_max);
  void fail(int side, int error);
  void abort(int side);
  void arrive(int side, const Segment& segment);
  void take_syn();
  void take_bytes(int side, const Segment& segment);
  void take_acknowledgement(int side, const Segment& segment);
  void finish_if_done(int side);
  void arrive_late(int side);

  StreamKernel& kernel_;
  ConnectionId id_;
  std::array<StreamEnd, 2> ends_;
  std::array<StreamPipe, 2> pipes_;  // indexed by the sending side
  double bytes_per_second_ = 0;      // 0: the network is not the limit
  bool cut_ = false;                 // the network has reset the connection
};

}  // namespace unisono::sim

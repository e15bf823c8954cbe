#include "tls/tls_socket.h"

#include <algorithm>
#include <utility>

namespace unisono {
namespace {

class TlsSocket final : public StreamSocket, private TlsCarrier {
 public:
  TlsSocket(std::unique_ptr<StreamSocket> inner, std::shared_ptr<const TlsContext> context, TlsConnection::Role role)
      : inner_(std::move(inner)), connection_(std::move(context), role, *this) {}

  std::optional<int> connected() override {
    switch (step()) {
      case TlsConnection::Progress::pending: return std::nullopt;
      case TlsConnection::Progress::done: return 0;
      case TlsConnection::Progress::failed: break;
    }
    return connection_.error();
  }
  ptrdiff_t write(const iovec* parts, int count) override {
    if (!done_ && step() != TlsConnection::Progress::done) return -connection_.error();
    const auto taken = connection_.write(parts, count);
    update_watch();
    return taken;
  }
  ptrdiff_t read(const iovec* parts, int count, bool& ended) override {
    ended = false;
    if (!done_ && step() != TlsConnection::Progress::done) return -connection_.error();
    const auto taken = connection_.read(parts, count, ended);
    if (connection_.has_unflushed()) (void)flush();
    return taken;
  }
  ptrdiff_t peek(std::span<std::byte> bytes, bool& ended) override {
    ended = false;
    if (!done_ && step() != TlsConnection::Progress::done) return -connection_.error();
    return connection_.peek(bytes.front(), ended);
  }
  int flush() override {
    const int error = connection_.flush();
    update_watch();
    return error;
  }
  bool encrypts() const override { return true; }
  bool has_unflushed() const override { return connection_.has_unflushed(); }
  bool has_buffered() const override { return connection_.has_buffered(); }
  uint64_t incomplete_record() const override { return connection_.incomplete_record(); }
  void shut_down() override { inner_->shut_down(); }
  void abort() override { inner_->abort(); }

  bool watch(StreamWatcher& watcher, bool readable, bool writable, uint64_t tag) override {
    watcher_ = &watcher;
    readable_ = readable;
    writable_ = writable;
    tag_ = tag;
    return apply_watch();
  }
  void tune() override { inner_->tune(); }
  TcpAddress local() const override { return inner_->local(); }
  TcpAddress remote() const override { return inner_->remote(); }
  bool host_is_silent(Nanos silence) const override { return inner_->host_is_silent(silence); }
  void acknowledge_now() override { inner_->acknowledge_now(); }
  bool awaits_host(Nanos silence) const override { return inner_->awaits_host(silence); }
  uint64_t unacknowledged_bytes() const override {
    const auto left = inner_->unacknowledged_bytes();
    return left == unknown ? unknown : connection_.unacknowledged_bytes(left);
  }
  Unacknowledged unacknowledged() const override { return inner_->unacknowledged(); }

 private:
  ptrdiff_t write_encrypted(std::span<const std::byte> bytes) override { return write_some(*inner_, bytes); }
  ptrdiff_t read_encrypted(std::span<std::byte> bytes, bool& ended) override { return read_some(*inner_, bytes, ended); }

  TlsConnection::Progress step() {
    const auto progress = connection_.handshake();
    done_ = progress == TlsConnection::Progress::done;
    update_watch();
    return progress;
  }
  // The events that the inner socket must report: during the handshake, those for which the handshake waits.
  bool apply_watch() {
    const bool any = readable_ || writable_;
    read_watched_ = done_ ? readable_ : any;
    write_watched_ = (done_ && writable_) || (any && connection_.has_unflushed());
    return inner_->watch(*watcher_, read_watched_, write_watched_, tag_);
  }
  void update_watch() {
    if (watcher_ == nullptr) return;
    const bool any = readable_ || writable_;
    const bool read = done_ ? readable_ : any, write = (done_ && writable_) || (any && connection_.has_unflushed());
    if (read != read_watched_ || write != write_watched_) (void)apply_watch();
  }

  std::unique_ptr<StreamSocket> inner_;
  mutable TlsConnection connection_;
  bool done_ = false;
  StreamWatcher* watcher_ = nullptr;
  bool readable_ = false, writable_ = false, read_watched_ = false, write_watched_ = false;
  uint64_t tag_ = 0;
};

}  // namespace

std::unique_ptr<StreamSocket> make_tls_socket(std::unique_ptr<StreamSocket> inner, std::shared_ptr<const TlsContext> context,
                                              TlsConnection::Role role) {
  return std::make_unique<TlsSocket>(std::move(inner), std::move(context), role);
}

}  // namespace unisono

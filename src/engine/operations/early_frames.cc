#include "engine/operations/early_frames.h"

#include "base/check.h"
#include "kernels/dispatch.h"

namespace unisono {

void EarlyFrames::keep(PeerIndex from, const FrameHeader& header, ByteView payload) {
  UNISONO_CHECK(fits(payload.size()));
  auto* data = pool_.take(payload.size());
  if (!payload.empty()) kernels::copy(data, payload.data(), payload.size());
  frames_.push_back({from, header, data});
  bytes_ += payload.size();
}

}  // namespace unisono

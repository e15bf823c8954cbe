// Turns the arguments of a public call into a checked OperationRequest. No function changes anything outside its result.
#pragma once

#include "executor/request.h"
#include "unisono/group.h"
#include "unisono/status.h"

namespace unisono {

// The rank that calls, and the defaults of its group.
struct Caller {
  Rank self = 0;
  uint32_t world = 1;
  Nanos timeout = 300 * second;
  const Codec* codec = &plain_codec;
};

// Each of these functions checks sizes, types, ranks and numbers. If an argument is wrong, the error message names it and the
// value that was expected.
Result<OperationRequest> all_reduce_call(const Caller& caller, ConstTensor input, Tensor output, const CallOptions& options);
Result<OperationRequest> reduce_scatter_call(const Caller& caller, ConstTensor input, Tensor output, Counts counts,
                                             bool in_place, const CallOptions& options);
Result<OperationRequest> all_gather_call(const Caller& caller, ConstTensor input, Tensor output, Counts counts, bool in_place,
                                         const CallOptions& options);
// If the delivery is lossy, the request has the element count of the whole tensor. If it is reliable, the result is an ordinary
// request for a reduce_scatter or an all_gather.
Result<OperationRequest> reduce_shards_call(const Caller& caller, ConstTensor input, Tensor shard, const CallOptions& options);
Result<OperationRequest> gather_shards_call(const Caller& caller, ConstTensor shard, Tensor output, const CallOptions& options);
// datagram_bytes: size of the largest datagram that is allowed; 0: no limit.
Result<ShardLayout> shard_layout_of(uint32_t world, ConstTensor tensor, const StepCodec& codec, uint32_t shard_unit,
                                    uint32_t datagram_bytes);
Result<OperationRequest> broadcast_call(const Caller& caller, Tensor inout, Rank root, const CallOptions& options);
Result<OperationRequest> reduce_call(const Caller& caller, ConstTensor input, Tensor output, Rank root,
                                     const CallOptions& options);
Result<OperationRequest> gather_call(const Caller& caller, ConstTensor input, Tensor output, Rank root, Counts counts,
                                     const CallOptions& options);
Result<OperationRequest> scatter_call(const Caller& caller, ConstTensor input, Tensor output, Rank root, Counts counts,
                                      const CallOptions& options);
Result<OperationRequest> all_to_all_call(const Caller& caller, ConstTensor input, Tensor output, Counts send, Counts recv,
                                         const CallOptions& options);
Result<OperationRequest> barrier_call(const Caller& caller, const CallOptions& options);
Result<OperationRequest> message_call(const Caller& caller, Collective direction, ConstTensor input, Tensor output, Rank other,
                                      const CallOptions& options);

}  // namespace unisono

/* The C99 API of Unisono, also for other languages. It has the same core as the C++ API, unisono.h.
 *
 * Functions that can fail return a code: 0 = ok; the meanings are those of unisono::Code. After a failure,
 * unisono_last_error() returns the message to the same thread, until its next call. The comment of each function that makes a
 * handle names the function that frees it. Buffers must stay valid until the operation is done. Thread-safe, like unisono.h. */
#ifndef UNISONO_C_H
#define UNISONO_C_H

#include <stddef.h>
#include <stdint.h>

#include "unisono/export.h"

#ifdef __cplusplus
extern "C" {
#endif

#define UNISONO_C_API_VERSION 1

typedef enum unisono_code {
  UNISONO_OK = 0,
  UNISONO_INVALID = 1,
  UNISONO_UNAVAILABLE = 2,
  UNISONO_PEER_LOST = 3,
  UNISONO_LATE = 4,
  UNISONO_CORRUPT = 5,
  UNISONO_UNSUPPORTED = 6,
  UNISONO_INTERNAL = 7
} unisono_code;

typedef enum unisono_dtype {
  UNISONO_F32 = 0,
  UNISONO_F64 = 1,
  UNISONO_F16 = 2,
  UNISONO_BF16 = 3,
  UNISONO_I8 = 4,
  UNISONO_I16 = 5,
  UNISONO_I32 = 6,
  UNISONO_I64 = 7,
  UNISONO_U8 = 8,
  UNISONO_U16 = 9,
  UNISONO_U32 = 10,
  UNISONO_U64 = 11
} unisono_dtype;

typedef enum unisono_op {
  UNISONO_SUM = 0,
  UNISONO_AVG = 1,
  UNISONO_MIN = 2,
  UNISONO_MAX = 3,
  UNISONO_PROD = 4,
  UNISONO_BAND = 5,
  UNISONO_BOR = 6,
  UNISONO_BXOR = 7
} unisono_op;

typedef struct unisono_group unisono_group;
typedef struct unisono_work unisono_work;

/* Fields as in unisono::Options. Zero-initialised: everything comes from the environment. Strings may be null. rank and
 * world_size are used only if world_size > 0. */
typedef struct unisono_options {
  int32_t rank;
  int32_t world_size;
  const char* rendezvous;
  const char* job;
  const char* interface;
  const char* transport;
  int32_t join_running;
  int64_t join_timeout_ms;
  int64_t timeout_ms;
  int64_t reform_timeout_ms;
  int32_t min_world;
  int32_t require_majority;
} unisono_options;

/* Zero-initialised: the group's defaults. order: 0 automatic, 1 in rank order, 2 any. schedule: as unisono::ScheduleKind. */
typedef struct unisono_call {
  int32_t order;
  int32_t schedule;
  int64_t timeout_ms;
  uint64_t id;
  uint64_t slice_bytes;
} unisono_call;

typedef struct unisono_report {
  uint32_t world_size;
  uint32_t contributors;
  uint64_t sent_bytes;
  uint64_t received_bytes;
  uint64_t sent_messages;
  uint64_t received_messages;
  int64_t total_us;
  int64_t wait_us;
  int64_t compute_us;
  int64_t transfer_us;
  int32_t last_rank;
} unisono_report;

/* Encoding in one operation; fields as in unisono::Report. encoded: 0 if no element was encoded. */
typedef struct unisono_codec_use {
  int32_t encoded;
  uint32_t passes;
  uint64_t sent_payload;
  uint64_t sent_elements;
  uint64_t saturated;
  uint64_t nonfinite_groups;
  int64_t encode_us; /* shares of compute_us; 0 if too short to be timed */
  int64_t sum_us;
  int64_t decode_us;
} unisono_codec_use;

/* Counters of a group. They start when the group is joined, split or re-formed. */
typedef struct unisono_counters {
  uint64_t begun; /* operations */
  uint64_t ended;
  uint64_t late;
  uint64_t failed; /* late ones included */
} unisono_counters;

/* Traffic with one rank; fields as in unisono::LinkCounters. */
typedef struct unisono_link_counters {
  uint64_t sent_bytes;
  uint64_t sent_messages;
  uint64_t received_bytes;
  uint64_t received_messages;
  int64_t waited_us;
  uint64_t waited_for;
  uint64_t stalls;
  int32_t lost;
} unisono_link_counters;

UNISONO_EXPORT const char* unisono_version(void);
UNISONO_EXPORT const char* unisono_last_error(void);

/* options may be null. The group is freed by unisono_leave. */
UNISONO_EXPORT int unisono_join(const unisono_options* options, unisono_group** group);
UNISONO_EXPORT void unisono_leave(unisono_group* group);
UNISONO_EXPORT uint32_t unisono_rank(const unisono_group* group);
UNISONO_EXPORT uint32_t unisono_world_size(const unisono_group* group);
UNISONO_EXPORT uint32_t unisono_epoch(const unisono_group* group);
UNISONO_EXPORT int unisono_split(unisono_group* group, const uint32_t* ranks, size_t count, unisono_group** subgroup);
/* Afterwards rank, world size and epoch of the group have changed. */
UNISONO_EXPORT int unisono_reform(unisono_group* group);

/* Sets the codec of later all_reduce, reduce_scatter, all_gather and all_to_all calls with this handle: "plain", "int8",
 * "quantize:bits=4,group=64", as unisono::Codec::parse reads it. Equal on all ranks. The default is the group's codec. */
UNISONO_EXPORT int unisono_set_codec(unisono_group* group, const char* codec);

/* All zero if the group keeps no record; then unisono_get_link_counters returns UNISONO_UNAVAILABLE. It returns UNISONO_INVALID
 * for a rank outside the group. */
UNISONO_EXPORT void unisono_get_counters(const unisono_group* group, unisono_counters* counters);
UNISONO_EXPORT int unisono_get_link_counters(const unisono_group* group, uint32_t rank, unisono_link_counters* counters);
/* Writes the group's record to a file for `unisono explain` and `unisono trace`. */
UNISONO_EXPORT int unisono_dump_record(const unisono_group* group, const char* path);

/* Asynchronous calls. `call` may be null. Success sets *work. Free it with unisono_work_free, which waits for an operation that
 * still runs. Input may equal output where the C++ API allows it. counts: one entry per rank, or null for equal blocks. */
UNISONO_EXPORT int unisono_all_reduce(unisono_group* group, const void* input, void* output, size_t count, unisono_dtype dtype,
                                      unisono_op op, const unisono_call* call, unisono_work** work);
UNISONO_EXPORT int unisono_reduce_scatter(unisono_group* group, const void* input, void* output, size_t count,
                                          const size_t* counts, unisono_dtype dtype, unisono_op op, const unisono_call* call,
                                          unisono_work** work);
UNISONO_EXPORT int unisono_all_gather(unisono_group* group, const void* input, void* output, size_t count, const size_t* counts,
                                      unisono_dtype dtype, const unisono_call* call, unisono_work** work);
UNISONO_EXPORT int unisono_broadcast(unisono_group* group, void* data, size_t count, unisono_dtype dtype, uint32_t root,
                                     const unisono_call* call, unisono_work** work);
UNISONO_EXPORT int unisono_reduce(unisono_group* group, const void* input, void* output, size_t count, unisono_dtype dtype,
                                  unisono_op op, uint32_t root, const unisono_call* call, unisono_work** work);
UNISONO_EXPORT int unisono_gather(unisono_group* group, const void* input, void* output, size_t count, const size_t* counts,
                                  unisono_dtype dtype, uint32_t root, const unisono_call* call, unisono_work** work);
UNISONO_EXPORT int unisono_scatter(unisono_group* group, const void* input, void* output, size_t count, const size_t* counts,
                                   unisono_dtype dtype, uint32_t root, const unisono_call* call, unisono_work** work);
UNISONO_EXPORT int unisono_all_to_all(unisono_group* group, const void* input, void* output, size_t count,
                                      const size_t* send_counts, const size_t* recv_counts, unisono_dtype dtype,
                                      const unisono_call* call, unisono_work** work);
UNISONO_EXPORT int unisono_barrier(unisono_group* group, const unisono_call* call, unisono_work** work);
UNISONO_EXPORT int unisono_send(unisono_group* group, const void* data, size_t count, unisono_dtype dtype, uint32_t to,
                                uint32_t tag, const unisono_call* call, unisono_work** work);
UNISONO_EXPORT int unisono_recv(unisono_group* group, void* data, size_t count, unisono_dtype dtype, uint32_t from,
                                uint32_t tag, const unisono_call* call, unisono_work** work);

/* report may be null. */
UNISONO_EXPORT int unisono_wait(unisono_work* work, unisono_report* report);
/* As unisono_wait, but returns UNISONO_LATE if the operation is not done after timeout_ms; the operation continues. */
UNISONO_EXPORT int unisono_wait_for(unisono_work* work, int64_t timeout_ms, unisono_report* report);
/* Complete after the operation is done. */
UNISONO_EXPORT void unisono_get_codec_use(const unisono_work* work, unisono_codec_use* use);
UNISONO_EXPORT int unisono_done(const unisono_work* work);
UNISONO_EXPORT void unisono_work_free(unisono_work* work);

#ifdef __cplusplus
}
#endif

#endif /* UNISONO_C_H */

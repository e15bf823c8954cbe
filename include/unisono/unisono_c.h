/* The C99 API of Unisono, which other languages can use, too. It has the same core as the C++ API, unisono.h.
 *
 * If a function can fail, it returns an unisono_code with the meaning of unisono::Code. unisono_last_error() then returns the
 * message of the error, in the same thread, until that thread makes its next call. Buffers must stay valid until the operation
 * is done. The API is thread-safe, like unisono.h. */
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

/* The values of unisono::Security. */
typedef enum unisono_security {
  UNISONO_SECURITY_AUTOMATIC = 0,
  UNISONO_SECURITY_REQUIRED = 1,
  UNISONO_SECURITY_OFF = 2
} unisono_security;

typedef struct unisono_group unisono_group;
typedef struct unisono_work unisono_work;

/* The fields are those of unisono::Options. If a field is 0 or null, its value comes from the environment, or else is the
 * default. `rank` and `world_size` are used only if world_size > 0. require_majority: 1 is true, -1 is false. */
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

/* A field of 0 stands for the default of the group. order: 0 is automatic, 1 is in rank order, 2 is any order. schedule: a
 * number of unisono::ScheduleKind. */
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

/* Describes the encoding in one operation. The fields are those of unisono::Report. encoded: 0 if no element was encoded. */
typedef struct unisono_codec_use {
  int32_t encoded;
  uint32_t passes;
  uint64_t sent_payload;
  uint64_t sent_elements;
  uint64_t saturated;
  uint64_t nonfinite_groups;
  int64_t encode_us; /* This field and the next two are parts of compute_us. They are 0 if they are too short to be timed. */
  int64_t sum_us;
  int64_t decode_us;
} unisono_codec_use;

/* The counters of a group. They start when the group is joined, split or re-formed. */
typedef struct unisono_counters {
  uint64_t begun; /* numbers of operations that began, and that ended */
  uint64_t ended;
  uint64_t late;
  uint64_t failed; /* this includes the late operations */
} unisono_counters;

/* Counts the traffic with one rank. The fields are those of unisono::LinkCounters. */
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

/* The fields are those of unisono::Event. */
typedef struct unisono_event {
  const char* kind;
  const char* text;
  const char* source;
  int32_t is_warning; /* 0: info */
  int32_t rank;       /* the rank that the event is about; -1: it is about no single rank */
  int64_t time_us;    /* microseconds since 1970 */
} unisono_event;
typedef void (*unisono_event_handler)(const unisono_event* event, void* data);

UNISONO_EXPORT const char* unisono_version(void);
UNISONO_EXPORT const char* unisono_last_error(void);

/* `options` may be null. Free the group with unisono_leave. It first waits for operations that other ranks may need, as the
 * destructor of unisono::Group does. */
UNISONO_EXPORT int unisono_join(const unisono_options* options, unisono_group** group);
/* Like unisono_join. `handler` gets what no call returns: see unisono/event.h, which also says which threads call it. It also
 * gets `data`. The event and its texts are valid during the call only. */
UNISONO_EXPORT int unisono_join_with_events(const unisono_options* options, unisono_event_handler handler, void* data,
                                            unisono_group** group);
/* Like unisono_join_with_events; `handler` may be null. `key` is the secret key of the job: 64 hexadecimal digits, as `unisono
 * key` prints them. If it is null or empty, the key comes from the environment; see unisono::Options::key. */
UNISONO_EXPORT int unisono_join_with_key(const unisono_options* options, const char* key, unisono_security security,
                                         unisono_event_handler handler, void* data, unisono_group** group);
UNISONO_EXPORT void unisono_leave(unisono_group* group);
UNISONO_EXPORT uint32_t unisono_rank(const unisono_group* group);
UNISONO_EXPORT uint32_t unisono_world_size(const unisono_group* group);
UNISONO_EXPORT uint32_t unisono_epoch(const unisono_group* group);
UNISONO_EXPORT int unisono_split(unisono_group* group, const uint32_t* ranks, size_t count, unisono_group** subgroup);
/* Changes the group's rank, world size and epoch. */
UNISONO_EXPORT int unisono_reform(unisono_group* group);

/* Sets the codec of this handle's later calls of all_reduce, reduce_scatter, all_gather and all_to_all. codec: for example
 * "plain", "int8" or "quantize:bits=4,group=64"; see unisono::Codec::parse. It must be equal on all ranks. Default: the codec
 * of the group. */
UNISONO_EXPORT int unisono_set_codec(unisono_group* group, const char* codec);

/* If the group keeps no record, unisono_get_counters sets all counters to 0, and unisono_get_link_counters returns
 * UNISONO_UNAVAILABLE. For a rank outside the group the latter returns UNISONO_INVALID. */
UNISONO_EXPORT void unisono_get_counters(const unisono_group* group, unisono_counters* counters);
UNISONO_EXPORT int unisono_get_link_counters(const unisono_group* group, uint32_t rank, unisono_link_counters* counters);
/* Writes the group's record to a file for `unisono explain` and `unisono trace`. */
UNISONO_EXPORT int unisono_dump_record(const unisono_group* group, const char* path);

/* Asynchronous calls. `call` may be null. A call that succeeds sets *work. Free it with unisono_work_free, which waits if the
 * operation still runs. `input` may equal `output` where the C++ API works in place. counts: one entry per rank; null: all
 * blocks have equal size. */
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
/* Like unisono_wait, but if the operation is not done after timeout_ms, returns UNISONO_LATE. The operation then continues. */
UNISONO_EXPORT int unisono_wait_for(unisono_work* work, int64_t timeout_ms, unisono_report* report);
/* The values are complete once the operation is done. */
UNISONO_EXPORT void unisono_get_codec_use(const unisono_work* work, unisono_codec_use* use);
UNISONO_EXPORT int unisono_done(const unisono_work* work);
UNISONO_EXPORT void unisono_work_free(unisono_work* work);

#ifdef __cplusplus
}
#endif

#endif /* UNISONO_C_H */

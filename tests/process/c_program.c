/* A rank written in C99 against unisono_c.h: every collective once, asynchronous calls, errors, a sub-group, re-forming.
 * Ends with 0 if all is right, else says what is not. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "unisono/unisono_c.h"

static void require(int holds, const char* what) {
  if (holds) return;
  fprintf(stderr, "wrong: %s (%s)\n", what, unisono_last_error());
  exit(1);
}

/* Waits, checks and frees. */
static void finish(int code, unisono_work** work, const char* what) {
  unisono_report report;
  require(code == UNISONO_OK, what);
  require(unisono_wait(*work, &report) == UNISONO_OK, what);
  require(unisono_done(*work), what);
  unisono_work_free(*work);
}

enum { count = 1000, world_max = 8 };

static float given(uint32_t rank, size_t i) { return (float)(rank + 1) * (float)(i % 7); }

static void reduce_calls(unisono_group* group, uint32_t rank, uint32_t world) {
  static float in[count * world_max], out[count * world_max];
  unisono_work* work = NULL;
  const float ranks = (float)(world * (world + 1) / 2);
  for (size_t i = 0; i < (size_t)count * world; ++i) in[i] = given(rank, i);
  finish(unisono_all_reduce(group, in, out, count, UNISONO_F32, UNISONO_SUM, NULL, &work), &work, "all_reduce");
  for (size_t i = 0; i < count; ++i) require(out[i] == ranks * (float)(i % 7), "the sum");
  finish(unisono_reduce(group, in, out, count, UNISONO_F32, UNISONO_MAX, 0, NULL, &work), &work, "reduce");
  for (size_t i = 0; rank == 0 && i < count; ++i) require(out[i] == given(world - 1, i), "the maximum");
  finish(unisono_reduce_scatter(group, in, out, count, NULL, UNISONO_F32, UNISONO_SUM, NULL, &work), &work, "reduce_scatter");
  for (size_t i = 0; i < count; ++i) require(out[i] == ranks * (float)((i + (size_t)rank * count) % 7), "the block of the sum");
}

/* Of elements enough for the clock. */
static void codec_times(unisono_group* group, const unisono_call* call) {
  const size_t many = (size_t)1 << 20;
  float* const tensor = calloc(many, sizeof(float));
  unisono_work* work = NULL;
  unisono_report report;
  unisono_codec_use use;
  require(tensor != NULL, "memory");
  require(unisono_all_reduce(group, tensor, tensor, many, UNISONO_F32, UNISONO_SUM, call, &work) == UNISONO_OK &&
              unisono_wait(work, &report) == UNISONO_OK,
          "all_reduce of many encoded elements");
  unisono_get_codec_use(work, &use);
  require(use.encode_us > 0 && use.sum_us > 0 && use.decode_us > 0, "times of encoding, adding and decoding");
  require(use.encode_us + use.sum_us + use.decode_us <= report.compute_us + 3, "which are parts of the time computed");
  unisono_work_free(work);
  free(tensor);
}

static void codec_calls(unisono_group* group, uint32_t rank, uint32_t world) {
  static float in[count], out[count];
  unisono_work* work = NULL;
  unisono_codec_use use;
  unisono_call call;
  const float ranks = (float)(world * (world + 1) / 2);
  memset(&call, 0, sizeof(call));
  call.schedule = 2; /* two_step: as asked for, whatever the links */
  for (size_t i = 0; i < count; ++i) in[i] = given(rank, i);
  require(unisono_set_codec(group, "int9") == UNISONO_INVALID && strstr(unisono_last_error(), "int2") != NULL, "no such codec");
  require(unisono_set_codec(group, "int8:group=64") == UNISONO_OK, "a codec");
  require(unisono_all_reduce(group, in, out, count, UNISONO_F32, UNISONO_SUM, &call, &work) == UNISONO_OK,
          "all_reduce with a codec");
  require(unisono_wait(work, NULL) == UNISONO_OK, "the end of all_reduce with a codec");
  unisono_get_codec_use(work, &use);
  require(use.encoded == 1 && use.passes == 2 && use.sent_elements > 0 && use.saturated == 0 && use.nonfinite_groups == 0,
          "what the codec did");
  require(8 * use.sent_payload < 9 * use.sent_elements, "fewer than 9 bits per element");
  unisono_work_free(work);
  for (size_t i = 0; i < count; ++i) {
    const float error = out[i] - ranks * (float)(i % 7);
    require(error < 0.06f * ranks && error > -0.06f * ranks, "the sum of encoded elements");
  }
  codec_times(group, &call);
  require(unisono_set_codec(group, "plain") == UNISONO_OK, "no codec");
  require(unisono_all_reduce(group, in, out, count, UNISONO_F32, UNISONO_SUM, &call, &work) == UNISONO_OK &&
              unisono_wait(work, NULL) == UNISONO_OK,
          "all_reduce without");
  unisono_get_codec_use(work, &use);
  require(use.encoded == 0 && use.passes == 0, "no codec was used");
  unisono_work_free(work);
}

static void move_calls(unisono_group* group, uint32_t rank, uint32_t world) {
  static int32_t in[count * world_max], out[count * world_max];
  unisono_work* work = NULL;
  for (size_t i = 0; i < (size_t)count * world; ++i) in[i] = (int32_t)(rank * 100000 + i);
  finish(unisono_all_gather(group, in, out, count, NULL, UNISONO_I32, NULL, &work), &work, "all_gather");
  for (uint32_t r = 0; r < world; ++r) require(out[(size_t)r * count + 5] == (int32_t)(r * 100000 + 5), "a gathered block");
  finish(unisono_all_to_all(group, in, out, count, NULL, NULL, UNISONO_I32, NULL, &work), &work, "all_to_all");
  for (uint32_t r = 0; r < world; ++r)
    require(out[(size_t)r * count] == (int32_t)(r * 100000 + rank * count), "an exchanged block");
  finish(unisono_gather(group, in, out, count, NULL, UNISONO_I32, 1, NULL, &work), &work, "gather");
  for (uint32_t r = 0; rank == 1 && r < world; ++r)
    require(out[(size_t)r * count] == (int32_t)(r * 100000), "a block at the root");
  finish(unisono_scatter(group, in, out, count, NULL, UNISONO_I32, 1, NULL, &work), &work, "scatter");
  require(out[0] == (int32_t)(100000 + rank * count), "a block from the root");
  finish(unisono_broadcast(group, in, count, UNISONO_I32, 0, NULL, &work), &work, "broadcast");
  require(in[7] == 7, "what rank 0 gave");
  finish(unisono_barrier(group, NULL, &work), &work, "barrier");
}

static void messages(unisono_group* group, uint32_t rank, uint32_t world) {
  uint64_t mine = rank, other = 99;
  unisono_work *sending = NULL, *receiving = NULL;
  const int receives = unisono_recv(group, &other, 1, UNISONO_U64, (rank + world - 1) % world, 3, NULL, &receiving);
  finish(unisono_send(group, &mine, 1, UNISONO_U64, (rank + 1) % world, 3, NULL, &sending), &sending, "send");
  finish(receives, &receiving, "recv");
  require(other == (rank + world - 1) % world, "the message");
}

static void errors(unisono_group* group, uint32_t rank) {
  unisono_work* work = NULL;
  unisono_call call;
  float value = 1;
  memset(&call, 0, sizeof(call));
  call.timeout_ms = 200;
  require(unisono_broadcast(group, &value, 1, UNISONO_F32, 77, NULL, &work) == UNISONO_INVALID ||
              unisono_wait(work, NULL) == UNISONO_INVALID,
          "a wrong root");
  require(strlen(unisono_last_error()) > 0, "a message");
  work = NULL;
  if (rank == 0) {
    require(unisono_recv(group, &value, 1, UNISONO_F32, 1, 9, &call, &work) == UNISONO_OK, "recv");
    require(unisono_wait_for(work, 10, NULL) == UNISONO_LATE, "still running");
    require(!unisono_done(work), "not done");
    require(unisono_wait(work, NULL) == UNISONO_LATE, "late");
    unisono_work_free(work);
  }
}

static void counts(unisono_group* group, uint32_t rank) {
  unisono_counters counters;
  unisono_link_counters link;
  unisono_get_counters(group, &counters);
  require(counters.begun > 10 && counters.begun == counters.ended && counters.failed >= counters.late, "counters");
  require(unisono_get_link_counters(group, 1 - rank, &link) == UNISONO_OK, "counters of a link");
  require(link.sent_bytes > 0 && link.received_messages > 0 && !link.lost, "what a link counts");
  require(unisono_get_link_counters(group, 99, &link) == UNISONO_INVALID && strstr(unisono_last_error(), "rank 99") != NULL,
          "no such rank");
  require(unisono_dump_record(group, "/no/such/folder/record") == UNISONO_UNAVAILABLE, "a record that cannot be written");
}

typedef struct events_seen {
  int joined;
} events_seen;

static void on_event(const unisono_event* event, void* data) {
  events_seen* seen = data;
  seen->joined += strcmp(event->kind, "joined") == 0 && strncmp(event->text, "joined a group of ", 18) == 0 &&
                  strncmp(event->source, "rank ", 5) == 0 && !event->is_warning && event->rank == -1 && event->time_us > 0;
}

int main(void) {
  events_seen events = {0};
  unisono_group *group = NULL, *half = NULL;
  unisono_options options;
  unisono_work* work = NULL;
  int32_t sum = 1;
  memset(&options, 0, sizeof(options));
  options.timeout_ms = 20000;
  options.min_world = world_max + 1;
  require(unisono_join(&options, &group) == UNISONO_INVALID && strstr(unisono_last_error(), "min_world is 9") != NULL,
          "too large a smallest world");
  require(unisono_join_with_key(&options, "hunter2", UNISONO_SECURITY_REQUIRED, NULL, NULL, &group) == UNISONO_INVALID &&
              strstr(unisono_last_error(), "64 hexadecimal digits") != NULL && strstr(unisono_last_error(), "hunter2") == NULL,
          "a key that is none, and is not shown");
  options.min_world = 2;
  options.require_majority = -1;
  require(unisono_join_with_events(&options, on_event, &events, &group) == UNISONO_OK, "join");
  require(events.joined == 1, "the event of joining");
  const uint32_t rank = unisono_rank(group), world = unisono_world_size(group);
  require(world >= 2 && world <= world_max, "the size");
  reduce_calls(group, rank, world);
  codec_calls(group, rank, world);
  move_calls(group, rank, world);
  messages(group, rank, world);
  if (rank < 2) {
    const uint32_t ranks[] = {1, 0};
    require(unisono_split(group, ranks, 2, &half) == UNISONO_OK, "split");
    require(unisono_rank(half) == 1 - rank, "the rank in the sub-group");
    finish(unisono_all_reduce(half, &sum, &sum, 1, UNISONO_I32, UNISONO_SUM, NULL, &work), &work,
           "all_reduce of the sub-group");
    require(sum == 2, "the sum of the sub-group");
    unisono_leave(half);
  }
  if (rank < 2) counts(group, rank);
  errors(group, rank);
  finish(unisono_barrier(group, NULL, &work), &work, "barrier");
  require(unisono_reform(group) == UNISONO_OK, "reform");
  require(unisono_epoch(group) == 2 && unisono_world_size(group) == world, "the new epoch");
  reduce_calls(group, rank, world);
  finish(unisono_barrier(group, NULL, &work), &work, "barrier");
  unisono_leave(group);
  printf("rank %u of %u: right\n", (unsigned)rank, (unsigned)world);
  return 0;
}

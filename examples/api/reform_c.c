/* A rank dies, and the living ranks continue without it. */
#include <signal.h>
#include <stdio.h>
#include <unisono/unisono_c.h>

/* A blocking sum, like all_reduce() in C++. */
static int sum(unisono_group* group, float* values, size_t count) {
  unisono_work* work = NULL;
  int code = unisono_all_reduce(group, values, values, count, UNISONO_F32, UNISONO_SUM, NULL, &work);
  if (code == UNISONO_OK) code = unisono_wait(work, NULL);
  unisono_work_free(work);
  return code;
}

int main(void) {
  unisono_group* group = NULL;
  unisono_options options = {0};
  float ones[3] = {1, 1, 1};
  int code;
  options.min_world = 2; /* with fewer survivors, unisono_reform() fails: UNISONO_UNAVAILABLE */
  if (unisono_join(&options, &group) != UNISONO_OK) return fprintf(stderr, "%s\n", unisono_last_error()), 1;

  /* --8<-- [start:body] */
  if (unisono_rank(group) == 2) raise(SIGKILL);
  code = sum(group, ones, 3);
  if (code == UNISONO_PEER_LOST || code == UNISONO_LATE) {
    printf("code %d: %s\n", code, unisono_last_error());
    if (unisono_reform(group) != UNISONO_OK) return fprintf(stderr, "%s\n", unisono_last_error()), 1;
    ones[0] = ones[1] = ones[2] = 1; /* after a failed operation, the values are unspecified */
    code = sum(group, ones, 3);
  }
  if (code == UNISONO_OK) printf("rank %u of %u: %g\n", unisono_rank(group), unisono_world_size(group), ones[0]);
  /* --8<-- [end:body] */
  unisono_leave(group);
  return code != UNISONO_OK;
}

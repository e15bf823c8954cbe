/* The smallest program in C99: every rank contributes values, and every rank gets their sum. */
#include <stdio.h>
#include <unisono/unisono_c.h>

int main(void) {
  unisono_group* group = NULL;
  unisono_work* work = NULL;
  float values[1000];
  int code = unisono_join(NULL, &group); /* NULL: reads all options from the environment */
  if (code != UNISONO_OK) {
    fprintf(stderr, "code %d: %s\n", code, unisono_last_error());
    return 1;
  }
  for (int i = 0; i < 1000; ++i) values[i] = (float)unisono_rank(group) + 1;
  code = unisono_all_reduce(group, values, values, 1000, UNISONO_F32, UNISONO_SUM, NULL, &work);
  if (code == UNISONO_OK) code = unisono_wait(work, NULL);
  if (code == UNISONO_OK) printf("rank %u of %u: %g\n", unisono_rank(group), unisono_world_size(group), values[0]);
  else fprintf(stderr, "code %d: %s\n", code, unisono_last_error());
  unisono_work_free(work); /* NULL is fine */
  unisono_leave(group);
  return code != UNISONO_OK;
}

/* Several operations in flight, with a timeout for these calls, and the report of an operation. */
#include <stdio.h>
#include <string.h>
#include <unisono/unisono_c.h>

enum { parts = 4, count = 50000 };

int main(void) {
  static double values[parts][count];
  unisono_group* group = NULL;
  unisono_work* works[parts] = {NULL};
  unisono_report report;
  unisono_call call;
  int code = unisono_join(NULL, &group);
  if (code != UNISONO_OK) return fprintf(stderr, "%s\n", unisono_last_error()), 1;

  /* --8<-- [start:body] */
  memset(&call, 0, sizeof(call)); /* zeros: the group's defaults */
  call.timeout_ms = 20000;
  for (int part = 0; part < parts && code == UNISONO_OK; ++part) {
    for (int i = 0; i < count; ++i) values[part][i] = part + unisono_rank(group);
    code = unisono_all_reduce(group, values[part], values[part], count, UNISONO_F64, UNISONO_AVG, &call, &works[part]);
  }
  for (int part = 0; part < parts && code == UNISONO_OK; ++part) {
    code = unisono_wait_for(works[part], 0, &report); /* UNISONO_LATE: the operation still runs, which is no failure */
    if (code == UNISONO_LATE) code = unisono_wait(works[part], &report);
  }
  /* --8<-- [end:body] */
  if (code != UNISONO_OK) fprintf(stderr, "%s\n", unisono_last_error());
  else if (unisono_rank(group) == 0)
    printf("averages %g %g %g %g, %u contributors\n", values[0][0], values[1][0], values[2][0], values[3][0],
           report.contributors);
  for (int part = 0; part < parts; ++part) unisono_work_free(works[part]); /* waits if the operation still runs */
  unisono_leave(group);
  return code != UNISONO_OK;
}

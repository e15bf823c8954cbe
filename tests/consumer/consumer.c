/* Uses an installed Unisono from C99: one sum over all ranks, checked. Ranks come from the environment. */

#include <stdio.h>

#include <unisono/unisono_c.h>

#define COUNT 1001

static int report_failure(const char* what) {
  fprintf(stderr, "%s: %s\n", what, unisono_last_error());
  return 1;
}

int main(void) {
  static double values[COUNT];
  unisono_group* group = NULL;
  unisono_work* work = NULL;
  unisono_report report = {0};
  int failed = 0;
  if (unisono_join(NULL, &group) != UNISONO_OK) return report_failure("unisono_join");
  for (int i = 0; i < COUNT; ++i) values[i] = (double)unisono_rank(group) + i;
  if (unisono_all_reduce(group, values, values, COUNT, UNISONO_F64, UNISONO_SUM, NULL, &work) != UNISONO_OK) {
    failed = report_failure("unisono_all_reduce");
  } else if (unisono_wait(work, &report) != UNISONO_OK) {
    failed = report_failure("unisono_wait");
  }
  const double world_size = unisono_world_size(group);
  for (int i = 0; i < COUNT && !failed; ++i) {
    const double expected = world_size * (world_size - 1) / 2 + world_size * i;
    if (values[i] != expected) {
      fprintf(stderr, "element %d is %g instead of %g\n", i, values[i], expected);
      failed = 1;
    }
  }
  if (!failed)
    printf("rank %u of %g: right, %u contributors, Unisono %s\n", unisono_rank(group), world_size, report.contributors,
           unisono_version());
  unisono_work_free(work);
  unisono_leave(group);
  return failed;
}

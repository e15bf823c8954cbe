#!/usr/bin/env python3
"""Tests of check_locks: a missing lock is found, a held one is not, and the standard's mutex is refused where locks are
checked."""

import os
import shutil
import subprocess
import sys
import tempfile
import unittest

TOOLS = os.path.dirname(os.path.abspath(__file__))
COUNTER = """#include "base/mutex.h"
namespace unisono {{
class Counter {{
 public:
  void count() {{
    {lock}
    ++count_;
  }}
 private:
  Mutex mutex_;
  int count_ UNISONO_GUARDED_BY(mutex_) = 0;
}};
void use(Counter& counter) {{ counter.count(); }}
}}
"""


class CheckLocks(unittest.TestCase):
    def check(self, source):
        with tempfile.TemporaryDirectory() as root:
            os.makedirs(os.path.join(root, "src", "base"))
            os.makedirs(os.path.join(root, "src", "group"))
            os.makedirs(os.path.join(root, "include"))
            for name in ("mutex.h", "thread_annotations.h"):
                shutil.copy(os.path.join(TOOLS, "..", "src", "base", name), os.path.join(root, "src", "base"))
            with open(os.path.join(root, "src", "group", "counter.cc"), "w", encoding="utf-8") as file:
                file.write(source)
            return subprocess.run([sys.executable, os.path.join(TOOLS, "check_locks"), root], stdout=subprocess.PIPE,
                                  stderr=subprocess.STDOUT, text=True, check=False)

    def test_a_held_lock_passes(self):
        result = self.check(COUNTER.format(lock="const MutexLock lock(mutex_);"))
        self.assertEqual(result.returncode, 0, result.stdout)
        self.assertIn("1 sources", result.stdout)

    def test_a_missing_lock_is_found(self):
        result = self.check(COUNTER.format(lock=""))
        self.assertEqual(result.returncode, 1, result.stdout)
        self.assertIn("count_", result.stdout)

    def test_a_lock_that_is_let_go_before_is_found(self):
        result = self.check(COUNTER.format(lock="mutex_.lock(); mutex_.unlock();"))
        self.assertEqual(result.returncode, 1, result.stdout)

    def test_the_standards_mutex_is_refused(self):
        result = self.check("#include <mutex>\nstd::mutex mutex;\n")
        self.assertEqual(result.returncode, 1, result.stdout)
        self.assertIn("counter.cc:2", result.stdout)


if __name__ == "__main__":
    unittest.main()

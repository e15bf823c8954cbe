#!/usr/bin/env python3
"""The processes that bench/versus starts: their output, which failure is reported, and that all end when the time is over."""

import os
import sys
import time
import unittest

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

from versus_lib import child  # noqa: E402


class Children(unittest.TestCase):
    def run_shell(self, *scripts, limit=20):
        start = time.monotonic()
        outcome = child.run([child.Command(["sh", "-c", script]) for script in scripts], limit)
        return outcome, time.monotonic() - start

    def test_output_and_success(self):
        outcome, _ = self.run_shell("echo one", "echo two")
        self.assertEqual((outcome.status, sorted(outcome.output.split())), ("ok", ["one", "two"]))

    def test_the_first_to_fail_ends_the_others_with_its_last_words(self):
        outcome, seconds = self.run_shell("echo no such thing >&2; exit 3", "exec tail -f /dev/null")
        self.assertEqual(outcome.status, "failed (3): no such thing")
        self.assertLess(seconds, 10)

    def test_time_ends_a_group_of_processes(self):
        outcome, seconds = self.run_shell("tail -f /dev/null & echo $!; wait", limit=0.3)
        self.assertEqual(outcome.status, "not finished in 0.3 s")
        self.assertLess(seconds, 10)
        grandchild = int(outcome.output.split()[0])
        deadline = time.monotonic() + 5
        while os.path.exists(f"/proc/{grandchild}/cmdline") and time.monotonic() < deadline:
            with open(f"/proc/{grandchild}/stat") as file:
                if file.read().rsplit(")", 1)[1].split()[0] == "Z":
                    break
        else:
            self.assertFalse(os.path.exists(f"/proc/{grandchild}/cmdline"), "the grandchild lives")


if __name__ == "__main__":
    unittest.main()

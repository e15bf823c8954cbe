#!/usr/bin/env python3
"""examples/run_console: what it takes for equal, and what not."""

import os
import subprocess
import sys
import tempfile
import unittest

from support import ROOT


class Transcripts(unittest.TestCase):
    def run_transcript(self, text):
        with tempfile.TemporaryDirectory(prefix="unisono-console-") as folder:
            path = os.path.join(folder, "x.console")
            with open(path, "w", encoding="utf-8") as file:
                file.write(text)
            return subprocess.run(
                [sys.executable, "-B", os.path.join(ROOT, "examples", "run_console"), path, "--folder", folder],
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=60,
                check=False,
            )

    def passes(self, text):
        done = self.run_transcript(text)
        self.assertEqual(done.returncode, 0, done.stdout)

    def fails(self, text):
        done = self.run_transcript(text)
        self.assertEqual(done.returncode, 1, done.stdout)
        self.assertIn("--- printed", done.stdout)

    def test_the_same_text(self):
        self.passes("$ echo a  b; echo c >&2\na b\nc\n")
        self.fails("$ echo a b\na c\n")

    def test_a_line_too_few_or_too_many(self):
        self.fails("$ echo a\na\nb\n")
        self.fails("$ printf 'a\\nb\\n'\na\n")

    def test_status(self):
        self.passes("$ exit 3  # status 3\n")
        self.fails("$ exit 3\n")
        self.fails("$ true  # status 3\n")

    def test_dots_are_any_text(self):
        self.passes("$ echo one two three\none … three\n")
        self.passes("$ printf '1\\n2\\n3\\n'\n1\n…\n")
        self.fails("$ echo one two four\none … three\n")

    def test_numbers(self):
        self.passes("$ echo 12.5 us and 7  # numbers vary\n3 us and 81.25\n")
        self.fails("$ echo 12.5 us\n3 us\n")
        self.fails("$ echo 12.5 ms  # numbers vary\n3 us\n")

    def test_the_schedule_depends_on_measured_links(self):
        self.passes("$ echo all_reduce by double_tree: 8 bytes sent\nall_reduce by two_step: 8 bytes sent\n")
        self.passes("$ echo all_reduce 0 ring: 2 of 2 ranks\nall_reduce 0 two_step: 2 of 2 ranks\n")
        self.fails("$ echo in rank order, ring\nin rank order, two_step\n")

    def test_lines_of_ranks_in_any_order_but_each_rank_in_its_own(self):
        self.passes("$ printf '[1] a\\n[0] b\\nend\\n[0] c\\n'\n[0] b\n[0] c\n[1] a\nend\n")
        self.fails("$ printf '[0] c\\n[0] b\\n'\n[0] b\n[0] c\n")

    def test_names_of_processes(self):
        self.passes("$ echo 'rank 2 (host x.y, pid 5) is late'\nrank 2 (host a, pid 7057) is late\n")
        self.fails("$ echo 'rank 1 (host x.y, pid 5) is late'\nrank 2 (host a, pid 7057) is late\n")

    def test_times_that_are_measured(self):
        self.passes("$ echo 'not finished after 301 ms: rank 2'\nnot finished after 300 ms: rank 2\n")
        self.fails("$ echo 'not finished after 301 ms: rank 1'\nnot finished after 300 ms: rank 2\n")

    def test_how_a_sum_was_cut(self):
        self.passes("$ echo 'missing 272 bytes (2 messages, phase: round 0)'\nmissing 400 bytes (1 message, phase: round 0)\n")
        self.fails("$ echo 'missing 272 bytes (2 messages, phase: round 1)'\nmissing 400 bytes (1 message, phase: round 0)\n")

    def test_nothing_to_run(self):
        self.assertNotEqual(self.run_transcript("\n").returncode, 0)
        self.assertNotEqual(self.run_transcript("text\n").returncode, 0)


if __name__ == "__main__":
    unittest.main()

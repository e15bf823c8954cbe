#!/usr/bin/env python3
"""bench/links: what it makes of its numbers, and a short run of it. UNISONO_BUILD names the folder of the build."""

import importlib.machinery
import importlib.util
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

HERE = pathlib.Path(__file__).resolve().parent
BUILD = pathlib.Path(os.environ.get("UNISONO_BUILD", HERE.parent / "build/release"))
sys.dont_write_bytecode = True
sys.path.insert(0, str(HERE))

from versus_lib import network  # noqa: E402

LOADER = importlib.machinery.SourceFileLoader("links", str(HERE / "links"))
SCRIPT = importlib.util.module_from_spec(importlib.util.spec_from_loader(LOADER.name, LOADER))
LOADER.exec_module(SCRIPT)


class Numbers(unittest.TestCase):
    def test_a_stall_is_the_longest_round_that_a_break_touched(self):
        rounds = [(0, 1), (1, 2), (2, 5), (5, 6), (0, 1), (1, 2), (2, 6.5), (6.5, 7.5)]
        median, found, others = SCRIPT.stalls([(2.5, 2.6), (5.5, 5.6), (8, 9)], rounds)
        self.assertEqual(median, 1)
        self.assertEqual(found, [3.5, 3.5, 0])
        self.assertEqual(others, [0] * 5)

    def test_steps_with_absent_peers_or_different_results_are_mistakes(self):
        good = {"exact": True, "wrong": "", "digest": "a", "rounds": [{"absent": []}]}
        self.assertEqual(SCRIPT.mistakes({1: [good, good]}), [])
        for bad in ({"exact": False}, {"wrong": "a one became 2"}, {"digest": "b"}, {"rounds": [{"absent": ["peer1"]}]}):
            self.assertEqual(len(SCRIPT.mistakes({1: [good, {**good, **bad}]})), 1, bad)

    def test_a_mark_that_is_missed_is_named(self):
        row = {"what": "resets", "breaks": 1, "wrong": 0, "stalls_s": [0.6], "limit": "", "mark_s": 0.5}
        self.assertEqual(SCRIPT.cells(row)[-1], "500, missed")
        self.assertEqual(SCRIPT.cells({**row, "stalls_s": [0.4]})[-1], "500")
        self.assertIn("failed: why", SCRIPT.cells({"what": "resets", "breaks": 1, "failed": "why"}))


class Run(unittest.TestCase):
    @unittest.skipIf(network.why_not(), network.why_not())
    def test_a_short_run_finds_no_failure(self):
        with tempfile.TemporaryDirectory() as folder:
            words = ["--resets", "3", "--sizes", "64K", "--outages", "0.2", "--each", "1", "--kills", "1", "--gap", "0.1"]
            script = subprocess.Popen([HERE / "links", *words, "--build", BUILD, "--out", folder], stdout=subprocess.DEVNULL)
            self.assertEqual(script.wait(), 0)
            rows = json.loads((pathlib.Path(folder) / "links.json").read_text())
            self.assertEqual(len(rows), 6)
            self.assertGreater(rows[0]["noted"], 0)
            self.assertGreaterEqual(max(rows[2]["stalls_s"]), 0.1)
            left = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True).stdout
            self.assertNotIn(f"{network.PREFIX}{script.pid}-", left)


if __name__ == "__main__":
    unittest.main()

#!/usr/bin/env python3
"""bench/two_builds: what it makes of its numbers, and a run that compares a build with itself."""

import importlib.machinery
import importlib.util
import os
import pathlib
import subprocess
import sys
import unittest

HERE = pathlib.Path(__file__).resolve().parent
BUILD = pathlib.Path(os.environ.get("UNISONO_BUILD", HERE.parent / "build/release"))
sys.dont_write_bytecode = True
LOADER = importlib.machinery.SourceFileLoader("two_builds", str(HERE / "two_builds"))
SCRIPT = importlib.util.module_from_spec(importlib.util.spec_from_loader(LOADER.name, LOADER))
LOADER.exec_module(SCRIPT)


class TwoBuilds(unittest.TestCase):
    def test_the_interval_holds_the_median_and_leaves_out_rare_outliers(self):
        ratios = [1 + 0.001 * i for i in range(40)] + [30]
        low, high = SCRIPT.interval(ratios)
        self.assertLess(low, 1.020)
        self.assertGreater(high, 1.020)
        self.assertGreater(low, 1.0)
        self.assertLess(high, 1.04)

    def test_the_table_divides_times_of_the_same_pair(self):
        # The machine becomes three times slower in the middle; the new build is always 10 % slower.
        pairs = [({1024: time}, {1024: 1.1 * time}) for time in (10, 10, 30, 30)]
        self.assertEqual(SCRIPT.table(pairs)[1].split(), ["1024", "20.0", "22.0", "1.100", "1.100", "…", "1.100"])

    def test_a_build_is_compared_with_itself(self):
        tool = str(BUILD / "unisono")
        output = subprocess.run([HERE / "two_builds", tool, tool, "--pairs", "2", "--sizes", "1K", "--row-time", "5ms"],
                                check=True, capture_output=True, text=True).stdout
        self.assertEqual(output.splitlines()[1].split()[0], "1024")


if __name__ == "__main__":
    unittest.main()

#!/usr/bin/env python3
"""bench/packet_loss: what it makes of its numbers, and a short run of it that is ended and gone on with. UNISONO_BUILD names
the folder of the build."""

import argparse
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

LOADER = importlib.machinery.SourceFileLoader("packet_loss", str(HERE / "packet_loss"))
SCRIPT = importlib.util.module_from_spec(importlib.util.spec_from_loader(LOADER.name, LOADER))
LOADER.exec_module(SCRIPT)


def row(way, times, loss=0.0, traffic="", **more):
    return {
        "way": way,
        "loss": loss,
        "traffic": traffic,
        "ranks": 2,
        "times_ms": times,
        "expected": 100,
        "missing": 7,
        "repaired": 3,
        "cut": 0,
        "short_ranges": 0,
        "inexact": 0,
        "sent_mb": 4,
        "busy": 0.5,
        "dropped": 0,
        **more,
    }


class Numbers(unittest.TestCase):
    def test_passes_of_one_way_are_taken_together(self):
        both = SCRIPT.together([row("lossy", [1, 3]), row("lossy", [2, 40])])
        self.assertEqual(
            (both["rounds"], both["mean_ms"], both["p50_ms"], both["p99_ms"], both["p50_of_passes_ms"]),
            (4, 11.5, 3, 40, [3, 40]),
        )
        self.assertEqual(
            SCRIPT.together([row("lossy", [1]), {"way": "lossy", "loss": 0.0, "traffic": "", "failed": "why"}])["failed"], "why"
        )

    def test_a_row_is_compared_with_its_own_way_and_traffic_without_loss(self):
        rows = [
            SCRIPT.together([row(*what)])
            for what in (
                ("lossy", [10.0]),
                ("lossy", [30.0], 1.0),
                ("lossy", [20.0], 0.0, "1M@2"),
                ("lossy", [50.0], 1.0, "1M@2"),
            )
        ]
        lines = SCRIPT.table(rows).splitlines()[2:]
        self.assertEqual([line.split(" | ")[7] for line in lines], ["1.00, 1.00", "3.00, 3.00", "1.00, 1.00", "2.50, 2.50"])
        self.assertIn("| lossy | 1, traffic 1M@2 |", lines[3])
        self.assertIn("| 7.00 | 3.00 |", lines[0])

    def test_ours_is_compared_with_the_better_tcp_of_the_same_conditions(self):
        rows = [
            SCRIPT.together([row(*what)])
            for what in (
                ("lossy", [10.0]),
                ("tcp cubic", [30.0]),
                ("tcp bbr", [20.0]),
                ("tcp cubic tuned", [15.0]),
                ("tcp bbr", [1.0], 1.0),
                ("tcp bbr", [1.0], 0.0, "1M@2"),
            )
        ]
        self.assertIn("| 0 | lossy | 2.00 | 2.00 | 1.50 | 1.50 |", SCRIPT.against_tcp(rows))

    def test_a_deadline_is_one_more_way_of_both_halves(self):
        options = argparse.Namespace(deadline=None, offload=False, only=None)
        usual = SCRIPT.ways_for(options)
        options.deadline = "95ms"
        ways = SCRIPT.ways_for(options)
        self.assertEqual(set(ways) - set(usual), {"lossy both 95ms"})
        both, cut = usual["lossy both"][1], ways["lossy both 95ms"][1]
        self.assertEqual(cut, [*both[:-1], both[-1] + ",deadline=95ms"])
        self.assertEqual([ways[name] for name in usual], list(usual.values()))

    def test_traffic_is_bytes_and_seconds(self):
        self.assertEqual(SCRIPT.traffic_of("none,100K@2,1M@0.5"), [None, ("100K@2", 100_000, 2.0), ("1M@0.5", 1_000_000, 0.5)])
        for words in ("1M", "x@1", "1M@x"):
            self.assertRaises((argparse.ArgumentTypeError, ValueError), SCRIPT.traffic_of, words)


class Program(unittest.TestCase):
    def run_it(self, out, *words):
        done = [
            sys.executable,
            "-B",
            HERE / "packet_loss",
            "--build",
            BUILD,
            "--out",
            out,
            "-n",
            "2",
            "--rounds",
            "3",
            "--elements",
            "20000",
            "--only",
            "repaired",
            *words,
        ]
        return subprocess.run(list(map(str, done)), capture_output=True, text=True, timeout=100, check=False)

    def test_a_run_goes_on_where_it_was_ended(self):
        why_not = network.why_not()
        if why_not:
            self.skipTest(f"SKIPPED: {why_not}")  # namespaces need root, and a container's root may be refused
        with tempfile.TemporaryDirectory() as folder:
            out = pathlib.Path(folder) / "out"
            first = self.run_it(out, "--loss", "0", "--passes", "1", "--traffic", "none,100K@0.02")
            self.assertEqual(first.returncode, 0, first.stderr)
            again = self.run_it(out, "--loss", "0,10", "--passes", "1", "--resume", "--traffic", "none,100K@0.02")
            self.assertEqual(again.returncode, 0, again.stderr)
            self.assertEqual([line.split()[1] for line in again.stderr.splitlines()], ["10", "10"])
            result = json.loads((out / "packet_loss.json").read_text())
            self.assertEqual(
                [(entry["loss"], entry["traffic"], entry["rounds"], entry["inexact"]) for entry in result["rows"]],
                [(loss, traffic, 3, 0) for loss in (0, 10) for traffic in ("", "100K@0.02")],
            )
            self.assertGreater(result["rows"][3]["dropped"], 0)
            arrived = [entry["arrived"] for _, entry in result["measured"]]
            self.assertGreater(arrived[1], 1.2 * arrived[0])
            self.assertIn("| repaired | 10, traffic 100K@0.02 | 3 |", (out / "packet_loss.md").read_text())
            other = self.run_it(out, "--loss", "0", "--resume", "--seconds", "7")
            self.assertEqual(other.returncode, 1)
            self.assertIn("has seconds=60, not 7", other.stderr)


if __name__ == "__main__":
    unittest.main()

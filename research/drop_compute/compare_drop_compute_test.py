#!/usr/bin/env python3
"""The comparison of trainings that leave out micro-batches from end to end, on a tiny model; how its thresholds and numbers are
computed; and what train_model says of options that do not go together, records and replays. UNISONO_BUILD names the folder of
the build."""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest
import xml.etree.ElementTree

HERE = pathlib.Path(__file__).resolve().parent
BUILD = pathlib.Path(os.environ.get("UNISONO_BUILD", HERE.parent.parent / "build/release"))
sys.dont_write_bytecode = True
sys.path.insert(0, str(HERE.parent / "model"))

from script_module import script_module  # noqa: E402


class Programs(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.folder.cleanup)
        cls.work_folder = pathlib.Path(cls.folder.name)
        cls.text = cls.work_folder / "text.txt"
        cls.text.write_text("".join(f"{number} times {number % 7} is {number * (number % 7)}\n" for number in range(3000)))

    def train_model(self, *words, out="model", before=()):
        program = BUILD / "research/train_model"
        return subprocess.run([*before, program, "--text", self.text, "--out", self.work_folder / out, *words], capture_output=True,
                              text=True, timeout=60, check=False)

    def train(self, *words):
        """Two processes, a tiny model, six steps."""
        done = self.train_model(
            "--layers",
            "1",
            "--width",
            "32",
            "--heads",
            "2",
            "--hidden",
            "48",
            "--context",
            "16",
            "--batch",
            "8",
            "--steps",
            "6",
            "--validate-every",
            "0",
            "--reference-steps",
            "0",
            "--sample",
            "0",
            "--micro-batches",
            "4",
            *map(str, words),
            before=(BUILD / "unisono", "launch", "-n", "2", "--"),
        )
        self.assertEqual(done.returncode, 0, done.stderr)
        return json.loads((self.work_folder / "model/summary.json").read_text())

    def test_every_share_is_compared_with_nothing_left_out_seed_by_seed(self):
        out = self.work_folder / "out"
        done = subprocess.run(
            [HERE / "compare_drop_compute", "--text", self.text, "--build", BUILD, "--quick", "--out", out],
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        self.assertEqual(done.returncode, 0, done.stderr)
        result = json.loads((out / "training_drop_compute.json").read_text())
        rows = {(row["law"], row["asked"], row["longer"]): row for row in result["rows"]}
        self.assertEqual(
            list(rows),
            [
                ("L", 0, False),
                ("L", 0.2, False),
                ("L", 0.2, True),
                ("R", 0, False),
                ("R", 0.2, False),
                ("R", 0.2, True),
                ("by lot", 0.2, False),
            ],
        )
        self.assertEqual(len(result["runs"]), 7)
        for run in result["runs"]:
            self.assertEqual(len(run["step"]), 18 if run["longer"] else 14)
            for series in ("loss", "sequences", "seconds"):
                self.assertEqual(len(run[series]), len(run["step"]), series)
            self.assertEqual(run["sequences"][-1], round(12 * len(run["step"]) * (1 - run["drop"])))
        self.assertEqual(rows["L", 0, False]["drop"]["mean"], 0)
        self.assertAlmostEqual(rows["by lot", 0.2, False]["drop"]["mean"], 0.2, delta=0.005)
        self.assertEqual(rows["L", 0, False]["difference"]["validation_loss"]["mean"], 0)
        # Delays change only when micro-batches are computed, so the parameters must be equal.
        without = [run["parameter_hash"] for run in result["runs"] if run["asked"] == 0]
        self.assertEqual(without[0], without[1])
        self.assertIn("| by lot |", (out / "training_drop_compute.md").read_text())
        xml.etree.ElementTree.parse(out / "training_drop_compute.svg")

    def test_a_replay_of_a_recorded_training_ends_with_the_same_parameters(self):
        recorded = self.train(
            "--drop-compute", "0.002:warmup=1", "--delay-model", "L:mu=0.001", "--record", self.work_folder / "counts"
        )
        replayed = self.train("--replay", self.work_folder / "counts")
        self.assertEqual(replayed["ranks"][0]["parameter_hash"], recorded["ranks"][0]["parameter_hash"])
        self.assertEqual(replayed["drop_compute"]["drop"], recorded["drop_compute"]["drop"])
        self.assertTrue((self.work_folder / "counts.1.csv").read_text().startswith("step,k,M,compute_ns,wall_ns,dropped\n1,4,4,"))

    def test_a_trace_has_a_line_for_each_rank_and_recorded_step(self):
        self.train("--drop-compute", "auto:warmup=1,calibration=50", "--trace", self.work_folder / "trace.csv")
        lines = (self.work_folder / "trace.csv").read_text().splitlines()
        self.assertEqual(lines[0], "step,rank,wall_ns,end_1_ns,end_2_ns,end_3_ns,end_4_ns")
        self.assertEqual(
            sorted(tuple(map(int, line.split(",")[:2])) for line in lines[1:]),
            [(step, rank) for step in range(2, 7) for rank in range(2)],
        )

    def test_the_loss_of_micro_batches_stays_exact_whatever_gradients_travel_as(self):
        exact = self.train()
        for words in (("--codec", "int2"), ("--compress", "arc:ratio=0.2,start=0,auto_off=off")):
            self.assertEqual(self.train(*words)["training_loss_first"], exact["training_loss_first"], words)

    def test_options_that_do_not_go_together_are_refused_with_a_sentence(self):
        for words, part in (
            (("--drop-compute", "auto"), "--micro-batches"),
            (("--delay-base", "--micro-batches", "2"), "--delay-model"),
            (("--random-drop", "0.1"), "--micro-batches"),
            (("--micro-batches", "2", "--drop-compute", "soon"), "none of off, auto"),
            (("--micro-batches", "2", "--delay-model", "Q"), "none of constant, L"),
            (("--micro-batches", "2", "--drop-compute", "1", "--random-drop", "0.1"), "without a threshold"),
            (("--micro-batches", "2", "--drop-compute", "1", "--trace", "t"), "auto:calibration"),
            (("--micro-batches", "2", "--drop-compute", "auto", "--reference", "parts"), "--reference"),
        ):
            done = self.train_model(*words, out="refused")
            self.assertEqual(done.returncode, 2, words)
            self.assertIn(part, done.stderr)
            self.assertFalse((self.work_folder / "refused").exists())


class Numbers(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.script = script_module(HERE / "compare_drop_compute")

    # The trace of check 8 of docs/design/methods/drop_compute.md: two steps of two ranks with three micro-batches, and one
    # second beside computing.
    TRACE = [[[1, 2, 3], [1, 3, 6]], [[2, 3, 4], [1, 2, 3]]]

    def test_what_a_threshold_leaves_out_and_gains_is_what_the_rule_says(self):
        for threshold, drop in ((1, 5 / 12), (2, 1 / 6), (2.5, 1 / 6), (3, 0), (6, 0)):
            self.assertAlmostEqual(self.script.predicted(self.TRACE, threshold, 1)[0], drop)
        # Computing takes 6 and 4 seconds; with the threshold it takes 3 and 3. Each step takes 1 more second.
        self.assertAlmostEqual(self.script.predicted(self.TRACE, 2, 1)[1], 10 / 12 * (7 + 5) / (4 + 4))
        self.assertAlmostEqual(self.script.predicted(self.TRACE, 3, 1)[1], 1)

    def test_the_threshold_for_a_share_leaves_out_that_share(self):
        for share in (0, 2 / 12, 5 / 12):
            self.assertAlmostEqual(self.script.predicted(self.TRACE, self.script.threshold_for(share, self.TRACE), 1)[0], share)
        trace = [[[(step * 7 + rank * 3 + m * 20) * 1e-3 for m in range(12)] for rank in range(8)] for step in range(40)]
        for share in (0.03, 0.06, 0.11):
            self.assertAlmostEqual(
                self.script.predicted(trace, self.script.threshold_for(share, trace), 0)[0], share, delta=0.01
            )

    def test_an_interval_is_student_s(self):
        found = self.script.interval([1.0, 2.0, 3.0])
        self.assertEqual(found["mean"], 2)
        self.assertAlmostEqual(found["half"], 4.303 / 3 ** 0.5)
        self.assertIsNone(self.script.interval([1.0])["half"])

    def test_a_trace_is_read_whatever_the_order_of_its_lines(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "trace.csv"
            path.write_text(
                "step,rank,wall_ns,end_1_ns,end_2_ns\n7,0,9,1000000000,2000000000\n6,0,9,3000000000,4000000000\n7,1,9,5000000000,6000000000\n"
            )
            self.assertEqual(self.script.read_trace(path), [[[3, 4]], [[1, 2], [5, 6]]])


if __name__ == "__main__":
    unittest.main()

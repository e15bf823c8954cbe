#!/usr/bin/env python3
"""The comparison of methods that send less of the gradients from end to end, on a tiny model and without limited links; how its
numbers are computed; and what train_model says of options that do not go together. UNISONO_BUILD names the folder of the
build."""

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


class CompareCompression(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.folder.cleanup)
        cls.work_folder = pathlib.Path(cls.folder.name)
        cls.text = cls.work_folder / "text.txt"
        cls.text.write_text("".join(f"{number} times {number % 7} is {number * (number % 7)}\n" for number in range(3000)))

    def train_model(self, *words):
        program = BUILD / "research/train_model"
        return subprocess.run([program, "--text", self.text, "--out", self.work_folder / "model", *words], capture_output=True,
                              text=True, timeout=60, check=False)

    def compare(self, *words, **environment):
        return subprocess.run(
            [HERE / "compare_compression", "--text", self.text, "--build", BUILD, *words],
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
            env={**os.environ, **environment},
        )

    def test_every_method_is_compared_with_dense_seed_by_seed(self):
        out = self.work_folder / "out"
        done = self.compare("--quick", "--out", out)
        self.assertEqual(done.returncode, 0, done.stderr)
        result = json.loads((out / "training_compression.json").read_text())
        rows = {row["method"]: row for row in result["rows"]}
        self.assertEqual(list(rows), ["dense", "bf16", "random-k", "top-k", "power-sgd", "arc", "arc-int8"])
        first = [run for run in result["runs"] if run["longer"] == 1]
        self.assertEqual(len(first), len(rows) * result["seeds"])
        for run in result["runs"]:
            steps = round(run["longer"] * result["steps"])
            for series in ("step", "loss", "sent_bytes", "seconds"):
                self.assertEqual(len(run[series]), steps, series)
            self.assertEqual(sorted(run["sent_bytes"]), run["sent_bytes"])
            self.assertEqual(run["held_out"][-1][0], steps)
        self.assertEqual(rows["dense"]["equal_steps"]["validation_loss"]["each"], [0.0, 0.0])
        self.assertAlmostEqual(rows["bf16"]["bytes_ratio"], 0.5, delta=0.02)
        self.assertLess(rows["arc"]["bytes_ratio"], 0.45)
        self.assertLess(rows["arc-int8"]["bytes_ratio"], rows["arc"]["bytes_ratio"])
        self.assertLessEqual(rows["power-sgd"]["bytes_ratio"], rows["arc"]["bytes_ratio"] + 0.01)
        self.assertLess(abs(rows["bf16"]["equal_steps"]["validation_loss"]["mean"]), 0.05)
        hashes = [run["parameter_hash"] for run in first]
        self.assertEqual(len(set(hashes)), len(hashes))
        self.assertIn("Mark:", (out / "training_compression.md").read_text())
        xml.etree.ElementTree.parse(out / "training_compression.svg")

    def test_without_the_right_to_make_name_spaces_it_says_so(self):
        tools = self.work_folder / "tools"
        tools.mkdir()
        (tools / "python3").symlink_to(sys.executable)
        done = self.compare("--out", self.work_folder / "none", PATH=f"{tools}")
        self.assertEqual(done.returncode, 1)
        self.assertIn("no network name spaces with limited links here", done.stderr)
        self.assertFalse((self.work_folder / "none").exists())

    def test_a_method_that_does_not_exist_is_named(self):
        done = self.compare("--quick", "--methods", "arc,arcs")
        self.assertEqual(done.returncode, 2)
        self.assertIn("arcs is none of dense", done.stderr)

    def test_options_that_do_not_go_together_are_refused_with_a_sentence(self):
        for words, part in (
            (("--compress", "arc", "--codec", "int8"), "values="),
            (("--compress", "arc", "--error-feedback", "--codec", "plain"), "values="),
            (("--feedback", "ef14"), "needs --compress"),
            (("--compress", "arc:feedback=ef21", "--feedback", "ef14"), "contradict each other"),
            (("--compress", "arc", "--baseline", "top-k"), "exclude each other"),
            (("--compress", "arc:ratio=2"), "ratio"),
            (("--baseline", "topk"), "none of top-k, power-sgd"),
            (("--compress", "arc", "--reference", "parts"), "--reference"),
        ):
            done = self.train_model(*words)
            self.assertEqual(done.returncode, 2, words)
            self.assertIn(part, done.stderr)
            self.assertFalse((self.work_folder / "model").exists())


class Numbers(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.script = script_module(HERE / "compare_compression")

    def run_with(self, seconds, held_out, method="dense", longer=1.0):
        steps = list(range(1, len(seconds) + 1))
        return {
            "method": method,
            "seed": 1,
            "longer": longer,
            "step": steps,
            "seconds": seconds,
            "sent_bytes": [100 * step for step in steps],
            "smooth_loss": [5.0] * len(steps),
            "training_loss": 5.0,
            "validation_loss": held_out[-1][1],
            "held_out": held_out,
        }

    def test_between_two_losses_it_goes_in_proportion(self):
        run = self.run_with([1.0, 2.0, 3.0, 4.0], [[2, 3.0], [4, 2.0]])
        self.assertEqual(self.script.loss_at(run, "validation_loss", "seconds", 2.0), 3.0)
        self.assertEqual(self.script.loss_at(run, "validation_loss", "seconds", 3.5), 2.25)
        self.assertEqual(self.script.loss_at(run, "validation_loss", "sent_bytes", 400), 2.0)
        self.assertIsNone(self.script.loss_at(run, "validation_loss", "seconds", 1.0))

    def test_the_time_to_a_loss_is_where_the_curve_first_crosses_it(self):
        run = self.run_with([1.0, 2.0, 3.0, 4.0], [[1, 4.0], [2, 3.0], [4, 2.0]])
        self.assertEqual(self.script.seconds_to(run, 2.5), 3.0)
        self.assertEqual(self.script.seconds_to(run, 4.5), 1.0)
        self.assertIsNone(self.script.seconds_to(run, 1.9))

    def test_a_longer_training_counts_for_the_time_to_a_loss_and_for_nothing_else(self):
        class Options:
            methods, ratio, rank, ranks, start, seeds = ["dense", "arc"], 0.2, 4, 8, 1, 1
        runs = [
            self.run_with([1.0, 2.0, 3.0, 4.0], [[2, 3.0], [4, 2.0]]),
            self.run_with([0.5, 1.0, 1.5, 2.0], [[2, 3.5], [4, 2.5]], "arc"),
            self.run_with([0.5, 1.0, 1.5, 2.0, 2.5, 3.0], [[2, 3.6], [4, 2.6], [6, 2.02]], "arc", 1.5),
        ]
        rows, least = self.script.summarise(runs, Options)
        dense, arc = rows
        self.assertEqual(dense["close"], 1)
        self.assertEqual(arc["equal_steps"]["validation_loss"]["mean"], 0.5)
        self.assertEqual(arc["close_longer"], [1.5])
        self.assertAlmostEqual(arc["close_ratio"]["mean"], 3.0 / 4.0)
        self.assertEqual(least, {"sent_bytes": 400, "seconds": 2.0})
        self.assertEqual(arc["equal_time"]["validation_loss"]["mean"], -0.5)


if __name__ == "__main__":
    unittest.main()

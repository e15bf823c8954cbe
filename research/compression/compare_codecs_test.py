#!/usr/bin/env python3
"""The comparison of codecs from end to end, on a tiny model; and what train_model says of codecs that do not exist.
UNISONO_BUILD names the folder of the build."""

import json
import os
import pathlib
import subprocess
import tempfile
import unittest
import xml.etree.ElementTree

HERE = pathlib.Path(__file__).resolve().parent
BUILD = pathlib.Path(os.environ.get("UNISONO_BUILD", HERE.parent.parent / "build/release"))


class CompareCodecs(unittest.TestCase):
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

    def test_every_setting_is_compared_with_exact_gradients_seed_by_seed(self):
        out = self.work_folder / "out"
        subprocess.run([HERE / "compare_codecs", "--text", self.text, "--quick", "--out", out, "--build", BUILD],
                       check=True, timeout=300, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        result = json.loads((out / "training_codecs.json").read_text())
        rows = {(row["codec"], row["error_feedback"]): row for row in result["rows"]}
        self.assertEqual(set(rows), {("plain", False), ("int8", False), ("int8", True), ("int2", False), ("int2", True)})
        self.assertEqual(len(result["runs"]), len(rows) * result["seeds"])
        self.assertEqual(rows["plain", False]["validation_loss_difference"]["each"], [0.0, 0.0])
        self.assertAlmostEqual(rows["int8", True]["exact_bytes_ratio"], 32 / 8.25, delta=0.1)
        self.assertGreater(rows["int2", False]["exact_bytes_ratio"], 10)
        self.assertGreater(rows["int2", False]["validation_loss_difference"]["mean"], 0.01)
        self.assertLess(abs(rows["int8", False]["validation_loss_difference"]["mean"]), 0.05)
        hashes = {(run["codec"], run["error_feedback"], run["seed"]): run["parameter_hash"] for run in result["runs"]}
        self.assertEqual(len(set(hashes.values())), len(hashes))
        self.assertIn("`int2`", (out / "training_codecs.md").read_text())
        xml.etree.ElementTree.parse(out / "training_codecs.svg")

    def test_a_codec_that_does_not_exist_is_named_and_nothing_is_trained(self):
        done = self.train_model("--codec", "int9")
        self.assertEqual(done.returncode, 2)
        self.assertIn('"int9" is none of int2', done.stderr)
        self.assertFalse((self.work_folder / "model").exists())

    def test_error_feedback_needs_a_codec_and_one_process_takes_none(self):
        done = self.train_model("--error-feedback")
        self.assertEqual(done.returncode, 2)
        self.assertIn("--codec", done.stderr)
        done = self.train_model("--codec", "int4", "--reference", "parts")
        self.assertEqual(done.returncode, 2)
        self.assertIn("--reference", done.stderr)


if __name__ == "__main__":
    unittest.main()

#!/usr/bin/env python3
"""Tests the example language model on two ranks: a short training lowers the loss, and ranks end with equal parameters.
UNISONO_BUILD is the build folder."""

import os
import pathlib
import subprocess
import tempfile
import unittest
import xml.etree.ElementTree

BUILD = pathlib.Path(os.environ.get("UNISONO_BUILD", pathlib.Path(__file__).resolve().parents[2] / "build/release"))


class LanguageModel(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def train(self, text, *options):
        (self.folder / "text.txt").write_text(text)
        words = [BUILD / "unisono", "launch", "-n", "2", "--no-prefix", "--", BUILD / "examples/language_model/language_model",
                 "--text", self.folder / "text.txt", "--out", self.folder / "out", *options]
        return subprocess.run(words, capture_output=True, text=True, timeout=50, check=False)

    def test_a_short_training_lowers_the_loss_and_ends_with_the_same_parameters_on_all_ranks(self):
        done = self.train(
            "".join(f"{number} times {number % 7} is {number * (number % 7)}\n" for number in range(3000)),
            "--steps",
            "120",
            "--batch",
            "64",
        )
        self.assertEqual(done.returncode, 0, done.stderr)
        rows = [line.split() for line in done.stdout.splitlines() if line.strip()[:1].isdigit() and len(line.split()) == 4]
        held_out = [float(row[2]) for row in rows]
        self.assertGreaterEqual(len(held_out), 3, done.stdout)
        self.assertLess(held_out[-1], held_out[0] - 0.5)
        self.assertIn("Parameters are the same on all ranks.", done.stdout)
        curves = (
            xml.etree.ElementTree.parse(self.folder / "out/loss.svg").getroot().findall("{http://www.w3.org/2000/svg}polyline")
        )
        self.assertEqual(len(curves), 2)

    def test_what_cannot_be_trained_is_refused(self):
        done = self.train("too short")
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("has less than 10,000 bytes", done.stderr)
        done = self.train("x" * 20000, "--batch", "1")
        self.assertIn("--batch: fewer examples than ranks", done.stderr)


if __name__ == "__main__":
    unittest.main()

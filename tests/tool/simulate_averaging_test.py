#!/usr/bin/env python3
"""`unisono-lab simulate averaging` as people use it: the authors' table, pictures, command lines and files that are wrong."""

import json
import os
import subprocess
import tempfile
import unittest
import xml.etree.ElementTree

from support import LAB


class SimulateAveraging(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="unisono-averaging-")
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def run_tool(self, *words, status=0, progress="off"):
        """Standard output and error. On a slow machine progress would be shown unasked."""
        done = subprocess.run(
            [LAB, "simulate", "averaging", "--progress", progress, *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            timeout=100,
            check=False,
        )
        self.assertEqual(done.returncode, status, (words, done.stdout, done.stderr))
        return done.stdout, done.stderr

    def lines(self, *words):
        """The values that --json writes, one a line."""
        out, error = self.run_tool(*words, "--json")
        self.assertEqual(error, "")
        return [json.loads(line) for line in out.splitlines()]

    def texts(self, path):
        return [element.text for element in xml.etree.ElementTree.parse(path).iter("{http://www.w3.org/2000/svg}text")]

    def test_compare_prints_the_authors_table(self):
        rounds = {
            (line["algorithm"], line["peers"], line["absence"]): [round(target["rounds"], 6) for target in line["targets"]]
            for line in self.lines("--compare")
            if line["kind"] == "means"
        }
        self.assertEqual(len(rounds), 7 * 4 * 4)
        for absence, row in {
            0: (1, 50, 47.6, 6.1, 2),
            0.001: (1.6, 50, 47.6, 6.3, 3.1),
            0.005: (10.9, 50, 47.8, 6.3, 5),
            0.01: (41.7, 50, 47.8, 6.6, 5.9),
        }.items():
            self.assertEqual(
                tuple(rounds[algorithm, 512, absence][0] for algorithm in ("all-reduce", "gossip", "sgp", "random", "fitted")),
                row,
            )
        self.assertEqual(rounds["fitted", 1024, 0.005], [5.3, 2.8])
        self.assertEqual(rounds["published", 900, 0][0], 5)

    def test_table_marks_inexact_rows(self):
        out, error = self.run_tool("--peers", "600", "--restarts", "2", "--algorithm", "chunk-keys", "--absence", "0")
        self.assertEqual(error, "")
        self.assertIn("# chunk-keys: not exact with 600 peers, even if nobody is absent; only N = 32^d is\n", out)
        self.assertIn(" random ", out)

    def test_unconfirmed_numbers_are_not_attributed_to_the_paper(self):
        out, _ = self.run_tool("--compare", "--restarts", "1")
        self.assertNotIn("paper", out)

    def test_any_number_of_jobs_gives_the_same_output(self):
        words = ["--restarts", "2", "--peers", "64,100"]
        self.assertEqual(self.lines(*words), self.lines(*words, "--jobs", "3"))

    def test_pictures(self):
        prefix = os.path.join(self.folder, "a")
        self.run_tool("--restarts", "1", "--peers", "128", "--plot", prefix)
        for text in ("Mean variance, 128 peers, absence 0.005", "rounds", "fitted", "chunk-keys"):
            self.assertIn(text, self.texts(prefix + "-variance.svg"))
        for text in ("128 peers", "chance that a peer is absent", "random"):
            self.assertIn(text, self.texts(prefix + "-absence.svg"))

    def test_progress_is_shown_if_asked_for_and_never_on_standard_output(self):
        words = ["--restarts", "400", "--algorithm", "gossip,sgp"]
        out, error = self.run_tool(*words, progress="bar")  # most of a second; a bar is shown after a tenth of one
        self.assertRegex(error, r"simulate averaging +\d+% \[")
        self.assertEqual(self.run_tool(*words), (out, ""))

    def test_files_that_cannot_be_written(self):
        for words, expected in (
            (["--output", "/nonexistent/x"], "--output: cannot write /nonexistent/x: No such file"),
            (["--plot", "/nonexistent/x"], "--plot: cannot write /nonexistent/x"),
            (["--output", "/dev/full"], "--output: cannot write /dev/full: No space left"),
        ):
            self.assertIn(expected, self.run_tool("--restarts", "1", "--peers", "16", *words, status=1)[1])

    def test_wrong_command_lines(self):
        for words, expected in (
            (["--peers", "1"], "--peers '1': expected a whole number from 3 to 4096"),
            (["--absence", "2"], "--absence"),
            (["--algorithm", "sgd"], "did you mean 'sgp'?"),
            (["--compare", "--target", "1e-3"], "--target cannot be set beside --compare"),
            (["--pears", "9"], "Did you mean '--peers'?"),
        ):
            out, error = self.run_tool(*words, status=2)
            self.assertEqual(out, "")
            self.assertIn(expected, error)


if __name__ == "__main__":
    unittest.main()

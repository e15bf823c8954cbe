#!/usr/bin/env python3
"""`unisono-lab simulate elastic` as people use it: runs, traces, pictures, command lines and files that are wrong."""

import json
import os
import subprocess
import tempfile
import unittest
import xml.etree.ElementTree

from support import LAB


class SimulateElastic(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="unisono-elastic-")
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def run_tool(self, *words, status=0, progress="off", text=None):
        """Standard output and error. On a slow machine progress would be shown unasked."""
        done = subprocess.run(
            [LAB, "simulate", "elastic", "--progress", progress, *words],
            input=text,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            timeout=100,
            check=False,
        )
        self.assertEqual(done.returncode, status, (words, done.stdout, done.stderr))
        return done.stdout, done.stderr

    def lines(self, *words, **more):
        """The values that --json writes, one a line."""
        out, error = self.run_tool(*words, "--json", **more)
        self.assertEqual(error, "")
        return [json.loads(line) for line in out.splitlines()]

    def file(self, name, text):
        path = os.path.join(self.folder, name)
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
        return path

    def test_absent_peers_are_left_out_and_results_are_correct(self):
        settings, run, verdict = self.lines("--peers", "40", "--absence", "0.01", "--averaging-steps", "10", "--max-group", "8")
        self.assertEqual(settings["dims"], [6, 6])
        self.assertGreater(run["stops"], 0)
        self.assertLess(run["exact"], run["steps"])
        self.assertEqual(run["replay"]["wrong"], 0)
        self.assertEqual(verdict, {"kind": "verdict", "runs": 1, "right": 1})

    def test_a_trace_from_a_file_or_another_command(self):
        trace = subprocess.run(
            [
                LAB,
                "simulate",
                "churn-trace",
                "--peers",
                "6",
                "--min",
                "3",
                "--period",
                "2s",
                "--duration",
                "30s",
                "--stop",
                "0.3",
            ],
            stdout=subprocess.PIPE,
            text=True,
            timeout=100,
            check=True,
        ).stdout
        _, run, _ = self.lines("--trace", "-", text=trace)
        self.assertEqual(run["events_left"], 0)
        self.assertEqual(run["joins"], trace.count("join"))
        _, other, _ = self.lines("--trace", self.file("churn.txt", trace))
        self.assertEqual(run, other)

    def test_the_same_seed_gives_the_same_bytes_with_any_number_of_jobs(self):
        words = [
            "--peers",
            "12",
            "--churn",
            "period=1s,duration=15s,stop=0.3,kill=0.5",
            "--absence",
            "0.01",
            "--seeds",
            "1-3",
            "--json",
        ]
        one = self.run_tool(*words)
        self.assertEqual(one, self.run_tool(*words, "--jobs", "3"))

    def test_an_impossible_run_ends_with_exit_code_1(self):
        out, _ = self.run_tool("--trace", "-", "--limit", "10s", text="0 0 join\n1 0 kill\n2 1 join\n", status=1)
        self.assertIn("#   did not end within 12 s\n", out)
        self.assertIn("#   again: unisono-lab simulate elastic --trace - --limit 10s --seeds 0\n", out)
        out, _ = self.run_tool(
            "--trace", "-", "--max-peers", "2", text="0 0 join\n0 1 join\n5 2 join\n20 2 kill\n21 3 join\n40 3 stop\n", status=1
        )
        self.assertIn("#   peer 3 did not join: ROSTER_FULL", out)
        self.assertIn("# seed 0:\n", out)

    def test_picture(self):
        path = os.path.join(self.folder, "e.svg")
        self.run_tool("--peers", "5", "--averaging-steps", "5", "--plot", path)
        texts = [element.text for element in xml.etree.ElementTree.parse(path).iter("{http://www.w3.org/2000/svg}text")]
        for text in ("Time of an averaging step", "longest", "Peers", "ended the averaging step", "virtual time, s"):
            self.assertIn(text, texts)

    def test_progress_is_shown_if_asked_for_and_never_on_standard_output(self):
        words = ["--averaging-steps", "60"]  # half a second; a bar is shown after a tenth of one
        out, error = self.run_tool(*words, progress="bar")
        self.assertRegex(error, r"simulate elastic +\d+% \[")
        self.assertEqual(self.run_tool(*words), (out, ""))

    def test_files_that_cannot_be_read_or_written(self):
        for words, expected in (
            (["--output", "/nonexistent/x"], "--output: cannot write /nonexistent/x: No such file"),
            (["--plot", "/nonexistent/x"], "--plot: cannot write /nonexistent/x"),
            (["--output", "/dev/full"], "--output: cannot write /dev/full: No space left"),
        ):
            self.assertIn(expected, self.run_tool("--peers", "2", "--averaging-steps", "1", *words, status=1)[1])
        error = self.run_tool("--trace", "/nonexistent/x", status=1)[1]
        self.assertIn("--trace: cannot read /nonexistent/x: No such file", error)

    def test_wrong_command_lines(self):
        for words, expected in (
            (["--peers", "4097"], "--peers '4097': expected a whole number from 1 to 4096"),
            (["--absence", "2"], "--absence"),
            (["--churn", "pace=2s"], 'option "pace" is none of period'),
            (["--trace", self.file("wrong.txt", "0 0 join\n3 4 leave\n")], "wrong.txt, line 2: not_there: peer 4"),
            (["--pears", "9"], "Did you mean '--peers'?"),
        ):
            out, error = self.run_tool(*words, status=2)
            self.assertEqual(out, "")
            self.assertIn(expected, error)


if __name__ == "__main__":
    unittest.main()

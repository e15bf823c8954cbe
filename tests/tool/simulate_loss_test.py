#!/usr/bin/env python3
"""`unisono-lab simulate loss` as people use it: what it measures, what is a negative control, command lines and files that are
wrong."""

import json
import os
import subprocess
import tempfile
import unittest
import xml.etree.ElementTree

from support import LAB


class SimulateLoss(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="unisono-loss-")
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def run_tool(self, *words, status=0, progress="off"):
        """Standard output and error. On a slow machine progress would be shown unasked."""
        done = subprocess.run(
            [LAB, "simulate", "loss", "--progress", progress, *words],
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

    def checks(self, *words):
        return {line["what"]: line for line in self.lines(*words) if line["kind"] == "check"}

    def test_all_checks_agree_with_the_formulae(self):
        lines = self.lines("--steps", "3000", "--seeds", "2")
        self.assertEqual(lines[-1]["off"], 0)
        self.assertGreater(lines[-1]["ok"], 15)
        checks = {line["what"]: line for line in lines if line["kind"] == "check"}
        self.assertEqual(checks["deviation of stratified"]["verdict"], "ok")
        self.assertEqual(checks["deviation of zero_fill"]["verdict"], "control")
        self.assertLess(checks["deviation of zero_fill"]["measured"], -0.2)
        self.assertAlmostEqual(checks["P, two replicas"]["measured"], 0.2020, delta=0.0101)
        self.assertAlmostEqual(checks["O, owner against replica"]["measured"], 0.1111, delta=0.0056)
        self.assertAlmostEqual(checks["2p/(1+p), attributed"]["formula"], 0.2 / 1.1, delta=1e-9)
        self.assertIn("unconfirmed", checks["2p/(1+p), attributed"]["note"])
        self.assertIsNone(checks["2p/(1+p), attributed"]["verdict"])
        self.assertEqual(checks["replicas alike after a full step"]["measured"], 1)

    def test_table_names_settings_formulae_and_verdicts(self):
        out, error = self.run_tool(
            "--steps", "1500", "--loss", "chain:p=0.1,recovery=0.5", "--problem", "drift", "--stale-max", "6"
        )
        self.assertEqual(error, "")
        self.assertIn("# 8 ranks, chain:p=0.1,recovery=0.5; stratified, empty ranges: hold; copies fetched at 6 steps\n", out)
        self.assertIn("fetched, per range and step", out)
        self.assertNotIn("estimates:", out)
        self.assertIn(" 0 OFF", out)

    def test_ablations_are_controls_and_do_not_fail(self):
        differences = self.checks("--travel", "differences", "--problem", "drift", "--steps", "1000", "--burn-in", "0")
        self.assertEqual(
            {
                differences[what]["verdict"]
                for what in ("P, two replicas", "replicas alike after a full step", "growth of P over the second half")
            },
            {"control"},
        )
        self.assertEqual(differences["replicas alike after a full step"]["measured"], 0)
        self.assertAlmostEqual(differences["P, two replicas"]["measured"] / 90, 1, delta=0.1)
        zero = self.checks("--missed", "zero", "--problem", "drift", "--steps", "300")
        self.assertGreater(zero["O, owner against replica"]["measured"], 1)
        fill = self.checks(
            "--estimator",
            "zero_fill",
            "--problem",
            "fixed-point",
            "--steps",
            "3000",
            "--peers",
            "4",
            "--loss",
            "0.2",
            "--on-empty",
            "own",
        )
        self.assertEqual(fill["values of rank 3"]["verdict"], "control")
        self.assertAlmostEqual(fill["values of rank 3"]["measured"], 3.823529, delta=0.05)

    def test_a_seed_and_any_number_of_jobs_give_the_same(self):
        words = ["--steps", "200", "--seeds", "2", "--peers", "4"]
        self.assertEqual(self.lines(*words), self.lines(*words, "--jobs", "3"))
        self.assertNotEqual(self.lines(*words), self.lines("--steps", "200", "--seeds", "7-8", "--peers", "4"))

    def test_odd_cases_end_in_numbers_or_dashes(self):
        for words in (
            ["--peers", "2"],
            ["--peers", "3", "--loss", "1"],
            ["--loss", "0"],
            ["--loss", "none"],
            ["--steps", "1"],
            ["--steps", "2", "--rho", "0.5"],
            ["--loss", "none:dead=1@10-20,slow=2x0.5"],
            ["--loss", "links:0>*=0.5"],
            ["--peers", "2", "--loss", "0.2", "--on-empty", "zero"],
            ["--loss", "gilbert_elliott:p=0.2,burst=4,bad=0.6"],
            ["--loss", "0.999"],
            ["--loss", "1e-300"],
            ["--loss", "gilbert_elliott:p=0.1,burst=1e9"],
            ["--loss", "none:dead=0@18446744073709551615"],
        ):
            with self.subTest(words=words):
                steps = [] if "--steps" in words else ["--steps", "100"]
                out, error = self.run_tool(*words, *steps)
                self.assertEqual(error, "")
                self.assertNotIn("nan", out)
                self.assertNotIn("inf", out)

    def test_network_runs_whole_ranks_and_judges_them(self):
        lines = self.lines(
            "--problem",
            "network",
            "--peers",
            "4",
            "--bytes",
            "64K",
            "--steps",
            "120",
            "--loss",
            "0.05",
            "--lossy",
            "loss_budget=0.5",
        )
        checks = {line["what"]: line for line in lines if line["kind"] == "check"}
        self.assertEqual(lines[0]["network"], "rate=1G,queue=256K,delay=50us")
        self.assertEqual((lines[-1]["off"], lines[-1]["unsure"]), (0, 0))
        self.assertEqual(checks["calls that ended well"]["measured"], 1)
        self.assertEqual(checks["results unlike another rank's"]["verdict"], "ok")
        self.assertAlmostEqual(checks["share lost on links"]["measured"], 0.05, delta=0.01)
        self.assertEqual(checks["share dropped before ports in (incast)"]["verdict"], "ok")
        self.assertEqual(len({line["kind"]: line for line in lines}["curve"]["points"]), 120)

    def test_network_with_a_process_that_dies(self):
        lines = self.lines(
            "--network", "rate=1G,kill=2@400ms", "--peers", "4", "--bytes", "64K", "--steps", "120", "--loss", "0.05"
        )
        fault = next(line for line in lines if line["kind"] == "fault")
        self.assertEqual(
            (fault["fault"], fault["happened"], fault["removed"], fault["named_by"]), ("kill=2@400ms", True, True, 3)
        )
        self.assertLess(fault["last_named_ns"], 1e9)
        run = next(line for line in lines if line["kind"] == "run")
        self.assertEqual((run["members"], run["operations"]), (3, 120))

    def test_network_is_the_same_again_with_any_number_of_jobs(self):
        words = ["--network", "queue=8K,rate=100M", "--peers", "4", "--bytes", "64K", "--steps", "30", "--seeds", "2"]
        first = self.run_tool(*words)
        self.assertEqual(first, self.run_tool(*words, "--jobs", "2"))
        self.assertIn("# 4 ranks over UDP, rate=100M,queue=8K,delay=50us; loss iid:0.1; delivery as of a call\n", first[0])
        plot = os.path.join(self.folder, "network.svg")
        self.run_tool(*words, "--plot", plot)
        found = [element.text for element in xml.etree.ElementTree.parse(plot).iter("{http://www.w3.org/2000/svg}text")]
        self.assertIn("Lossy all-reduce, 4 ranks, iid:0.1", found)

    def test_picture(self):
        plot = os.path.join(self.folder, "loss.svg")
        self.run_tool("--steps", "300", "--plot", plot)
        found = [element.text for element in xml.etree.ElementTree.parse(plot).iter("{http://www.w3.org/2000/svg}text")]
        for text in (
            "Drift, 8 ranks, iid:0.1",
            "O by formula",
            "2p/(1+p), attributed, unconfirmed",
            "Deviation of the mean, 8 ranks, iid:0.1",
            "zero_fill",
        ):
            self.assertIn(text, found)

    def test_progress_is_shown_if_asked_for_and_never_on_standard_output(self):
        words = ["--steps", "1500"]  # half a second, or more; a bar is shown after a tenth of one
        out, error = self.run_tool(*words, progress="bar")
        self.assertRegex(error, r"simulate loss +\d+% \[")
        self.assertEqual(self.run_tool(*words), (out, ""))

    def test_files_that_cannot_be_written(self):
        for words, expected in (
            (["--output", "/nonexistent/x"], "--output: cannot write /nonexistent/x: No such file"),
            (["--plot", "/nonexistent/x.svg"], "--plot: cannot write /nonexistent/x.svg: No such file"),
            (["--output", "/dev/full"], "--output: cannot write /dev/full: No space left"),
        ):
            self.assertIn(expected, self.run_tool("--steps", "5", *words, status=1)[1])

    def test_wrong_command_lines(self):
        for words, expected in (
            (["--peers", "1"], "--peers '1': expected a whole number from 2 to 1024"),
            (["--loss", "1.5"], "--loss 1.5: bad_loss_model: p=1.5"),
            (["--loss", "burst:8"], "is neither a loss from 0 to 1 nor one of"),
            (["--steps", "99999999999999999999"], "--steps '9999"),
            (["--estimator", "cuont"], "did you mean 'count'?"),
            (["--treval", "values"], "Did you mean '--travel'?"),
            (["--elements", "7"], "--elements"),
            (["--network", "rate=x"], "bad_network: rate=x"),
            (["--network", "slow=9x2"], "there are 8 ranks"),
            (["--bytes", "1M"], "--bytes needs --network or --problem network"),
            (["--network", "rate=1G", "--rho", "0.5"], "--rho has no effect in the problem network"),
        ):
            out, error = self.run_tool(*words, status=2)
            self.assertEqual(out, "")
            self.assertIn(expected, error)


if __name__ == "__main__":
    unittest.main()

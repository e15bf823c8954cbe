#!/usr/bin/env python3
"""`unisono-lab drop-compute` as people use it: numbers of docs/design/methods/drop_compute.md, real traces, files that are
wrong."""

import json
import os
import subprocess
import tempfile
import unittest
import xml.etree.ElementTree

from support import LAB

SECOND = 1_000_000_000
PLAN = ["--micro-batches", "12", "--mean", "1s", "--sd", "250ms", "--comm", "500ms"]


def trace(latencies, other):
    """Lines of a trace from seconds [step][rank][micro-batch] and what is beside computing."""
    lines = ["step,rank,wall_ns," + ",".join(f"end_{m + 1}_ns" for m in range(len(latencies[0][0])))]
    for step, ranks in enumerate(latencies):
        wall = round((max(map(sum, ranks)) + other) * SECOND)
        for rank, times in enumerate(ranks):
            ends = [round(sum(times[:m + 1]) * SECOND) for m in range(len(times))]
            lines.append(",".join(map(str, [step + 6, rank, wall, *ends])))
    return "\n".join(lines) + "\n"


SMALL = trace([[[1, 1, 1], [1, 2, 3]], [[2, 1, 1], [1, 1, 1]]], 1)  # check 8
SLOW = trace([[[1] * 12] * 7 + [[2] * 12]] * 3, 0.5)  # check 12


class DropComputeTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="unisono-drop-")
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def path(self, name, text=None):
        path = os.path.join(self.folder, name)
        if text is not None:
            with open(path, "w", encoding="utf-8") as file:
                file.write(text)
        return path

    def run_tool(self, *words, data="", status=0):
        """Standard output and error."""
        done = subprocess.run(
            [LAB, "drop-compute", *words],
            input=data,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            timeout=100,
            check=False,
        )
        self.assertEqual(done.returncode, status, (words, done.stderr))
        return done.stdout, done.stderr

    def lines(self, *words, data=""):
        """The values that --json writes, one a line."""
        out, error = self.run_tool(*words, "--json", data=data)
        self.assertEqual(error, "")
        return [json.loads(line) for line in out.splitlines()]

    def rules(self, *words, data=""):
        return {line["rule"]: line for line in self.lines("search", *words, data=data) if line["kind"] == "rule"}

    def check_picture(self, path, *texts):
        found = [element.text for element in xml.etree.ElementTree.parse(path).iter("{http://www.w3.org/2000/svg}text")]
        for text in texts:
            self.assertTrue(any(text in each for each in found if each), (text, found))


class Plan(DropComputeTest):
    def test_documented_numbers(self):
        out = self.run_tool("plan", "--workers", "200", *PLAN)[0]
        rows = {line.split()[0]: line for line in out.splitlines() if line.startswith(" ")}
        self.assertIn("1.047385", rows["8"])
        self.assertIn("1.049724", rows["8"])
        self.assertIn("1.134733", rows["200"])
        self.assertIn("0.990620", rows["2"])
        self.assertIn("off: what is dropped outweighs the shorter steps", rows["2"])
        self.assertNotIn("off", rows["8"])
        self.assertRegex(out, r"best threshold 11\.317\d* s, the same for any number of workers: p = 9\.87 %")
        self.assertIn("200 workers: a threshold of", out)
        self.assertIn("2 workers: off: ", self.run_tool("plan", "--workers", "2", *PLAN)[0])

    def test_every_output_names_the_rule_of_its_speedups(self):
        for words in ([], ["--rule", "after"], ["--rule", "before"]):
            out = self.run_tool("plan", "--workers", "8", *PLAN, *words)[0]
            self.assertIn("rule at", out)
            self.assertTrue(all(line["rule"] == "at" for line in self.lines("plan", "-n", "8", *PLAN, *words)[1:]))

    def test_json_and_picture(self):
        plot, file = self.path("plan.svg"), self.path("plan.json")
        out = self.run_tool("plan", "-n", "200", *PLAN, "--plot", plot, "--output", file)[0]
        self.assertIn("S_eff", out)
        with open(file, encoding="utf-8") as lines:
            values = [json.loads(line) for line in lines]
        self.assertAlmostEqual(values[-1]["speedup"], 1.134733, delta=1e-6)
        self.assertAlmostEqual(values[0]["threshold_s"], 11.317274, delta=1e-4)
        self.assertAlmostEqual(values[0]["drop"], 0.098715, delta=2e-5)
        self.check_picture(
            plot,
            "Speed-up against workers, rule at",
            "Speed-up against the threshold, 200 workers, rule at",
            "workers",
            "threshold (s)",
        )

    def test_from_a_trace_with_a_caution(self):
        path = self.path("trace.csv", SMALL)
        out = self.run_tool("plan", "--from-trace", path, "--workers", "1000", "--plot", self.path("plan.svg"))[0]
        self.assertIn("2 workers, 2 steps of 3 micro-batches; workers taken as independent", out)
        self.assertIn("caution: 1000 workers are more than a tenth of the 4 recorded times", out)
        self.check_picture(self.path("plan.svg"), "from the trace")

    def test_a_trace_that_cannot_be_read_leaves_older_results(self):
        older = self.path("plan.json", "older")
        self.run_tool("plan", "--from-trace", "/nonexistent", "-n", "8", "--output", older, status=1)
        with open(older, encoding="utf-8") as file:
            self.assertEqual(file.read(), "older")

    def test_wrong_command_lines(self):
        for words, expected in (
            ([], "--workers is missing"),
            (["-n", "8"], "--micro-batches is missing"),
            (["-n", "8", *PLAN[:6]], "--comm is missing"),
            (["-n", "8", *PLAN, "--rule", "all"], "--rule 'all' is none of"),
            (["-n", "8", *PLAN, "--treshold", "1s"], "Did you mean '--threshold'?"),
            (["-n", "8", "--from-trace", "x", "--sd", "1s"], "--sd comes from the trace"),
        ):
            out, error = self.run_tool("plan", *words, status=2)
            self.assertEqual(out, "")
            self.assertIn(expected, error)


class Search(DropComputeTest):
    def test_documented_thresholds(self):
        rules = self.rules(self.path("small.csv", SMALL), "--slack", "0", "--max-drop", "1")
        self.assertEqual((rules["after"]["threshold_ns"], rules["before"]["threshold_ns"]), (2 * SECOND, 3_333_333_333))
        for rule in ("after", "before"):
            self.assertAlmostEqual(rules[rule]["speedup_step"], 5 / 4, delta=1e-9)
            self.assertAlmostEqual(rules[rule]["drop"], 1 / 6, delta=1e-9)
            self.assertIsNone(rules[rule]["off"])
        self.assertIsNotNone(rules["at"]["off"], "with what is left of micro-batches it gains nothing")

    def test_the_straggler_is_named_with_advice(self):
        path = self.path("slow.csv", SLOW)
        for max_drop, threshold, speedup, drop in ((0.1, 11, 147 / 80, 1 / 16), (0.05, 14, 1127 / 792, 1 / 24)):
            lines = self.lines("search", path, "--rule", "after", "--slack", "0", "--max-drop", str(max_drop))
            self.assertEqual(lines[1]["threshold_s"], threshold)
            self.assertAlmostEqual(lines[1]["speedup_step"], speedup, delta=1e-9)
            self.assertAlmostEqual(lines[1]["drop"], drop, delta=1e-9)
            self.assertIn("persistent_straggler: under rule after rank 7 drops", lines[-1]["text"])
            self.assertIn("give it fewer micro-batches, about 6 where the others have 12", lines[-1]["text"])
        self.assertIn("# warning: persistent_straggler: ", self.run_tool("search", path)[0])

    def test_order_and_source_of_lines_do_not_change_the_result(self):
        lines = SMALL.splitlines()
        shuffled = "\n".join([lines[0], lines[4], lines[2], lines[1], lines[3]]) + "\n"
        path = self.path("small.csv", SMALL)
        expected = self.rules(path)
        self.assertEqual(self.rules("-", data=SMALL), expected)
        self.assertEqual(self.rules("-", data=shuffled), expected)

    def test_picture(self):
        plot = self.path("search.svg")
        self.run_tool("search", self.path("slow.csv", SLOW), "--plot", plot)
        self.check_picture(
            plot,
            "Compute times of a step, 8 workers, 3 steps",
            "Speed-up against the threshold",
            "Times of steps",
            "Speed-up against workers",
            "after: 11 s",
            "oracle (bound)",
        )

    def test_malformed_traces_are_named_with_line_and_reason(self):
        head = "step,rank,wall_ns,end_1_ns,end_2_ns\n"
        for text, *expected in (
            ("", "empty"),
            ("hello\n", "first line"),
            (head, "too_few_steps"),
            (head + "1,0,9,3\n", "truncated_trace", "line 2"),
            (head + "1,0,9,3,5\n1,1,9,3,x\n", "line 3", "end_2_ns"),
            (head + "1,0,9,5,3\n", "line 2"),
            (head + "1,0,9,-5,3\n", "line 2", "negative"),
            (head + "1,0,9,3,5\n1,0,9,3,5\n", "line 3", "line 2"),
            (head + "1,0,9,3,5,7\n", "line 2"),
        ):
            path = self.path("bad.csv", text)
            for words, named in (
                (["search", path], path),
                (["plan", "--from-trace", path, "-n", "8"], f"--from-trace: {path}"),
            ):
                out, error = self.run_tool(*words, status=1)
                self.assertEqual(out, "")
                self.assertTrue(error.startswith(f"unisono-lab drop-compute {words[0]}: {named}: "), error)
                for part in expected:
                    self.assertIn(part, error)

    def test_incomplete_steps_are_left_out_and_counted(self):
        out = self.run_tool("search", "-", data=SMALL + "9,0,7000000000,1,2,3\n")[0]
        self.assertIn(
            "standard input: 2 workers, 2 steps, 3 micro-batches of each; 1 step left out, in which a rank's line is missing",
            out,
        )

    def test_files_that_cannot_be_read_or_written(self):
        path = self.path("small.csv", SMALL)
        for words, expected in (
            (["/nonexistent"], "cannot read /nonexistent: No such file"),
            ([self.folder], "cannot read"),
            ([path, "--output", "/nonexistent/x"], "--output: cannot write /nonexistent/x: No such file"),
            ([path, "--plot", "/nonexistent/x.svg"], "--plot: cannot write /nonexistent/x.svg: No such file"),
            ([path, "--output", "/dev/full"], "--output: cannot write /dev/full: No space left"),
        ):
            self.assertIn(expected, self.run_tool("search", *words, status=1)[1])

    def test_wrong_command_lines(self):
        for words, expected in (
            ([], "trace is required"),
            (["x", "--rule", "afer"], "did you mean 'after'?"),
            (["x", "--rule", "at", "--lag", "1"], "--lag needs --rule after"),
            (["x", "--max-drop", "2"], "--max-drop '2': expected a number from 0 to 1"),
        ):
            self.assertIn(expected, self.run_tool("search", *words, status=2)[1])


class Simulate(DropComputeTest):
    def remedies(self, *words):
        return {line["remedy"]: line for line in self.lines("simulate", *words) if line["kind"] == "remedy"}

    def test_documented_numbers(self):
        after = self.remedies("--workers", "16", "--rule", "after", "--tau", "16s", "--seed", "3")
        fixed = after["16 s, after"]
        self.assertAlmostEqual(fixed["speedup_step"] / 1.123, 1, delta=0.015)
        self.assertAlmostEqual(fixed["drop"], 0.075, delta=0.005)
        self.assertAlmostEqual(after["backup workers, 1 of 16"]["speedup_total"] / 1.008, 1, delta=0.015)
        automatic = after["auto, after"]
        self.assertIsNone(automatic["off"])
        self.assertLess(automatic["drop"], 0.12)
        self.assertAlmostEqual(automatic["speedup_total"] / automatic["predicted_total"], 1, delta=0.05)
        self.assertGreater(after["oracle (bound)"]["speedup_total"], fixed["speedup_total"])
        self.assertLess(after["as many at random"]["speedup_total"], 1)
        self.assertGreater(after["no remedy"]["step_sd_s"], 1.5 * fixed["step_sd_s"])
        at = self.remedies("--workers", "16", "--rule", "at", "--tau", "17s")["17 s, at"]
        self.assertAlmostEqual(at["speedup_total"] / 1.166, 1, delta=0.015)
        self.assertAlmostEqual(at["drop"], 0.11, delta=0.005)

    def test_a_seed_and_any_number_of_jobs_give_the_same(self):
        words = ["--steps", "50", "--seed", "9"]
        self.assertEqual(self.lines("simulate", *words), self.lines("simulate", *words, "--jobs", "3"))
        self.assertNotEqual(self.lines("simulate", *words), self.lines("simulate", "--steps", "50", "--seed", "10"))

    def test_search_of_the_written_trace_finds_the_automatic_threshold(self):
        path = self.path("trace.csv")
        remedies = self.remedies("--steps", "20", "--trace", path)
        rules = self.rules(path)
        for rule in ("after", "before", "at"):
            chosen = remedies[f"auto, {rule}"]
            self.assertEqual(chosen["predicted_total"], rules[rule]["speedup_total"])
            self.assertEqual(chosen["off"], rules[rule]["off"])
            if chosen["off"] is None:
                self.assertAlmostEqual(chosen["threshold_s"], rules[rule]["threshold_s"], delta=1e-10)

    def test_a_slow_worker_causes_a_warning_and_rebalancing_drops_nothing(self):
        words = ["--model", "constant:base=1", "-n", "8", "--slow", "7x2", "--rule", "after", "--steps", "20", "--slack", "0"]
        out = self.run_tool("simulate", *words)[0]
        self.assertIn("persistent_straggler", out)
        remedies = self.remedies(*words)
        self.assertAlmostEqual(remedies["auto, after"]["speedup_step"], 147 / 80, delta=1e-9)
        self.assertAlmostEqual(
            remedies["rebalanced"]["speedup_total"], 24.5 / 13.5, delta=1e-9
        )  # 13 micro-batches for each, 5 for the slow one
        self.assertEqual(remedies["rebalanced"]["drop"], 0)

    def test_picture(self):
        plot = self.path("simulate.svg")
        self.run_tool("simulate", "--steps", "50", "--plot", plot)
        self.check_picture(
            plot,
            "Compute times of a step, 16 workers, 44 steps",
            "Speed-up against the threshold",
            "Times of steps",
            "Speed-up against workers",
            "no remedy",
            "auto, after",
        )

    def test_progress_is_shown_if_asked_for_and_never_on_standard_output(self):
        out, error = self.run_tool(
            "simulate", "-n", "32", "--progress", "bar"
        )  # some tenths of a second; a bar is shown after one
        self.assertRegex(error, r"simulate +\d+% \[")
        self.assertEqual(self.run_tool("simulate", "-n", "32", "--progress", "off"), (out, ""))

    def test_files_that_cannot_be_written_and_wrong_command_lines(self):
        for words, expected in (
            (["--trace", "/nonexistent/x"], "--trace: cannot write /nonexistent/x: No such file"),
            (["--plot", "/nonexistent/x.svg"], "--plot: cannot write /nonexistent/x.svg: No such file"),
        ):
            self.assertIn(expected, self.run_tool("simulate", "--steps", "1", *words, status=1)[1])
        for words, expected in (
            (["--model", "X"], "--model X: "),
            (["--slow", "7"], "--slow '7': expected a rank and a factor"),
            (["--tau", "x"], "or auto, off"),
            (["--workers", "0"], "--workers '0'"),
        ):
            self.assertIn(expected, self.run_tool("simulate", *words, status=2)[1])


if __name__ == "__main__":
    unittest.main()

#!/usr/bin/env python3
"""bench/torch_training: what it makes of steps and runs, its marks; and, where this Python has torch and the project's module
and may make namespaces, a short run of real ranks."""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest
import xml.etree.ElementTree

sys.dont_write_bytecode = True
HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

from torch_lib import plot, processes, training_page as page  # noqa: E402
from versus_lib import network  # noqa: E402


def steps(arm, exchange_s, alone_s=0.5):
    return [
        {
            "arm": arm,
            "step": number,
            "exchange_s": 9.0 if number < 0 else exchange_s + 0.01 * (number - 1),
            "alone_s": alone_s,
            "loss": 3.0,
            "sent_bytes": 1e6,
        }
        for number in range(-2, 3)
    ]


class Page(unittest.TestCase):
    def test_communication_is_the_difference_of_medians_without_steps_that_warm_up(self):
        row, = page.rows_of(steps("gloo fp32", 1.1), page.ARMS)
        self.assertAlmostEqual(row["communication_s"], 0.6)
        self.assertLess(row["low_s"], row["communication_s"])
        self.assertEqual(row["steps"], 3)

    def test_the_pass_without_exchange_is_that_of_all_arms(self):
        rows = page.rows_of(
            [*steps("gloo fp32", 1.1, 0.4), *steps("unisono fp32", 1.0, 0.5), *steps("unisono bf16", 0.9, 0.6)], page.ARMS
        )
        self.assertEqual([row["alone_s"] for row in rows], [0.5] * 3)
        self.assertAlmostEqual(rows[2]["communication_s"], 0.4)

    def test_exact_gradients_are_held_against_gloo_and_others_against_seconds(self):
        rows = page.rows_of([*steps("gloo fp32", 1.1), *steps("unisono fp32", 1.0), *steps("unisono bf16", 0.9)], page.ARMS)
        self.assertEqual([one["met"] for one in page.marks_of(rows)], [True, False, None, None, None, None])

    def test_every_arm_has_a_colour_of_its_own(self):
        names = [*page.ARMS, *page.LONG_ARMS]
        self.assertEqual(len(set(plot.colours_of(names).values())), len(names))

    def test_losses_are_compared_seed_by_seed(self):
        runs = [
            {"arm": arm, "seed": seed, "held_out_loss": loss, "loss": [loss]}
            for arm, seed, loss in (
                ("fp32", 1, 2.0),
                ("fp32", 2, 4.0),
                ("int8", 1, 2.002),
                ("int8", 2, 4.0),
                ("int4, error feedback", 2, 4.4),
                ("ARC 0.2, error feedback", 3, 1.0),
            )
        ]
        rows = page.long_rows(runs)
        self.assertEqual(
            [(row["arm"], row["seeds"], row["met"]) for row in rows],
            [("fp32", 2, None), ("int8", 2, True), ("int4, error feedback", 1, False)],
        )
        self.assertAlmostEqual(rows[1]["mean_above"], 0.0005)


@unittest.skipUnless(processes.has_backend(), "SKIPPED: this Python has no torch with the backend unisono")
class Real(unittest.TestCase):
    def run_bench(self, folder, *words):
        text = pathlib.Path(folder) / "text.txt"
        text.write_text("In the beginning there was a line, and it was said again. " * 100)
        answer = subprocess.run(
            [
                sys.executable,
                str(HERE / "torch_training"),
                "--text",
                str(text),
                "--quick",
                "--limit",
                "100",
                "--out",
                folder,
                *words,
            ],
            capture_output=True,
            text=True,
            timeout=200,
        )
        self.assertEqual(answer.returncode, 0, answer.stdout + answer.stderr)
        xml.etree.ElementTree.parse(pathlib.Path(folder) / "torch_training.svg")
        return json.loads((pathlib.Path(folder) / "torch_training.json").read_text())

    @unittest.skipIf(network.why_not(), f"SKIPPED: {network.why_not()}")
    def test_hosts_train_and_are_gone_afterwards(self):
        with tempfile.TemporaryDirectory() as folder:
            data = self.run_bench(folder, "--steps", "2", "--arms", "gloo fp32", "unisono fp32", "unisono PowerSGD")
            self.assertEqual([row["arm"] for row in data["summary"]], ["gloo fp32", "unisono fp32", "unisono PowerSGD"])
            exact = [row["last_loss"] for row in data["summary"][:2]]
            self.assertAlmostEqual(exact[0], exact[1], places=3)
            for row in data["summary"][:2]:
                self.assertGreater(row["sent_bytes"], 1.5 * 4 * data["parameters"])
        listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True).stdout
        mine = [
            line
            for line in listed.splitlines()
            if line.startswith("unt") and not os.path.exists(f"/proc/{line[3:].split('-')[0]}")
        ]
        self.assertEqual(mine, [])

    def test_the_long_run_compares_what_there_is(self):
        with tempfile.TemporaryDirectory() as folder:
            data = self.run_bench(folder, "--long", "muon", "--seeds", "1")
            self.assertEqual([row["arm"] for row in data["long"]["muon"]["rows"]], list(page.LONG_ARMS))
            again = self.run_bench(folder, "--long", "adamw", "--seeds", "1", "--arms", "fp32", "int8")  # the earlier results must be kept
            self.assertEqual(again["long"]["muon"], data["long"]["muon"])
            self.assertEqual([(run["seed"], run["arm"]) for run in again["long"]["adamw"]["runs"]], [(1, "fp32"), (1, "int8")])
            more = self.run_bench(folder, "--long", "adamw", "--seeds", "1", "2", "--arms", "fp32")["long"]["adamw"]
            self.assertEqual([(run["seed"], run["arm"]) for run in more["runs"]], [(1, "int8"), (1, "fp32"), (2, "fp32")])
            self.assertEqual([(row["arm"], row["seeds"]) for row in more["rows"]], [("fp32", 2), ("int8", 1)])


if __name__ == "__main__":
    unittest.main()

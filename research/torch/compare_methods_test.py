#!/usr/bin/env python3
"""research/torch/compare_methods: what it makes of runs; and, where this Python has torch and the project's module and may make
namespaces, short trainings by real ranks."""

import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time
import unittest
import xml.etree.ElementTree

sys.dont_write_bytecode = True
HERE = pathlib.Path(__file__).resolve().parent
EXAMPLES = HERE.parent.parent / "examples/torch"  # folder of train_gpt.py, the training program
sys.path[:0] = [str(HERE.parent.parent / "bench"), str(HERE)]

import compare_page as page  # noqa: E402
from torch_lib import processes  # noqa: E402
from versus_lib import network  # noqa: E402


def result(loss=3.0, step_s=0.1, words="all is well"):
    return {
        "loss": [9.0, *[loss] * 11],
        "step_s": [step_s] * 11 + [12 * step_s],
        "held_out_loss": loss + 0.1,
        "sent_bytes_per_step": 2e6,
        "spread": 0.0,
        "same_on_all_ranks": True,
        "report": {"words": words},
    }


class Page(unittest.TestCase):
    def test_a_row_has_the_usual_step_and_the_mean_of_all_and_the_last_losses(self):
        row = page.row_of("loopback", "exact", result())
        self.assertAlmostEqual(row["median_ms"], 100)
        self.assertAlmostEqual(row["mean_ms"], 100 * 23 / 12)
        self.assertAlmostEqual(row["last_loss"], 3.0)

    def test_rows_are_in_the_order_of_networks_and_methods_and_failures_are_told(self):
        failed = {"network": "loopback", "method": "Gloo", "failed": "not finished in 3 s"}
        rows = page.ordered(
            [page.row_of("1 % lost", "Gloo", result()), page.row_of("loopback", "exact", result(words="a | b")), failed],
            ["loopback", "1 % lost"],
        )
        lines = page.table(rows)
        self.assertEqual([line[:2] for line in lines[1:]], [["loopback", "Gloo"], ["loopback", "exact"], ["1 % lost", "Gloo"]])
        self.assertIn("not finished", lines[1][-1])
        self.assertEqual({len(line) for line in lines}, {9})
        self.assertEqual(lines[2][-1], "a / b")

    def test_the_plot_has_three_panels_per_network_and_a_colour_of_its_own_for_every_method(self):
        runs = [page.row_of(kind, name, result()) for kind in ("loopback", "1 % lost") for name in page.METHODS]
        drawn = page.draw({"runs": runs, "parameters": 7})
        root = xml.etree.ElementTree.fromstring(drawn)
        kept = "{http://www.w3.org/2000/svg}"
        self.assertEqual(len(root.findall(kept + "polyline")), 4 * len(page.METHODS))
        self.assertEqual(len({line.get("stroke") for line in root.findall(kept + "polyline")}), len(page.METHODS))
        xml.etree.ElementTree.fromstring(page.draw({"runs": [], "parameters": 0}))


@unittest.skipUnless(processes.has_backend(), "SKIPPED: this Python has no torch with the backend unisono")
class Trained(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.text = pathlib.Path(self.folder.name) / "text.txt"
        self.text.write_text("In the beginning there was a line, and it was said again. " * 100)

    def command(self, *words):
        return [
            sys.executable,
            str(HERE / "compare_methods"),
            "--text",
            str(self.text),
            "--quick",
            "--limit",
            "100",
            "--out",
            self.folder.name,
            *words,
        ]

    def compare(self, *words):
        """Rows by method."""
        answer = subprocess.run(self.command(*words), capture_output=True, text=True, timeout=280)
        self.assertEqual(answer.returncode, 0, answer.stdout + answer.stderr)
        xml.etree.ElementTree.parse(pathlib.Path(self.folder.name) / "torch_methods.svg")
        data = json.loads((pathlib.Path(self.folder.name) / "torch_methods.json").read_text())
        return {row["method"]: row for row in data["runs"]}, data

    def test_over_loopback_exact_is_what_gloo_gives_and_what_there_is_is_kept(self):
        self.compare("--networks", "loopback", "--methods", "Gloo,DropCompute, late rank")
        rows, _ = self.compare("--networks", "loopback", "--methods", "exact,ARC, EF21M, SGD", "--resume")
        self.assertEqual(list(rows), ["Gloo", "exact", "ARC, EF21M, SGD", "DropCompute, late rank"])
        self.assertAlmostEqual(rows["Gloo"]["last_loss"], rows["exact"]["last_loss"], places=3)
        self.assertTrue(all(row["same_on_all_ranks"] for row in rows.values()))

    @unittest.skipIf(network.why_not(), f"SKIPPED: {network.why_not()}")
    def test_over_thin_links_codecs_send_less(self):
        rows, data = self.compare("--networks", "rate", "--rate", "50M", "--methods", "exact,fp16,int4 + EF")
        sent = {name: row["sent_bytes_per_step"] for name, row in rows.items()}
        self.assertGreater(sent["exact"], 1.5 * 4 * data["parameters"])
        self.assertLess(sent["fp16"], 0.6 * sent["exact"])
        self.assertLess(sent["int4 + EF"], 0.25 * sent["exact"])

    @unittest.skipIf(network.why_not(), f"SKIPPED: {network.why_not()}")
    def test_over_links_that_lose_packets_all_end_with_the_same_parameters(self):
        rows, data = self.compare("--networks", "loss", "--loss", "3", "--steps", "30", "--methods", "lossy,sharded,Moshpit")
        lost = data["lost"]["3 % lost"]
        self.assertGreater(lost["dropped"], 0.01 * lost["arrived"])
        self.assertTrue(rows["lossy"]["same_on_all_ranks"] and rows["sharded"]["same_on_all_ranks"])
        self.assertGreater(rows["sharded"]["report"]["gradients_missing"], 0)
        self.assertGreater(rows["Moshpit"]["report"]["averaging_steps"], 0)

    def test_a_run_that_does_not_end_is_named_and_its_ranks_are_ended(self):
        answer = subprocess.run(
            self.command("--networks", "loopback", "--methods", "exact", "--steps", "1000000", "--limit", "15"),
            capture_output=True,
            text=True,
            timeout=200,
        )
        self.assertEqual(answer.returncode, 1)
        self.assertIn("failed: loopback, exact", answer.stderr)
        self.assertIn("not finished in 15 s", answer.stdout)
        self.assertEqual(self.ranks(), 0)

    def ranks(self):
        """How many processes train with this test's text, and not yet those that become them."""
        every = [bytes_of(path).split(b"\0") for path in pathlib.Path("/proc").glob("[0-9]*/cmdline")]
        return sum(
            len(words) > 1 and words[1].endswith(b"train_gpt.py") and str(self.text).encode() in words for words in every
        )

    def wait_for_ranks(self, count):
        until = time.monotonic() + 60
        while self.ranks() != count:
            self.assertLess(time.monotonic(), until, f"{self.ranks()} ranks")
            os.sched_yield()

    def test_killed_it_leaves_no_ranks(self):
        with subprocess.Popen(self.command("--networks", "loopback", "--methods", "exact", "--steps", "1000000")) as program:
            self.wait_for_ranks(4)
            program.kill()
        self.wait_for_ranks(0)

    @unittest.skipIf(network.why_not(), f"SKIPPED: {network.why_not()}")
    def test_ended_from_outside_it_removes_its_hosts(self):
        with subprocess.Popen(
            self.command("--networks", "loss", "--methods", "exact,fp16"), stdout=subprocess.PIPE, text=True
        ) as program:
            self.assertIn("1 of 2", program.stdout.readline())
            mine = f"unc{program.pid}-"
            self.assertIn(mine, subprocess.run(["ip", "netns", "list"], capture_output=True, text=True).stdout)
            program.send_signal(signal.SIGTERM)
            program.communicate(timeout=60)
        self.assertNotIn(mine, subprocess.run(["ip", "netns", "list"], capture_output=True, text=True).stdout)

    def test_muon_has_the_matrices_of_the_blocks_and_rates_end_where_they_are_told(self):
        check = f"""
import argparse, sys
sys.path.insert(0, {str(EXAMPLES)!r})
import gpt, methods, train_gpt
model = gpt.GPT(2, 32, 2, 16)
muon, adamw = [[each for group in part.param_groups for each in group["params"]] for part in methods.MuonAndAdamW(model, 0.02).parts]
assert len(muon) == 2 * 4 and all(each.dim() == 2 for each in muon), [each.shape for each in muon]
assert sorted(map(id, muon + adamw)) == sorted(map(id, model.parameters()))
shares = [train_gpt.share_of_rate(step, argparse.Namespace(steps=100, last_rate=0.25)) for step in range(101)]
assert shares[4] == 1 and shares[:5] == sorted(shares[:5]) and shares[5:] == sorted(shares[5:], reverse=True) and abs(shares[100] - 0.25) < 1e-9, shares
for words in (dict(optimizer="muon", clip=0), dict(optimizer="adamw", clip=1)):
    for method in ("sharded", "moshpit"):
        try:
            methods.make(model, argparse.Namespace(method=method, backend="unisono", **words), gpt.loss_of)
            raise AssertionError(method)
        except ValueError as problem:
            assert "without --optimizer muon and --clip" in str(problem), problem
"""
        answer = subprocess.run(
            [sys.executable, "-c", check],
            env={**os.environ, **processes.usual_environment()},
            capture_output=True,
            text=True,
            timeout=100,
        )
        self.assertEqual(answer.returncode, 0, answer.stderr)

    def train_with(self, changes, *more):
        """One layer on two ranks, with these lines of Python before it begins."""
        program = pathlib.Path(self.folder.name) / "changed.py"
        program.write_text(
            f"import sys\nsys.path.insert(0, {str(EXAMPLES)!r})\nimport torch, train_gpt\n{changes}\nsys.exit(train_gpt.main())\n"
        )
        words = [
            sys.executable,
            "-m",
            "torch.distributed.run",
            "--rdzv-backend",
            "c10d",
            "--rdzv-endpoint",
            "localhost:0",
            "--nproc-per-node",
            "2",
            str(program),
            "--text",
            str(self.text),
            "--layers",
            "1",
            "--width",
            "32",
            "--heads",
            "2",
            "--context",
            "16",
            *more,
        ]
        return subprocess.run(
            words, env={**os.environ, **processes.usual_environment()}, capture_output=True, text=True, timeout=100
        )

    def test_averaged_gradients_are_cut_to_the_norm_that_is_asked_for(self):
        answer = self.train_with("""
make = train_gpt.methods.make
def remember(model, *more):
    before.extend(each.detach().clone() for each in model.parameters())
    return make(model, *more)
def measure(way):
    moved = torch.cat([(now - then).reshape(-1) for now, then in zip(way.network.parameters(), before)]).norm().item()
    assert abs(moved - 0.01) < 1e-5, moved
before, train_gpt.methods.make, train_gpt.methods.Hooked.finish = [], remember, measure
""", "--steps", "1", "--optimizer", "sgd", "--momentum", "0", "--rate", "1", "--clip", "0.01")
        self.assertEqual(answer.returncode, 0, answer.stderr)

    def test_training_says_so_if_ranks_end_with_other_parameters(self):
        answer = self.train_with("""
def spoil(way):
    with torch.no_grad():
        next(way.network.parameters()).add_(1e-6 * torch.distributed.get_rank())
train_gpt.methods.Hooked.finish = spoil
""", "--steps", "2")
        self.assertNotEqual(answer.returncode, 0)
        self.assertIn("parameters are not the same on all ranks", answer.stderr)


def bytes_of(path):
    try:
        return path.read_bytes()
    except OSError:  # the process has ended meanwhile
        return b""


if __name__ == "__main__":
    unittest.main()

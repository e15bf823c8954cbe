#!/usr/bin/env python3
"""bench/moshpit: what it makes of its numbers, and a short run of its parts. UNISONO_BUILD names the folder of the build."""

import importlib.machinery
import importlib.util
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import types
import unittest
import xml.etree.ElementTree

HERE = pathlib.Path(__file__).resolve().parent
BUILD = pathlib.Path(os.environ.get("UNISONO_BUILD", HERE.parent / "build/release"))
sys.dont_write_bytecode = True
sys.path.insert(0, str(HERE))

from versus_lib import elastic_peers, moshpit_page, network  # noqa: E402

LOADER = importlib.machinery.SourceFileLoader("moshpit", str(HERE / "moshpit"))
SCRIPT = importlib.util.module_from_spec(importlib.util.spec_from_loader(LOADER.name, LOADER))
LOADER.exec_module(SCRIPT)
FACTS = {"cpu": "a processor", "cores": 2, "kernel": "k", "compiler": "c", "commit": "c", "time": "t"}
SETTINGS = {"peers": 16, "elements": 1 << 20}


def one_round(group=4, **more):
    return {
        "outcome": "averaged",
        "group": group,
        "contributors_min": group,
        "contributors_max": group,
        "committed": 9,
        "kept_local": 0,
        "voided": 0,
        "undecided": 0,
        "lost": 0,
        "gather_s": 0.002,
        "contribute_s": 0.01,
        "result_s": 0.02,
        "verdict_s": 0.005,
        "sent": 100,
        "received": 100,
        "model": 90,
        "absent": [],
        **more,
    }


def line(begin, end, *rounds, **more):
    return {
        "kind": "step",
        "step": 1,
        "exact": True,
        "begin": begin,
        "end": end,
        "cpu_s": 0.1,
        "cpu_total_s": end / 10,
        "rss_mb": 5.0,
        "dims": [4, 4],
        "note": "",
        "digest": "aa",
        "wrong": "",
        "rounds": list(rounds),
        **more,
    }


def counts(**more):
    return {
        "steps": 2,
        "with_all": 2,
        "exact": 2,
        "peer_rounds": 64,
        "incomplete": 0,
        "wrong": [],
        "notes": [],
        "dims": [4, 4],
        **more,
    }


class FakePeer:
    def __init__(self, name, *lines):
        self.name, self.lines = name, list(lines)

    def of_kind(self, wanted):
        return [one for one in self.lines if one["kind"] == wanted]


class Numbers(unittest.TestCase):
    def test_a_step_lasts_from_its_last_beginner_to_its_last_one_done(self):
        self.assertEqual(elastic_peers.together_seconds([line(1, 4), line(2, 3)]), 2)

    def test_rounds_that_lack_a_member_or_a_chunk_are_incomplete(self):
        whole = one_round()
        self.assertEqual(SCRIPT.incomplete(line(0, 1, whole, whole)), 0)
        for spoiled in (
            {"outcome": "alone"},
            {"contributors_min": 3},
            {"voided": 1},
            {"lost": 1},
            {"kept_local": 1},
            {"undecided": 1},
        ):
            self.assertEqual(SCRIPT.incomplete(line(0, 1, whole, one_round(**spoiled))), 1, spoiled)

    def test_exact_results_of_one_step_must_be_equal(self):
        peers = [FakePeer("a", line(0, 1)), FakePeer("b", line(0, 1, digest="bb"))]
        self.assertEqual(
            SCRIPT.wrong_in(elastic_peers.by_step(peers)), ["averaging step 1: 2 different results, all said to be exact"]
        )
        peers[1].lines[0].update(digest="aa", wrong="a one became 2")
        self.assertEqual(SCRIPT.wrong_in(elastic_peers.by_step(peers)), ["averaging step 1, b: a one became 2"])

    def test_a_group_is_formed_when_its_last_member_has_registered(self):
        first = [line(10.0, 11, one_round(2, gather_s=0.5)), line(10.4, 11, one_round(2, gather_s=0.11))]
        lacking = [line(10.0, 11, one_round(3), digest="bb"), line(10.0, 11, one_round(3), digest="bb")]
        alone = [line(10.0, 11, one_round(1, outcome="alone"), digest="cc")]
        (last, held), = SCRIPT.formed_groups([*first, *lacking, *alone])
        self.assertAlmostEqual(last, 0.11)
        self.assertAlmostEqual(held, 0.11)
        first[0]["rounds"][0]["gather_s"] = 0.6
        self.assertAlmostEqual(SCRIPT.formed_groups(first)[0][1], 0.2)

    def test_time_per_round_is_of_all_that_lies_between_the_first_and_the_last_step(self):
        peers = [FakePeer("a", *(line(number, number + 0.5, one_round(), one_round(), step=number) for number in range(5)))]
        found = SCRIPT.rate_of_rounds(peers, elastic_peers.by_step(peers))
        self.assertAlmostEqual(found["round_s"], 0.5)
        self.assertAlmostEqual(found["cpu_s"], 0.05)
        self.assertEqual(found["rounds_s"], [0.25] * 5)

    def test_steps_before_and_beside_a_joiner_are_told_apart(self):
        peers = [FakePeer("a", *(line(number, number + 1, step=number) for number in range(10)))]
        self.assertEqual(len(SCRIPT.steps_between(peers, 2, 5)), 3)
        self.assertEqual(len(SCRIPT.steps_touching(peers, 5.5, 6.5)), 2)


class Page(unittest.TestCase):
    def rounds(self, seconds, cpu=0.02):
        return {
            **counts(),
            "rounds_s": [seconds] * 3,
            "round_s": seconds,
            "cpu_s": cpu,
            "cpu_max_s": cpu,
            "rss_early_mb": 5.0,
            "rss_late_mb": 5.1,
            "rss_growth": 0.02,
            "phases": [],
        }

    def found(self, measured):
        return {what: (got, met) for what, _, got, met in moshpit_page.marks(SETTINGS, measured)}

    def test_ratios_are_of_medians_of_passes(self):
        measured = [
            ["steps", number, {"step_s": [0.1 * factor] * 3, "flat_s": [0.05] * 3}] for number, factor in enumerate((1, 1.2, 2))
        ]
        self.assertEqual(
            self.found(measured), {"one averaging step ÷ flat all-reduce of the same processes": ("2.40 (2.00 to 4.00)", True)}
        )

    def test_hivemind_counts_with_its_best_setting_and_in_the_same_pass(self):
        theirs = [
            {"matchmaking": "0.1", "failed": "no end in time"},
            {"matchmaking": "0.5", "rounds_s": [3.0], "cpu_s": 0.2, "summary": ""},
            {"matchmaking": "2", "rounds_s": [5.0], "cpu_s": 0.2, "summary": ""},
        ]
        found = self.found([["hivemind", 0, {"ours": self.rounds(0.1), "theirs": theirs, "wrong": []}]])
        self.assertEqual(found["a round: hivemind ÷ ours, same run"], ("30.0 (30.0 to 30.0)", True))

    def test_without_hivemind_the_known_figure_is_named_as_such_and_meets_no_mark(self):
        measured = [
            ["rounds", 0, self.rounds(0.1)],
            ["hivemind", 0, {"ours": self.rounds(0.1), "theirs": [], "wrong": [], "unavailable": "no such package"}],
        ]
        self.assertEqual(self.found(measured)["a round: hivemind (known figure, not this run) ÷ ours"], ("31.7", None))
        self.assertIn("no such package. Known: 3.17 s", moshpit_page.page(SETTINGS, FACTS, measured))

    def test_long_runs_meet_their_mark_only_when_long(self):
        measured = [["long", 0, {**self.rounds(0.1), "peer_rounds": 160000, "incomplete": 0}]]
        self.assertTrue(self.found(measured)["incomplete of 10000 rounds without faults"][1])
        measured[0][2]["incomplete"] = 1
        self.assertFalse(self.found(measured)["incomplete of 10000 rounds without faults"][1])
        measured[0][2]["peer_rounds"] = 1600
        self.assertIsNone(self.found(measured)["incomplete of 100 rounds without faults"][1])

    def test_a_joiner_is_compared_with_what_its_line_carries(self):
        join = {
            "bytes": 90,
            "load_s": 1.0,
            "join_s": 1.1,
            "donors": 4,
            "loaded": True,
            "note": "",
            "wrong": "",
            "before_s": [1.0, 1.0],
            "during_s": [1.3],
        }
        measured = [["join", 0, {"alone_bytes_per_s": 100.0, "shared_bytes_per_s": 80.0, "joins": [join], "wrong": []}]]
        found = self.found(measured)
        self.assertEqual(found["joiner: share of its line's goodput while it loads"], ("0.90 (0.90 to 0.90)", True))
        self.assertEqual(found["donors' averaging steps during ÷ before"], ("1.30 (1.30 to 1.30)", True))
        xml.etree.ElementTree.fromstring(moshpit_page.figure(FACTS, measured))

    def test_a_line_carries_no_more_than_its_rate_if_it_has_one(self):
        hosts = types.SimpleNamespace(
            n=6, goodput=lambda probe, count, times, pairs: [110.0 if len(pairs) == 1 else 40.0] * len(pairs)
        )
        build_tool, SCRIPT.build.build_tool = SCRIPT.build.build_tool, lambda *_: "probe"
        try:
            self.assertEqual(
                SCRIPT.line_goodput(hosts, 5, 10**9, 1 << 20), {"alone_bytes_per_s": 110e6, "shared_bytes_per_s": 0.956 * 125e6}
            )
            self.assertEqual(
                SCRIPT.line_goodput(hosts, 5, 0, 1 << 20), {"alone_bytes_per_s": 110e6, "shared_bytes_per_s": 200e6}
            )
        finally:
            SCRIPT.build.build_tool = build_tool

    def test_failures_are_on_the_page(self):
        page = moshpit_page.page(
            SETTINGS,
            FACTS,
            [
                ["steps", 0, {"failed": "peer3: status 1", "wrong": []}],
                ["rounds", 0, {**self.rounds(0.1), "wrong": ["averaging step 3: bad"]}],
            ],
        )
        self.assertIn("**Failed**: steps, pass 1: peer3: status 1", page)
        self.assertIn("**Wrong result**: rounds, pass 1: averaging step 3: bad", page)


class Program(unittest.TestCase):
    def run_it(self, out, *words):
        argv = [sys.executable, "-B", HERE / "moshpit", "--quick", "--build", BUILD, "--out", out, *words]
        return subprocess.run(list(map(str, argv)), capture_output=True, text=True, timeout=100, check=False)

    def test_parts_are_measured_and_a_run_goes_on_where_it_was_ended(self):
        with tempfile.TemporaryDirectory() as folder:
            out = pathlib.Path(folder) / "out"
            first = self.run_it(out, "--parts", "steps")
            self.assertEqual(first.returncode, 0, first.stdout + first.stderr)
            again = self.run_it(out, "--parts", "steps,formation,long", "--resume")
            self.assertEqual(again.returncode, 0, again.stdout + again.stderr)
            self.assertEqual([words.split()[1] for words in again.stderr.splitlines()], ["formation", "long"])
            result = json.loads((out / "moshpit.json").read_text())
            (_, _, swept), (_, _, formed), (_, _, many) = result["measured"]
            self.assertEqual((swept["exact"], swept["dims"], swept["incomplete"], len(swept["flat_s"])), (4, [3, 2], 0, 4))
            self.assertEqual((len(formed["all"]["last_s"]), formed["fours"]["incomplete"]), (10, 0))
            self.assertEqual((many["steps"], many["incomplete"]), (10, 0))
            self.assertIn(
                "| one averaging step ÷ flat all-reduce of the same processes | <= 3 |", (out / "moshpit.md").read_text()
            )
            other = self.run_it(out, "--resume", "--peers", "5")
            self.assertIn("has peers=6, not 5", other.stderr)

    def test_a_joiner_loads_what_donors_have(self):
        why_not = network.why_not()
        if why_not:
            self.skipTest(f"SKIPPED: {why_not}")  # namespaces need root, and a container's root may be refused
        with tempfile.TemporaryDirectory() as folder:
            done = self.run_it(folder, "--parts", "join")
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
            (_, _, row), = json.loads((pathlib.Path(folder) / "moshpit.json").read_text())["measured"]
            self.assertEqual((len(row["joins"]), row["joins"][0]["loaded"], row["joins"][0]["bytes"]), (1, True, 2_000_000))
            self.assertTrue(row["joins"][0]["before_s"] and row["joins"][0]["during_s"])

    def test_a_program_that_ends_at_once_is_named(self):
        with tempfile.TemporaryDirectory() as folder:
            programs = pathlib.Path(folder) / "build/bench"
            programs.mkdir(parents=True)
            (programs / "moshpit_bench").write_text("#!/bin/sh\necho no such thing >&2\nexit 3\n")
            (programs / "moshpit_bench").chmod(0o755)
            options = types.SimpleNamespace(build=pathlib.Path(folder) / "build", peers=2)
            with self.assertRaisesRegex(elastic_peers.Failed, "no such thing"):
                SCRIPT.on_this_host(options, pathlib.Path(folder) / "run", [], 10)


if __name__ == "__main__":
    unittest.main()

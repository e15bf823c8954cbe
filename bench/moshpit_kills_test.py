#!/usr/bin/env python3
"""bench/moshpit_kills: what counts as a wrong sum, what it does of hung and failed processes (stand-ins), and a short run of
real ones. UNISONO_BUILD names the folder of the build."""

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

from versus_lib import step_sums  # noqa: E402

LOADER = importlib.machinery.SourceFileLoader("moshpit_kills", str(HERE / "moshpit_kills"))
SCRIPT = importlib.util.module_from_spec(importlib.util.spec_from_loader(LOADER.name, LOADER))
LOADER.exec_module(SCRIPT)


def enter(number, time=0.0):
    return {"kind": "enter", "time": time, "number": number}


def kind(shares, number, tiles=1):
    return {"tiles": tiles, "shares": {str(slot): share for slot, share in shares.items()}, "number": number}


def swept(step, number, *kinds, exact=False, digest="aa", begin=0.0, end=0.1, wrong=""):
    return {
        "kind": "step",
        "step": step,
        "number": number,
        "kinds": list(kinds),
        "exact": exact,
        "digest": digest,
        "begin": begin,
        "end": end,
        "wrong": wrong,
        "rss_mb": 5.0,
        "one_off": 0,
        "note": "",
        "rounds": [
            {"outcome": "averaged", "group": 2, "gather_s": 0, "contribute_s": 0, "result_s": 0, "verdict_s": 0, "absent": []}
        ],
    }


class FakePeer:
    """As much of elastic_peers.Peer as is looked at."""

    def __init__(self, slot, *lines, killed_at=None):
        self.name, self.slot, self.lines = f"peer{slot}", slot, list(lines)
        if killed_at is not None:
            self.killed_at = killed_at

    def of_kind(self, wanted):
        return [line for line in self.lines if line["kind"] == wanted]


class Sums(unittest.TestCase):
    mean = kind({0: 0.5, 1: 0.5}, 0.4)

    def wrong_of(self, *peers):
        return step_sums.check(peers)

    def test_an_exact_step_of_two_is_right(self):
        peers = [
            FakePeer(slot, enter(number), swept(3, number, self.mean, exact=True)) for slot, number in ((0, 0.3), (1, 0.5))
        ]
        self.assertEqual(self.wrong_of(*peers), [])
        self.assertEqual(step_sums.counts(peers), {"steps": 1, "results": 2, "exact": 2, "kinds": 2, "unknown": 0})

    def test_a_number_that_is_not_the_mean_by_the_shares_is_wrong(self):
        peers = [FakePeer(slot, swept(3, number, kind({0: 0.5, 1: 0.5}, 0.41))) for slot, number in ((0, 0.3), (1, 0.5))]
        self.assertEqual(len(self.wrong_of(*peers)), 2)
        self.assertIn("mean by the shares", self.wrong_of(*peers)[0])

    def test_a_share_of_somebody_who_was_not_there_is_wrong(self):
        self.assertIn("slot 4", self.wrong_of(FakePeer(0, swept(3, 0.3, kind({0: 0.5, 4: 0.5}, 0.4))))[0])

    def test_exact_results_that_differ_are_wrong(self):
        peers = [
            FakePeer(slot, swept(3, number, self.mean, exact=True, digest=digest))
            for slot, number, digest in ((0, 0.3, "aa"), (1, 0.5, "bb"))
        ]
        self.assertIn("differ in their bits", self.wrong_of(*peers)[0])

    def test_an_exact_result_has_equal_shares_and_everybody_who_says_so(self):
        unequal = kind({0: 0.75, 1: 0.25}, 0.35)
        peers = [FakePeer(slot, swept(3, number, unequal, exact=True)) for slot, number in ((0, 0.3), (1, 0.5))]
        self.assertIn("exact result has 1 kinds", self.wrong_of(*peers)[0])
        joined = [FakePeer(slot, swept(3, number, self.mean, exact=True)) for slot, number in ((0, 0.3), (1, 0.5), (2, 0.4))]
        self.assertEqual(self.wrong_of(*joined), [], "who has just joined takes the mean and gives nothing")
        longer = [*joined[:2], FakePeer(2, swept(2, 0.1, kind({2: 1}, 0.1)), swept(3, 0.4, self.mean, exact=True))]
        self.assertIn("peer2 says exact and is not in", self.wrong_of(*longer)[0])

    def test_what_the_peer_itself_found_is_wrong(self):
        self.assertIn(
            "shares add up", self.wrong_of(FakePeer(0, swept(3, 0.3, kind({0: 1}, 0.3), wrong="shares add up to 0.9")))[0]
        )

    def test_what_a_killed_one_gave_may_be_in_steps_that_it_did_not_finish(self):
        dead = FakePeer(1, swept(2, 0.6, kind({1: 1}, 0.6)), enter(0.5, time=8.0), killed_at=10.0)
        self.assertEqual(self.wrong_of(FakePeer(0, swept(3, 0.3, self.mean, begin=7.5, end=9.0)), dead), [])
        self.assertIn("slot 1", self.wrong_of(FakePeer(0, swept(3, 0.3, self.mean, begin=7.0, end=7.5)), dead)[0])
        self.assertIn("slot 1", self.wrong_of(FakePeer(0, swept(3, 0.3, self.mean, begin=11.0, end=12.0)), dead)[0])
        self.assertIn("slot 1", self.wrong_of(FakePeer(0, swept(1, 0.3, self.mean, begin=9.0, end=9.5)), dead)[0])

    def test_a_place_with_two_numbers_is_told_and_not_judged(self):
        dead = FakePeer(1, enter(0.5), killed_at=10.0)
        peers = [FakePeer(0, swept(3, 0.3, kind({0: 0.5, 1: 0.5}, 0.9))), FakePeer(1, swept(3, 0.7, kind({1: 1}, 0.7))), dead]
        self.assertEqual(self.wrong_of(*peers), [])
        self.assertEqual(step_sums.counts(peers)["unknown"], 2)


class Page(unittest.TestCase):
    facts = {"cpu": "a processor", "cores": 2, "kernel": "k", "commit": "c", "time": "t"}

    def result(self, peers, trouble=""):
        run = types.SimpleNamespace(peers=peers)
        options = types.SimpleNamespace(peers=2, seed=1, elements=64)
        return SCRIPT.result_of(
            options, types.SimpleNamespace(run=run, killed=[(1.0, "peer1", "in an averaging step")]), trouble
        )

    def test_marks_are_met_or_missed(self):
        alone = kind({0: 1}, 0.3)
        calm = FakePeer(0, *(swept(number, 0.3, alone, begin=number, end=number + 0.5) for number in range(60)))
        page = SCRIPT.page_of(self.result([calm]), self.facts)
        self.assertNotIn("missed", page)
        self.assertIn("the slowest 0.50 s", page)
        calm.lines[59]["rss_mb"] = 9.0  # a single peak is no fault; only lasting memory counts
        self.assertNotIn("missed", SCRIPT.page_of(self.result([calm]), self.facts))
        calm.lines[30]["end"] += 3
        for line in calm.lines[50:]:
            line["rss_mb"] = 6.0
        page = SCRIPT.page_of(self.result([calm], "hung after 1 kills"), self.facts)
        self.assertEqual(page.count("**missed**"), 3)
        xml.etree.ElementTree.fromstring(SCRIPT.figure(self.result([calm])))

    def test_lines_of_exact_steps_are_kept_in_brief_and_slow_ones_whole(self):
        line = swept(1, 0.3, kind({0: 1}, 0.3), exact=True)
        self.assertEqual(step_sums.brief(line)["rounds"], [{"outcome": "averaged"}])
        self.assertEqual(step_sums.brief({**line, "end": 5.0})["rounds"], line["rounds"])
        self.assertEqual(step_sums.brief({**line, "exact": False})["rounds"], line["rounds"])

    def test_what_was_kept_in_brief_is_not_told_round_by_round(self):
        alone = kind({0: 1}, 0.3)
        quick = FakePeer(
            0,
            *(step_sums.brief(swept(number, 0.3, alone, exact=True, begin=number, end=number + 0.1)) for number in range(4)),
            swept(4, 0.3, alone, exact=True, begin=4, end=4.7),
        )
        page = SCRIPT.page_of(self.result([quick]), self.facts)
        self.assertIn("Among the slowest: 0.70 s, peer0, averaging step 4: averaged of 2", page)
        self.assertEqual(page.count("Among the slowest"), 1)


STAND_IN = """#!/usr/bin/env python3
import json, signal, sys
def say(**line):
    print(json.dumps(line), flush=True)
say(kind="joined", endpoints=["127.0.0.1:1"], loaded=False, wrong="")
say(kind="enter", time=0.0, number=0.3)
say(**{SWEPT})
if "{WAY}" == "fails":
    say(kind="failed", why="no more of it")
    sys.exit(1)
say(kind="enter", time={BEGUN}, number=0.3)
signal.pause()
"""


class Program(unittest.TestCase):
    def run_it(self, build, out, *words):
        argv = [sys.executable, "-B", HERE / "moshpit_kills", "--quick", "--build", build, "--out", out, *words]
        return subprocess.run(list(map(str, argv)), capture_output=True, text=True, timeout=100, check=False)

    def with_stand_in(self, way):
        with tempfile.TemporaryDirectory() as folder:
            program = pathlib.Path(folder) / "bench/moshpit_bench"
            program.parent.mkdir()
            program.write_text(
                STAND_IN.replace("{SWEPT}", repr(swept(0, 0.3, kind({0: 1}, 0.3))))
                .replace("{WAY}", way)
                .replace("{BEGUN}", "0.0")
            )
            program.chmod(0o755)
            done = self.run_it(folder, pathlib.Path(folder) / "out")
            return done, json.loads((pathlib.Path(folder) / "out/moshpit_kills.json").read_text())

    def test_a_step_that_does_not_end_is_a_hang(self):
        done, result = self.with_stand_in("hangs")
        self.assertEqual(done.returncode, 1)
        self.assertIn("hung after 0 kills", result["trouble"])

    def test_a_process_that_fails_is_named_with_its_words(self):
        done, result = self.with_stand_in("fails")
        self.assertEqual(done.returncode, 1)
        self.assertIn("no more of it", result["trouble"])

    def test_killed_processes_are_replaced_and_all_sums_are_right(self):
        with tempfile.TemporaryDirectory() as folder:
            done = self.run_it(BUILD, folder, "--kills", "5", "--joining", "0.3")
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
            result = json.loads((pathlib.Path(folder) / "moshpit_kills.json").read_text())
            self.assertEqual((result["kills"], result["trouble"], result["wrong"]), (5, "", []))
            self.assertGreater(result["checked"]["results"], 5)
            self.assertIn("| wrong sums | 0 | 0 | met |", (pathlib.Path(folder) / "moshpit_kills.md").read_text())


if __name__ == "__main__":
    unittest.main()

#!/usr/bin/env python3
"""bench/elastic_training: what it makes of traces and of what processes say, how it treats processes (stand-ins, which train
nothing), and, where the program was built, a short run of real ones. UNISONO_BUILD names the folder of the build."""

import importlib.machinery
import importlib.util
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import textwrap
import unittest
import xml.etree.ElementTree

HERE = pathlib.Path(__file__).resolve().parent
BUILD = pathlib.Path(os.environ.get("UNISONO_BUILD", HERE.parent / "build/release"))
sys.dont_write_bytecode = True

LOADER = importlib.machinery.SourceFileLoader("elastic_training", str(HERE / "elastic_training"))
SCRIPT = importlib.util.module_from_spec(importlib.util.spec_from_loader(LOADER.name, LOADER))
LOADER.exec_module(SCRIPT)
from versus_lib import elastic_training_page  # noqa: E402 (the script puts the folder of its modules onto the path)

Event = SCRIPT.Event


def line(kind, steps, run_steps=None, **more):
    return {
        "kind": kind,
        "time": 100.0 + steps,
        "steps": steps,
        "run_steps": steps if run_steps is None else run_steps,
        "samples": 4 * steps,
        "loss": 5.0 - 0.1 * steps,
        "life_s": float(steps),
        "useful_s": 0.75 * steps,
        **more,
    }


class Numbers(unittest.TestCase):
    trace = "# comment\n0 0 join\n0 1 join\n10 1 kill\n20 1 join # again\n20.5 0 stop\n30 0 continue\n40 1 leave\n"

    def test_a_trace_is_read_and_a_line_that_is_none_is_named(self):
        events = SCRIPT.events_of(self.trace)
        self.assertEqual(len(events), 7)
        self.assertEqual(events[3], Event(20.0, 1, "join"))
        for text, part in (("0 0", "line 1"), ("0 0 join\n1 x leave", "line 2"), ("0 0 die", "die is no action")):
            with self.assertRaisesRegex(ValueError, part):
                SCRIPT.events_of(text)

    def test_peer_seconds_are_those_at_work_until_the_end(self):
        events = SCRIPT.events_of(self.trace)
        self.assertAlmostEqual(SCRIPT.peer_seconds(events, 50), (20.5 + 20) + (10 + 20))
        self.assertAlmostEqual(SCRIPT.peer_seconds(events, 15), 15 + 10)

    def test_spans_have_their_peers_and_say_whether_they_end_with_notice(self):
        spans = SCRIPT.spans_of(SCRIPT.events_of(self.trace), 50)
        self.assertEqual(
            [tuple(span.values()) for span in spans],
            [(10, 2, False), (20, 1, True), (20.5, 2, False), (30, 1, True), (40, 2, True), (50, 1, True)],
        )

    def test_steps_that_are_made_again_are_not_kept(self):
        jobs = [
            (4, [line("progress", 30), line("progress", 37)]),
            (3, []),
            (3, [line("progress", 2, 32), line("ended", 10, 40)]),
            (2, [line("ended", 5, 45)]),
        ]
        self.assertEqual(SCRIPT.kept_steps(jobs), 4 * 30 + 3 * 10 + 2 * 5)

    def test_sums_are_over_all_processes_and_the_end_is_of_those_that_came_to_it(self):
        killed = [line("joined", 0, 50, loaded=True, load_s=0.5), line("progress", 10, 60)]
        ended = [
            line("joined", 0, loaded=False, load_s=0.0),
            line("averaging", 8, exact=True),
            line("averaging", 16, exact=False),
            line("held_out", 20, held_out=1.5),
            line("ended", 20, why="seconds", hash="ab"),
        ]
        told = [line("joined", 0, loaded=False, load_s=0.0), line("ended", 6, why="told", hash="cd")]
        found = SCRIPT.tally_of([killed, ended, told, []])
        self.assertEqual(
            (
                found["processes"],
                found["steps"],
                found["loads"],
                found["averaging_steps"],
                found["exact"],
                found["held_out"],
                found["hashes"],
            ),
            (3, 36, 1, 2, 1, 1.5, ["ab"]),
        )
        self.assertAlmostEqual(found["useful_s"] / found["life_s"], 0.75)
        self.assertEqual([second for second, _ in found["curve"]], [0, 2, 8])

    def test_marks_are_met_or_missed_or_not_measured(self):
        self.assertEqual(elastic_training_page.verdict([0.5, 1.2, None], 1.0, True), "met")
        self.assertEqual(elastic_training_page.verdict([1.5], 1.0, True), "missed")
        self.assertEqual(elastic_training_page.verdict([94.9], 95, False), "missed")
        self.assertEqual(elastic_training_page.verdict([None], 1.0, True), "")

    def test_a_line_that_was_cut_by_a_kill_is_left_out(self):
        with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as file:
            file.write('{"steps": 1}\n{"ste')
            file.flush()
            self.assertEqual(SCRIPT.read_lines(pathlib.Path(file.name)), [{"steps": 1}])


STAND_IN = '''
    import json, os, signal, sys, threading, time
    words = dict(zip(sys.argv[1:], sys.argv[2:]))
    begun, told = time.monotonic(), threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: told.set())
    out = open(words["--events"], "a")
    steps = first = int(open(words["--checkpoint"]).read()) if os.path.exists(words.get("--checkpoint", "")) else 0
    def say(kind, **more):
        life = time.monotonic() - begun
        out.write(json.dumps({"kind": kind, "time": time.time(), "steps": steps - first, "run_steps": steps, "samples": steps, "loss": 3.0, "life_s": life, "useful_s": 0.97 * life, **more}) + "\\n")
        out.flush()
    if "--run" in words:
        print("listening at 127.0.0.1:%d" % os.getpid(), flush=True)
        say("joined", loaded="--found" not in sys.argv, load_s=0.01)
    while not told.wait(0.02) and steps < int(words.get("--steps", 10**9)) and time.monotonic() - begun < float(words.get("--seconds", 1e9)):
        steps += 1
        if steps % 5 == 0:
            say("averaging", exact=True)
            if "--checkpoint" in words:
                open(words["--checkpoint"], "w").write(str(steps))
    if told.is_set() and "--checkpoint" in words:
        open(words["--checkpoint"], "w").write(str(steps))
    if not told.is_set():
        say("held_out", held_out=2.0)
    say("ended", why="told" if told.is_set() else "steps" if "--steps" in words else "seconds", hash="ab")
'''
TOOL = '''
    import os, sys
    if sys.argv[1] == "launch":
        os.execv(sys.argv[sys.argv.index("--") + 1], sys.argv[sys.argv.index("--") + 1:])
    print("0 0 join\\n0 1 join\\n0.5 1 kill\\n1 1 join\\n1.5 0 leave\\n2 1 stop\\n2.2 1 continue")
'''


class Processes(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.text = self.folder / "text.txt"
        self.text.write_text("".join(f"{number} times {number % 7} is {number * (number % 7)}\n" for number in range(3000)))

    def bench(self, build, *words, timeout):
        done = subprocess.run(
            [HERE / "elastic_training", "--text", self.text, "--build", build, "--out", self.folder / "out", *words],
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
        return done, json.loads((self.folder / "out/elastic_training.json").read_text())

    def events(self):
        return {path.stem: SCRIPT.read_lines(path) for path in (self.folder / "out/1/elastic").glob("*.jsonl")}

    def stand_ins(self):
        for path, program in (("unisono", TOOL), ("unisono-lab", TOOL), (SCRIPT.PROGRAM, STAND_IN)):
            path = self.folder / "build" / path
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"#!{sys.executable}\n" + textwrap.dedent(program))
            path.chmod(0o755)
        return self.folder / "build"

    def test_processes_come_and_go_as_the_trace_says_and_the_job_is_started_again_at_each_change(self):
        done, result = self.bench(self.stand_ins(), "-n", "2", "--peers-min", "1", "--seconds", "3", timeout=60)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        ways = result["runs"][0]["ways"]
        self.assertEqual(
            sorted(path.stem for path in (self.folder / "out/1/elastic").glob("*.log")), ["peer0-0", "peer1-0", "peer1-1"]
        )
        self.assertEqual(ways["steady"]["processes"], 2)
        self.assertEqual(
            len(list((self.folder / "out/1/restart").glob("job*.log"))),
            5,
            "a job for each time between two changes in which somebody is there",
        )
        self.assertEqual(
            {way: (found["held_out"], found["failed"]) for way, found in ways.items()}, {way: (2.0, []) for way in ways}
        )
        self.assertAlmostEqual(ways["elastic"]["useful"], 97)
        self.assertAlmostEqual(ways["steady"]["steps"], ways["elastic"]["steps"], delta=6)
        self.assertGreaterEqual(ways["restart"]["made"], ways["restart"]["steps"])
        self.assertIn(
            len((self.folder / "out/1/elastic/addresses").read_text().splitlines()),
            (2, 3),
            "one may have been killed before it said where it is",
        )
        self.assertIn("Loss within 1 % of steady: met", done.stdout)
        xml.etree.ElementTree.parse(self.folder / "out/elastic_training.svg")

    def test_a_process_that_fails_is_told(self):
        build = self.stand_ins()
        with (build / SCRIPT.PROGRAM).open("a") as file:
            file.write("if '--found' in sys.argv: sys.exit(3)\n")
        trace = self.folder / "trace"
        trace.write_text("0 0 join\n0 1 join\n")
        done, result = self.bench(build, "-n", "2", "--seconds", "0.5", "--ways", "elastic", "--trace", trace, timeout=60)
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertEqual(result["runs"][0]["ways"]["elastic"]["failed"], ["peer0-0"])
        self.assertIn("**Failed**: seed 1, elastic: peer0-0", done.stdout)

    @unittest.skipUnless(
        (BUILD / SCRIPT.PROGRAM).exists() and (BUILD / "unisono-lab").exists(), "train_elastic or unisono-lab was not built"
    )
    def test_a_short_run_of_real_processes_goes_on_while_they_come_and_go(self):
        trace = self.folder / "trace"
        trace.write_text("0 0 join\n0 1 join\n0 2 join\n4 2 kill\n7 2 join\n10 0 leave\n")
        done, result = self.bench(
            BUILD,
            "--quick",
            "-n",
            "3",
            "--seconds",
            "16",
            "--trace",
            trace,
            "--ways",
            "elastic",
            "--validation-sequences",
            "16",
            timeout=100,
        )
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        found = result["runs"][0]["ways"]["elastic"]
        self.assertEqual(found["processes"], 4)
        self.assertGreater(found["averaging_steps"], 4)
        self.assertGreaterEqual(found["loads"], 1)
        self.assertLess(found["held_out"], 4.5)
        # Those that end in the same averaging step have the same parameters; after the same time one may end a few averaging
        # steps later, and has only trained a little longer.
        ends = {
            name: lines
            for name, lines in self.events().items()
            if lines[-1]["kind"] == "ended" and lines[-1]["why"] == "seconds"
        }
        self.assertEqual(sorted(ends), ["peer1-0", "peer2-1"])
        last_averaging_steps = {
            name: [line["averaging"] for line in lines if line["kind"] == "averaging"][-1] for name, lines in ends.items()
        }
        same = len(set(last_averaging_steps.values())) == 1
        if same:
            self.assertEqual(len(found["hashes"]), 1, last_averaging_steps)
        losses = [[line["held_out"] for line in lines if line["kind"] == "held_out"][-1] for lines in ends.values()]
        self.assertLess(max(losses) - min(losses), 0.0001 if same else 0.5, last_averaging_steps)


if __name__ == "__main__":
    unittest.main()

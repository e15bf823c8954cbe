#!/usr/bin/env python3
"""bench/torch_collectives: what it makes of blocks and probes, its marks, its barrier; and, where this Python has torch and the
project's module, a short run of real ranks."""

import json
import multiprocessing
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

from torch_lib import board, collectives_page as page, plot, processes  # noqa: E402


def block(work, arm, p50_us, number=0, p99_us=None):
    return {
        "work": work["key"],
        "arm": arm,
        "pass": 0,
        "round": number,
        "p50_us": p50_us,
        "p99_us": p99_us or 2 * p50_us,
        "calls": 10,
    }


def probe(work, number=0, idle=1.0, copy_gbs=10.0):
    return {"work": work["key"], "pass": 0, "round": number, "idle": idle, "steal": 0.0, "copy_gbs": copy_gbs}


class Page(unittest.TestCase):
    def setUp(self):
        self.work = page.works(2, [1024], ["library"])[0]

    def row(self, blocks, probes=()):
        page.mark_probes(probes)
        return page.rows_of([self.work], blocks, probes)[0]

    def test_disturbed_rounds_are_left_out_where_there_are_others(self):
        blocks = [block(self.work, "gloo", 300, 0), block(self.work, "gloo", 900, 1)]
        row = self.row(blocks, [probe(self.work, 0), probe(self.work, 1, idle=0.3)])
        self.assertEqual((row["cells"]["gloo"]["p50_us"], row["cells"]["gloo"]["disturbed"]), (300, False))
        row = self.row(blocks, [probe(self.work, 0, idle=0.2), probe(self.work, 1, idle=0.3)])
        self.assertEqual((row["cells"]["gloo"]["p50_us"], row["cells"]["gloo"]["disturbed"]), (600, True))

    def test_marks_are_met_or_missed(self):
        row = self.row(
            [block(self.work, "gloo", 300), block(self.work, "unisono", 10), block(self.work, "tcp", 30, p99_us=100)]
        )
        self.assertEqual(
            [(one["value"], one["mark"], one["met"]) for one in page.marks_of([row])],
            [(30, 30, True), (2, 3, True), (10, 12, False), (100 / 30, 3, False)],
        )

    def test_what_was_not_measured_is_open(self):
        row = self.row([block(self.work, "unisono", 10)])
        self.assertEqual([one["met"] for one in page.marks_of([row])], [None, True, None])
        self.assertIn("-", page.stack_table([row])[1])

    def test_types_are_compared_by_bytes_per_second(self):
        self.work = page.works(4, [1 << 20], ["dtype"])[0]
        row = self.row(
            [
                block(self.work, "unisono float32", 90),
                block(self.work, "unisono bfloat16", 100),
                block(self.work, "unisono float16", 120),
            ]
        )
        self.assertEqual([(round(one["value"], 2), one["met"]) for one in page.marks_of([row])], [(0.9, True), (0.75, False)])

    def test_a_call_costs_what_it_takes_above_the_tool(self):
        self.work = page.works(1, None, ["binding"])[0]
        row = self.row([block(self.work, "torch", 6.5), block(self.work, "tool", 1.0)])
        self.assertEqual([(one["value"], one["met"]) for one in page.marks_of([row])], [(5.5, True)])

    def test_a_picture_is_one(self):
        colours = plot.colours_of(["a", "b"])
        text = plot.picture(
            "h",
            [
                lambda x, y: plot.panel("t", [("a", [(1, 10), (1000, 2e4)])], x, y, colours, (True, str), (True, str)),
                lambda x, y: plot.panel("t", [("b", [(0, 1)])], x, y, colours, (False, str), (False, str)),
                lambda x, y: plot.panel("empty", [("b", [])], x, y, colours, (False, str), (False, str)),
                lambda x, y: plot.bar_panel("t", [("a", 1.0, "1 s")], x, y, colours),
            ],
            colours,
        )
        xml.etree.ElementTree.fromstring(text)


def meet_often(path, rank, world, queue):
    mine = board.Board(path, rank, world, patience_s=20)
    means = []
    for number in range(50):
        mine.meet()
        means.append(mine.mean_of_ranks([rank + number, 2.0 * rank])[0])
        assert mine.agree(number if rank == 0 else -1) == number
    mine.rest()
    queue.put(means)


class Ranks(unittest.TestCase):
    def test_they_meet_and_agree(self):
        context = multiprocessing.get_context("spawn")
        with tempfile.TemporaryDirectory() as folder:
            queue = context.Queue()
            ranks = [
                context.Process(target=meet_often, args=(os.path.join(folder, "board"), rank, 3, queue)) for rank in range(3)
            ]
            for rank in ranks:
                rank.start()
            for _ in ranks:
                self.assertEqual(queue.get(timeout=60), [1.0 + number for number in range(50)])
            for rank in ranks:
                rank.join(timeout=20)

    def test_who_waits_in_vain_says_so(self):
        with tempfile.TemporaryDirectory() as folder:
            alone = board.Board(os.path.join(folder, "board"), 0, 2, patience_s=0.05)
            for wait in (alone.meet, alone.rest):
                with self.assertRaisesRegex(board.RankLost, "rank 0 waited"):
                    wait()

    def test_the_first_to_fail_ends_all(self):
        waits, fails = "import signal; signal.pause()", "import sys; sys.exit('words of the end')"
        with self.assertRaisesRegex(processes.JobFailed, "words of the end"):
            processes.run_job([([sys.executable, "-c", program], {}) for program in (waits, fails)], 30, lambda line: None)

    def test_lines_of_rank_0_are_handed_on(self):
        lines = []
        processes.run_job(
            [([sys.executable, "-c", f"print('{{\"rank\": {rank}}}'); print('words')"], {}) for rank in range(2)],
            30,
            lines.append,
        )
        self.assertEqual(lines, [{"rank": 0}])


@unittest.skipUnless(processes.has_backend(), "SKIPPED: this Python has no torch with the backend unisono")
class Real(unittest.TestCase):
    def test_a_short_run_is_right_and_writes_its_results(self):
        with tempfile.TemporaryDirectory() as folder:
            argv = [
                sys.executable,
                str(HERE / "torch_collectives"),
                "--quick",
                "--n",
                "2",
                "--sizes",
                "1K,64K",
                "--seconds",
                "0.01",
                "--limit",
                "100",
                "--out",
                folder,
                "--tool",
                "/nowhere",
            ]
            answer = subprocess.run(argv, capture_output=True, text=True, timeout=110)
            self.assertEqual(answer.returncode, 0, answer.stdout + answer.stderr)
            data = json.loads((pathlib.Path(folder) / "torch_collectives-part.json").read_text())
            self.assertEqual(
                {row["key"] for row in data["summary"]},
                {
                    "library 2 all_reduce 1024",
                    "library 2 all_reduce 65536",
                    "library 2 all_gather 65536",
                    "library 2 reduce_scatter 65536",
                    "binding 2 all_reduce 1024",
                },
            )
            self.assertEqual(data["troubles"], [])
            self.assertIn("## Marks", (pathlib.Path(folder) / "torch_collectives-part.md").read_text())
            xml.etree.ElementTree.parse(pathlib.Path(folder) / "torch_collectives-part.svg")


if __name__ == "__main__":
    unittest.main()

#!/usr/bin/env python3
"""The parts of bench/versus that decide: what counts as best, what is left out, what is ended, what a limit is."""

import os
import sys
import time
import types
import unittest
import xml.etree.ElementTree

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

from versus_lib import child, compare, machine, peers, plot, profile, report  # noqa: E402


def result(us, size=1024):
    return {"bytes": size, "median_us": us, "p99_us": us * 2, "min_us": us / 2, "calls": 10}


def record(peer, us, number=0, variant="own choice", status="ok", wrong="", size=1024):
    return {"peer": peer, "transport": "shm", "n": 2, "variant": variant, "sizes": [size], "status": status, "round": number,
            "wrong_transport": wrong, "results": [] if us is None else [result(us, size)]}


def probe(number, off=""):
    return {"transport": "shm", "n": 2, "round": number, "off": off, "idle": 1.0, "steal": 0.0, "copy_gbs": 20.0}


def comparison(records, probes=(), names=("unisono", "openmpi", "mpich"), sizes=(1024,)):
    options = types.SimpleNamespace(peers=list(names), sizes=list(sizes), transports=["shm"], n=[2])
    made = compare.Comparison(options, {}, "", 2, print)
    made.records, made.probes = list(records), list(probes)
    return made


LIMITS = {"hand_over_us": 0.1, "tcp_byte_us": 5.0, "workers": 2,
          "sizes": {"1024": {"copy_gbs": 100.0, "copy_workers_gbs": 200.0, "tcp_exchange_us": 5.0},
                    "67108864": {"copy_gbs": 20.0, "copy_workers_gbs": 20.0, "tcp_exchange_us": 24000.0}}}


class Summary(unittest.TestCase):
    def row(self, *arguments, **more):
        return report.summarise(comparison(*arguments, **more), LIMITS)[0]

    def test_the_ratio_is_the_best_peer_over_ours(self):
        row = self.row([record("unisono", 10), record("openmpi", 15), record("mpich", 40)])
        self.assertEqual((row["best_peer"], row["ratio"]), ("openmpi", 1.5))

    def test_the_best_setting_of_a_peer_counts(self):
        row = self.row([record("unisono", 10), record("openmpi", 15), record("openmpi", 5, variant="ucx")])
        self.assertEqual((row["cells"]["openmpi"]["variant"], row["ratio"]), ("ucx", 0.5))

    def test_it_is_the_median_over_the_rounds(self):
        row = self.row([record("unisono", us, number) for number, us in enumerate((10, 90, 11))] + [record("openmpi", 22)])
        self.assertEqual(row["cells"]["unisono"]["median_us"], 11)
        self.assertEqual((row["cells"]["unisono"]["low_us"], row["cells"]["unisono"]["high_us"]), (10, 90))

    def test_disturbed_rounds_are_left_out_unless_all_are(self):
        records = [record("unisono", 10, 0), record("unisono", 90, 1)]
        self.assertEqual(self.row(records, [probe(0), probe(1, "idle 20%")])["cells"]["unisono"]["high_us"], 10)
        self.assertEqual(self.row(records, [probe(0, "x"), probe(1, "x")])["cells"]["unisono"]["high_us"], 90)

    def test_a_run_over_the_wrong_transport_does_not_count(self):
        row = self.row([record("unisono", 10), record("openmpi", 5, wrong="said tcp"), record("mpich", 20)])
        self.assertEqual((row["best_peer"], row["cells"]["openmpi"]["missing"]), ("mpich", "said tcp"))

    def test_a_peer_that_does_not_finish_is_named_and_not_compared(self):
        row = self.row([record("unisono", 10), record("openmpi", None, status="not finished in 5 s")])
        self.assertEqual((row["ratio"], row["best_peer"]), (None, None))
        self.assertEqual(report.cell_text(row["cells"]["openmpi"]), "not finished in 5 s")
        self.assertEqual(report.cell_text(row["cells"]["mpich"]), "-")

    def test_tables_and_plot_take_missing_cells(self):
        made = comparison([record("unisono", 10), record("openmpi", None, status="failed (1): no")], [probe(0)])
        rows = report.summarise(made, None)
        lines = report.table(rows, made.options.peers)
        self.assertEqual({len(line) for line in lines}, {len(lines[0])})
        xml.etree.ElementTree.fromstring(plot.svg(rows, made.options.peers, "a < b & c"))


    def test_axes_name_powers_of_ten(self):
        self.assertEqual([plot.decade_text(decade) for decade in (-2, 0, 2, 3, 5, 6)],
                         ["0.01 us", "1 us", "100 us", "1 ms", "100 ms", "1 s"])


class Limits(unittest.TestCase):
    def test_shared_memory_must_move_every_tensor_once(self):
        us, why = report.limit_us(LIMITS, "shm", 4, 64 << 20, 2)
        self.assertAlmostEqual(us, 4 * 67.108864e6 / 20e9 * 1e6)
        self.assertEqual(why, "memory")
        self.assertEqual(report.limit_us(LIMITS, "shm", 2, 1024, 2), (0.1, "hand-over"))

    def test_loopback_must_move_two_tensors_per_rank_but_one(self):
        self.assertEqual(report.limit_us(LIMITS, "tcp", 2, 64 << 20, 2)[0], 24000.0)
        self.assertEqual(report.limit_us(LIMITS, "tcp", 4, 64 << 20, 2)[0], 72000.0)
        self.assertEqual(report.limit_us(LIMITS, "tcp", 4, 64 << 20, 4)[0], 36000.0)

    def test_the_best_of_several_measurements_counts(self):
        slow = {"hand_over_us": 9, "tcp_byte_us": 9, "workers": 2,
                "sizes": {size: {"copy_gbs": 1, "copy_workers_gbs": 1, "tcp_exchange_us": 1e9} for size in LIMITS["sizes"]}}
        self.assertEqual(machine.best_limits([slow, LIMITS, None]), LIMITS)
        self.assertIsNone(machine.best_limits([None]))


class Probes(unittest.TestCase):
    def test_busy_stolen_or_slow_rounds_are_marked(self):
        probes = [probe(number) for number in range(6)]
        probes[1]["idle"], probes[2]["steal"], probes[3]["copy_gbs"] = 0.5, 0.1, 9.0
        made = comparison([], probes)
        made.mark_probes()
        self.assertEqual([bool(entry["off"]) for entry in made.probes], [False, True, True, True, False, False])

    def test_the_loopback_device_tells_the_transport(self):
        wrong = compare.Comparison.wrong_transport
        self.assertTrue(wrong("tcp", 64 << 20, 1000))
        self.assertFalse(wrong("tcp", 64 << 20, 2 * (64 << 20)))
        self.assertFalse(wrong("tcp", 1024, 0), "too little to tell")
        self.assertFalse(wrong("shm", 64 << 20, 1 << 30), "others may use loopback")


class Profile(unittest.TestCase):
    def test_the_harness_is_left_out_and_the_rest_is_the_whole(self):
        text = "# head\n 60.00%|[.] unisono::bench::run|a|\n 30.00%|[.] add|a|\n 10.00%|[k] copy|[kernel]|\n"
        lines = profile.top(text)
        self.assertEqual([line.split()[0] for line in lines[:2]], ["75.0%", "25.0%"])
        self.assertIn("60.0 %", lines[2])


class Settings(unittest.TestCase):
    def test_every_peer_has_settings_for_every_case_but_gloo_for_shm(self):
        for transport in ("shm", "tcp"):
            for n in (2, 4):
                for quick in (False, True):
                    case = peers.Case(transport, n, 2)
                    for peer in ("unisono", *peers.PEERS):
                        found = peers.variants(peer, case, quick)
                        self.assertEqual(bool(found), (peer, transport) != ("gloo", "shm"), (peer, case))
                        self.assertEqual(len({variant.name for variant in found}), len(found))

    def test_near_ties_and_the_own_choice_go_into_the_rounds(self):
        a, b, c, d = (peers.Variant(name) for name in "abcd")
        picked = compare.Comparison.pick([a, b, c, d], {"a": 30.0, "b": 10.0, "c": 11.0, "d": 12.0})
        self.assertEqual(picked, [b, c, a])
        self.assertEqual(compare.Comparison.pick([a, b], {}), [a])


class Children(unittest.TestCase):
    def run_shell(self, *scripts, limit=20):
        start = time.monotonic()
        outcome = child.run([child.Command(["sh", "-c", script]) for script in scripts], limit)
        return outcome, time.monotonic() - start

    def test_output_and_success(self):
        outcome, _ = self.run_shell("echo one", "echo two")
        self.assertEqual((outcome.status, sorted(outcome.output.split())), ("ok", ["one", "two"]))

    def test_the_first_to_fail_ends_the_others_with_its_last_words(self):
        outcome, seconds = self.run_shell("echo no such thing >&2; exit 3", "exec tail -f /dev/null")
        self.assertEqual(outcome.status, "failed (3): no such thing")
        self.assertLess(seconds, 10)

    def test_time_ends_a_group_of_processes(self):
        outcome, seconds = self.run_shell("tail -f /dev/null & echo $!; wait", limit=0.3)
        self.assertEqual(outcome.status, "not finished in 0.3 s")
        self.assertLess(seconds, 10)
        grandchild = int(outcome.output.split()[0])
        deadline = time.monotonic() + 5
        while os.path.exists(f"/proc/{grandchild}/cmdline") and time.monotonic() < deadline:
            with open(f"/proc/{grandchild}/stat") as file:
                if file.read().rsplit(")", 1)[1].split()[0] == "Z":
                    break
        else:
            self.assertFalse(os.path.exists(f"/proc/{grandchild}/cmdline"), "the grandchild lives")


if __name__ == "__main__":
    unittest.main()

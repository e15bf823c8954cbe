#!/usr/bin/env python3
"""The parts of bench/versus that decide: what counts as best, what is left out, what is ended, what a limit is, what a mark
is."""

import json
import os
import struct
import subprocess
import sys
import tempfile
import types
import unittest
import unittest.mock
import xml.etree.ElementTree

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

from versus_lib import child, compare, machine, network, peers, plot, profile, report, suites, summarise  # noqa: E402
from versus_lib.model import Case, Contender, Variant, Work  # noqa: E402

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
KIB = Work("all_reduce", 1024)


def result(us, work=KIB):
    return {"work": work.key, "job": 0, "bytes": work.bytes, "median_us": us, "p99_us": us * 2, "min_us": us / 2, "calls": 10}


def record(contender, us, number=0, variant="own choice", status="ok", wrong="", work=KIB, case="shm n=2", **more):
    return {"contender": contender, "case": case, "variant": variant, "works": [work.key], "status": status, "round": number,
            "wrong_transport": wrong, "hand_over_us": 0.1, "results": [] if us is None else [result(us, work)], **more}


def probe(number, off="", case="shm n=2"):
    return {"case": case, "round": number, "off": off, "idle": 1.0, "steal": 0.0, "copy_gbs": 20.0}


def comparison(records, probes=(), names=("unisono", "openmpi", "mpich"), works=(KIB,), suite="all-reduce", n=(2,),
               transports=("shm",)):
    options = types.SimpleNamespace(
        contenders=list(names), works=list(works), transports=list(transports), n=list(n), quick=True
    )
    libraries = {"probe": "false", **{Contender.parse(name).implementation: ["program"] for name in names}}
    made = compare.Comparison(suites.BY_NAME[suite], options, libraries, 2, print)
    made.records, made.probes = list(records), list(probes)
    return made


LIMITS = {
    "hand_over_us": 0.1,
    "tcp_byte_us": 5.0,
    "workers": 2,
    "sizes": {
        "1024": {"copy_gbs": 100.0, "copy_workers_gbs": 200.0, "tcp_exchange_us": 5.0},
        "67108864": {"copy_gbs": 20.0, "copy_workers_gbs": 20.0, "tcp_exchange_us": 24000.0, "slot_exchange_us": 10000.0},
    },
}


class Summary(unittest.TestCase):
    def row(self, *arguments, **more):
        return summarise.summarise(comparison(*arguments, **more), LIMITS)[0]

    def compared(self, *arguments, **more):
        first = self.row(*arguments, **more)["comparisons"][0]
        return first["against"], first["ratio"]

    def test_the_ratio_is_the_best_peer_over_ours(self):
        self.assertEqual(self.compared([record("unisono", 10), record("openmpi", 15), record("mpich", 40)]), ("openmpi", 1.5))

    def test_the_best_setting_of_a_peer_counts(self):
        row = self.row([record("unisono", 10), record("openmpi", 15), record("openmpi", 5, variant="ucx")])
        self.assertEqual((row["cells"]["openmpi"]["variant"], row["comparisons"][0]["ratio"]), ("ucx", 0.5))

    def test_it_is_the_median_over_the_rounds(self):
        row = self.row([record("unisono", us, number) for number, us in enumerate((10, 90, 11))] + [record("openmpi", 22)])
        self.assertEqual(row["cells"]["unisono"]["median_us"], 11)
        self.assertEqual((row["cells"]["unisono"]["low_us"], row["cells"]["unisono"]["high_us"]), (10, 90))

    def test_disturbed_rounds_are_left_out_unless_all_are(self):
        records = [record("unisono", 10, 0), record("unisono", 90, 1)]
        self.assertEqual(self.row(records, [probe(0), probe(1, "idle 20%")])["cells"]["unisono"]["high_us"], 10)
        self.assertEqual(self.row(records, [probe(0, "x"), probe(1, "x")])["cells"]["unisono"]["high_us"], 90)

    def test_a_run_over_the_wrong_transport_does_not_count(self):
        records = [record("unisono", 10), record("openmpi", 5, wrong="said tcp"), record("mpich", 20)]
        self.assertEqual(self.compared(records), ("mpich", 2.0))
        self.assertEqual(self.row(records)["cells"]["openmpi"]["missing"], "said tcp")

    def test_a_peer_that_does_not_finish_is_named_and_not_compared(self):
        row = self.row([record("unisono", 10), record("openmpi", None, status="not finished in 5 s")])
        self.assertEqual((row["comparisons"][0]["ratio"], row["comparisons"][0]["met"]), (None, None))
        self.assertEqual(report.cell_text(row["cells"]["openmpi"]), "not finished in 5 s")
        self.assertEqual(report.cell_text(row["cells"]["mpich"]), "-")

    def test_a_peer_that_is_not_there_is_called_not_installed(self):
        made = comparison([record("unisono", 10)])
        del made.programs["mpich"]
        self.assertEqual(report.cell_text(summarise.summarise(made, LIMITS)[0]["cells"]["mpich"]), "not installed")

    def test_a_peer_that_was_ended_inside_a_job_counts_by_what_its_calls_took_at_least(self):
        ended = record("openmpi", None, status="not finished in 5 s", unfinished={"work": KIB.key, "more_than_us": 50.0})
        row = self.row([record("unisono", 10), ended])
        self.assertEqual(report.cell_text(row["cells"]["openmpi"]), "> 50.0 us")
        self.assertEqual(report.mark_text(row["comparisons"][0]), "> 5.00 (1.20 met)")
        slower = self.row([record("unisono", 100), ended])
        self.assertEqual(report.mark_text(slower["comparisons"][0]), "> 0.50 (1.20 open)", "at least half is no verdict on 1.2")
        finished = self.row([record("unisono", 10), ended, record("mpich", 80)])
        close = summarise.summarise(comparison([record("unisono", 10), record("openmpi", 11.99)]), LIMITS)[0]
        self.assertEqual(
            report.mark_text(close["comparisons"][0]), "1.1990 (1.20 missed)", "a miss does not look like the mark"
        )
        self.assertEqual(
            report.mark_text(finished["comparisons"][0]), "8.00 (1.20 met)", "who has finished is compared with first"
        )

    def test_tables_and_plot_take_missing_cells(self):
        for suite in suites.EVERY:
            if suite.idle:
                continue
            records = [record("unisono", 10), record("openmpi", None, status="failed (1): no")]
            made = comparison(records, [probe(0)], suite.contenders, suite.works, suite.name)
            rows = summarise.summarise(made, None)
            lines = report.table(rows, made.options.contenders)
            self.assertEqual({len(line) for line in lines}, {len(lines[0])})
            xml.etree.ElementTree.fromstring(plot.svg(rows, made.options.contenders, "a < b & c"))

    def test_axes_name_powers_of_ten(self):
        self.assertEqual([plot.decade_text(decade) for decade in (-2, 0, 2, 3, 5, 6)],
                         ["0.01 us", "1 us", "100 us", "1 ms", "100 ms", "1 s"])


class Marks(unittest.TestCase):
    def test_all_reduce_is_held_against_the_marks_of_its_size(self):
        wanted, = suites.BY_NAME["all-reduce"].comparisons
        for place, marks in (("shm 2", (1.2, 1.4, 1.4, 1.6, 2.5)), ("tcp 4", (0.9,) * 5)):
            case = Case(place.split()[0], int(place.split()[1]), 2)
            self.assertEqual(tuple(wanted.marks(case, Work("all_reduce", size)) for size in suites.SIZES), marks)
        self.assertIsNone(wanted.marks(Case("shm", 3, 2), KIB), "no mark for what was not asked")
        self.assertIsNone(wanted.marks(Case("shm", 2, 2), Work("all_reduce", 4096)))

    def test_a_mark_is_met_at_its_value_and_missed_below(self):
        for us, met in ((12.0, True), (11.9, False)):
            row = summarise.summarise(comparison([record("unisono", 10), record("openmpi", us)]), LIMITS)[0]
            self.assertEqual(row["comparisons"][0]["met"], met, us)

    def test_a_thin_link_is_held_against_one_stream(self):
        made = comparison([record("unisono", 1000.0, case="tcp n=4, 1 Gbit/s", work=Work("all_reduce", 64 << 20))], (),
                          ("unisono",), [Work("all_reduce", 64 << 20)], "limited", (4,), ("tcp",))
        goodput = {"round": 0, "one_mbs": 1.5 * (64 << 20) / 990, "ring_mbs": 1.5 * (64 << 20) / 1200}
        made.goodputs = {"tcp n=4, 1 Gbit/s": [goodput]}
        row = summarise.summarise(made, None)[0]
        self.assertAlmostEqual(row["comparisons"][0]["ratio"], 0.99)
        self.assertAlmostEqual(row["comparisons"][1]["ratio"], 1.2)
        self.assertTrue(row["comparisons"][0]["met"])

    def test_the_machines_own_limit_is_enough_where_that_is_said(self):
        for network, us, met in (("10 Gbit/s", 1300.0, True), ("10 Gbit/s", 1400.0, False), ("1 Gbit/s", 1300.0, False)):
            case = f"tcp n=4, {network}"
            made = comparison([record("unisono", us, case=case, work=Work("all_reduce", 64 << 20))], (),
                              ("unisono",), [Work("all_reduce", 64 << 20)], "limited", (4,), ("tcp",))
            made.goodputs = {case: [{"round": 0, "one_mbs": 1.5 * (64 << 20) / 800, "ring_mbs": 1.5 * (64 << 20) / 1200}]}
            row, = [row for row in summarise.summarise(made, None) if row["network"] == network]
            compared = row["comparisons"][0]
            self.assertLess(compared["ratio"], compared["mark"])
            self.assertEqual(compared["met"], met, (network, us))
            self.assertEqual("of the machine's own" in report.mark_text(compared), network == "10 Gbit/s")

    def test_an_idle_group_must_use_nothing(self):
        for cpu, switches, met in ((0.049, 0.0, True), (0.051, 0.0, False), (0.0, 1.0, False)):
            idle = {"seconds": 5, "cpu_percent_max": cpu, "switches_per_second_max": switches}
            made = comparison([record("unisono", 1, case="shm n=4", idle=idle)], (), ("unisono", "gloo"), (KIB,), "idle", (4,))
            row, = summarise.idle_rows(made)
            self.assertEqual(row["met"], met)
            self.assertEqual(report.idle_table([row], ["unisono", "gloo"])[1][-1], "met" if met else "missed")
            xml.etree.ElementTree.fromstring(plot.svg([row], ["unisono", "gloo"], "idle"))

    def test_the_page_of_marks_counts_what_was_measured_and_names_what_was_not(self):
        made = comparison([record("unisono", 10), record("openmpi", 15)], [probe(0)])
        facts = {
            "time": "now",
            "commit": "c",
            "cpu": "x",
            "cores": 2,
            "kernel": "k",
            "congestion_control": "cubic",
            "packages": {},
        }
        data = {"suite": "all-reduce", "machine": facts, "summary": summarise.summarise(made, LIMITS), "probes": made.probes,
                "options": {"contenders": made.options.contenders}, "troubles": {}, "records": made.records}
        with tempfile.TemporaryDirectory() as folder:
            with open(os.path.join(folder, "all-reduce.json"), "w") as file:
                json.dump(data, file)
            page = report.summary_page(folder)
        self.assertIn("Marks met: 1, missed: 0, open (no result of a peer): 0.", page)
        self.assertIn("| shm n=2 all-reduce 1 KiB | best peer ÷ ours | 1.50 | 1.20 | met |", page)
        self.assertIn("Not measured: `bench/versus --suite limited`.", page)
        self.assertIn("# All-reduce beside its peers", report.markdown(data))

    def test_a_suite_that_was_not_measured_again_keeps_its_section_and_its_marks(self):
        section = (
            "## Thin links\n\n2026-01-01, x.\n\n| what | measure | reached | mark |  | ours |\n|---|---|---|---|---|---|\n"
            "| a | b | 1.50 | 1.20 | met | c |\n| a | b | 0.50 | 1.20 | **missed** | c |"
        )
        section = section.replace("Thin links", suites.BY_NAME["limited"].title)
        with tempfile.TemporaryDirectory() as folder:
            page = "# Marks\n\n" + section + "\n"
            for _ in range(2):  # the second time, it reads the page that it wrote
                with open(os.path.join(folder, "marks.md"), "w") as file:
                    file.write(page)
                page = report.summary_page(folder)
                self.assertIn("Marks met: 1, missed: 1, open (no result of a peer): 0.", page)
                self.assertIn(section, page)


class Words(unittest.TestCase):
    def test_contenders_keep_their_names(self):
        for name in ("unisono", "openmpi", "unisono:ring+any", "unisono:bf16", "openmpi:8_parts",
                     "unisono:fp16+2_parts+pinned+strict"):
            self.assertEqual(Contender.parse(name).name, name)
        for name in ("nccl", "openmpi:ring", "gloo:pinned", ""):
            with self.assertRaises(ValueError):
                Contender.parse(name)

    def test_a_size_is_a_number_of_elements_whatever_their_type_and_however_they_are_divided(self):
        work = Work("all_reduce", 1 << 20)
        for name, entry in (("unisono", "1048576"), ("unisono:bf16", "bf16/524288"), ("unisono:fp16", "f16/524288"),
                            ("unisono:8_parts", "8x131072")):
            self.assertEqual(work.entry(Contender.parse(name), ""), entry)
        self.assertEqual(Work("all_gather", 1024).entry(Contender.parse("unisono"), "ring"), "all_gather/1024=ring")

    def test_what_must_leave_a_rank(self):
        self.assertEqual(Work("all_reduce", 100).crossing(4), 600)
        self.assertEqual(Work("all_to_all", 100).crossing(4), 300)


class Progress(unittest.TestCase):
    def test_the_board_tells_how_far_a_run_came(self):
        with tempfile.TemporaryDirectory() as folder:
            board = os.path.join(folder, "board")
            self.assertIsNone(compare.how_far(board, 10.0), "no board")
            for calls, expected in ((4, (1, 500000.0)), (0, None)):
                with open(board, "wb") as file:
                    file.write(bytes(compare.BOARD_PROGRESS_AT) + struct.pack("<IIQ", 1, calls, 8_000_000_000))
                self.assertEqual(compare.how_far(board, 10.0), expected)


    def launched(self, *cut_off, limit, rounds=1):
        """The works of every process group that is started for four works, of which some never end."""
        works = [Work("all_reduce", 1 << shift) for shift in (10, 11, 12, 13)]
        made, started = comparison([], works=works), []
        made.options.limit = 60

        def launch(contender, case, variant, tried, *_):
            started.append([work.bytes >> 10 for work in tried])
            stuck = next((work for work in tried if work.bytes >> 10 in cut_off), None)
            return {"unfinished": {"work": stuck.key}} if stuck else {}
        made.launch = launch
        for _ in range(rounds):
            list(made.launch_each(Contender.parse("gloo"), Case("tcp", 2, 2), Variant("x"), works, 1, 0, limit))
        return started

    def test_a_work_that_takes_all_the_time_does_not_cost_those_after_it(self):
        self.assertEqual(self.launched(limit=60), [[1, 2, 4, 8]])
        self.assertEqual(self.launched(2, limit=60), [[1, 2, 4, 8], [4, 8]])
        self.assertEqual(self.launched(1, 8, limit=60), [[1, 2, 4, 8], [2, 4, 8]])

    def test_it_is_tried_at_the_full_limit_once(self):
        self.assertEqual(self.launched(2, limit=60, rounds=2), [[1, 2, 4, 8], [4, 8], [1, 4, 8]])
        self.assertEqual(
            self.launched(2, limit=10, rounds=2), [[1, 2, 4, 8], [4, 8]] * 2, "tuning has less time and decides nothing"
        )


class Limits(unittest.TestCase):
    def limit(self, transport, n, collective="all_reduce", size=64 << 20, cores=2):
        return summarise.limit_us(LIMITS, Case(transport, n, cores), Work(collective, size), size)

    def test_shared_memory_must_move_every_tensor_once(self):
        us, why = self.limit("shm", 4)
        self.assertAlmostEqual(us, 4 * 67.108864e6 / 20e9 * 1e6)
        self.assertEqual(why, "memory")
        self.assertEqual(self.limit("shm", 2, size=1024), (0.1, "hand-over"))
        self.assertAlmostEqual(self.limit("shm", 4, "all_gather")[0], us * 5 / 8)
        self.assertAlmostEqual(self.limit("shm", 4, "broadcast")[0], us / 2)

    def test_what_ranks_exchange_through_memory_is_told_where_it_was_measured(self):
        def exchange(transport, n, collective="all_reduce", size=64 << 20, cores=2):
            return summarise.exchange_us(LIMITS, Case(transport, n, cores), Work(collective, size), size)
        self.assertEqual(exchange("shm", 2), 10000.0)
        self.assertEqual(exchange("shm", 4), 30000.0)
        self.assertEqual(exchange("shm", 2, "broadcast"), 5000.0)
        for unknown in (exchange("tcp", 2), exchange("shm", 2, size=1024), exchange("shm", 2, cores=1)):
            self.assertIsNone(unknown)
        row = {"limit_us": 6000.0, "limit": "memory", "exchange_us": 10000.0}
        self.assertEqual(report.limit_text(row), "6.00 ms memory, exchange 10.0 ms")

    def test_loopback_must_move_two_tensors_per_rank_but_one(self):
        self.assertEqual(self.limit("tcp", 2)[0], 24000.0)
        self.assertEqual(self.limit("tcp", 4)[0], 72000.0)
        self.assertEqual(self.limit("tcp", 4, cores=4)[0], 36000.0)
        self.assertEqual(self.limit("tcp", 4, "all_to_all")[0], 36000.0)

    def test_the_best_of_several_measurements_counts(self):
        slow = {
            "hand_over_us": 9,
            "tcp_byte_us": 9,
            "workers": 2,
            "sizes": {
                size: {name: 1 if name.endswith("_gbs") else 1e9 for name in row} for size, row in LIMITS["sizes"].items()
            },
        }
        self.assertEqual(machine.best_limits([slow, LIMITS, None]), LIMITS)
        self.assertIsNone(machine.best_limits([None]))


class Probes(unittest.TestCase):
    def test_busy_stolen_or_slow_rounds_are_marked(self):
        probes = [probe(number) for number in range(6)]
        probes[1]["idle"], probes[2]["steal"], probes[3]["copy_gbs"] = 0.5, 0.1, 9.0
        made = comparison([], probes)
        made.mark_probes()
        self.assertEqual([bool(entry["off"]) for entry in made.probes], [False, True, True, True, False, False])

    def test_a_run_while_the_cores_were_apart_counts_only_if_there_is_no_other(self):
        apart = {"hand_over_us": 0.3}
        records = [record("unisono", 10), {**record("unisono", 50, 1), **apart}, {**record("openmpi", 20), **apart}]
        made = comparison(records, [probe(0), probe(1)])
        made.mark_probes()
        cells = summarise.summarise(made, LIMITS)[0]["cells"]
        self.assertEqual([report.cell_text(cells[name]) for name in ("unisono", "openmpi")], ["10.0 us ±0%", "20.0 us ±0%!"])

    def test_it_is_repeated_twice_at_most_if_they_have_been_together_before(self):
        for best, after, started in ((0.1, [0.3, 0.1, 0.1], 3), (0.1, [0.3, 0.3, 0.3], 3), (0.1, [0.1], 1), (0.3, [0.3], 1)):
            made, answers, launched = comparison([]), iter(after), []
            made.hand_overs = [best]
            made.launch_once = lambda *_: launched.append(1) or {}
            with unittest.mock.patch.object(machine, "hand_over_us", lambda _: next(answers)):
                made.launch(None, None, None, [], 1, 0, 1)
            self.assertEqual(len(launched), started, (best, after))

    def test_a_moment_in_which_they_share_a_core_is_not_what_others_are_measured_by(self):
        self.assertEqual(compare.usual_best([0.03, *[0.07] * 9, 0.3]), 0.07)
        self.assertEqual(compare.usual_best([0.3, 0.07]), 0.07)

    def test_the_bytes_moved_tell_the_transport(self):
        wrong = compare.Comparison.wrong_transport
        self.assertTrue(wrong("tcp", 64 << 20, 1000))
        self.assertFalse(wrong("tcp", 64 << 20, 2 * (64 << 20)))
        self.assertFalse(wrong("tcp", 1024, 0), "too little to tell")
        self.assertFalse(wrong("shm", 64 << 20, 1 << 30), "others may use loopback")

    def test_sixteen_bit_elements_need_half_of_the_bytes(self):
        for moved, right in ((2 * 12 * (1 << 20), True), (12 * (1 << 20), False)):
            mine = {**record("unisono:bf16", 10, work=Work("all_reduce", 2 << 20)), "bytes_moved": moved}
            made = comparison([], names=("unisono:bf16",))
            made.examine(mine, Contender.parse("unisono:bf16"), Case("tcp", 2, 2), [Work("all_reduce", 2 << 20)])
            self.assertEqual(not mine["wrong_transport"], right)


class Networks(unittest.TestCase):
    def test_limits_are_in_bits_and_hold_two_aggregates(self):
        words = network.shaping(1_000_000_000)
        self.assertEqual(words[:3], ["tbf", "rate", "1000000000bit"])
        self.assertGreaterEqual(int(words[words.index("burst") + 1]), 2 * 65536)
        self.assertEqual(network.shaping(0), [])
        self.assertEqual(set(network.RATES), set(suites.BY_NAME["limited"].networks))

    @unittest.skipIf(network.why_not(), f"SKIPPED: {network.why_not()}")
    def test_hosts_reach_each_other_and_nothing_is_left(self):
        with network.Network("1 Gbit/s", 2) as hosts:
            before = hosts.bytes()
            names = [hosts.space(0), hosts.space(1), hosts.switch]
            listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True).stdout
            self.assertTrue(all(name in listed for name in names), listed)
            limits = subprocess.run(
                ["tc", "-n", names[0], "qdisc", "show", "dev", "eth0"], capture_output=True, text=True
            ).stdout
            self.assertIn("tbf", limits)
            outcome = child.run([child.Command(hosts.inside(0, [sys.executable, "-c", CONNECT, "serve"])),
                                 child.Command(hosts.inside(1, [sys.executable, "-c", CONNECT, hosts.address(0)]))], 20)
            self.assertEqual((outcome.status, outcome.output.split()), ("ok", ["host1"]), outcome.output)
            self.assertGreater(hosts.bytes(), before)
        listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True).stdout
        self.assertFalse([name for name in names if name in listed])

    @unittest.skipIf(network.why_not(), f"SKIPPED: {network.why_not()}")
    def test_what_a_killed_run_left_is_removed_by_the_next(self):
        gone = subprocess.Popen(["true"])
        gone.wait()
        left = f"{network.PREFIX}{gone.pid}-0"
        subprocess.run(["ip", "netns", "add", left], check=True)
        network.remove_leftovers()
        self.assertNotIn(left, subprocess.run(["ip", "netns", "list"], capture_output=True, text=True).stdout)


# In a new network namespace every port is free. The server prints the host name that its client sends.
CONNECT = """
import socket, sys
if sys.argv[1] == "serve":
    print(socket.create_server(("", 29500)).accept()[0].recv(100).decode())
else:
    while True:
        try:
            socket.create_connection((sys.argv[1], 29500), timeout=5).sendall(socket.gethostname().encode())
            break
        except ConnectionRefusedError:
            pass
"""


class Profile(unittest.TestCase):
    def test_the_harness_is_left_out_and_the_rest_is_the_whole(self):
        text = "# head\n 60.00%|[.] unisono::bench::run|a|\n 30.00%|[.] add|a|\n 10.00%|[k] copy|[kernel]|\n"
        lines = profile.top(text)
        self.assertEqual([line.split()[0] for line in lines[:2]], ["75.0%", "25.0%"])
        self.assertIn("60.0 %", lines[2])


class Settings(unittest.TestCase):
    def test_every_contender_has_settings_for_every_case_but_gloo_and_torch_for_shm(self):
        for suite in suites.EVERY:
            for transport in suite.transports:
                for name in suite.contenders:
                    for quick in (False, True):
                        contender, case = Contender.parse(name), Case(transport, suite.n[0], 2, suite.networks[0])
                        found = peers.variants(contender, case, suite.works, quick)
                        self.assertEqual(
                            bool(found),
                            not (contender.implementation in ("gloo", "torch") and transport == "shm"),
                            (name, case),
                        )
                        self.assertEqual(len({variant.name for variant in found}), len(found))

    def test_near_ties_and_the_own_choice_go_into_the_rounds(self):
        a, b, c, d = (Variant(name) for name in "abcd")
        picked = compare.Comparison.pick([a, b, c, d], {"a": 30.0, "b": 10.0, "c": 11.0, "d": 12.0})
        self.assertEqual(picked, [b, c, a])
        self.assertEqual(compare.Comparison.pick([a, b], {}), [a])

    def test_only_the_suite_of_kept_inputs_keeps_them(self):
        for suite in suites.EVERY:
            made = comparison([], [probe(0)], suite.contenders, suite.works, suite.name)
            words = made.arguments(suite.works, Contender.parse("unisono"), Variant("x"), "folder", 5)
            self.assertEqual("kept" in words, suite.name == "kept_inputs", suite.name)

    def test_pinned_ranks_get_a_core_each(self):
        cores = sorted(os.sched_getaffinity(0))
        started = peers.commands(Contender.parse("unisono:pinned"), ["program"], Case("shm", 2, 2), Variant("x"), [], "folder")
        self.assertEqual(
            [command.argv[:3] for command in started], [["taskset", "-c", str(cores[rank % len(cores)])] for rank in range(2)]
        )


class Command(unittest.TestCase):
    def run_versus(self, *words):
        return subprocess.run(
            [sys.executable, os.path.join(ROOT, "bench", "versus"), *words], capture_output=True, text=True, timeout=30
        )

    def test_wrong_words_are_named(self):
        for words, named in (
            (("--suite", "all_reduce"), "there are all-reduce, oversubscribed"),
            (("--sizes", "6"), "multiples of 4"),
            (("--contenders", "nccl"), "no library is called nccl"),
            (("--collectives", "gather"), "reduce_scatter"),
        ):
            answer = self.run_versus(*words)
            self.assertEqual(answer.returncode, 2)
            self.assertIn(named, answer.stderr)


if __name__ == "__main__":
    unittest.main()

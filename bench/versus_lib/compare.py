"""The measurement: find each peer's best settings, then alternate between the contenders, several rounds, in one run."""

import collections
import contextlib
import json
import os
import statistics
import struct
import tempfile
import time

from . import child, machine, network, peers
from .model import Case, Contender

TUNE_SECONDS = 0.12
TUNE_CALLS = 150
IDLE_SECONDS = 5
HAND_OVER_SLOWER = 1.8   # hand-over time relative to the usual best: above it, the ranks run on cores that are farther apart
LAUNCHES = 3             # largest number of launches of a record, while the hand-over is too slow
BOARD_PROGRESS = struct.Struct("<IIQ")   # job, calls begun, start of the job in ns: written by bench/harness.cc
BOARD_PROGRESS_AT = 256


def usual_best(times):
    """The best of ten, for want of as many the least: now and then a machine's processors share a core for a moment, and are
    closer than they ever stay."""
    return sorted(times)[len(times) // 10]


def how_far(board, stopped_at):
    """(index of the job in the plan, the least microseconds that its calls took on average), or None before the first call."""
    try:
        with open(board, "rb") as file:
            job, calls, began_ns = BOARD_PROGRESS.unpack(file.read(BOARD_PROGRESS_AT + BOARD_PROGRESS.size)[BOARD_PROGRESS_AT:])
    except (OSError, struct.error):
        return None
    return (job, (stopped_at - began_ns / 1e9) * 1e6 / calls) if calls else None


class Comparison:
    def __init__(self, suite, options, programs, cores, log):
        self.suite = suite
        self.options = options     # works, n, transports, contenders, rounds, seconds, calls, limit, tune_limit, quick
        self.programs = programs   # library -> program; also "probe" and "stream"
        self.cores = cores
        self.log = log
        self.contenders = [Contender.parse(name) for name in options.contenders]
        self.network = None        # the network in which the ranks are now
        self.records = []          # a record for each started group of processes
        self.tuning = {}           # "case contender work" -> {variant: median_us}
        self.probes = []
        self.measured_limits = []  # limits measured before each case
        self.goodputs = {}         # case -> one entry per round
        self.given_up = set()      # (contender, case, variant, work)
        self.hand_overs = [
            machine.hand_over_us(programs["probe"])
        ]  # microseconds between two cores, in the order in which they were measured
        self.troubles = collections.OrderedDict()

    def cases(self):
        return [Case(transport, n, self.cores, name) for name in self.suite.networks for transport in self.options.transports
                for n in self.options.n]

    def can_run(self, contender):
        return contender.implementation in self.programs

    def arguments(self, works, contender, variant, folder, limit):
        plan = ",".join(work.entry(contender, variant.algorithm) for work in works)
        kept = ["--input", "kept"] if self.suite.keeps_input else []
        return ["--plan", plan, "--board", os.path.join(folder, "board"), "--limit", str(int(limit) + 5), *kept]

    def launch(self, contender, case, variant, works, seconds, calls, limit):
        """As launch_once, and again if the cores were apart before or after it and have been together at another time."""
        for _ in range(LAUNCHES):
            record = self.launch_once(contender, case, variant, works, seconds, calls, limit)
            self.hand_overs.append(machine.hand_over_us(self.programs["probe"]))
            record["hand_over_us"] = max(self.hand_overs[-2:])
            if record["hand_over_us"] <= HAND_OVER_SLOWER * usual_best(self.hand_overs) or "unfinished" in record:
                break
        return record

    def launch_once(self, contender, case, variant, works, seconds, calls, limit):
        """One group of processes over a list of works; a record with what it measured and how it ended."""
        base = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
        with tempfile.TemporaryDirectory(prefix="versus-", dir=base) as folder:
            arguments = self.arguments(works, contender, variant, folder, limit) + ["--seconds", str(seconds)]
            if calls:
                arguments += ["--calls", str(calls)]
            if self.suite.idle:
                arguments += ["--idle", str(IDLE_SECONDS)]
            program = self.programs[contender.implementation]
            commands = peers.commands(contender, program, case, variant, arguments, folder, self.network)
            before, bytes_before = machine.cpu_times(), self.bytes_moved()
            outcome = child.run(commands, limit)
            far = None if outcome.ok else how_far(os.path.join(folder, "board"), outcome.stopped_at)
        results = [json.loads(line[7:]) for line in outcome.output.splitlines() if line.startswith("RESULT ")]
        for result in results:
            result["work"] = works[result["job"]].key
        record = {
            "contender": contender.name,
            "case": str(case),
            "variant": variant.name,
            "works": [work.key for work in works],
            "status": outcome.status,
            "seconds": round(outcome.seconds, 2),
            "results": results,
            "steal": machine.shares(before, machine.cpu_times())["steal"],
            "bytes_moved": self.bytes_moved() - bytes_before,
        }
        idle = [json.loads(line[5:]) for line in outcome.output.splitlines() if line.startswith("IDLE ")]
        if idle:
            record["idle"] = idle[0]
        if far and outcome.status.startswith("not finished"):
            record["unfinished"] = {"work": works[far[0]].key, "more_than_us": far[1]}
        self.examine(record, contender, case, works)
        return record

    def bytes_moved(self):
        return self.network.bytes() if self.network else machine.loopback_bytes()

    def examine(self, record, contender, case, works):
        """Marks a record whose bytes went another way than it says, and notes what did not run."""
        by_key = {work.key: work for work in works}
        least = sum(by_key[result["work"]].crossing(case.n) * (result["calls"] + 2) * works[result["job"]].bytes_of(contender)
                    / by_key[result["work"]].bytes for result in record["results"]) * contender.wire_fraction
        record["wrong_transport"] = self.wrong_transport(case.transport, least, record["bytes_moved"])
        name = f"{contender.title}, {case}, {record['variant']}"
        if record["status"] != "ok" or record["wrong_transport"]:
            self.troubles[name] = record["wrong_transport"] or record["status"]
        elif case.transport == "shm" and record["bytes_moved"] > max(least // 2, 1 << 20):
            self.troubles[name] = f"{record['bytes_moved']} bytes crossed loopback meanwhile: others' traffic, or not shm"

    @staticmethod
    def wrong_transport(transport, least, moved):
        """Bytes on the loopback device, or in the switch, tell that a run was not over TCP; `least` is what must cross. More
        bytes prove nothing on loopback: others use it too."""
        if transport == "tcp" and least > 1 << 20 and moved < 0.9 * least:
            return f"said tcp, but only {moved} bytes crossed the network where {least:.0f} must"
        return ""

    def launch_each(self, contender, case, variant, works, seconds, calls, limit):
        """Launches until every work has had its chance: one that took all the time does not cost the ones after it. A work that
        was cut off at the full limit once is not tried again in the next rounds."""
        works = [work for work in works if (contender, case, variant, work) not in self.given_up]
        while works:
            record = self.launch(contender, case, variant, works, seconds, calls, limit)
            yield record
            if "unfinished" not in record:
                return
            index = [work.key for work in works].index(record["unfinished"]["work"])
            if limit == self.options.limit:
                self.given_up.add((contender, case, variant, works[index]))
            works = works[index + 1:]

    def tune(self, case):
        """(contender, work) -> the settings to use in the rounds: the library's own choice, and the best other ones."""
        chosen = {}
        for contender in self.contenders:
            there = self.can_run(contender)
            candidates = peers.variants(contender, case, self.options.works, self.options.quick) if there else []
            if self.suite.idle:
                candidates = candidates[:1]
            times = {work.key: {} for work in self.options.works}
            for variant in candidates if len(candidates) > 1 else ():
                limit = self.options.tune_limit * (2 if case.network else 1)
                for record in self.launch_each(contender, case, variant, self.options.works, TUNE_SECONDS, TUNE_CALLS, limit):
                    for result in record["results"]:
                        times[result["work"]][variant.name] = result["median_us"]
                    self.log(f"  tuning {contender.title}, {variant.name}: {record['status']}, {record['seconds']} s")
            for work in self.options.works:
                chosen[contender, work] = self.pick(candidates, times[work.key])
                if times[work.key]:
                    self.tuning[f"{case} {contender.name} {work.key}"] = times[work.key]
        return chosen

    @staticmethod
    def pick(candidates, times):
        ranked = sorted((variant for variant in candidates if variant.name in times), key=lambda v: times[v.name])
        if not ranked:
            return candidates[:1]
        best, own = ranked[0], candidates[0]
        # Tuning runs are short and noisy, so near ties take part in the rounds, too.
        near = [variant for variant in ranked[1:3] if times[variant.name] < 1.15 * times[best.name]]
        return list(dict.fromkeys([best, *near[:1], *([own] if own.name in times else [])]))

    def round(self, case, chosen, number):
        probe = machine.probe(self.programs["probe"])
        probe.update(case=str(case), round=number)
        self.probes.append(probe)
        if self.network:
            largest = max(work.bytes for work in self.options.works)
            program, size = self.programs["stream"], 2 * (case.n - 1) * largest // case.n
            one, = self.network.goodput(program, size, 3, [(0, 1)])
            ring = self.network.goodput(program, size, 3, [(rank, (rank + 1) % case.n) for rank in range(case.n)])
            self.goodputs.setdefault(str(case), []).append({"round": number, "one_mbs": one, "ring_mbs": min(ring)})
        # Reverse the order in every other round, so that no contender always follows the same one.
        for contender in self.contenders if number % 2 == 0 else reversed(self.contenders):
            plan = collections.OrderedDict()
            for work in self.options.works:
                for variant in chosen[contender, work]:
                    plan.setdefault(variant, []).append(work)
            for variant, works in plan.items():
                for record in self.launch_each(contender, case, variant, works, self.options.seconds, self.options.calls,
                                               self.options.limit):
                    record["round"] = number
                    self.records.append(record)
        self.log(f"  round {number + 1} of {self.options.rounds}: idle {probe['idle']:.0%}, copy {probe['copy_gbs']} GB/s, "
                 + self.glance(case, number))

    def glance(self, case, number):
        key = self.options.works[-1].key
        best = {}
        for record in self.records:
            if (record["case"], record["round"]) == (str(case), number):
                for result in record["results"]:
                    if result["work"] == key:
                        best[record["contender"]] = min(best.get(record["contender"], 1e99), result["median_us"])
        return f"{key}: " + ", ".join(f"{Contender.parse(name).title} {time_us:.0f} us" for name, time_us in best.items())

    def limit_sizes(self):
        return sorted({work.bytes_of(contender) for work in self.options.works for contender in self.contenders})

    def run(self):
        start = time.monotonic()
        for case in self.cases():
            self.log(f"{case}")
            self.measured_limits.append(machine.limits(self.programs["probe"], self.limit_sizes(), self.cores))
            with network.Network(case.network, case.n) if case.network else contextlib.nullcontext() as self.network:
                chosen = self.tune(case)
                for number in range(self.options.rounds):
                    self.round(case, chosen, number)
            self.network = None
        self.measured_limits.append(machine.limits(self.programs["probe"], self.limit_sizes(), self.cores))
        self.mark_probes()
        self.log(f"measured in {time.monotonic() - start:.0f} s")

    def mark_probes(self):
        """A round is off when others used the cores before it, or memory was slow against the run's median. A single record is
        off when the way between the cores was slow before or after it."""
        median = statistics.median(probe["copy_gbs"] for probe in self.probes)
        best = usual_best([record["hand_over_us"] for record in self.records] or [0])
        for record in self.records:
            apart = record["hand_over_us"] > HAND_OVER_SLOWER * best
            record["off"] = f"hand-over between cores {record['hand_over_us']:.2f} of {best:.2f} us" if apart else ""
        for probe in self.probes:
            reasons = []
            if probe["idle"] < 0.9:
                reasons.append(f"idle {probe['idle']:.0%}")
            if probe["steal"] > 0.02:
                reasons.append(f"steal {probe['steal']:.0%}")
            if probe["copy_gbs"] < 0.85 * median:
                reasons.append(f"copy {probe['copy_gbs']} of {median:.1f} GB/s")
            probe["off"] = ", ".join(reasons)

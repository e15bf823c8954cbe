"""The measurement: find each peer's best settings, then alternate between the libraries, several rounds, in one run."""

import collections
import json
import os
import statistics
import tempfile
import time

from . import child, machine, peers

TUNE_SECONDS = 0.12
TUNE_CALLS = 150


class Comparison:
    def __init__(self, options, programs, probe, cores, say):
        self.options = options
        self.programs = programs   # peer -> program
        self.probe = probe
        self.cores = cores
        self.say = say
        self.records = []          # one per started group of processes
        self.tuning = {}           # "transport n peer bytes" -> {variant: median_us}
        self.probes = []
        self.measured_limits = []  # before every case
        self.troubles = collections.OrderedDict()

    def cases(self):
        return [peers.Case(transport, n, self.cores) for transport in self.options.transports for n in self.options.n]

    def launch(self, peer, case, variant, sizes, seconds, calls, limit):
        """One group of processes over a list of sizes; a record with what it measured and how it ended."""
        plan = ",".join(f"{size}={variant.algorithm}" if variant.algorithm else str(size) for size in sizes)
        base = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
        with tempfile.TemporaryDirectory(prefix="versus-", dir=base) as folder:
            arguments = ["--plan", plan, "--board", os.path.join(folder, "board"), "--seconds", str(seconds),
                         "--limit", str(int(limit) + 5)]
            if calls:
                arguments += ["--calls", str(calls)]
            program = self.programs[peer.partition(":")[0]]
            commands = peers.commands(peer, program, case, variant, arguments, folder)
            before, lo_before = machine.cpu_times(), machine.loopback_bytes()
            outcome = child.run(commands, limit)
        results = [json.loads(line[7:]) for line in outcome.output.splitlines() if line.startswith("RESULT ")]
        record = {"peer": peer, "transport": case.transport, "n": case.n, "variant": variant.name, "sizes": list(sizes),
                  "status": outcome.status, "seconds": round(outcome.seconds, 2), "results": results,
                  "steal": machine.shares(before, machine.cpu_times())["steal"],
                  "loopback_bytes": machine.loopback_bytes() - lo_before}
        moved = sum(result["bytes"] * (result["calls"] + 2) for result in results)
        record["wrong_transport"] = self.wrong_transport(case.transport, moved, record["loopback_bytes"])
        name = f"{peers.title(peer)}, {case}, {variant.name}"
        if not outcome.ok or record["wrong_transport"]:
            self.troubles[name] = record["wrong_transport"] or outcome.status
        elif case.transport == "shm" and record["loopback_bytes"] > max(moved // 2, 1 << 20):
            self.troubles[name] = f"{record['loopback_bytes']} bytes crossed loopback meanwhile: others' traffic, or not shm"
        return record

    @staticmethod
    def wrong_transport(transport, moved, loopback_bytes):
        """Bytes on the loopback device tell that a run was not over TCP. More bytes prove nothing: others use the device too."""
        if transport == "tcp" and moved > 1 << 20 and loopback_bytes < moved:
            return f"said tcp, but only {loopback_bytes} bytes crossed loopback for {moved} bytes of tensors"
        return ""

    def tune(self, case):
        """For each peer and size, the settings to use in the rounds: the library's own choice, and the best other one."""
        chosen = {}
        for peer in self.options.peers:
            candidates = peers.variants(peer, case, self.options.quick)
            if len(candidates) <= 1:
                chosen[peer] = {size: candidates for size in self.options.sizes}
                continue
            times = {size: {} for size in self.options.sizes}
            for variant in candidates:
                record = self.launch(peer, case, variant, self.options.sizes, TUNE_SECONDS, TUNE_CALLS, self.options.tune_limit)
                for result in record["results"]:
                    times[result["bytes"]][variant.name] = result["median_us"]
                self.say(f"  tuning {peers.title(peer)}, {variant.name}: {record['status']}, {record['seconds']} s")
            chosen[peer] = {size: self.pick(candidates, times[size]) for size in self.options.sizes}
            for size in self.options.sizes:
                self.tuning[f"{case.transport} {case.n} {peer} {size}"] = times[size]
        return chosen

    @staticmethod
    def pick(candidates, times):
        ranked = sorted((variant for variant in candidates if variant.name in times), key=lambda v: times[v.name])
        if not ranked:
            return candidates[:1]
        best, own = ranked[0], candidates[0]
        # Tuning runs are short and noisy: near ties go into the rounds together.
        near = [variant for variant in ranked[1:3] if times[variant.name] < 1.15 * times[best.name]]
        return list(dict.fromkeys([best, *near[:1], *([own] if own.name in times else [])]))

    def round(self, case, chosen, number):
        probe = machine.probe(self.probe)
        probe.update(transport=case.transport, n=case.n, round=number)
        self.probes.append(probe)
        for peer in self.options.peers:
            plan = collections.OrderedDict()
            for size in self.options.sizes:
                for variant in chosen[peer][size]:
                    plan.setdefault(variant, []).append(size)
            for variant, sizes in plan.items():
                record = self.launch(peer, case, variant, sizes, self.options.seconds, self.options.calls, self.options.limit)
                record["round"] = number
                self.records.append(record)
        self.say(f"  round {number + 1} of {self.options.rounds}: idle {probe['idle']:.0%}, copy {probe['copy_gbs']} GB/s, "
                 + self.glance(case, number))

    def glance(self, case, number):
        size = self.options.sizes[-1]
        best = {}
        for record in self.records:
            if (record["transport"], record["n"], record["round"]) != (case.transport, case.n, number):
                continue
            for result in record["results"]:
                if result["bytes"] == size:
                    best[record["peer"]] = min(best.get(record["peer"], 1e99), result["median_us"])
        return f"{size} B: " + ", ".join(f"{peers.title(peer)} {time_us:.0f} us" for peer, time_us in best.items())

    def run(self):
        start = time.monotonic()
        for case in self.cases():
            self.say(f"{case}")
            self.measured_limits.append(machine.limits(self.probe, self.options.sizes, self.cores))
            chosen = self.tune(case)
            for number in range(self.options.rounds):
                self.round(case, chosen, number)
        self.measured_limits.append(machine.limits(self.probe, self.options.sizes, self.cores))
        self.mark_probes()
        self.say(f"measured in {time.monotonic() - start:.0f} s")

    def mark_probes(self):
        """A round is off when others used the cores before it, or when memory was slow against the run's median."""
        median = statistics.median(probe["copy_gbs"] for probe in self.probes)
        for probe in self.probes:
            reasons = []
            if probe["idle"] < 0.9:
                reasons.append(f"idle {probe['idle']:.0%}")
            if probe["steal"] > 0.02:
                reasons.append(f"steal {probe['steal']:.0%}")
            if probe["copy_gbs"] < 0.85 * median:
                reasons.append(f"copy {probe['copy_gbs']} of {median:.1f} GB/s")
            probe["off"] = ", ".join(reasons)

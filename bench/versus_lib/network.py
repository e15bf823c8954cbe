"""Hosts made of network namespaces, each with its own link to one bridge, and tc tbf in both directions of every link.

The bridge is in a namespace of its own, so nothing of this machine's network is touched. All is removed at the end; what a run
that was killed left behind is removed by the next one.
"""

import argparse
import json
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import tempfile

RATES = {"1 Gbit/s": 1_000_000_000, "10 Gbit/s": 10_000_000_000, "no limit": 0}
PREFIX = "versus"


class NotPossible(Exception):
    """This process may not make namespaces, or lacks the programs; the message says which."""


def checked(*argv):
    answer = subprocess.run(argv, capture_output=True, text=True, timeout=30)
    if answer.returncode != 0:
        raise NotPossible(f"{' '.join(argv)}: {(answer.stderr or answer.stdout).strip()}")
    return answer.stdout


def why_not():
    """Why namespaces cannot be made here, or nothing."""
    missing = [program for program in ("ip", "tc", "unshare") if shutil.which(program) is None]
    if missing:
        return f"{', '.join(missing)} missing: apt-get install -y iproute2 util-linux"
    if os.geteuid() != 0:
        return "only root may make network namespaces"
    answer = subprocess.run(["unshare", "--net", "true"], capture_output=True, text=True)
    return f"unshare --net: {answer.stderr.strip()}" if answer.returncode else ""


def rate_of(words):
    """Bits per second, as an option of a program: 1G, 100M, 2.5G; 0 for none."""
    if words == "none":
        return 0
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([KMG]?)", words)
    if not found or float(found[1]) == 0:
        raise argparse.ArgumentTypeError(f"'{words}' is no rate: 1G, 100M")
    return int(float(found[1]) * {"": 1, "K": 1000, "M": 1000**2, "G": 1000**3}[found[2]])


def remove_leftovers():
    """Namespaces of runs whose process is gone."""
    for line in subprocess.run(["ip", "netns", "list"], capture_output=True, text=True).stdout.splitlines():
        found = re.match(PREFIX + r"(\d+)-", line)
        if found and not os.path.exists(f"/proc/{found[1]}"):
            subprocess.run(["ip", "netns", "delete", line.split()[0]], capture_output=True)


def shaping(rate):
    """Arguments of tc for one direction of one link, or nothing without a limit.

    The bucket holds what goes by while a timer is late on busy cores (1 ms) and two aggregates of segmentation offload at
    least; the queue 20 ms, as a switch might. Frames count with their headers, so the goodput of 1500-byte frames is 95.6 %
    of the rate.
    """
    if not rate:
        return []
    burst = max(128 << 10, rate // 8 // 1000)
    return ["tbf", "rate", f"{rate}bit", "burst", str(burst), "limit", str(max(512 << 10, rate // 8 // 50) + burst)]


class Network:
    """n hosts at one rate; a context manager. apart: each host has its own processes, too, as containers have."""

    def __init__(self, name, n, apart=False):
        self.name, self.n, self.apart = name, n, apart
        self.base = f"{PREFIX}{os.getpid()}-"

    def space(self, rank):
        return f"{self.base}{rank}"

    @property
    def switch(self):
        return self.base + "switch"

    @staticmethod
    def address(rank):
        return f"10.77.0.{rank + 1}"

    def __enter__(self):
        remove_leftovers()
        try:
            self.make()
        except BaseException:
            self.remove()
            raise
        return self

    def __exit__(self, *exception):
        self.remove()

    def make(self):
        checked("ip", "netns", "add", self.switch)
        checked("ip", "-n", self.switch, "link", "add", "bridge", "type", "bridge")
        checked("ip", "-n", self.switch, "link", "set", "bridge", "up")
        for rank in range(self.n):
            space, port = self.space(rank), f"port{rank}"
            checked("ip", "netns", "add", space)
            ends = "netns", space, "type", "veth", "peer", "name", port, "netns", self.switch
            checked("ip", "link", "add", "name", "eth0", *ends)
            checked("ip", "-n", space, "address", "add", self.address(rank) + "/24", "dev", "eth0")
            checked("ip", "-n", self.switch, "link", "set", port, "master", "bridge")
            for owner, device in ((space, "lo"), (space, "eth0"), (self.switch, port)):
                checked("ip", "-n", owner, "link", "set", device, "up")
            limit = shaping(RATES[self.name])
            for owner, device in ((space, "eth0"), (self.switch, port)) if limit else ():
                checked("tc", "-n", owner, "qdisc", "add", "dev", device, "root", *limit)

    def remove(self):
        for name in (*map(self.space, range(self.n)), self.switch):
            subprocess.run(["ip", "netns", "delete", name], capture_output=True)

    def inside(self, rank, argv):
        """argv on that host, under a host name of its own. If hosts are apart, the process is a child of this one's child."""
        script = f'hostname host{rank} && exec "$0" "$@"'
        processes = ["--pid", "--fork", "--kill-child", "--mount-proc"] if self.apart else []
        return ["ip", "netns", "exec", self.space(rank), "unshare", "--uts", *processes, "sh", "-c", script, *argv]

    def lose(self, percent):
        """Every host drops this share of the packets that arrive, at random, of IPv4 and IPv6; packets are single ones, as on a
        cable, not aggregates of segmentation offload."""
        for rank in range(self.n):
            space = self.space(rank)
            checked("ip", "-n", space, "link", "set", "eth0", "gso_max_segs", "1", "gso_max_size", "1500")
            checked(
                "ip",
                "netns",
                "exec",
                space,
                "nft",
                f"add table inet loss; flush table inet loss; add chain inet loss input {{ type filter hook input priority 0; }}; "
                f"add rule inet loss input iifname eth0 counter; add rule inet loss input iifname eth0 numgen random mod 10000 < {round(100 * percent)} counter drop",
            )

    def lost(self):
        """Packets that arrived since lose(), and those of them that were dropped, of all hosts."""
        arrived = dropped = 0
        for rank in range(self.n):
            rules = checked("ip", "netns", "exec", self.space(rank), "nft", "list", "table", "inet", "loss")
            counts = [int(count) for count in re.findall(r"packets (\d+)", rules)]
            arrived, dropped = arrived + counts[0], dropped + counts[1]
        return arrived, dropped

    def run_group(self, argv, variables=None):
        """argv on every host, as the ranks of one group: what rank 0 printed. variables: of the environment, beside those that
        make it a group. RuntimeError: with the statuses, if one failed, and the error output of the ranks."""
        argv = list(map(str, argv))
        with tempfile.TemporaryDirectory() as folder:
            out, ranks = [pathlib.Path(folder) / f"{rank}.out" for rank in range(self.n)], []
            errors = [path.with_suffix(".err") for path in out]
            try:
                for rank in range(self.n):
                    environment = {
                        **os.environ,
                        "RANK": str(rank),
                        "WORLD_SIZE": str(self.n),
                        "UNISONO_TRANSPORT": "tcp",
                        "UNISONO_INTERFACE": "eth0",
                        "UNISONO_RENDEZVOUS": f"file://{folder}/meet",
                        **(variables or {}),
                    }
                    with out[rank].open("w") as stdout, errors[rank].open("w") as stderr:
                        ranks.append(subprocess.Popen(self.inside(rank, argv), env=environment, stdout=stdout, stderr=stderr))
                statuses = [rank.wait() for rank in ranks]
            finally:
                for rank in ranks:
                    if rank.poll() is None:
                        rank.kill()
                        rank.wait()
            if any(statuses):
                raise RuntimeError(
                    f"{pathlib.Path(argv[0]).name}: statuses {statuses}\n" + "".join(path.read_text() for path in errors)
                )
            return out[0].read_text()

    def agent(self):
        """A script that stands for a remote shell: AGENT ADDRESS COMMAND... runs the command on the host with that address."""
        lines = ["#!/bin/sh", "address=$1", "shift", "case $address in"]
        lines += [f'{self.address(rank)}) exec {shlex.join(self.inside(rank, ["sh", "-c"]))} "$*" ;;' for rank in range(self.n)]
        return "\n".join([*lines, "esac", 'echo "no host $address" >&2', "exit 1", ""])

    def bytes(self):
        """All that has come into the switch: every byte that left a host."""
        ports = json.loads(checked("ip", "-n", self.switch, "-j", "-s", "link", "show"))
        return sum(port["stats64"]["rx"]["bytes"] for port in ports if port["ifname"].startswith("port"))

    def goodput(self, program, bytes_count, times, pairs):
        """Megabytes per second of one TCP stream for each (from, to) of pairs, all at the same time."""
        clients, servers = [], []
        try:
            for source, target in pairs:
                server = started(self.inside(target, [program, "serve", self.address(target)]))
                servers.append(server)
                port = server.stdout.readline().split()[-1:]
                if not port:
                    raise NotPossible(f"stream_probe does not serve in {self.space(target)}")
                clients.append(self.inside(source, [program, self.address(target), port[0], str(bytes_count), str(times)]))
            clients = [started(argv) for argv in clients]
            answers = [client.communicate(timeout=120)[0] for client in clients]
            if any(client.returncode for client in clients):
                raise NotPossible("stream_probe failed: " + " ".join(answers))
            return [json.loads(answer)["goodput_mbs"] for answer in answers]
        finally:
            for process in (*servers, *(client for client in clients if not isinstance(client, list))):
                process.kill()
                process.communicate()


def started(argv):
    return subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

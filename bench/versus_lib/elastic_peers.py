"""Processes of one elastic run, moshpit_bench each: started so that they find one another, followed line by line, and ended
whatever happens."""

import json
import os
import pathlib
import signal
import statistics
import subprocess
import threading
import time

START_S = 60.0   # time limit for a process to report that it joined
END_S = 30.0     # time limit for a process to end after SIGTERM


class Failed(RuntimeError):
    """A process ended or was silent unexpectedly; the message contains its output."""


class Peer:
    """One process. `lines` grows while it runs; a last line that was cut by a kill is left out. `keep` makes of a line what is
    kept of it."""

    def __init__(self, name, slot, argv, folder, environment=None, keep=None):
        self.name, self.slot, self.lines, self.keep = name, slot, [], keep or (lambda line: line)
        self.errors = folder / f"{name}.err"
        self.news = threading.Condition()
        with self.errors.open("w") as errors:
            self.process = subprocess.Popen(
                argv, stdout=subprocess.PIPE, stderr=errors, text=True, env={**os.environ, **(environment or {})}
            )
        self.reader = threading.Thread(target=self.read, daemon=True)
        self.reader.start()

    def read(self):
        with self.process.stdout as lines:
            for words in lines:
                if not words.endswith("\n"):
                    break
                try:
                    line = self.keep(json.loads(words))
                except json.JSONDecodeError:
                    line = {"kind": "garbage", "words": words}
                with self.news:
                    self.lines.append(line)
                    self.news.notify_all()
        with self.news:
            self.news.notify_all()

    def of_kind(self, kind):
        return [line for line in list(self.lines) if line["kind"] == kind]

    def wait_for(self, kind, seconds, count=1):
        """The count-th line of that kind; None if it does not come in time, or the process ends before."""
        until = time.monotonic() + seconds
        with self.news:
            while True:
                found = self.of_kind(kind)
                if len(found) >= count:
                    return found[count - 1]
                left = until - time.monotonic()
                if left <= 0 or not self.reader.is_alive():
                    return None
                self.news.wait(min(left, 0.2))

    def trouble(self):
        """The process's own description of its failure."""
        failed = [line["why"] for line in self.of_kind("failed")] + [line["words"].strip() for line in self.of_kind("garbage")]
        return f"{self.name}: status {self.process.poll()}; {'; '.join(failed)} {self.errors.read_text()[-500:]}".strip()

    def signal(self, number):
        if self.process.poll() is None:
            self.process.send_signal(number)

    def finish(self, seconds):
        """Whether it ends in time, and with status 0."""
        try:
            self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            return False
        self.reader.join(END_S)
        return self.process.returncode == 0


class Run:
    """All processes of a run; a context manager. `inside(slot, argv)` puts a command onto a host, if hosts are not all this
    one."""

    def __init__(self, program, folder, words, inside=None, keep=None):
        self.program, self.folder, self.words, self.inside, self.keep = program, pathlib.Path(folder), words, inside, keep
        self.peers = []
        self.folder.mkdir(parents=True, exist_ok=True)
        self.addresses = self.folder / "addresses"
        self.addresses.write_text("")

    def start(self, slot, *more, name=None, environment=None, waits=False):
        """A peer; the first one founds the run, and is waited for."""
        founds = not self.peers
        name = name or f"peer{slot}"
        entry = ["--found"] if founds else ["--join", f"file:{self.addresses}"]
        argv = [
            str(word)
            for word in (
                self.program,
                "--run",
                f"{self.folder.name}-{os.getpid()}",
                "--name",
                name,
                "--slot",
                slot,
                *entry,
                *self.words,
                *more,
            )
        ]
        peer = Peer(name, slot, self.inside(slot, argv) if self.inside else argv, self.folder, environment, self.keep)
        self.peers.append(peer)
        if founds or waits:
            self.joined(peer)
        return peer

    def joined(self, peer):
        """Waits until it has; others can find the run by it from then on."""
        line = peer.wait_for("joined", START_S)
        if line is None:
            raise Failed(f"not joined: {peer.trouble()}")
        with self.addresses.open("a") as file:
            file.write("".join(endpoint + "\n" for endpoint in line["endpoints"]))
        return line

    def finish(self, seconds):
        """All come to their end by themselves."""
        until = time.monotonic() + seconds
        for peer in self.peers:
            if not peer.finish(max(0.1, until - time.monotonic())):
                raise Failed(peer.trouble())

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        for peer in self.peers:
            peer.signal(signal.SIGKILL)
        for peer in self.peers:
            peer.process.wait()
            peer.reader.join(END_S)


def group_environment(folder, rank, world):
    """That makes a process a rank of a group over TCP of this host."""
    return {
        "RANK": str(rank),
        "WORLD_SIZE": str(world),
        "UNISONO_TRANSPORT": "tcp",
        "UNISONO_INTERFACE": "lo",
        "UNISONO_RENDEZVOUS": f"file://{pathlib.Path(folder).resolve()}/meet",
    }


def by_step(peers):
    """averaging step -> {peer: its line}."""
    found = {}
    for peer in peers:
        for line in peer.of_kind("step"):
            found.setdefault(line["step"], {})[peer] = line
    return found


def together_seconds(lines):
    """From when the last one began to when the last one was done."""
    lines = list(lines)
    return max(line["end"] for line in lines) - max(line["begin"] for line in lines)


def quantile(values, q):
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(q * len(ordered)))]


def spread(values):
    """The median, and the least and the largest."""
    return {"median": statistics.median(values), "low": min(values), "high": max(values)}

"""Starts the processes of one run, waits for them for a bounded time, and ends those that it started, and no others."""

import dataclasses
import os
import signal
import subprocess
import tempfile
import time


@dataclasses.dataclass
class Command:
    argv: list
    env: dict = dataclasses.field(default_factory=dict)


@dataclasses.dataclass
class Outcome:
    status: str      # "ok", "not finished in N s", "failed (code): last words"
    seconds: float
    output: str
    stopped_at: float = 0.0   # time.monotonic() when the first process failed, the time was over, or all processes had ended

    @property
    def ok(self):
        return self.status == "ok"


def end(process):
    """Ends a child and its process group; a launcher gets the chance to end its own children first."""
    for number, patience in ((signal.SIGTERM, 2.0), (signal.SIGKILL, 5.0)):
        if process.poll() is not None and number == signal.SIGTERM:
            continue
        try:
            os.killpg(process.pid, number)
        except (ProcessLookupError, PermissionError):
            pass
        try:
            process.wait(timeout=patience)
        except subprocess.TimeoutExpired:
            continue


def last_words(text, limit=200):
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.startswith("RESULT")]
    plain = [line for line in lines if not set(line) <= set("-=* ")]
    return " / ".join(plain[-3:])[-limit:]


def run(commands, limit_seconds):
    """Runs all commands at once. The first one to fail, or the end of the time, ends all of them."""
    start = time.monotonic()
    processes = []
    with tempfile.TemporaryFile(mode="w+") as sink:
        try:
            for command in commands:
                # A group of its own, to be ended with all its children; not a session: Linux schedules sessions against each
                # other
                # (autogroup), and ranks in one each could not yield to each other, while those of an mpirun can.
                processes.append(subprocess.Popen(
                    command.argv, env={**os.environ, **command.env}, stdin=subprocess.DEVNULL, stdout=sink,
                    stderr=subprocess.STDOUT, preexec_fn=os.setpgrp))
            status = wait(processes, start + limit_seconds, limit_seconds)
            stopped_at = time.monotonic()
        finally:
            for process in processes:
                end(process)
        seconds = time.monotonic() - start
        sink.seek(0)
        output = sink.read()
    if status.startswith("failed"):
        status += ": " + last_words(output)
    return Outcome(status, seconds, output, stopped_at)


def wait(processes, deadline, limit_seconds):
    waiting = list(processes)
    while waiting:
        for process in list(waiting):
            code = process.poll()
            if code is None:
                continue
            waiting.remove(process)
            if code == -signal.SIGALRM:
                return f"not finished in {limit_seconds:g} s"
            if code != 0:
                return f"failed ({code})"
        if time.monotonic() > deadline:
            return f"not finished in {limit_seconds:g} s"
        if waiting:
            time.sleep(0.01)
    return "ok"

"""Profiles Unisono's collectives: runs one case under `perf record` and lists its most expensive symbols."""

import os
import shlex
import shutil
import subprocess
import tempfile

from . import child, peers
from .model import Variant


def run(program, case, work, contender, seconds, out):
    """Profiles all ranks of one case together; returns the exit status."""
    if shutil.which("perf") is None:
        print("perf is missing: apt-get install -y linux-perf")
        return 1
    variant = Variant("profile", algorithm=contender.algorithm)
    base = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="versus-", dir=base) as folder:
        arguments = ["--plan", work.entry(contender, contender.algorithm), "--board", os.path.join(folder, "board"),
                     "--seconds", str(seconds), "--calls", "1000000", "--limit", str(int(seconds) + 30)]
        started = peers.commands(contender, program, case, variant, arguments, folder)
        # One shell starts all ranks under one perf, which also records child processes.
        lines = [" ".join([*(f"{name}={shlex.quote(value)}" for name, value in command.env.items()), shlex.join(command.argv)])
                 for command in started]
        script = " & ".join(lines) + " & wait"
        record = ["perf", "record", "-q", "-e", "cpu-clock", "-F", "4000", "-g", "-o", out, "--", "sh", "-c", script]
        outcome = child.run([child.Command(record)], seconds + 60)
    print(outcome.output.strip())
    if not outcome.ok:
        print(f"profile: {outcome.status}")
        return 1
    answer = subprocess.run(["perf", "report", "-i", out, "--stdio", "--no-children", "-g", "none", "-t", "|",
                             "--sort", "symbol,dso"], capture_output=True, text=True, timeout=300)
    print(f"{contender.title}, {case}, {work.collective} of {work.bytes} bytes: share of the processor time of all ranks, "
          "waiting by spinning included")
    print("\n".join(top(answer.stdout)))
    print(f"callers: perf report -i {out} --no-children")
    return 0


def top(text, count=15):
    """The most expensive symbols of a perf report, without the harness (its barrier spins), as shares of the rest."""
    rows = []
    for line in text.splitlines():
        words = [word.strip() for word in line.split("|")]
        if len(words) >= 3 and words[0].endswith("%"):
            rows.append((float(words[0].rstrip("%")), words[1], words[2]))
    harness = sum(share for share, symbol, _ in rows if "unisono::bench::" in symbol)
    rest = sum(share for share, _, _ in rows) - harness
    lines = [f"{share / rest:7.1%}  {symbol}  ({where})" for share, symbol, where in rows if "unisono::bench::" not in symbol]
    return [*lines[:count], f"left out: the measuring loop itself, {harness:.1f} % of all samples"]

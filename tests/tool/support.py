"""Shared by the tests of the tools' own texts."""

import os
import re
import subprocess

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
TOOL = os.environ.get("UNISONO_TOOL", os.path.join(ROOT, "build", "release", "unisono"))
LAB = os.environ.get("UNISONO_LAB", os.path.join(ROOT, "build", "release", "unisono-lab"))
PROGRAMS = {"unisono": TOOL, "unisono-lab": LAB}
# By tool. `unisono lab` is not among them: its words and its help page are those of unisono-lab.
COMMANDS = {
    "unisono": [
        "launch",
        "bench",
        "tune",
        "doctor",
        "top",
        "explain",
        "trace",
        "metrics",
        "simulate",
        "codec",
        "key",
        "rendezvous",
        "completion",
        "man",
    ],
    "unisono-lab": [
        "simulate",
        "simulate arc",
        "simulate averaging",
        "simulate loss",
        "simulate elastic",
        "simulate churn-trace",
        "drop-compute",
        "drop-compute plan",
        "drop-compute search",
        "drop-compute simulate",
        "bench",
        "bench compress",
        "completion",
        "man",
    ],
}


def tool(*words, name="unisono"):
    """Standard output of a tool, which must succeed without a word on standard error."""
    done = subprocess.run(
        [PROGRAMS[name], *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=60, check=True
    )
    assert done.stderr == "", done.stderr
    return done.stdout


def read(path):
    with open(os.path.join(ROOT, path), encoding="utf-8") as file:
        return file.read()


def options_of(command, name="unisono"):
    """Every option that its help page shows, "-n" and "--ranks" each."""
    names = []
    for line in tool(*command.split(), "--help", name=name).splitlines():
        match = re.match(r"  ((?:-{1,2}[a-zA-Z][a-z-]*,?)+)", line)
        names += match.group(1).split(",") if match else []
    return names

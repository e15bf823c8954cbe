"""What the tests of the tool's own words share."""

import os
import re
import subprocess

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
TOOL = os.environ.get("UNISONO_TOOL", os.path.join(ROOT, "build", "release", "unisono"))
COMMANDS = ["launch", "bench", "bench compress", "tune", "doctor", "top", "explain", "trace", "metrics", "simulate", "simulate arc", "simulate averaging", "simulate loss", "simulate elastic", "simulate churn-trace", "drop-compute", "drop-compute plan", "drop-compute search", "drop-compute simulate",
            "codec", "rendezvous", "completion", "man"]


def tool(*words):
    """Standard output of the tool, which must succeed without a word on standard error."""
    done = subprocess.run([TOOL, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=60, check=True)
    assert done.stderr == "", done.stderr
    return done.stdout


def read(path):
    with open(os.path.join(ROOT, path), encoding="utf-8") as file:
        return file.read()


def options_of(command):
    """Every option that its help page shows, "-n" and "--ranks" each."""
    names = []
    for line in tool(*command.split(), "--help").splitlines():
        match = re.match(r"  ((?:-{1,2}[a-zA-Z][a-z-]*,?)+)", line)
        names += match.group(1).split(",") if match else []
    return names

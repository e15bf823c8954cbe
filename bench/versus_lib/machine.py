"""Describes this machine, and tells by a probe beside every round whether it was quiet."""

import contextlib
import json
import os
import platform
import subprocess
import time


CONGESTION_CONTROL = "/proc/sys/net/ipv4/tcp_congestion_control"


@contextlib.contextmanager
def congestion_control(name):
    """The machine's TCP congestion control while the block runs, if a name is given (needs root). Peers have no such option."""
    if not name:
        yield
        return
    with open(CONGESTION_CONTROL) as file:
        before = file.read()
    with open(CONGESTION_CONTROL, "w") as file:
        file.write(name)
    try:
        yield
    finally:
        with open(CONGESTION_CONTROL, "w") as file:
            file.write(before)


def cpu_times():
    """Idle, stolen and all ticks of all cores since boot."""
    with open("/proc/stat") as file:
        ticks = [int(word) for word in file.readline().split()[1:9]]
    return {"idle": ticks[3] + ticks[4], "steal": ticks[7], "all": sum(ticks)}


def shares(before, after):
    every = max(1, after["all"] - before["all"])
    return {name: round((after[name] - before[name]) / every, 3) for name in ("idle", "steal")}


def loopback_bytes():
    with open("/proc/net/dev") as file:
        for line in file:
            name, _, rest = line.partition(":")
            if name.strip() == "lo":
                return int(rest.split()[0])
    return 0


def hand_over_us(program):
    """Between two cores. A virtual machine's may be moved nearer or apart at any moment, which changes every exchange."""
    answer = subprocess.run([program, "cores"], capture_output=True, text=True, timeout=60)
    return json.loads(answer.stdout)["hand_over_us"] if answer.returncode == 0 else 1e9


def probe(program, seconds=0.3):
    """Idle share while nothing of ours runs, then the speed of a large memory copy and of a hand-over between two cores."""
    before = cpu_times()
    time.sleep(seconds)
    result = shares(before, cpu_times())
    answer = subprocess.run([program], capture_output=True, text=True, timeout=60)
    return {**result, **(json.loads(answer.stdout) if answer.returncode == 0 else {"copy_gbs": 0.0, "hand_over_us": 1e9})}


def limits(program, sizes, workers):
    answer = subprocess.run([program, "full", *map(str, sizes), "--workers", str(workers)],
                            capture_output=True, text=True, timeout=120)
    return json.loads(answer.stdout) if answer.returncode == 0 else None


def best_limits(measured):
    """The best of several measurements, number by number: a limit is what the machine can do, not what it did when
    disturbed."""
    measured = [limits for limits in measured if limits]
    if not measured:
        return None
    def best(name, values):
        return max(values) if name.endswith("_gbs") else min(values)
    result = {name: best(name, [limits[name] for limits in measured]) for name in ("hand_over_us", "tcp_byte_us", "workers")}
    result["sizes"] = {size: {name: best(name, [limits["sizes"][size][name] for limits in measured]) for name in row}
                       for size, row in measured[0]["sizes"].items()}
    return result


def first_line(argv):
    try:
        answer = subprocess.run(argv, capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return (answer.stdout or answer.stderr).strip().split("\n")[0]


def describe(root, torch_version):
    model = ""
    with open("/proc/cpuinfo") as file:
        for line in file:
            if line.startswith("model name"):
                model = line.split(":", 1)[1].strip()
                break
    with open(CONGESTION_CONTROL) as file:
        congestion_control = file.read().strip()
    packages = {}
    for package in ("libopenmpi3", "libmpich12", "libgloo0"):
        packages[package] = first_line(["dpkg-query", "-W", "-f", "${Version}", package])
    packages["torch"] = torch_version
    commit = first_line(["git", "-C", root, "rev-parse", "--short", "HEAD"])
    dirty = first_line(["git", "-C", root, "status", "--porcelain", "--untracked-files=no"])
    return {"cpu": model, "cores": len(os.sched_getaffinity(0)), "kernel": platform.release(),
            "congestion_control": congestion_control, "compiler": first_line(["g++", "--version"]), "packages": packages,
            "commit": commit + ("+changes" if dirty else ""), "time": time.strftime("%Y-%m-%d %H:%M:%S")}

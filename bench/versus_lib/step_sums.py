"""Checks the results of the averaging steps of an elastic run from the output of all its processes, also of killed ones
(bench/moshpit_bench.cc describes the tensors)."""

import bisect
import math

TOLERANCE = 1e-5  # allowed rounding error of fp32 means over several rounds


def brief(line):
    """A line with as much as is looked at later: long runs have hundreds of thousands."""
    if line["kind"] == "step" and line["exact"] and line["end"] - line["begin"] < 0.5:
        return {**line, "rounds": [{"outcome": one["outcome"]} for one in line["rounds"]]}
    return line


def is_whole(line):
    """An averaging step whose rounds are kept with all their numbers."""
    return all("group" in one for one in line["rounds"])


class Step:
    """All that is known of one averaging step."""

    def __init__(self, number):
        self.number, self.lines = number, {}
        self.numbers = {}  # slot -> the numbers that may be part of the average

    def begin(self):
        return min(line["begin"] for line in self.lines.values())

    def end(self):
        return max(line["end"] for line in self.lines.values())


def steps_of(peers):
    """The averaging steps, ascending. The values of a process that was killed inside an averaging step may be in any step that
    was under way from then until the kill and that it had not finished."""
    found = {}
    for peer in peers:
        for line in peer.of_kind("step"):
            step = found.setdefault(line["step"], Step(line["step"]))
            step.lines[peer] = line
            step.numbers.setdefault(peer.slot, set()).add(line["number"])
    numbers = sorted(found)
    spans = [(found[number].begin(), found[number].end()) for number in numbers]
    for peer in peers:
        moments = [line for line in peer.lines if line["kind"] in ("enter", "step")]
        if not moments or moments[-1]["kind"] != "enter":
            continue
        last = max((line["step"] for line in moments if line["kind"] == "step"), default=-1)
        for index in range(bisect.bisect_right(numbers, last), len(numbers)):
            begin, end = spans[index]
            if end >= moments[-1]["time"] and begin < getattr(peer, "killed_at", math.inf):
                found[numbers[index]].numbers.setdefault(peer.slot, set()).add(moments[-1]["number"])
    return [found[number] for number in numbers]


def mean_by_shares(step, kind):
    """(the mean, what is wrong): None where somebody's number is not known for sure."""
    mean, sure = 0.0, True
    for slot, share in kind["shares"].items():
        numbers = step.numbers.get(int(slot), set())
        if not numbers:
            return None, f"slot {slot} has a share of {share:g}, and nobody there took part"
        sure = sure and len(numbers) == 1
        mean += share * next(iter(numbers))
    return (mean if sure else None), ""


def check_kinds(step, peer, line):
    wrong = [line["wrong"]] if line["wrong"] else []
    for kind in line["kinds"]:
        mean, trouble = mean_by_shares(step, kind)
        if trouble:
            wrong.append(trouble)
        elif mean is not None and abs(mean - kind["number"]) > TOLERANCE:
            wrong.append(f"the mean by the shares is {mean:.7f}, the result {kind['number']:.7f}")
    return [f"averaging step {step.number}, {peer.name}: {words}" for words in wrong]


def check_exact(step):
    """Checks exact results: equal bits, equal shares, and every peer with an exact result has a share, except one that has just
    joined: it takes the mean and gives nothing."""
    exact = {peer: line for peer, line in step.lines.items() if line["exact"]}
    wrong = []
    if len({line["digest"] for line in exact.values()}) > 1:
        wrong.append("exact results differ in their bits")
    for line in list(exact.values())[:1]:
        shares = line["kinds"][0]["shares"]
        if len(line["kinds"]) != 1 or max(abs(share - 1 / len(shares)) for share in shares.values()) > TOLERANCE:
            wrong.append(f"an exact result has {len(line['kinds'])} kinds of tiles, shares {shares}")
        wrong += [f"{peer.name} says exact and is not in" for peer, own in exact.items()
                  if str(peer.slot) not in shares and own is not peer.of_kind("step")[0]]
    return [f"averaging step {step.number}: {words}" for words in wrong]


def check(peers):
    """All that is wrong, in words."""
    wrong = []
    for step in steps_of(peers):
        for peer, line in step.lines.items():
            wrong += check_kinds(step, peer, line)
        wrong += check_exact(step)
    return wrong


def counts(peers):
    """How much was looked at."""
    found = {"steps": 0, "results": 0, "exact": 0, "kinds": 0, "unknown": 0}
    for step in steps_of(peers):
        found["steps"] += 1
        for line in step.lines.values():
            found["results"] += 1
            found["exact"] += line["exact"]
            found["kinds"] += len(line["kinds"])
            found["unknown"] += sum(mean_by_shares(step, kind)[0] is None for kind in line["kinds"])
    return found

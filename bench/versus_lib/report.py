"""The tables: on the terminal, in the page of a suite, and the page of all marks."""

import json
import os

from .model import Contender, bytes_text, time_text
from .suites import LINK_BOUND, BY_NAME, EVERY, RING_BOUND

METHOD = ("Every first and last result is checked on every rank, bit for bit; a barrier before each timed call; per call "
          "the mean over the ranks, of them the median, of these the median over the rounds (± half the range over the "
          "rounds; \"!\" where none was undisturbed). The contenders run in turn. Ratios: time of the reference ÷ time of "
          "ours, above 1 we are faster; beside it the mark and whether it is met. The limit is what this machine was "
          "measured to allow for the bytes that must move.")


def title(name):
    return Contender.parse(name).title


def cell_text(entry):
    if "more_than_us" in entry:
        return f"> {time_text(entry['more_than_us'])}"
    if "missing" in entry:
        return "-" if entry["missing"].startswith("has no") else entry["missing"].split(":")[0]
    spread = (entry["high_us"] - entry["low_us"]) / 2 / entry["median_us"]
    return f"{time_text(entry['median_us'])} ±{spread:.0%}" + ("!" if entry["disturbed"] else "")


def ratio_text(comparison):
    """A ratio that misses its mark by less than the last digit has one more."""
    ratio, mark = comparison["ratio"], comparison["mark"]
    close = mark is not None and ratio < mark and f"{ratio:.2f}" == f"{mark:.2f}"
    return ("> " if comparison["more_than"] else "") + (f"{ratio:.4f}" if close else f"{ratio:.2f}")


def mark_text(comparison):
    """ "1.32 (1.20 met)", "0.80 (1.00 missed)", "> 3.1 (1.00 met)", "-" """
    if comparison["ratio"] is None:
        return "-" if comparison["mark"] is None else f"- ({comparison['mark']:.2f})"
    text = ratio_text(comparison)
    if comparison["mark"] is None:
        return text
    verdict = {True: "met", False: "missed", None: "open"}[comparison["met"]]
    if "of_own_limit" in comparison:
        verdict += f": {comparison['of_own_limit']:.2f} of the machine's own"
    return f"{text} ({comparison['mark']:.2f} {verdict})"


def limit_text(row):
    """ "1.59 ms memory", and for shared memory what exchanging the bytes takes by itself. """
    text = f"{time_text(row['limit_us'])} {row['limit']}".strip()
    return f"{text}, exchange {time_text(row['exchange_us'])}" if row.get("exchange_us") else text


def p99_text(row, name):
    return time_text(row["cells"].get(name, {}).get("p99_us"))


def table(rows, names):
    """Lists of strings, header first. p99: of ours, and of what it is compared with first."""
    several = len({row["collective"] for row in rows}) > 1
    bounded = any(row["bound"] for row in rows)
    heads = [comparison["title"] for comparison in rows[0]["comparisons"]]
    lines = [["where", *(["collective"] if several else []), "size", *map(title, names), *heads, "p99 ours", "p99 reference",
              "limit", *(["machine's own"] if bounded else [])]]
    for row in rows:
        line = [row["case"], *([row["collective"]] if several else []), bytes_text(row["bytes"])]
        line += [cell_text(row["cells"][name]) for name in names]
        line += [mark_text(comparison) for comparison in row["comparisons"]]
        first = next((one for one in row["comparisons"] if one["against"] not in (LINK_BOUND, RING_BOUND)), None)
        line += [p99_text(row, first["ours"]) if first else "-", p99_text(row, first["against"]) if first else "-",
                 limit_text(row)]
        if bounded:
            bound = row["bound"]
            line.append(f"{time_text(bound[RING_BOUND])} {bound['ring_mbs'] * 8 / 1000:.2f} Gbit/s" if bound else "-")
        lines.append(line)
    return lines


def idle_text(entry):
    if "missing" in entry:
        return "-" if entry["missing"].startswith("has no") else entry["missing"].split(":")[0]
    return f"{entry['cpu_percent_max']:.3f} %, {entry['switches_per_second_max']:.1f}/s"


def idle_verdict(row):
    return {True: "met", False: "missed", None: "-"}[row["met"]]


def idle_table(rows, names):
    lines = [["where", *map(title, names), "mark"]]
    return lines + [[row["case"], *(idle_text(row["cells"][name]) for name in names), idle_verdict(row)] for row in rows]


def lines_of(data):
    names = data["options"]["contenders"]
    return idle_table(data["summary"], names) if BY_NAME[data["suite"]].idle else table(data["summary"], names)


def aligned(lines):
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    return "\n".join("  ".join(word.rjust(width) for word, width in zip(line, widths)) for line in lines)


def markdown_table(lines):
    rows = ["| " + " | ".join(line) + " |" for line in lines]
    return [rows[0], "|" + "---|" * len(lines[0]), *rows[1:]]


def machine_text(facts):
    return (f"{facts['time']}, commit {facts['commit']}, {facts['cpu']}, {facts['cores']} cores, Linux {facts['kernel']}, "
            f"TCP congestion control {facts['congestion_control']}. "
            + ", ".join(f"{name} {version}" for name, version in facts["packages"].items() if version) + ".")


def settings_lines(rows):
    """Which setting of each peer won, where it had several to choose from."""
    lines = []
    for row in rows:
        won = [f"{title(name)}: {entry['variant']}" for name, entry in row["cells"].items()
               if "variant" in entry and not name.startswith("unisono")]
        if won:
            lines.append(f"- {row['case']} {row['collective']} {bytes_text(row['bytes'])}: " + "; ".join(won))
    return ["", "Settings that won:", "", *lines] if lines else []


def probe_lines(data):
    off = [probe for probe in data["probes"] if probe["off"]]
    apart = [record for record in data["records"] if record.get("off")]
    lines = [
        "",
        f"Probes: {len(data['probes'])} rounds, {len(off)} marked as disturbed; {len(apart)} of {len(data['records'])} runs "
        "while the cores were apart (a hand-over between them took longer than at other times). These are left out where good "
        "ones exist.",
    ]
    if len(off) == len(data["probes"]):
        lines += ["", "**The machine was never quiet: these numbers are noise.**"]
    return lines + [f"- {probe['case']} round {probe['round'] + 1}: {probe['off']}" for probe in off]


def markdown(data):
    suite = BY_NAME[data["suite"]]
    out = [
        f"# {suite.title}",
        "",
        machine_text(data["machine"]),
        "",
        suite.about if suite.idle else suite.about + " " + METHOD,
        "",
    ]
    out += markdown_table(lines_of(data))
    if not suite.idle:
        out += settings_lines(data["summary"])
    out += probe_lines(data)
    if data["troubles"]:
        out += ["", "What did not run:", ""] + [f"- {what}: {words}" for what, words in data["troubles"].items()]
    return "\n".join(out) + "\n"


def marks_of(data):
    """(row, comparison text, verdict) of every row of a suite that has a mark."""
    found = []
    for row in data["summary"]:
        if BY_NAME[data["suite"]].idle:
            if row["met"] is not None:
                ours = idle_text(row["cells"]["unisono"])
                found.append((row["case"], "processor time, switches", ours, "0.0 %, 0.0/s", row["met"], "-"))
            continue
        for comparison in row["comparisons"]:
            if comparison["mark"] is None:
                continue
            what = f"{row['case']} {row['collective'].replace('_', '-')} {bytes_text(row['bytes'])}"
            ratio = "-" if comparison["ratio"] is None else ratio_text(comparison)
            ours = row["cells"].get(comparison["ours"], {}).get("median_us")
            limit = f"{time_text(ours)}, limit {limit_text(row)}"
            if row["bound"]:
                limit += f", machine's own {time_text(row['bound'][RING_BOUND])}"
            found.append((what, comparison["title"], ratio, f"{comparison['mark']:.2f}", comparison["met"], limit))
    return found


VERDICTS = {True: "met", False: "**missed**", None: "open"}


def marks_section(data):
    """One suite's section of marks.md, as lines below its heading."""
    suite, marks = BY_NAME[data["suite"]], marks_of(data)
    off = sum(1 for probe in data["probes"] if probe["off"])
    lines = [f"[Table]({suite.name}.md), [plot]({suite.name}.svg). "
             f"{machine_text(data['machine'])} {off} of {len(data['probes'])} rounds disturbed.", ""]
    if not marks:
        return [*lines, "No mark is set; the table shows the cost."]
    return lines + markdown_table([["what", "measure", "reached", "mark", "", "ours, limit of the machine"]]
                                  + [[*mark[:4], VERDICTS[mark[4]], mark[5]] for mark in marks])


def earlier_sections(folder):
    """heading -> lines of the marks.md in the folder; empty if there is none."""
    path = os.path.join(folder, "marks.md")
    if not os.path.exists(path):
        return {}
    with open(path) as file:
        parts = file.read().split("\n## ")[1:]
    return {heading: body.strip("\n").split("\n") for heading, _, body in (part.partition("\n") for part in parts)}


def summary_page(folder):
    """marks.md: the marks of all suites, met or missed. Raw results are not kept in the tree: a suite without a JSON file in
    the folder keeps its section of the marks.md that is there."""
    earlier, parts = earlier_sections(folder), []
    for suite in EVERY:
        path = os.path.join(folder, suite.name + ".json")
        lines = earlier.get(suite.title, [f"Not measured: `bench/versus --suite {suite.name}`."])
        if os.path.exists(path):
            with open(path) as file:
                lines = marks_section(json.load(file))
        parts += ["", f"## {suite.title}", "", *lines]
    verdicts = [line.split(" | ")[4] for line in parts if line.startswith("| ")]
    counts = {met: verdicts.count(word) for met, word in VERDICTS.items()}
    head = [
        "# Measured beside the peers",
        "",
        f"Marks met: {counts[True]}, missed: {counts[False]}, open (no result of a peer): {counts[None]}. Each section is one "
        "run of `bench/versus --suite NAME`, which writes this page too. Ratios hold for one machine and one run; times of two "
        "runs say nothing together.",
        "",
        METHOD,
    ]
    return "\n".join(head + parts) + "\n"

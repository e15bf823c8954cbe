"""The measurements of bench/torch_collectives, its marks, and the rows, verdicts and page that it makes of the ranks'
blocks."""

import statistics

from versus_lib.model import bytes_text, time_text
from versus_lib.report import machine_text, markdown_table

KIB, MIB = 1 << 10, 1 << 20
SIZES = (KIB, 64 * KIB, MIB, 16 * MIB, 64 * MIB)
BLOCK_SIZES = (64 * KIB, MIB, 16 * MIB)
TYPE_SIZES = (MIB, 16 * MIB)
BINDING_BYTES = KIB
BINDING_MARK_US = 6.0
TITLES = {
    "gloo": "Gloo",
    "unisono": "Unisono",
    "tcp": "Unisono, tcp",
    "torch": "torch call",
    "process_group": "ProcessGroup's method",
    "core": "unisono.Group's",
    "tool": "C++ call",
    "fake": "torch by itself",
}
# Time of Gloo ÷ ours, at least, in the order of SIZES.
ALL_REDUCE_MARKS = {
    (2, "unisono"): (30, 15, 6, 4, 4),
    (2, "tcp"): (12, 8, 2.5, 2, 1.6),
    (4, "unisono"): (50, 50, 3, 3, 3),
    (4, "tcp"): (50, 50, 1.5, 1.5, 1.5),
}
BLOCK_MARKS = {"all_gather": 3, "reduce_scatter": 4}  # by shared memory
TAIL_MARK, TAIL_BYTES = 3, MIB  # p99 ÷ p50, up to that size, 2 ranks
TYPE_MARK = 0.9  # GB/s ÷ those of float32


# --- measurements --------------------------------------------------------------------------------------------------

def arm(library, collective, size, dtype="float32", api="torch", name=None):
    return {"name": name or library, "library": library, "collective": collective, "dtype": dtype, "bytes": size, "api": api}


def work(group, n, arms):
    first = arms[0]
    return {
        "key": f"{group} {n} {first['collective']} {first['bytes']}",
        "group": group,
        "n": n,
        "collective": first["collective"],
        "bytes": first["bytes"],
        "arms": arms,
    }


def works(n, sizes, groups):
    """The works of n ranks, in the order in which they are measured. sizes: None, or the only ones."""
    found = []
    for collective, usual in (("all_reduce", SIZES), ("all_gather", BLOCK_SIZES), ("reduce_scatter", BLOCK_SIZES)):
        found += [
            work("library", n, [arm(library, collective, size) for library in ("gloo", "unisono", "tcp")])
            for size in usual
            if n > 1
        ]
    for size in TYPE_SIZES if n > 1 else ():
        found.append(
            work(
                "dtype",
                n,
                [
                    arm(library, "all_reduce", size, dtype, name=f"{library} {dtype}")
                    for library in ("unisono", "gloo")
                    for dtype in ("float32", "bfloat16", "float16")
                ],
            )
        )
    if n <= 2:
        found.append(
            work(
                "binding",
                n,
                [
                    arm("unisono", "all_reduce", BINDING_BYTES, api="torch", name="torch"),
                    arm("unisono", "all_reduce", BINDING_BYTES, api="process_group", name="process_group"),
                    arm("core", "all_reduce", BINDING_BYTES, api="core", name="core"),
                    arm("fake", "all_reduce", BINDING_BYTES),
                    arm("gloo", "all_reduce", BINDING_BYTES),
                ],
            )
        )
    return [one for one in found if one["group"] in groups and (not sizes or one["bytes"] in sizes)]


# --- from blocks to rows -------------------------------------------------------------------------------------------

def mark_probes(probes):
    """Says of each why its round was disturbed, if it was."""
    median = statistics.median([probe["copy_gbs"] for probe in probes] or [0])
    for probe in probes:
        reasons = [f"idle {probe['idle']:.0%}"] if probe["idle"] < 0.9 else []
        reasons += [f"steal {probe['steal']:.0%}"] if probe["steal"] > 0.02 else []
        reasons += [f"copy {probe['copy_gbs']} of {median:.1f} GB/s"] if probe["copy_gbs"] < 0.85 * median else []
        probe["off"] = ", ".join(reasons)


def round_of(line):
    return line["work"], line["pass"], line["round"]


def cell(blocks, off):
    """One arm's cell: the median of its blocks' medians, of undisturbed rounds if there are any."""
    good = [block for block in blocks if round_of(block) not in off]
    used = good or blocks
    medians = [block["p50_us"] for block in used]
    return {
        "p50_us": statistics.median(medians),
        "low_us": min(medians),
        "high_us": max(medians),
        "p99_us": statistics.median(block["p99_us"] for block in used),
        "calls": sum(block["calls"] for block in used),
        "rounds": len(used),
        "disturbed": not good,
    }


def rows_of(wanted, blocks, probes):
    """One per work that was measured: its arms' cells."""
    off = {round_of(probe) for probe in probes if probe["off"]}
    rows = []
    for one in wanted:
        cells = {}
        for name in dict.fromkeys([arm["name"] for arm in one["arms"]] + ["tool"]):
            mine = [block for block in blocks if block["work"] == one["key"] and block["arm"] == name]
            if mine:
                cells[name] = cell(mine, off)
        if cells:
            rows.append({**{name: one[name] for name in ("key", "group", "n", "collective", "bytes")}, "cells": cells})
    return rows


def ratio(row, above, below, measure="p50_us"):
    cells = row["cells"]
    return cells[above][measure] / cells[below][measure] if above in cells and below in cells else None


def verdict(what, value, mark, least, unit=""):
    met = None if value is None or mark is None else value >= mark if least else value <= mark
    return {"what": what, "value": value, "mark": mark, "least": least, "unit": unit, "met": met}


def library_marks(row):
    found = []
    name = f"{row['n']} ranks, {row['collective'].replace('_', '-')}, {bytes_text(row['bytes'])}"
    for ours, way in (("unisono", "shared memory"), ("tcp", "TCP")):
        mark = None
        if row["collective"] == "all_reduce":
            mark = ALL_REDUCE_MARKS.get((row["n"], ours), (None,) * len(SIZES))[SIZES.index(row["bytes"])]
        elif ours == "unisono":
            mark = BLOCK_MARKS[row["collective"]]
        if mark is not None:
            found.append(verdict(f"{name}, {way}: Gloo ÷ ours", ratio(row, "gloo", ours), mark, True))
        if row["collective"] == "all_reduce" and row["n"] == 2 and row["bytes"] <= TAIL_BYTES and ours in row["cells"]:
            found.append(
                verdict(
                    f"{name}, {way}: p99 ÷ p50", row["cells"][ours]["p99_us"] / row["cells"][ours]["p50_us"], TAIL_MARK, False
                )
            )
    return found


def marks_of(rows):
    found = []
    for row in rows:
        if row["group"] == "library":
            found += library_marks(row)
        elif row["group"] == "dtype":
            found += [
                verdict(
                    f"{row['n']} ranks, all-reduce, {bytes_text(row['bytes'])}: GB/s of {dtype} ÷ of float32",
                    ratio(row, "unisono float32", f"unisono {dtype}"),
                    TYPE_MARK,
                    True,
                )
                for dtype in ("bfloat16", "float16")
            ]
        else:
            cells = row["cells"]
            cost = cells["torch"]["low_us"] - cells["tool"]["low_us"] if "tool" in cells else None
            found.append(
                verdict(
                    f"{row['n']} rank{'s' if row['n'] > 1 else ''}, all-reduce, {bytes_text(row['bytes'])}: torch call - C++ call, quickest blocks",
                    cost,
                    BINDING_MARK_US,
                    False,
                    " us",
                )
            )
    return found


# --- the page --------------------------------------------------------------------------------------------------------

METHOD = """Both libraries as torch.distributed has them, as process groups of the same processes: the same memory, the same places on the cores, and each way's blocks of
calls follow the other's within a fraction of a second, so that what this machine does to one it does to the other; a group that has nothing to do costs neither
processor time nor wake-ups. Every other round goes the other way round, and each pass has new processes. Blocking calls; a barrier in shared memory of neither library before each;
per call the mean over the ranks, of them the median and the 99th percentile of a block, of these the median over the rounds (± half the range; "!" where none was
undisturbed). The first and the last result of each block are looked at, every element on every rank. Gloo has no shared memory: it is TCP on loopback in all rows. One thread per rank for torch's own arithmetic.
Sizes are those of the larger tensor. Ratios: Gloo's time ÷ ours. For calls of a few microseconds the quickest block of each way is compared, as what else runs on a core's other half slows
whole blocks; "torch by itself" is the same call with torch's backend `fake`, which does nothing."""


def cell_text(entry):
    if entry is None:
        return "-"
    return f"{time_text(entry['p50_us'])} ±{(entry['high_us'] - entry['low_us']) / 2 / entry['p50_us']:.0%}" + (
        "!" if entry["disturbed"] else ""
    )


def with_mark(value, marks, ending):
    if value is None:
        return "-"
    mark = next((one for one in marks if one["what"].endswith(ending)), None)
    return f"{value:.2f}" + (f" ({mark['mark']:g} {'met' if mark['met'] else 'missed'})" if mark else "")


def stack_table(rows):
    lines = [
        [
            "ranks",
            "collective",
            "size",
            "Gloo",
            "Unisono, shm",
            "Gloo ÷ ours",
            "Unisono, tcp",
            "Gloo ÷ ours",
            "p99 Gloo",
            "p99 shm",
            "p99 tcp",
        ]
    ]
    for row in rows:
        marks, cells = library_marks(row), row["cells"]
        lines.append(
            [
                str(row["n"]),
                row["collective"],
                bytes_text(row["bytes"]),
                cell_text(cells.get("gloo")),
                cell_text(cells.get("unisono")),
                with_mark(ratio(row, "gloo", "unisono"), marks, "shared memory: Gloo ÷ ours"),
                cell_text(cells.get("tcp")),
                with_mark(ratio(row, "gloo", "tcp"), marks, "TCP: Gloo ÷ ours"),
                *(time_text(cells[name]["p99_us"]) if name in cells else "-" for name in ("gloo", "unisono", "tcp")),
            ]
        )
    return lines


def type_table(rows):
    lines = [
        ["ranks", "size", "library", "float32", "bfloat16", "float16", "bfloat16 ÷ float32, GB/s", "float16 ÷ float32, GB/s"]
    ]
    for row in rows:
        for library in ("unisono", "gloo"):
            names = [f"{library} {dtype}" for dtype in ("float32", "bfloat16", "float16")]
            ratios = [ratio(row, names[0], name) for name in names[1:]]
            lines.append(
                [
                    str(row["n"]),
                    bytes_text(row["bytes"]),
                    TITLES[library],
                    *(cell_text(row["cells"].get(name)) for name in names),
                    *("-" if value is None else f"{value:.2f}" for value in ratios),
                ]
            )
    return lines


def binding_table(rows):
    names = ("torch", "process_group", "core", "tool", "fake", "gloo")
    return (
        [["ranks", "size", *(TITLES[name] for name in names)]]
        + [[str(row["n"]), bytes_text(row["bytes"]), *(cell_text(row["cells"].get(name)) for name in names)] for row in rows]
        + [
            [
                str(row["n"]),
                "quickest block",
                *(time_text(row["cells"][name]["low_us"]) if name in row["cells"] else "-" for name in names),
            ]
            for row in rows
        ]
    )


def marks_table(marks):
    words = {True: "met", False: "**missed**", None: "open"}
    return [["what", "reached", "mark", ""]] + [
        [
            one["what"],
            "-" if one["value"] is None else f"{one['value']:.2f}{one['unit']}",
            f"{'≥' if one['least'] else '≤'} {one['mark']:g}{one['unit']}",
            words[one["met"]],
        ]
        for one in marks
    ]


def tables(rows):
    """(title, lines) of those that have rows."""
    made = [
        (title, make([row for row in rows if row["group"] == group]))
        for group, title, make in (
            ("library", "Gloo and Unisono", stack_table),
            ("dtype", "Types of 16 bits, all-reduce of as many bytes", type_table),
            ("binding", "What a call costs by itself: all-reduce of one small tensor", binding_table),
        )
    ]
    return [(title, lines) for title, lines in made if len(lines) > 1]


def markdown(data):
    marks = data["marks"]
    off = [probe for probe in data["probes"] if probe["off"]]
    out = ["# Collectives of torch.distributed: Gloo and Unisono", "", machine_text(data["machine"]), "", METHOD, ""]
    for title, lines in tables(data["summary"]):
        out += [f"## {title}", "", *markdown_table(lines), ""]
    out += [
        "## Marks",
        "",
        f"Met: {sum(one['met'] is True for one in marks)}, missed: {sum(one['met'] is False for one in marks)}, open: {sum(one['met'] is None for one in marks)}.",
        "",
        *markdown_table(marks_table(marks)),
        "",
        f"Probes: {len(data['probes'])} rounds, {len(off)} of them disturbed; these are left out where good ones exist.",
    ]
    if off and len(off) == len(data["probes"]):
        out += ["", "**The machine was never quiet: these numbers are noise.**"]
    if data["troubles"]:
        out += ["", "Troubles:", "", *(f"- {words}" for words in data["troubles"])]
    return "\n".join(out) + "\n"

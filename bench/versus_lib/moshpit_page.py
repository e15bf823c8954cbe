"""The page and the figure of bench/moshpit, from what its passes measured: [part, pass, row] each."""

import statistics

from .elastic_peers import quantile, spread
from .plot import LEFT, MARGIN, PANEL_HEIGHT, PANEL_WIDTH, TOP, bars, rectangle, text

OURS, THEIRS, FLAT = "#d62728", "#1f77b4", "#2ca02c"
KNOWN_HIVEMIND_S = 3.17
KNOWN = f"3.17 s per round of 4 MiB with 16 peers in groups of 4, measured on a machine of this kind with hivemind 1.1.12 and PyTorch 2.13 before this program was written"


def ms(seconds):
    return f"{1000 * seconds:.2f}" if seconds < 1 else f"{1000 * seconds:.0f}"


def of_part(measured, part):
    return [row for name, _, row in measured if name == part and "failed" not in row and "unavailable" not in row]


def pooled(rows, name):
    return [value for row in rows for value in row[name]]


def best_hivemind(row):
    """The setting of one pass with the least time; None if none came to an end."""
    whole = [one for one in row["theirs"] if "failed" not in one and one["rounds_s"]]
    return min(whole, key=lambda one: statistics.median(one["rounds_s"]), default=None)


def ratios_of_steps(rows):
    """Averaging step ÷ flat, medians, of each pass."""
    return [statistics.median(row["step_s"]) / statistics.median(row["flat_s"]) for row in rows]


def ratios_to_hivemind(rows):
    """Theirs ÷ ours, medians, of each pass with one of theirs."""
    return [
        statistics.median(best["rounds_s"]) / statistics.median(row["ours"]["rounds_s"])
        for row in rows
        if (best := best_hivemind(row))
    ]


def slowdowns(rows):
    """Slowdown of donors' averaging steps by joins: median during ÷ median before."""
    return [
        statistics.median(one["during_s"]) / statistics.median(one["before_s"])
        for row in rows
        for one in row["joins"]
        if one["during_s"] and one["before_s"]
    ]


def shares_of_line(rows):
    return [
        one["bytes"] / one["load_s"] / max(row["alone_bytes_per_s"], row["shared_bytes_per_s"])
        for row in rows
        for one in row["joins"]
        if one["loaded"] and one["load_s"] > 0
    ]


def spread_words(values, digits=2):
    found = spread(values)
    return f"{found['median']:.{digits}f} ({found['low']:.{digits}f} to {found['high']:.{digits}f})"


def marks(settings, measured):
    """(what, the mark, what was found, whether it is met) of everything that was measured."""
    found = []
    formed = of_part(measured, "formation")
    if formed:
        waited = pooled([row["all"] for row in formed], "last_s")
        found.append(
            (
                "formation: last REGISTER to descriptor, p50, one group of all",
                "<= 5 ms",
                f"{ms(quantile(waited, 0.5))} ms",
                quantile(waited, 0.5) <= 0.005,
            )
        )
    swept = of_part(measured, "steps")
    if swept:
        ratios = ratios_of_steps(swept)
        found.append(
            (
                "one averaging step ÷ flat all-reduce of the same processes",
                "<= 3",
                spread_words(ratios),
                statistics.median(ratios) <= 3,
            )
        )
    compared = of_part(measured, "hivemind")
    ratios = ratios_to_hivemind(compared)
    rounds = [*of_part(measured, "rounds"), *(row["ours"] for row in compared)]
    if ratios:
        found.append(("a round: hivemind ÷ ours, same run", ">= 20", spread_words(ratios, 1), statistics.median(ratios) >= 20))
    elif rounds and settings["peers"] == 16 and settings["elements"] == 1 << 20:
        factor = KNOWN_HIVEMIND_S / statistics.median(pooled(rounds, "rounds_s"))
        found.append(("a round: hivemind (known figure, not this run) ÷ ours", ">= 20", f"{factor:.1f}", None))
    if rounds:
        cpu = [row["cpu_s"] for row in rounds]
        found.append(
            ("processor time per process and round", "<= 0.03 s", f"{spread_words(cpu, 4)} s", statistics.median(cpu) <= 0.03)
        )
    for row in of_part(measured, "long"):
        count = row["peer_rounds"] // settings["peers"]
        found.append(
            (
                f"incomplete of {count} rounds without faults",
                "0 of 10000",
                f"{row['incomplete']}",
                row["incomplete"] == 0 if count >= 10000 else None,
            )
        )
    joined = of_part(measured, "join")
    if joined:
        lines, slow = shares_of_line(joined), slowdowns(joined)
        if lines:
            found.append(
                (
                    "joiner: share of its line's goodput while it loads",
                    ">= 0.80",
                    spread_words(lines),
                    statistics.median(lines) >= 0.8,
                )
            )
        if slow:
            found.append(
                ("donors' averaging steps during ÷ before", "<= 1.35", spread_words(slow), statistics.median(slow) <= 1.35)
            )
    return found


def phase_lines(name, rows):
    """The time waited in each phase of each round; medians of passes."""
    lines = []
    for number in range(max(len(row["phases"]) for row in rows)):
        each = [row["phases"][number] for row in rows if len(row["phases"]) > number]
        cells = " | ".join(
            ms(statistics.median(one[phase] for one in each)) for phase in ("gather_s", "contribute_s", "result_s", "verdict_s")
        )
        lines.append(f"| {name}, round {number + 1} | {cells} |")
    return lines


def time_lines(measured):
    rows = []
    for part, title, name, cpu in (
        ("steps", "flat all-reduce", "flat_s", "cpu_flat_s"),
        ("steps", "step", "step_s", "cpu_step_s"),
        ("rounds", "round", "rounds_s", "cpu_s"),
        ("long", "round, of many", "rounds_s", "cpu_s"),
    ):
        found = of_part(measured, part)
        if found:
            rows.append((title, pooled(found, name), [row[cpu] for row in found]))
    compared = of_part(measured, "hivemind")
    if compared:
        rows.append(
            (
                "round, beside hivemind",
                [value for row in compared for value in row["ours"]["rounds_s"]],
                [row["ours"]["cpu_s"] for row in compared],
            )
        )
        best = [one for one in map(best_hivemind, compared) if one]
        if best:
            rows.append(
                (
                    f"round of hivemind (gathering for {', '.join(sorted({one['matchmaking'] for one in best}))} s)",
                    pooled(best, "rounds_s"),
                    [one["cpu_s"] for one in best],
                )
            )
    formed = of_part(measured, "formation")
    for name, title in (("all", "formation, one group of all"), ("fours", "formation, groups of 4")):
        for key, when in (("last_s", "until the last to register has the descriptor"), ("held_s", "until all have it")):
            values = pooled([row[name] for row in formed], key)
            rows += [(f"{title}, {when}", values, [])] if values else []
    if not rows:
        return []
    lines = ["| what | of how many | p50, ms | p10 to p90, ms | p99, ms | processor time per process, ms |", "|---" * 6 + "|"]
    for title, values, cpu in rows:
        lines.append(
            f"| {title} | {len(values)} | {ms(quantile(values, 0.5))} | {ms(quantile(values, 0.1))} to {ms(quantile(values, 0.9))} | {ms(quantile(values, 0.99))}{'' if len(values) >= 100 else ' (of few)'} | {ms(statistics.median(cpu)) if cpu else ''} |"
        )
    return [*lines, ""]


def join_lines(measured):
    rows = of_part(measured, "join")
    if not rows:
        return []
    lines = [
        "| join | MB | seconds to load | with joining | donors | MB/s | line's goodput, MB/s | averaging steps before, ms | during, ms (how many) |",
        "|---" * 9 + "|",
    ]
    for row in rows:
        line = 1e-6 * max(row["alone_bytes_per_s"], row["shared_bytes_per_s"])
        for number, one in enumerate(row["joins"]):
            rate = 1e-6 * one["bytes"] / one["load_s"] if one["load_s"] > 0 else 0
            during = f"{ms(statistics.median(one['during_s']))} ({len(one['during_s'])})" if one["during_s"] else ""
            lines.append(
                f"| {number + 1} | {1e-6 * one['bytes']:.1f} | {one['load_s']:.3f} | {one['join_s']:.3f} | {one['donors']} | {rate:.1f} | {line:.1f} | {ms(statistics.median(one['before_s'])) if one['before_s'] else ''} | {during} |"
            )
    return [*lines, ""]


def remarks(measured):
    """Counts, and everything that was not as it should be."""
    lines = []
    for part, number, row in measured:
        where = f"{part}, pass {number + 1}"
        if "failed" in row:
            lines.append(f"- **Failed**: {where}: {row['failed']}")
            continue
        if "unavailable" in row:
            lines.append(
                f"- Not measured: {where}: {row['unavailable']}." + (f" Known: {KNOWN}." if part == "hivemind" else "")
            )
        lines += [f"- **Wrong result**: {where}: {words}" for words in row["wrong"]]
        for counts in (row, row.get("ours"), row.get("all"), row.get("fours")):
            if counts and "peer_rounds" in counts:
                grid = "x".join(map(str, counts["dims"]))
                exact = f", {counts['exact']} exact" if "exact" in counts else ""
                lines.append(
                    f"- {where}: grid {grid}; {counts['steps']} averaging steps, {counts['with_all']} with all processes{exact}; {counts['incomplete']} of {counts['peer_rounds']} rounds of processes incomplete"
                    + (f"; notes: {'; '.join(counts['notes'])}" if counts["notes"] else "")
                )
        if "rss_growth" in row:
            lines.append(
                f"- {where}: resident memory of the largest process {row['rss_early_mb']:.1f} MB early, {row['rss_late_mb']:.1f} MB at the end; largest growth {100 * row['rss_growth']:.1f} %"
            )
        for one in row.get("theirs", []):
            lines.append(f"- {where}: hivemind gathering for {one['matchmaking']} s: {one.get('failed') or one['summary']}")
        if row.get("stolen", 0) > 0.02:
            lines.append(
                f"- {where}: {100 * row['stolen']:.0f} % of the processors' time was taken by others of the physical machine"
            )
    return lines


def page(settings, facts, measured):
    verdict = {True: "met", False: "**missed**", None: ""}
    lines = [
        "# Elastic runs between real processes",
        "",
        f"{facts['cpu']}, {facts['cores']} cores; kernel {facts['kernel']}; {facts['compiler']}; commit {facts['commit']}; {facts['time']}. {settings['peers']} processes on this host over loopback TCP, "
        f"{settings['elements']} fp32 elements, groups of 4, verdict on.",
        "",
    ]
    found = marks(settings, measured)
    if found:
        lines += [
            "| mark | wanted | found | |",
            "|---" * 4 + "|",
            *(f"| {what} | {wanted} | {got} | {verdict[met]} |" for what, wanted, got, met in found),
            "",
        ]
    lines += time_lines(measured)
    waits = [
        line
        for part, name in (("steps", "step"), ("rounds", "rounds"))
        if of_part(measured, part)
        for line in phase_lines(name, of_part(measured, part))
    ]
    if waits:
        lines += ["| waited for, median, ms | gather | contribute | result | verdict |", "|---" * 5 + "|", *waits, ""]
    lines += [*join_lines(measured), *remarks(measured)]
    return "\n".join(lines) + "\n"


def panels(measured):
    """(title, bars) each."""
    found = []
    swept, formed, compared, joined = (of_part(measured, part) for part in ("steps", "formation", "hivemind", "join"))

    def bar(name, colour, seconds):
        return name, colour, statistics.median(seconds), f"{ms(statistics.median(seconds))} ms"
    if swept:
        found.append(
            (
                "An averaging step and a flat all-reduce",
                [bar("flat all-reduce", FLAT, pooled(swept, "flat_s")), bar("step", OURS, pooled(swept, "step_s"))],
            )
        )
    if formed:
        found.append(
            (
                "From the last REGISTER until all have the descriptor",
                [
                    bar(title, OURS, pooled([row[name] for row in formed], "held_s"))
                    for name, title in (("all", "one group of all"), ("fours", "groups of 4"))
                ],
            )
        )
    best = [one for one in map(best_hivemind, compared) if one]
    rounds = [*of_part(measured, "rounds"), *(row["ours"] for row in compared)]
    if rounds:
        entries = [bar("Unisono", OURS, pooled(rounds, "rounds_s"))]
        found.append(
            ("A round in groups of 4", [*entries, bar("hivemind", THEIRS, pooled(best, "rounds_s"))] if best else entries)
        )
    before, during = (
        [value for row in joined for one in row["joins"] for value in one[name]] for name in ("before_s", "during_s")
    )
    if before and during:
        found.append(("Donors' averaging steps", [bar("before", FLAT, before), bar("while one loads", OURS, during)]))
    return found


def figure(facts, measured):
    found = panels(measured)
    columns = min(2, max(1, len(found)))
    width, height = columns * (PANEL_WIDTH + LEFT + MARGIN), TOP + (len(found) + 1) // 2 * (PANEL_HEIGHT + 2 * MARGIN) + 20
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" font-family="sans-serif">',
        rectangle(0, 0, width, height, 'fill="white"'),
        text(width / 2, 22, f"Elastic runs, {facts['cores']} cores, {facts['time']}", size=14),
    ]
    for index, (title, entries) in enumerate(found):
        x0, y0 = LEFT + index % 2 * (PANEL_WIDTH + LEFT + MARGIN), TOP + 30 + index // 2 * (PANEL_HEIGHT + 2 * MARGIN)
        out += [
            text(x0 + PANEL_WIDTH / 2, y0 - 10, title, size=13),
            rectangle(x0, y0, PANEL_WIDTH, PANEL_HEIGHT, 'fill="none" stroke="#444"'),
            *bars(entries, x0, y0),
        ]
    return "\n".join([*out, "</svg>"]) + "\n"


def in_short(part, row):
    """One line of progress."""
    if "failed" in row or "unavailable" in row:
        return row.get("failed") or row["unavailable"]
    if row["wrong"]:
        return f"WRONG: {row['wrong'][0]}"
    if part == "steps":
        return f"averaging step {ms(statistics.median(row['step_s']))} ms, flat {ms(statistics.median(row['flat_s']))} ms, ratio {ratios_of_steps([row])[0]:.2f}"
    if part == "formation":
        return ", ".join(
            f"{name} p50 {ms(quantile(row[name]['last_s'], 0.5))} ms of {len(row[name]['last_s'])}"
            for name in ("all", "fours")
            if row[name]["last_s"]
        )
    if part == "hivemind":
        best = best_hivemind(row)
        return f"ours {ms(statistics.median(row['ours']['rounds_s']))} ms, " + (
            f"theirs {ms(statistics.median(best['rounds_s']))} ms" if best else "theirs: none came to an end"
        )
    if part == "join":
        return f"share of the line {', '.join(f'{one:.2f}' for one in shares_of_line([row]))}; averaging steps slower by {', '.join(f'{one:.2f}' for one in slowdowns([row]))}"
    return f"{ms(statistics.median(row['rounds_s']))} ms, {ms(row['cpu_s'])} ms of processor, {row['incomplete']} of {row['peer_rounds']} incomplete"

"""From records to one summary row per transport, world size and message size; and the tables made of them."""

import statistics

from . import peers


def bytes_text(count):
    for unit, shift in (("MiB", 20), ("KiB", 10)):
        if count >= 1 << shift and count % (1 << shift) == 0:
            return f"{count >> shift} {unit}"
    return f"{count} B"


def time_text(us):
    if us is None:
        return "-"
    if us >= 10_000:
        return f"{us / 1000:.1f} ms"
    if us >= 1_000:
        return f"{us / 1000:.2f} ms"
    return f"{us:.0f} us" if us >= 100 else f"{us:.1f} us" if us >= 10 else f"{us:.2f} us"


def limit_us(limits, transport, n, size, cores):
    """What physics of this machine allow, by the programs that measured it: (time, why).

    shm: each rank's input is read and its output written at least once, a copy of n * size bytes shared by the cores.
    tcp: 2 (n-1) * size bytes must cross loopback; an exchange of `size` both ways by two cores moves 2 * size of them.
    """
    if not limits:
        return None, ""
    row = limits["sizes"][str(size)]
    busy = min(n, cores)
    if transport == "shm":
        rate = row["copy_workers_gbs"] if busy > 1 else row["copy_gbs"]
        traffic = n * size / rate / 1000
        return max(traffic, limits["hand_over_us"]), "memory" if traffic > limits["hand_over_us"] else "hand-over"
    traffic = (n - 1) * 2 / max(2, busy) * row["tcp_exchange_us"]
    return max(traffic, limits["tcp_byte_us"]), "loopback"


def samples(comparison, peer, transport, n, size):
    """Per variant, the results of the rounds whose probe was good; of all rounds if none was."""
    off = {probe["round"] for probe in comparison.probes if (probe["transport"], probe["n"]) == (transport, n) and probe["off"]}
    by_variant = {}
    for record in comparison.records:
        if (record["peer"], record["transport"], record["n"]) != (peer, transport, n) or record["wrong_transport"]:
            continue
        for result in record["results"]:
            if result["bytes"] == size:
                by_variant.setdefault(record["variant"], []).append((record["round"], result))
    for variant, pairs in by_variant.items():
        good = [result for number, result in pairs if number not in off]
        by_variant[variant] = good or [result for _, result in pairs]
    return by_variant


def cell(comparison, peer, case, size):
    """The best variant of one library for one size, or why there is none."""
    best = None
    for variant, results in samples(comparison, peer, case.transport, case.n, size).items():
        medians = [result["median_us"] for result in results]
        entry = {"median_us": statistics.median(medians), "low_us": min(medians), "high_us": max(medians),
                 "p99_us": statistics.median(result["p99_us"] for result in results),
                 "min_us": min(result["min_us"] for result in results), "rounds": len(results), "variant": variant,
                 "calls": sum(result["calls"] for result in results)}
        if best is None or entry["median_us"] < best["median_us"]:
            best = entry
    if best is not None:
        return best
    for record in comparison.records:
        if (record["peer"], record["transport"], record["n"]) == (peer, case.transport, case.n) and size in record["sizes"]:
            return {"missing": record["wrong_transport"] or record["status"]}
    return {"missing": "has no such transport"}


def summarise(comparison, limits):
    rows = []
    ours = next((peer for peer in comparison.options.peers if peer.startswith("unisono")), None)
    for case in comparison.cases():
        for size in comparison.options.sizes:
            cells = {peer: cell(comparison, peer, case, size) for peer in comparison.options.peers}
            times = {peer: entry["median_us"] for peer, entry in cells.items()
                     if "median_us" in entry and not peer.startswith("unisono")}
            best = min(times, key=times.get) if times else None
            floor, why = limit_us(limits, case.transport, case.n, size, comparison.cores)
            row = {"transport": case.transport, "n": case.n, "bytes": size, "cells": cells, "best_peer": best,
                   "limit_us": floor, "limit": why, "ratio": None}
            if ours and best and "median_us" in cells[ours]:
                row["ratio"] = times[best] / cells[ours]["median_us"]
            rows.append(row)
    return rows


def cell_text(entry):
    if "missing" in entry:
        return "-" if entry["missing"].startswith("has no") else entry["missing"].split(":")[0]
    spread = (entry["high_us"] - entry["low_us"]) / 2 / entry["median_us"]
    return f"{time_text(entry['median_us'])} ±{spread:.0%}"


def table(rows, names):
    """Lists of strings, header first. p99 columns: ours, and the best peer's."""
    ours = next((peer for peer in names if peer.startswith("unisono")), None)
    head = ["transport", "n", "size", *[peers.title(peer) for peer in names], "ratio", "p99 ours", "p99 best peer", "limit"]
    lines = [head]
    for row in rows:
        p99 = row["cells"][ours].get("p99_us") if ours else None
        best_p99 = row["cells"][row["best_peer"]]["p99_us"] if row["best_peer"] else None
        lines.append([row["transport"], str(row["n"]), bytes_text(row["bytes"]),
                      *[cell_text(row["cells"][peer]) for peer in names],
                      "-" if row["ratio"] is None else f"{row['ratio']:.2f}", time_text(p99), time_text(best_p99),
                      f"{time_text(row['limit_us'])} {row['limit']}"])
    return lines


def aligned(lines):
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    return "\n".join("  ".join(word.rjust(width) for word, width in zip(line, widths)) for line in lines)


def markdown(data, lines):
    facts = data["machine"]
    out = ["# All-reduce beside its peers", "",
           f"{facts['time']}, commit {facts['commit']}, {facts['cpu']}, {facts['cores']} cores, Linux {facts['kernel']}, "
           f"TCP congestion control {facts['congestion_control']}. "
           + ", ".join(f"{name} {version}" for name, version in facts["packages"].items() if version) + ".", "",
           "fp32 sum in place; every first and last result checked on every rank; a barrier before each timed call; per call the "
           "mean over the ranks, of them the median, of these the median over the rounds (± half the range over the rounds). "
           "Each library runs with the settings that were best for it. Ratio: best peer's median / ours; above 1 we are "
           "faster. The limit is what this machine was measured to allow for the bytes that must move.", ""]
    out.append("| " + " | ".join(lines[0]) + " |")
    out.append("|" + "---|" * len(lines[0]))
    out += ["| " + " | ".join(line) + " |" for line in lines[1:]]
    out += ["", "Settings that won:", ""]
    for row in data["summary"]:
        won = [f"{peers.title(peer)}: {entry['variant']}" for peer, entry in row["cells"].items()
               if "variant" in entry and not peer.startswith("unisono")]
        out.append(f"- {row['transport']} n={row['n']} {bytes_text(row['bytes'])}: " + "; ".join(won))
    off = [probe for probe in data["probes"] if probe["off"]]
    out += ["", f"Probes: {len(data['probes'])} rounds, {len(off)} marked as disturbed and left out where a good round exists."]
    if len(off) == len(data["probes"]):
        out += ["", "**The machine was never quiet: these numbers are noise.**"]
    out += [f"- {probe['transport']} n={probe['n']} round {probe['round'] + 1}: {probe['off']}" for probe in off]
    if data["troubles"]:
        out += ["", "What did not run:", ""] + [f"- {what}: {words}" for what, words in data["troubles"].items()]
    return "\n".join(out) + "\n"

"""Turns records into one row per case and work: each contender's best, comparisons with their marks, the machine's limit."""

import statistics

from .model import Contender
from .suites import BEST_PEER, LINK_BOUND, RING_BOUND


def limit_us(limits, case, work, n_bytes):
    """The limit of this machine, by the programs that measured it: (time, why). n_bytes is the size as it is moved.

    shm: inputs must be read and outputs written once; a copy of B bytes does both for B. Shared by the cores.
    tcp: what must leave a rank crosses loopback; an exchange of B both ways by two cores moves 2 * B.
    """
    if not limits:
        return None, ""
    row = limits["sizes"][str(n_bytes)]
    busy = min(case.n, case.cores)
    if case.transport == "shm":
        # Bytes that each rank must read and write, in copies of a tensor of n_bytes.
        copies = {"all_reduce": 1, "all_to_all": 1, "reduce_scatter": (1 + 1 / case.n) / 2, "all_gather": (1 + 1 / case.n) / 2,
                  "broadcast": 1 / 2}[work.collective]
        rate = row["copy_workers_gbs"] if busy > 1 else row["copy_gbs"]
        traffic = copies * case.n * n_bytes / rate / 1000
        return max(traffic, limits["hand_over_us"]), "memory" if traffic > limits["hand_over_us"] else "hand-over"
    traffic = work.crossing(case.n) / work.bytes / max(2, busy) * row["tcp_exchange_us"]
    return max(traffic, limits["tcp_byte_us"]), "loopback"


def exchange_us(limits, case, work, n_bytes):
    """The time that two cores need only to move the bytes between ranks through memory; None: not known.
    This is no limit: a rank whose core has the bytes already, or that shares a core with their owner, needs less."""
    row = limits["sizes"][str(n_bytes)] if limits else {}
    if case.transport != "shm" or min(case.n, case.cores) < 2 or row.get("slot_exchange_us", -1) < 0:
        return None
    return work.crossing(case.n) / work.bytes / 2 * row["slot_exchange_us"]


def rounds_off(comparison, case):
    return {probe["round"] for probe in comparison.probes if probe["case"] == str(case) and probe["off"]}


def good(pairs, off):
    """The values of (round, value) pairs whose round had a good probe, all if none had; and whether none had."""
    values = [value for number, value in pairs if number not in off]
    return values or [value for _, value in pairs], not values


def records_of(comparison, contender, case):
    return [record for record in comparison.records if (record["contender"], record["case"]) == (contender.name, str(case))]


def cell(comparison, contender, case, work):
    """The best variant of one contender for one work, or why there is none."""
    if not comparison.can_run(contender):
        return {"missing": "not installed"}
    records = records_of(comparison, contender, case)
    off = {*rounds_off(comparison, case), "off"}
    by_variant = {}
    for record in records:
        for result in record["results"]:
            if result["work"] == work.key and not record["wrong_transport"]:
                by_variant.setdefault(record["variant"], []).append(("off" if record.get("off") else record["round"], result))
    best = None
    for variant, pairs in by_variant.items():
        results, disturbed = good(pairs, off)
        medians = [result["median_us"] for result in results]
        entry = {"median_us": statistics.median(medians), "low_us": min(medians), "high_us": max(medians),
                 "p99_us": statistics.median(result["p99_us"] for result in results),
                 "min_us": min(result["min_us"] for result in results), "rounds": len(results), "variant": variant,
                 "calls": sum(result["calls"] for result in results), "disturbed": disturbed}
        # An undisturbed result is preferred to a disturbed one.
        if best is None or (entry["disturbed"], entry["median_us"]) < (best["disturbed"], best["median_us"]):
            best = entry
    return best or why_missing([record for record in records if work.key in record["works"]], work)


def why_missing(records, work):
    unfinished = [record["unfinished"] for record in records if "unfinished" in record]
    times = [entry["more_than_us"] for entry in unfinished if entry["work"] == work.key]
    if times:
        return {"more_than_us": min(times)}
    for record in records:
        if record["wrong_transport"] or record["status"] != "ok":
            return {"missing": record["wrong_transport"] or record["status"]}
    return {"missing": "has no such thing"}


def bounds(comparison, case, work):
    """The times in which the goodput of one stream, and that of streams over all links at once, carries what each link must
    carry; the goodputs in megabytes per second."""
    pairs = [(entry["round"], entry) for entry in comparison.goodputs.get(str(case), ())]
    if not pairs:
        return None
    entries, _ = good(pairs, rounds_off(comparison, case))
    one, ring = (statistics.median(entry[name] for entry in entries) for name in ("one_mbs", "ring_mbs"))
    must_move = 2 * (case.n - 1) / case.n * work.bytes
    return {LINK_BOUND: must_move / one, RING_BOUND: must_move / ring, "one_mbs": one, "ring_mbs": ring}


def compare(wanted, case, work, cells, bound):
    """One comparison of one row: ratio, mark, met. A reference that did not finish gives a least ratio ("more_than")."""
    result = {"title": wanted.title, "ours": wanted.ours, "against": wanted.against, "ratio": None, "more_than": False,
              "mark": wanted.marks(case, work) if wanted.marks else None, "met": None}
    ours = cells.get(wanted.ours, {}).get("median_us")
    if wanted.against in (LINK_BOUND, RING_BOUND):
        reference = bound[wanted.against] if bound else None
    elif wanted.against == BEST_PEER:
        others = {name: entry for name, entry in cells.items() if not name.startswith("unisono")}
        times = {name: entry["median_us"] for name, entry in others.items() if "median_us" in entry}
        if not times:
            times = {name: entry["more_than_us"] for name, entry in others.items() if "more_than_us" in entry}
            result["more_than"] = bool(times)
        best = min(times, key=times.get) if times else None
        result["against"], reference = best or BEST_PEER, times.get(best)
    else:
        reference = cells.get(wanted.against, {}).get("median_us")
    if ours and reference:
        result["ratio"] = reference / ours
        if result["mark"] is not None and (result["ratio"] >= result["mark"] or not result["more_than"]):
            result["met"] = result["ratio"] >= result["mark"]
        if result["met"] is False and case.network in wanted.own_limit:
            result["of_own_limit"] = bound[RING_BOUND] / ours
            result["met"] = result["of_own_limit"] >= result["mark"]
    return result


def summarise(comparison, limits):
    rows = []
    for case in comparison.cases():
        for work in comparison.options.works:
            cells = {contender.name: cell(comparison, contender, case, work) for contender in comparison.contenders}
            bound = bounds(comparison, case, work)
            wanted = [one for one in comparison.suite.comparisons if one.ours in cells]
            comparisons = [compare(one, case, work, cells, bound) for one in wanted]
            first = Contender.parse(wanted[0].ours if wanted else comparison.contenders[0].name)
            floor, why = (bound[LINK_BOUND], f"{bound['one_mbs'] * 8 / 1000:.2f} Gbit/s") if bound else \
                limit_us(limits, case, work, work.bytes_of(first))
            rows.append({"case": str(case), "transport": case.transport, "n": case.n, "network": case.network,
                         "collective": work.collective, "bytes": work.bytes, "cells": cells, "comparisons": comparisons,
                         "bound": bound, "limit_us": floor, "limit": why,
                         "exchange_us": exchange_us(limits, case, work, work.bytes_of(first))})
    return rows


def idle_rows(comparison):
    """One row per case: what each contender's busiest process used while it did nothing; the median of the good rounds."""
    rows = []
    for case in comparison.cases():
        cells = {}
        for contender in comparison.contenders:
            records = records_of(comparison, contender, case)
            pairs = [(record["round"], record["idle"]) for record in records if "idle" in record]
            entries, _ = good(pairs, rounds_off(comparison, case))
            if entries:
                cells[contender.name] = {name: statistics.median(entry[name] for entry in entries)
                                         for name in ("cpu_percent_max", "switches_per_second_max")}
            else:
                cells[contender.name] = {"missing": next((record["status"] for record in records), "has no such thing")}
        ours = cells.get("unisono", {})
        met = max(ours.values()) < 0.05 if ours and "missing" not in ours else None
        rows.append({"case": str(case), "transport": case.transport, "n": case.n, "cells": cells, "met": met})
    return rows

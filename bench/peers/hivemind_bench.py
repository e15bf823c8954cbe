"""Measures rounds of hivemind's DecentralizedAverager in groups of 4 on this host. Each peer is a process with its own DHT
node, and all peers begin each round together. The script prints a line of JSON.

  hivemind_bench.py --peers 16 --elements 1048576 --rounds 10 --matchmaking 0.5

The time of a round runs from the last peer that begins to the last peer that is done. Timeouts are short: with hivemind's
defaults, the others wait without limit for a peer that finds no group. The first groups are balanced; hivemind's own rule forms
the later ones.
"""

import argparse
import json
import multiprocessing
import os
import pathlib
import queue
import statistics
import sys
import time

import torch
from hivemind.averaging import DecentralizedAverager
from hivemind.dht import DHT

GROUP = 4
STEP_S, MESSAGE_S, START_S = 30.0, 5.0, 120.0


def cpu_seconds(session):
    """Processor time of all processes of a session: the peer, its child processes, and the daemon that it talks through."""
    ticks = 0
    for entry in pathlib.Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                words = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(words[3]) == session:
                ticks += int(words[11]) + int(words[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def bits_of(index, peers):
    """Its group to begin with, as the averager writes it: as many bits as tell groups apart."""
    groups = max(1, peers // GROUP)
    width = (groups - 1).bit_length()
    return format(index % groups, f"0{width}b") if width else ""


def run_peer(index, options, first, together, results):
    os.setsid()
    multiprocessing.set_start_method("fork", force=True)  # hivemind starts its own processes in this way
    torch.set_num_threads(1)
    initial = [] if index == 0 else first.get()
    if initial:
        first.put(initial)
    dht = DHT(initial_peers=initial, start=True, host_maddrs=["/ip4/127.0.0.1/tcp/0"])
    if index == 0:
        first.put([str(address) for address in dht.get_visible_maddrs()])
    averager = DecentralizedAverager(
        averaged_tensors=[torch.zeros(options.elements)],
        dht=dht,
        prefix="bench",
        target_group_size=GROUP,
        initial_group_bits=bits_of(index, options.peers),
        min_matchmaking_time=options.matchmaking,
        request_timeout=min(1.0, options.matchmaking / 2),
        allreduce_timeout=STEP_S,
        next_chunk_timeout=MESSAGE_S,
        sender_timeout=MESSAGE_S,
        reducer_timeout=2 * MESSAGE_S,
        start=True,
    )
    rounds = []
    for number in range(options.warmup + options.rounds):
        with averager.get_tensors() as tensors:
            tensors[0].fill_(float(index))
        together.wait(START_S)
        cpu, begin, members, trouble = cpu_seconds(os.getpid()), time.monotonic(), [], ""
        try:
            members = list((averager.step(gather=index, timeout=STEP_S) or {}).values())
        except Exception as error:  # any exception means a round without a result
            trouble = type(error).__name__
        end = time.monotonic()
        with averager.get_tensors() as tensors:
            low, high = tensors[0].min().item(), tensors[0].max().item()
        together.wait(START_S)
        if number >= options.warmup:
            rounds.append(
                {
                    "begin": begin,
                    "end": end,
                    "cpu": cpu_seconds(os.getpid()) - cpu,
                    "members": members,
                    "low": low,
                    "high": high,
                    "trouble": trouble,
                }
            )
    results.put((index, rounds))
    together.wait(START_S)
    averager.shutdown()
    dht.shutdown()


def summary_of(peers, options):
    """peers: the rounds of each."""
    by_round = list(zip(*peers))
    seconds = [max(one["end"] for one in each) - max(one["begin"] for one in each) for each in by_round]
    alone = incomplete = 0
    for each in by_round:
        for one in each:
            alone += len(one["members"]) < 2
            mean = sum(one["members"]) / max(1, len(one["members"]))
            incomplete += len(one["members"]) >= 2 and max(abs(one["low"] - mean), abs(one["high"] - mean)) > 1e-3
    whole = sum(len(one["members"]) == GROUP for each in by_round for one in each)
    total = options.rounds * options.peers
    return {
        "rounds_s": seconds,
        "cpu_s": statistics.mean(one["cpu"] for each in by_round for one in each),
        "peer_rounds": total,
        "groups_of_4": whole,
        "without_group": alone,
        "incomplete": incomplete,
        "summary": f"{statistics.median(seconds):.2f} s per round (median of {len(seconds)}); of {total} rounds of peers {whole} in groups of {GROUP}, {alone} without a group, {incomplete} said to be done whose values are not the group's mean",
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", type=int, default=16)
    parser.add_argument("--elements", type=int, default=1 << 20)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--warmup", type=int, default=1)
    parser.add_argument("--matchmaking", type=float, default=0.5, help="seconds for which groups gather members")
    options = parser.parse_args()
    context = multiprocessing.get_context("spawn")
    first, results, together = context.Queue(), context.Queue(), context.Barrier(options.peers)
    peers = [
        context.Process(target=run_peer, args=(index, options, first, together, results)) for index in range(options.peers)
    ]
    for peer in peers:
        peer.start()
    try:
        until, found = time.monotonic() + START_S + 2 * STEP_S * (options.rounds + options.warmup), {}
        while len(found) < len(peers):
            try:
                index, rounds = results.get(timeout=1)
                found[index] = rounds
            except queue.Empty:
                ended = [index for index, peer in enumerate(peers) if index not in found and not peer.is_alive()]
                if ended or time.monotonic() > until:
                    sys.exit(f"peer {ended[0]} ended by itself" if ended else "no end in time")
        print(json.dumps(summary_of([found[index] for index in sorted(found)], options)), flush=True)
        for peer in peers:
            peer.join(START_S)
    finally:
        for peer in peers:
            if peer.is_alive():
                peer.kill()
    sys.stdout.flush()
    os._exit(0)  # hivemind's threads may keep the process alive


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""docs/reference/errors.md has a section for each code of unisono::Code, and its examples are what the library says: each is
produced here."""

import os
import re
import signal
import socket
import subprocess
import tempfile
import threading
import unittest

from support import TOOL, read

HOST = r"host \S+, pid \d+"
TCP = r"tcp://127\.0\.0\.1:\d+: "
FILE = r"file:///\S+: "
ITSELF = (
    r"; this address is this host itself: if rank 0 runs on another host, give its address as this host sees it "
    r"\(MASTER_ADDR, UNISONO_RENDEZVOUS\), or correct the name's line in /etc/hosts"
)
# The shapes of all examples: the page's line and the message that was produced must both have one.
SHAPES = {
    "variable": r"invalid: transport 'rdma' is not known; needed: auto, shm, tcp or udp",
    "rank": r"invalid: rank 4 of a world of 4 \(rank and world size from RANK and WORLD_SIZE\): ranks start at 0",
    "world": rf"invalid: {FILE}job 'default': the processes disagree on the world size: (?:rank 0 \({HOST}\) says 2, rank 1 \({HOST}\) says 3|rank 1 \({HOST}\) says 3, rank 0 \({HOST}\) says 2)",
    "calls": rf"invalid: all_reduce 64 KiB: all_reduce 0: calls differ: rank 1 \({HOST}\) calls all_reduce\(f64 sum, 8192 elements, one_shot\), "
    r"rank 0 calls all_reduce\(f32 sum, 16384 elements, one_shot\); all ranks must make the same call",
    "refused": rf"unavailable: {TCP}connection refused \d+ times over 0\.\d s; tried address 127\.0\.0\.1; is rank 0 running\?{ITSELF}",
    "taken": rf"unavailable: {TCP}port \d+ is taken by another program: an HTTP server answered there{ITSELF}",
    # When it dies or stops is not ours to say: in this or that operation, before or after its first message.
    "killed": rf"peer_lost: all_reduce 1 MiB: \w+ \d+: rank 1 was lost: {HOST}: (the process died|the peer closed its socket without a goodbye); "
    r"shm, \d+ bytes sent, \d+ received; .*call reform\(\)",
    "stopped": rf"late: all_reduce 1 MiB: \w+ \d+: not finished after \d+ ms: rank 1 \({HOST}\) has sent .+",
    "missing": rf"late: {FILE}job 'default': ranks 1, 2 of 3 missing after 0\.\d s; registered: rank 0 \({HOST}\)",
    "damaged": rf"corrupt: {TCP}the rendezvous server sent malformed data: checksum",
    "schedule": r"unsupported: all_reduce 64 KiB: all_reduce: tree all_reduce: no such schedule; there are one_shot, two_step, halving_doubling, ring, hierarchical, double_tree",
    "direct": r"unsupported: all_to_all 64 KiB: all_to_all: all_to_all supports only the direct schedule",
}


def sections():
    """The page's sections by title."""
    parts = re.split(r"^## (.+)$", read("docs/reference/errors.md"), flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2]))


def codes():
    """Numbers by name, from the C++ header."""
    body = re.search(r"enum class Code : uint8_t \{(.*?)\};", read("include/unisono/status.h"), flags=re.DOTALL).group(1)
    return {name: int(number) for name, number in re.findall(r"^\s*(\w+) = (\d+)", body, flags=re.MULTILINE)}


class Page(unittest.TestCase):
    def test_each_code_has_a_section_and_each_section_a_code_in_their_order(self):
        self.assertGreater(len(codes()), 7)
        self.assertEqual(list(sections()), list(codes()))

    def test_the_table_has_each_code_with_its_number_and_its_name_in_c(self):
        in_c = {
            name: int(number)
            for name, number in re.findall(
                r"(UNISONO_\w+) = (\d+)", read("include/unisono/unisono_c.h").split("unisono_code;")[0]
            )
        }
        rows = re.findall(
            r"^\| \[`(\w+)`\]\(#(\w+)\) \| (\d+) \| `(\w+)` \|", read("docs/reference/errors.md"), flags=re.MULTILINE
        )
        self.assertEqual([(name, int(number)) for name, _, number, _ in rows], list(codes().items()))
        self.assertEqual({c_name: int(number) for _, _, number, c_name in rows}, in_c)
        self.assertTrue(all(name == link for name, link, _, _ in rows))

    def test_each_section_says_which_calls_raise_it_and_what_to_do(self):
        for name, text in sections().items():
            if name != "ok":
                self.assertIn("**Raised by**", text, name)
                self.assertIn("**What to do.**", text, name)

    def test_each_example_stands_under_its_code_and_is_produced_below(self):
        shown = []
        for name, text in sections().items():
            for line in "".join(re.findall(r"^```text\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)).splitlines():
                self.assertTrue(line.startswith(name + ": "), line)
                shapes = [shape for shape, pattern in SHAPES.items() if re.fullmatch(pattern, line)]
                self.assertEqual(len(shapes), 1, f"nothing here produces the example: {line}")
                shown += shapes
        self.assertEqual(sorted(shown), sorted(SHAPES))


class Rank:
    """One rank of `unisono bench`."""

    def __init__(self, rank, world, meeting, words, **environment):
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("UNISONO_")}
        self.process = subprocess.Popen(
            [TOOL, "bench", *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**inherited, "RANK": str(rank), "WORLD_SIZE": str(world), "UNISONO_RENDEZVOUS": meeting, **environment},
        )

    def message(self):
        """The process's last message, from the code on."""
        error = self.process.communicate(timeout=60)[1].strip()
        for name in codes():
            if f" {name}: " in error:
                return error[error.index(f" {name}: ") + 1:]
        return error

    def kill(self):
        self.process.kill()
        self.process.communicate()


class Examples(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="unisono-errors-")
        self.addCleanup(folder.cleanup)
        self.meeting = "file://" + os.path.join(folder.name, "meeting")

    def start(self, rank, world, *words, meeting=None, **environment):
        started = Rank(rank, world, meeting or self.meeting, words, **environment)
        self.addCleanup(started.kill)
        return started

    def expect(self, shape, message):
        self.assertRegex(message, "^" + SHAPES[shape] + "$")

    def listen(self, answer):
        """A server on a free port of this host that deals with each connection by answer(socket)."""
        server = socket.create_server(("127.0.0.1", 0))

        def serve():
            try:
                while True:
                    answer(server.accept()[0])
            except OSError:
                pass  # closed: the test is over

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        self.addCleanup(thread.join, 10)
        self.addCleanup(server.close)
        self.addCleanup(server.shutdown, socket.SHUT_RDWR)
        return f"tcp://127.0.0.1:{server.getsockname()[1]}"

    def test_invalid(self):
        self.expect("variable", self.start(0, 1, UNISONO_TRANSPORT="rdma").message())
        self.expect("rank", self.start(4, 4).message())

    def test_invalid_between_ranks(self):
        ranks = [self.start(0, 2), self.start(1, 3)]
        for rank in ranks:
            self.expect("world", rank.message())
        ranks = [self.start(rank, 2, "--sizes", "64K", "-d", dtype) for rank, dtype in enumerate(("f32", "f64"))]
        self.expect("calls", ranks[0].message())

    def test_unavailable(self):
        with socket.socket() as held:  # bound and not listening: connections to it are refused, and nobody else gets it
            held.bind(("127.0.0.1", 0))
            nobody = f"tcp://127.0.0.1:{held.getsockname()[1]}"
            self.expect("refused", self.start(1, 2, meeting=nobody, UNISONO_JOIN_TIMEOUT_MS="300").message())

        def answer(connection):
            with connection:
                connection.recv(4096)
                connection.sendall(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")

        self.expect("taken", self.start(1, 2, meeting=self.listen(answer)).message())

    def two_ranks_at_work(self, *words):
        ranks = [
            self.start(rank, 2, "--sizes", "1M", "--iters", "1000000", "--transport", "shm", *words, UNISONO_TRANSPORT="shm")
            for rank in range(2)
        ]
        while "us" not in ranks[0].process.stdout.readline():  # the head of the table: the group is formed
            self.assertIsNone(ranks[0].process.poll())
        return ranks

    def test_peer_lost(self):
        ranks = self.two_ranks_at_work()
        ranks[1].process.send_signal(signal.SIGKILL)
        self.expect("killed", ranks[0].message())

    def test_late(self):
        ranks = self.two_ranks_at_work("--timeout", "300ms")
        ranks[1].process.send_signal(signal.SIGSTOP)
        self.expect("stopped", ranks[0].message())
        self.expect("missing", self.start(0, 3, UNISONO_JOIN_TIMEOUT_MS="300").message())

    def test_corrupt(self):
        server = subprocess.Popen(
            [TOOL, "rendezvous", "--listen", "127.0.0.1:0", "--quiet"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.addCleanup(server.communicate)
        self.addCleanup(server.kill)
        port = int(server.stdout.readline().rsplit(":", 1)[1])

        def damage(client):
            """Passes on one message each way, with one bit of the server's changed."""
            with client, socket.create_connection(("127.0.0.1", port)) as upstream:
                upstream.sendall(client.recv(65536))
                answer = bytearray(upstream.recv(65536))
                answer[-1] ^= 1
                client.sendall(answer)
                client.recv(1)  # until the client hangs up

        self.expect("damaged", self.start(1, 2, meeting=self.listen(damage), UNISONO_JOIN_TIMEOUT_MS="10000").message())

    def test_unsupported(self):
        for shape, words in (
            ("schedule", ["all-reduce", "--schedule", "tree"]),
            ("direct", ["all-to-all", "--schedule", "ring"]),
        ):
            ranks = [self.start(rank, 2, *words, "--sizes", "64K") for rank in range(2)]
            for rank in ranks:
                self.expect(shape, rank.message())


if __name__ == "__main__":
    unittest.main()

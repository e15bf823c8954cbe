"""Memory that the ranks of one host share: a barrier, one number from rank 0 to all, and every rank's samples.

It belongs to neither of the libraries that are compared, so that both start from the same line.
"""

import mmap
import os
import time

LINE = 8  # words of 8 bytes per rank's counter: one cache line
SAMPLES_MAX = 4000


class RankLost(Exception):
    """Some rank did not reach a barrier in time."""


class Board:
    """All ranks open the same path; the first one creates it with this size."""

    def __init__(self, path, rank, world, patience_s=120.0):
        self.rank, self.world, self.patience_s = rank, world, patience_s
        size = 8 * (LINE * (world + 1) + world * SAMPLES_MAX)
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.ftruncate(file, size)
            self.memory = mmap.mmap(file, size)
        finally:
            os.close(file)
        words = memoryview(self.memory)
        self.counters = words[: 8 * LINE * (world + 1)].cast("q")
        self.samples = words[8 * LINE * (world + 1):].cast("d")
        self.met = 0
        self.others = [LINE * other for other in range(world) if other != rank]
        self.crowded = world > len(os.sched_getaffinity(0))

    def meet(self):
        """All ranks leave it together. Spins, so that they do within a cache miss or two; gives way where ranks outnumber
        cores, and after a while everywhere."""
        self.met += 1
        counters, met = self.counters, self.met
        counters[LINE * self.rank] = met
        spins, began = 0, 0.0
        for index in self.others:
            while counters[index] < met:
                spins += 1
                if self.crowded or spins > 20000:
                    os.sched_yield()
                    if spins % 1000 == 0:
                        began = began or time.monotonic()
                        self.give_up_after(began)

    def give_up_after(self, began):
        if time.monotonic() - began > self.patience_s:
            raise RankLost(f"rank {self.rank} waited {self.patience_s:g} s for the others")

    def rest(self, pause_s=0.005):
        """Like meet(), but ranks sleep while they wait, so nothing runs meanwhile. All leave within one pause."""
        self.met += 1
        self.counters[LINE * self.rank] = self.met
        began = time.monotonic()
        while any(self.counters[index] < self.met for index in self.others):
            time.sleep(pause_s)
            self.give_up_after(began)

    def agree(self, number):
        """Returns rank 0's number on every rank; the others' numbers are ignored."""
        index = LINE * self.world
        if self.rank == 0:
            self.counters[index] = number
        self.meet()
        number = self.counters[index]
        self.meet()
        return number

    def every(self, values):
        """Each rank's list, by rank; on every rank. All are of the same length."""
        first = self.rank * SAMPLES_MAX
        for index, value in enumerate(values):
            self.samples[first + index] = value
        self.meet()
        lists = [list(self.samples[rank * SAMPLES_MAX:rank * SAMPLES_MAX + len(values)]) for rank in range(self.world)]
        self.meet()
        return lists

    def mean_of_ranks(self, values):
        """The mean of all ranks' lists, element by element; on every rank."""
        return [sum(row) / self.world for row in zip(*self.every(values))]

"""The types of a comparison: Contender (a measured library), Work (an operation), Case (a network), Variant (settings)."""

import dataclasses
import re

TITLES = {"unisono": "Unisono", "openmpi": "Open MPI", "mpich": "MPICH", "gloo": "Gloo", "torch": "torch (Gloo)"}
ELEMENTS = {"fp32": ("f32", 4), "bf16": ("bf16", 2), "fp16": ("f16", 2)}
COLLECTIVES = ("all_reduce", "reduce_scatter", "all_gather", "all_to_all", "broadcast")


@dataclasses.dataclass(frozen=True)
class Contender:
    """A library and how it is asked: "openmpi", "unisono:ring+any", "unisono:bf16", "openmpi:8_parts", "unisono:pinned"."""
    implementation: str
    element: str = "fp32"
    parts: int = 1           # operations in flight at once, with equal shares of the bytes
    pinned: bool = False     # one core per rank
    algorithm: str = ""      # for Unisono only: schedule, order, codec, or several of these

    @staticmethod
    def parse(name):
        library, _, rest = name.partition(":")
        if library not in TITLES:
            raise ValueError(f"no library is called {library}; there are: {', '.join(TITLES)}")
        settings, algorithm = {}, []
        for word in rest.split("+") if rest else ():
            parts = re.fullmatch(r"([1-9][0-9]*)_parts", word)
            if word in ELEMENTS:
                settings["element"] = word
            elif parts:
                settings["parts"] = int(parts[1])
            elif word == "pinned":
                settings["pinned"] = True
            else:
                algorithm.append(word)
        if library != "unisono" and (algorithm or "pinned" in settings):
            raise ValueError(f"{name}: schedules, orders and cores are chosen for unisono only")
        return Contender(library, algorithm="+".join(algorithm), **settings)

    @property
    def name(self):
        words = [] if self.element == "fp32" else [self.element]
        words += [f"{self.parts}_parts"] if self.parts > 1 else []
        words += ["pinned"] if self.pinned else []
        words += [self.algorithm] if self.algorithm else []
        return self.implementation + (":" + "+".join(words) if words else "")

    @property
    def wire_fraction(self):
        """Bytes that must travel ÷ those of the elements: with a codec at least its codes."""
        bits = [int(found) for found in re.findall(r"int([2-8])", self.algorithm.replace("auto", "int8"))]
        return min(bits) / 32 if bits else 0.5 if "bf16" in self.algorithm.split("+") else 1

    @property
    def title(self):
        return TITLES[self.implementation] + self.name[len(self.implementation):].replace(":", " ").replace("_", " ")

    @property
    def is_ours(self):
        return self.implementation == "unisono"


@dataclasses.dataclass(frozen=True)
class Work:
    """A collective and its size: the bytes of the larger buffer of a rank, if the elements were fp32."""
    collective: str
    bytes: int

    @property
    def key(self):
        return f"{self.collective} {self.bytes}"

    def bytes_of(self, contender):
        """The bytes of the same number of elements in the contender's element type."""
        return self.bytes * ELEMENTS[contender.element][1] // 4

    def entry(self, contender, algorithm):
        """As the plan of the measuring programs names it."""
        words = [] if self.collective == "all_reduce" else [self.collective]
        words += [] if contender.element == "fp32" else [ELEMENTS[contender.element][0]]
        share = self.bytes_of(contender) // contender.parts
        words.append(str(share) if contender.parts == 1 else f"{contender.parts}x{share}")
        return "/".join(words) + (f"={algorithm}" if algorithm else "")

    def crossing(self, n):
        """Bytes that must leave some rank for another, over all ranks together."""
        return (2 if self.collective == "all_reduce" else 1) * (n - 1) * self.bytes


@dataclasses.dataclass(frozen=True)
class Case:
    transport: str
    n: int
    cores: int
    network: str = ""   # name of the network, if the ranks are in network namespaces; empty: all ranks are on this host

    def __str__(self):
        return f"{self.transport} n={self.n}" + (f", {self.network}" if self.network else "")


@dataclasses.dataclass(frozen=True)
class Variant:
    """One setting of one library."""
    name: str
    env: tuple = ()          # (name, value) pairs
    arguments: tuple = ()    # for the launcher, or for the program if there is no launcher
    algorithm: str = ""      # name in the plan
    quick: bool = False      # also tried with --quick, because it usually wins


def bytes_text(count):
    for unit, shift in (("MiB", 20), ("KiB", 10)):
        if count >= 1 << shift and count % (1 << shift) == 0:
            return f"{count >> shift} {unit}"
    return f"{count} B"


def time_text(us):
    if us is None:
        return "-"
    if us >= 1e6:
        return f"{us / 1e6:.2f} s"
    if us >= 10_000:
        return f"{us / 1000:.1f} ms"
    if us >= 1_000:
        return f"{us / 1000:.2f} ms"
    return f"{us:.0f} us" if us >= 100 else f"{us:.1f} us" if us >= 10 else f"{us:.2f} us"

"""The comparisons and their marks: one Suite per table.

A mark is the least ratio that a row must reach. The ratio is always the time of the reference ÷ the time of ours: more is
better.
"""

import dataclasses

from .model import Work

KIB, MIB = 1 << 10, 1 << 20
SIZES = (KIB, 64 * KIB, MIB, 16 * MIB, 64 * MIB)
BEST_PEER = "best peer"   # the fastest contender of the other libraries
LINK_BOUND = "bound"           # bound by the network: bytes that a link must carry ÷ rate of one TCP stream on the link
RING_BOUND = "ring"             # bound by the network, with a TCP stream from every host to the next at the same time
LIBRARIES = ("unisono", "openmpi", "mpich", "gloo")


@dataclasses.dataclass(frozen=True)
class Comparison:
    ours: str          # name of our contender
    against: str       # name of the other contender, or BEST_PEER, LINK_BOUND or RING_BOUND
    title: str         # title of the column
    marks: object = None   # (case, work) -> least ratio, or None if there is no mark
    own_limit: tuple = ()  # networks in which reaching that ratio of the machine's own limit is enough


@dataclasses.dataclass(frozen=True)
class Suite:
    name: str
    title: str
    about: str         # head of the table: sentences about what is measured
    contenders: tuple
    comparisons: tuple
    works: tuple = ()
    transports: tuple = ("shm", "tcp")
    n: tuple = (2, 4)
    networks: tuple = ("",)
    idle: bool = False
    # true: every call reads the same cached input; false: the caller rewrites the input before each call
    keeps_input: bool = False


COPYING = "fp32. The size means the same for all, as in nccl-tests: the larger of a rank's two buffers, that is the input " \
          "of reduce_scatter, the output of all_gather, either buffer of all_to_all, the tensor of broadcast; a block is " \
          "that ÷ n. Broadcast is in place and from rank 0, the others are not in place; Gloo's reduce-scatter is, and is " \
          "charged with the copy of its block. "


OTHERS = tuple(
    Work(collective, size)
    for collective in ("reduce_scatter", "all_gather", "all_to_all", "broadcast")
    for size in (64 * KIB, MIB, 16 * MIB)
)


def all_reduces(sizes):
    return tuple(Work("all_reduce", size) for size in sizes)


def by_size(table):
    """(transport, n) -> marks in the order of SIZES."""
    def mark(case, work):
        values = table.get((case.transport, case.n))
        return values[SIZES.index(work.bytes)] if values and work.bytes in SIZES else None
    return mark


def everywhere(value):
    return lambda case, work: value


FASTER = by_size({("shm", 2): (1.2, 1.4, 1.4, 1.6, 2.5), ("shm", 4): (1.0, 1.2, 1.3, 1.3, 1.8),
                  ("tcp", 2): (0.9, 1.1, 1.2, 1.1, 1.6), ("tcp", 4): (0.9,) * 5})
# 32 bits ÷ bits of an encoded element, in groups of 128 elements with bf16 scales.
RATIOS = {"int8": 32 / 8.25, "int6": 32 / 6.25, "int5": 32 / 5.25, "int4": 32 / 4.25, "int2:spikes=off": 32 / 2.25}


def of_the_bytes(codec):
    """Nine tenths of what the bytes allow on a thin link; on a wider one encoding must not cost more than it saves."""
    wide = 2.5 if codec == "int4" else 1.0
    return lambda case, work: {"1 Gbit/s": 0.9 * RATIOS[codec], "10 Gbit/s": wide}.get(case.network)


OF_A_LIMITED_LINK = {"1 Gbit/s": 0.99, "10 Gbit/s": 0.90}

EVERY = (
    Suite(
        "all-reduce",
        "All-reduce beside its peers",
        "fp32 sum in place. Each library runs with the settings that were best for it.",
        (*LIBRARIES, "torch"),
        (Comparison("unisono", BEST_PEER, "best peer ÷ ours", FASTER),),
        all_reduces(SIZES),
    ),
    Suite(
        "oversubscribed",
        "More ranks than cores",
        "fp32 all-reduce in place, with the peers' settings for crowded cores. \"> x\": the run was ended by its time "
        "limit; x is its time ÷ the calls that had begun, each with the barrier before it.",
        LIBRARIES,
        (Comparison("unisono", BEST_PEER, "best peer ÷ ours", everywhere(1.0)),),
        all_reduces((KIB, MIB)),
        n=(8, 16),
    ),
    Suite(
        "pinned",
        "One core per rank",
        "fp32 all-reduce in place; our own, every rank with all its threads bound to one core, against our own as the "
        "kernel places it.",
        ("unisono", "unisono:pinned"),
        (Comparison("unisono:pinned", "unisono", "unpinned ÷ pinned", everywhere(0.66)),),
        all_reduces(SIZES),
        n=(2,),
    ),
    Suite(
        "collectives",
        "The other collectives",
        COPYING
        + "Each rank writes its input anew before every call, outside the time measured, as a caller with new data does.",
        LIBRARIES,
        (Comparison("unisono", BEST_PEER, "best peer ÷ ours", everywhere(1.0)),),
        OTHERS,
    ),
    Suite(
        "kept_inputs",
        "The other collectives, with inputs that never change",
        COPYING
        + "The inputs are written once for all calls, as nccl-tests and OSU do: who reads its peer's memory has it in its own "
        "cache from the call before, which no caller with new data does.",
        LIBRARIES,
        (Comparison("unisono", BEST_PEER, "best peer ÷ ours", everywhere(1.0)),),
        OTHERS,
        keeps_input=True,
    ),
    Suite(
        "dtypes",
        "16-bit floats",
        "All-reduce in place of the same number of elements: 4 Mi, that is 16 MiB of fp32, 8 MiB of bf16 and fp16. The "
        "mark of 0.6 of fp32's time is a ratio of 1.67.",
        ("unisono", "unisono:bf16", "unisono:fp16"),
        (
            Comparison("unisono:bf16", "unisono", "fp32 ÷ bf16", everywhere(1 / 0.6)),
            Comparison("unisono:fp16", "unisono", "fp32 ÷ fp16", everywhere(1 / 0.6)),
        ),
        all_reduces((16 * MIB,)),
    ),
    Suite(
        "several",
        "Several operations at once",
        "fp32 all-reduce in place: eight of 4 MiB started together and then waited for, against one of 32 MiB. The "
        "peers' are MPI_Iallreduce and MPI_Waitall; Gloo has nothing of the kind.",
        ("unisono", "unisono:8_parts", "openmpi", "openmpi:8_parts", "mpich", "mpich:8_parts"),
        (Comparison("unisono:8_parts", "unisono", "one ÷ eight", everywhere(1.0)),),
        all_reduces((32 * MIB,)),
    ),
    Suite(
        "orders",
        "The order of additions",
        "fp32 all-reduce in place; our own in strict rank order and in any order, against our own default. On these "
        "groups, all ranks on one host, the default is rank order (docs/design/decisions/0002-order-of-sums.md), so the first "
        "ratio shows the noise.",
        ("unisono", "unisono:strict", "unisono:any"),
        (Comparison("unisono:strict", "unisono", "default ÷ strict"), Comparison("unisono:any", "unisono", "default ÷ any")),
        all_reduces(SIZES),
    ),
    Suite(
        "limited",
        "Thin links",
        "fp32 all-reduce in place between network namespaces, each with its own link to one bridge; tc tbf limits both "
        "directions of each link. The bound is 2(n-1)/n of the tensor ÷ the goodput of one TCP stream of as many bytes, "
        "measured before each round on the same links. The machine's own limit: the same with a stream from every host "
        "to the next, all at once, so that every link is full both ways; the slowest counts. At 10 Gbit/s, which is more than two cores "
        "may carry, the mark is met by the same part of that limit.",
        ("unisono", "openmpi", "gloo"),
        (
            Comparison(
                "unisono", LINK_BOUND, "bound ÷ ours", lambda case, work: OF_A_LIMITED_LINK.get(case.network), ("10 Gbit/s",)
            ),
            Comparison("unisono", RING_BOUND, "machine's own ÷ ours"),
            Comparison("unisono", BEST_PEER, "best peer ÷ ours"),
        ),
        all_reduces((64 * MIB,)),
        ("tcp",),
        (4,),
        networks=(*OF_A_LIMITED_LINK, "no limit"),
    ),
    Suite(
        "codecs",
        "Encoded elements on thin links",
        "All-reduce in place of 8 Mi fp32 elements in groups of 128, in two steps, between network namespaces as for thin "
        "links: with 8 to 2 bits and without, and without in a ring. The marks at 1 Gbit/s are nine tenths of the ratio "
        "of the bytes. Encoded all-reduces make averages.",
        ("unisono:two_step", "unisono:ring+any", *(f"unisono:two_step+{codec}" for codec in RATIOS)),
        tuple(
            Comparison(f"unisono:two_step+{codec}", "unisono:two_step", f"two-step ÷ {codec}", of_the_bytes(codec))
            for codec in RATIOS
        )
        + tuple(
            Comparison(f"unisono:two_step+{codec}", "unisono:ring+any", f"ring ÷ {codec}", of_the_bytes(codec))
            for codec in RATIOS
        ),
        all_reduces((32 * MIB,)),
        ("tcp",),
        (4,),
        networks=tuple(OF_A_LIMITED_LINK),
    ),
    Suite(
        "small_codecs",
        "Few encoded elements",
        "All-reduce in place of 16 KiB of fp32, as one token's activations are, on a thin link: the library's own choice with a codec "
        "and without, and without in each schedule that is quick there.",
        ("unisono", "unisono:one_shot", "unisono:two_step", "unisono:int8", "unisono:int4"),
        tuple(
            Comparison(
                f"unisono:{codec}", plain, f"{title} ÷ {codec}", lambda case, work: 1.0 if case.network == "1 Gbit/s" else None
            )
            for codec in ("int8", "int4")
            for plain, title in (("unisono", "plain"), ("unisono:one_shot", "one shot"), ("unisono:two_step", "two-step"))
        ),
        all_reduces((16 * KIB,)),
        ("tcp",),
        (4,),
        networks=tuple(OF_A_LIMITED_LINK),
    ),
    Suite(
        "codec_choice",
        "Codecs where links are fast",
        "All-reduce in place of 16 MiB of fp32 inside one host. A codec with the library's own choice (auto is int8) is left out "
        "where it does not pay; with a schedule named, it is not.",
        ("unisono", "unisono:auto", "unisono:one_shot+int8", "unisono:one_shot+int4"),
        tuple(
            Comparison("unisono:auto", other, f"{title} ÷ auto", everywhere(0.97))
            for other, title in (("unisono", "plain"), ("unisono:one_shot+int8", "int8"), ("unisono:one_shot+int4", "int4"))
        ),
        all_reduces((16 * MIB,)),
        n=(2,),
    ),
    Suite(
        "idle",
        "A group that does nothing",
        "Four processes that have joined and made one all-reduce, then nothing, for 5 s: processor time and voluntary "
        "context switches of all threads of the busiest process. Mark: 0.0 % and no switch but for failure detection.",
        LIBRARIES,
        (),
        all_reduces((MIB,)),
        n=(4,),
        idle=True,
    ),
)
BY_NAME = {suite.name: suite for suite in EVERY}

"""How each library is started, and which of its settings are worth trying: the best of them is what counts.

A Variant is one setting of one library: environment, launcher arguments, and the algorithm that the program is told.
"""

import dataclasses
import os

from .child import Command

PEERS = ("openmpi", "mpich", "gloo")
TITLES = {"unisono": "Unisono", "openmpi": "Open MPI", "mpich": "MPICH", "gloo": "Gloo"}


@dataclasses.dataclass(frozen=True)
class Variant:
    name: str
    env: tuple = ()          # (name, value) pairs
    arguments: tuple = ()    # of the launcher, or of the program where there is no launcher
    algorithm: str = ""      # inside the plan
    quick: bool = False      # tried even with --quick: those that usually win

    @property
    def process(self):
        """Variants with equal settings share a process."""
        return (self.env, self.arguments)


@dataclasses.dataclass(frozen=True)
class Case:
    transport: str
    n: int
    cores: int

    def __str__(self):
        return f"{self.transport} n={self.n}"


def title(peer):
    name, _, algorithm = peer.partition(":")
    return TITLES.get(name, name) + (f" {algorithm}" if algorithm else "")


def mca(**settings):
    return tuple(word for name, value in settings.items() for word in ("--mca", name, str(value)))


def openmpi_algorithms():
    """Algorithms of its "tuned" component: 3 recursive doubling, 4 ring, 5 segmented ring, 6 Rabenseifner."""
    def fixed(number, segment=0):
        return mca(coll_tuned_use_dynamic_rules=1, coll_tuned_allreduce_algorithm=number,
                   coll_tuned_allreduce_algorithm_segmentsize=segment)
    yield "own choice", (), True
    yield "recursive doubling", fixed(3), False
    yield "ring", fixed(4), False
    yield "rabenseifner", fixed(6), False
    for segment in (65536, 262144, 1048576):
        yield f"segmented ring {segment >> 10}K", fixed(5, segment), segment == 262144


def openmpi_variants(case):
    ucx = {"pml": "ucx", "opal_common_ucx_tls": "any", "opal_common_ucx_devices": "any"}
    if case.transport == "tcp":
        base = mca(pml="ob1", btl="tcp,self", btl_tcp_if_include="lo")
        for name, arguments, quick in openmpi_algorithms():
            yield Variant(name, (), base + arguments, quick=quick)
        yield Variant("2 links", (), base + mca(btl_tcp_links=2))
        yield Variant("eager 1M", (), base + mca(btl_tcp_eager_limit=1 << 20))
        yield Variant("ucx", (("UCX_TLS", "tcp,self"), ("UCX_NET_DEVICES", "lo")), mca(**ucx))
        return
    base = mca(pml="ob1", btl="vader,self")
    for copies, mechanism in (("", "cma"), ("copy in and out, ", "none")):
        for name, arguments, quick in openmpi_algorithms():
            yield Variant(copies + name, (), base + mca(btl_vader_single_copy_mechanism=mechanism) + arguments, quick=quick)
    yield Variant("coll sm, copy in and out", (), base + mca(coll_sm_priority=100, btl_vader_single_copy_mechanism="none"))
    yield Variant("ucx", (("UCX_TLS", "shm,self"),), mca(**ucx), quick=True)


def mpich_variants(case):
    if case.transport == "tcp":
        # Ranks on one host would use shared memory; this makes every rank look remote.
        base = (("MPIR_CVAR_NOLOCAL", "1"), ("UCX_TLS", "tcp,self"), ("UCX_NET_DEVICES", "lo"))
    else:
        base = ()
    yield Variant("own choice", base, quick=True)
    for algorithm in ("recursive_doubling", "reduce_scatter_allgather"):
        settings = (("MPIR_CVAR_ALLREDUCE_INTRA_ALGORITHM", algorithm), ("MPIR_CVAR_ALLREDUCE_DEVICE_COLLECTIVE", "0"))
        yield Variant(algorithm.replace("_", " "), base + settings)
    if case.n > case.cores:
        yield Variant("yields at once", base + (("MPIR_CVAR_POLLS_BEFORE_YIELD", "1"),))
    if case.transport == "shm":
        yield Variant("release gather", base + (("MPIR_CVAR_ALLREDUCE_POSIX_INTRA_ALGORITHM", "release_gather"),))
        yield Variant("ucx shm", (("MPIR_CVAR_NOLOCAL", "1"), ("UCX_TLS", "shm,self")))


def gloo_variants(case):
    if case.transport == "shm":
        return  # Gloo has no shared memory
    for mode in ("async", "sync", "busy"):
        for algorithm in ("ring_chunked", "halving_doubling", "bcube"):
            quick = mode == "async" or (mode == "sync" and algorithm != "ring_chunked")
            yield Variant(f"{algorithm} {mode}", (), ("--mode", mode), algorithm, quick)
    for algorithm in ("new_ring", "new_bcube"):
        yield Variant(f"{algorithm} async", (), ("--mode", "async"), algorithm, algorithm == "new_ring")


def variants(peer, case, quick):
    """At least one for every pair that can run; none where the library has no such transport."""
    name, _, algorithm = peer.partition(":")
    if name == "unisono":
        return [Variant(algorithm or "own choice", algorithm=algorithm, quick=True)]
    every = {"openmpi": openmpi_variants, "mpich": mpich_variants, "gloo": gloo_variants}[name](case)
    return [variant for variant in every if variant.quick or not quick]


def commands(peer, program, case, variant, arguments, folder):
    """What to start for one run; arguments are the program's own."""
    name = peer.partition(":")[0]
    env = dict(variant.env)
    if name == "openmpi":
        env.update(OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")
        crowded = ("--oversubscribe", *mca(mpi_yield_when_idle=1)) if case.n > case.cores else ()
        oob = mca(oob_tcp_if_include="lo")
        return [Command(["mpirun.openmpi", "-n", str(case.n), *crowded, *oob, *variant.arguments, program, *arguments], env)]
    if name == "mpich":
        return [Command(["mpiexec.mpich", "-launcher", "fork", "-n", str(case.n), program, *arguments], env)]
    started = []
    for rank in range(case.n):
        mine = {"RANK": str(rank), "WORLD_SIZE": str(case.n), **env}
        if name == "gloo":
            started.append(Command([program, "--store", folder, *variant.arguments, *arguments], mine))
            continue
        mine.update(UNISONO_TRANSPORT=case.transport, UNISONO_INTERFACE="lo", UNISONO_JOB="versus",
                    UNISONO_RENDEZVOUS="file://" + os.path.join(folder, "rendezvous"))
        started.append(Command([program, *arguments], mine))
    return started

"""How to start each library, and which of its settings to try; the best setting counts."""

import os
import stat

from .child import Command
from .model import Variant

PEERS = ("openmpi", "mpich", "gloo", "torch")


def mca(**settings):
    return tuple(word for name, value in settings.items() for word in ("--mca", name, str(value)))


def openmpi_algorithms(collectives):
    """Settings of its "tuned" component, by its own numbers; a variant has one for each collective that is measured."""
    yield "own choice", (), True
    fixed = mca(coll_tuned_use_dynamic_rules=1)
    if "all_reduce" in collectives:
        def all_reduce(number, segment=0):
            return fixed + mca(coll_tuned_allreduce_algorithm=number, coll_tuned_allreduce_algorithm_segmentsize=segment)
        yield "recursive doubling", all_reduce(3), False
        yield "ring", all_reduce(4), False
        yield "rabenseifner", all_reduce(6), False
        for segment in (65536, 262144, 1048576):
            yield f"segmented ring {segment >> 10}K", all_reduce(5, segment), segment == 262144
        return
    def others(all_gather, all_to_all, broadcast, reduce_scatter):
        return fixed + mca(coll_tuned_allgather_algorithm=all_gather, coll_tuned_alltoall_algorithm=all_to_all,
                           coll_tuned_bcast_algorithm=broadcast, coll_tuned_reduce_scatter_block_algorithm=reduce_scatter)
    yield "recursive doubling, linear, scatter and gather, halving", others(3, 1, 8, 3), True
    yield "ring, pairwise, binomial, butterfly", others(4, 2, 6, 4), False
    yield "neighbours, linear with sync, pipeline, doubling", others(5, 4, 3, 2), False


def openmpi_variants(case, collectives):
    ucx = {"pml": "ucx", "opal_common_ucx_tls": "any", "opal_common_ucx_devices": "any"}
    if case.transport == "tcp":
        device = "eth0" if case.network else "lo"
        base = mca(pml="ob1", btl="tcp,self", btl_tcp_if_include=device)
        for name, arguments, quick in openmpi_algorithms(collectives):
            yield Variant(name, (), base + arguments, quick=quick)
        yield Variant("2 links", (), base + mca(btl_tcp_links=2))
        yield Variant("eager 1M", (), base + mca(btl_tcp_eager_limit=1 << 20))
        yield Variant("ucx", (("UCX_TLS", "tcp,self"), ("UCX_NET_DEVICES", device)), mca(**ucx))
        return
    base = mca(pml="ob1", btl="vader,self")
    for copies, mechanism in (("", "cma"), ("copy in and out, ", "none")):
        for name, arguments, quick in openmpi_algorithms(collectives):
            yield Variant(copies + name, (), base + mca(btl_vader_single_copy_mechanism=mechanism) + arguments, quick=quick)
    yield Variant("coll sm, copy in and out", (), base + mca(coll_sm_priority=100, btl_vader_single_copy_mechanism="none"))
    yield Variant("ucx", (("UCX_TLS", "shm,self"),), mca(**ucx), quick=True)


def mpich_variants(case, collectives):
    if case.transport == "tcp":
        # Without these settings, ranks on one host would use shared memory.
        base = (("MPIR_CVAR_NOLOCAL", "1"), ("UCX_TLS", "tcp,self"), ("UCX_NET_DEVICES", "lo"))
    else:
        base = ()
    yield Variant("own choice", base, quick=True)
    if "all_reduce" in collectives:
        for algorithm in ("recursive_doubling", "reduce_scatter_allgather"):
            settings = (("MPIR_CVAR_ALLREDUCE_INTRA_ALGORITHM", algorithm), ("MPIR_CVAR_ALLREDUCE_DEVICE_COLLECTIVE", "0"))
            yield Variant(algorithm.replace("_", " "), base + settings)
    if case.n > case.cores:
        yield Variant("yields at once", base + (("MPIR_CVAR_POLLS_BEFORE_YIELD", "1"),), quick=case.n > 4)
    if case.transport == "shm":
        if "all_reduce" in collectives:
            yield Variant("release gather", base + (("MPIR_CVAR_ALLREDUCE_POSIX_INTRA_ALGORITHM", "release_gather"),))
        yield Variant("ucx shm", (("MPIR_CVAR_NOLOCAL", "1"), ("UCX_TLS", "shm,self")), quick=case.n > 4)


def gloo_variants(case, collectives):
    if case.transport == "shm":
        return  # Gloo has no shared memory
    if "all_reduce" not in collectives:
        # Only reduce-scatter exists without Gloo's event thread. Variants have no results for collectives that do not exist.
        for mode in ("async", "sync", "busy"):
            yield Variant(mode, (), ("--mode", mode), quick=mode != "busy")
        return
    for mode in ("async",) if case.network else ("async", "sync", "busy"):
        for algorithm in ("ring_chunked", "halving_doubling", "bcube"):
            # Between hosts only rings are quick: they fill every link.
            quick = (
                algorithm == "ring_chunked"
                if case.network
                else mode == "async" or (mode == "sync" and algorithm != "ring_chunked")
            )
            yield Variant(f"{algorithm} {mode}", (), ("--mode", mode), algorithm, quick)
    for algorithm in ("new_ring", "new_bcube"):
        yield Variant(f"{algorithm} async", (), ("--mode", "async"), algorithm, algorithm == "new_ring")


def torch_variants(case, collectives):
    """torch.distributed's own choice, one thread per rank; it has no settings. All-reduce over TCP only."""
    if case.transport == "tcp" and "all_reduce" in collectives:
        yield Variant("own choice", (("OMP_NUM_THREADS", "1"), ("GLOO_SOCKET_IFNAME", "lo")), quick=True)


def variants(contender, case, works, quick):
    """At least one for every pair that can run; none where the library has no such transport."""
    if contender.is_ours:
        return [Variant(contender.algorithm or "own choice", algorithm=contender.algorithm, quick=True)]
    makers = {"openmpi": openmpi_variants, "mpich": mpich_variants, "gloo": gloo_variants, "torch": torch_variants}
    every = makers[contender.implementation](case, {work.collective for work in works})
    if contender.parts > 1:
        every = (variant for variant in every if not variant.algorithm and "algorithm" not in " ".join(variant.arguments))
    return [variant for variant in every if variant.quick or not quick]


def openmpi_command(program, case, variant, arguments, folder, network):
    env = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", **dict(variant.env)}
    crowded = ("--oversubscribe", *mca(mpi_yield_when_idle=1)) if case.n > case.cores else ()
    start = ["mpirun.openmpi", "-n", str(case.n), *crowded, *mca(oob_tcp_if_include="eth0" if network else "lo")]
    if network is None:
        return Command([*start, *variant.arguments, *program, *arguments], env)
    # mpirun runs on host 0 and starts ranks on the other hosts by this script, which it takes for a remote shell.
    agent = os.path.join(folder, "agent")
    with open(agent, "w") as file:
        file.write(network.agent())
    os.chmod(agent, stat.S_IRWXU)
    hosts = ",".join(f"{network.address(rank)}:1" for rank in range(case.n))
    start += ["--host", hosts, *mca(plm_rsh_agent=agent, plm_rsh_no_tree_spawn=1, orte_keep_fqdn_hostnames=1)]
    return Command(network.inside(0, [*start, *variant.arguments, *program, *arguments]), env)


def rank_commands(contender, program, case, variant, arguments, folder, network):
    """Libraries without a launcher: one process per rank, started directly."""
    started = []
    cores = sorted(os.sched_getaffinity(0))
    for rank in range(case.n):
        env = {"RANK": str(rank), "WORLD_SIZE": str(case.n), **dict(variant.env)}
        argv = [*program, *variant.arguments, *arguments]
        if contender.is_ours:
            env.update(UNISONO_TRANSPORT=case.transport, UNISONO_INTERFACE="eth0" if network else "lo", UNISONO_JOB="versus",
                       UNISONO_RENDEZVOUS="file://" + os.path.join(folder, "rendezvous"))
        else:
            argv += ["--store", folder, "--address", network.address(rank) if network else "127.0.0.1"]
        if contender.pinned:
            argv = ["taskset", "-c", str(cores[rank % len(cores)]), *argv]
        started.append(Command(network.inside(rank, argv) if network else argv, env))
    return started


def commands(contender, program, case, variant, arguments, folder, network=None):
    """The command lines to start for one run: program is the start of its command line, arguments the rest. With a network,
    rank r runs on its host r."""
    if contender.implementation == "openmpi":
        return [openmpi_command(program, case, variant, arguments, folder, network)]
    if contender.implementation == "mpich":
        return [Command(["mpiexec.mpich", "-launcher", "fork", "-n", str(case.n), *program, *arguments], dict(variant.env))]
    return rank_commands(contender, program, case, variant, arguments, folder, network)

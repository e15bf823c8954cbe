"""Forks the processes of a job on this host, waits for all of them, and kills those that are too late.

Each rank leads its own process group, so that its child processes end with it. It dies with the process that forked it.
"""

import ctypes
import os
import selectors
import signal
import sys
import time
import traceback

OUTPUT_BYTES_MAX = 64 * 1024
FAILED = 10  # the exit code for an exception, as in PyTorch's suite


def fork_ranks(count, run, directory):
    """Forks `count` processes and returns their ids. Each calls run(rank) with its output in directory/output.RANK. Its exit
    code is what run() returns, or FAILED if run() raises an exception.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    return [fork_rank(rank, run, directory) for rank in range(count)]


def fork_rank(rank, run, directory):
    parent = os.getpid()
    pid = os.fork()
    if pid:
        try:
            os.setpgid(pid, pid)  # the child does the same, because either process may run first
        except OSError:
            pass
        return pid
    code = FAILED
    try:
        os.setpgid(0, 0)
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
        if os.getppid() != parent:
            os._exit(FAILED)
        output = os.open(f"{directory}/output.{rank}", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        null = os.open(os.devnull, os.O_RDONLY)
        for source, target in ((null, 0), (output, 1), (output, 2)):
            os.dup2(source, target)
        code = run(rank) or 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else FAILED
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def wait_for_all(pids, timeout_s, lost=()):
    """Returns the exit codes in the order of pids, and whether time ran out. A negative code is a signal's number; None: killed
    by this function.

    A rank that fails ends the job. Ranks in `lost` may end in any way, or not at all: they are killed when the others have
    ended.
    """
    codes = {}
    killed = set()
    deadline = time.monotonic() + timeout_s
    timed_out = False
    wanted = [pid for rank, pid in enumerate(pids) if rank not in lost]
    with selectors.DefaultSelector() as selector:
        for pid in pids:
            selector.register(os.pidfd_open(pid), selectors.EVENT_READ, pid)
        while len(codes) < len(pids):
            for key, _ in selector.select(None if killed else max(0, deadline - time.monotonic())):
                selector.unregister(key.fd)
                os.close(key.fd)
                kill_groups([key.data])  # kills the rank's child processes; the group's id stays valid until waitpid()
                code = os.waitstatus_to_exitcode(os.waitpid(key.data, 0)[1])
                codes[key.data] = None if code == -signal.SIGKILL and key.data in killed else code
            if killed:
                continue
            timed_out = time.monotonic() >= deadline and any(pid not in codes for pid in wanted)
            failed = any(codes.get(pid, 0) < 0 or codes.get(pid) == FAILED for pid in wanted)
            if timed_out or failed or all(pid in codes for pid in wanted):
                killed = set(pids) - set(codes)
                kill_groups(killed)
    return [codes[pid] for pid in pids], timed_out


def kill_groups(pids):
    """Kills the process groups of processes that have not been waited for."""
    for pid in pids:
        try:
            os.killpg(pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            pass


def read_output(directory, rank):
    try:
        with open(f"{directory}/output.{rank}", "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - OUTPUT_BYTES_MAX))
            return file.read().decode(errors="replace")
    except FileNotFoundError:
        return ""

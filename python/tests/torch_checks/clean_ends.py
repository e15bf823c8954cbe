"""Programs that end with operations in flight. Each end happens in a new process, which ends as Python programs do: what is in
flight must neither crash it nor get lost.

UNISONO_CHECKS_ENDS=200     how often each kind of program ends; default 2
"""

import os
import pathlib
import signal
import sys
import threading

import torch
import torch.distributed as dist

from .common import check, fails, init, kinds, names, rank, world

ENDS = int(os.environ.get("UNISONO_CHECKS_ENDS", "2"))
ELEMENTS = 3_000_000  # so many that the operation is in flight when the program ends
kept = []  # the interpreter destroys it, in any order


def drop_works(group=None):
    for _ in range(5):
        dist.all_reduce(torch.ones(ELEMENTS), group=group, async_op=True)


def drops_works():
    drop_works()


def keeps_works():
    for _ in range(5):
        tensor = torch.ones(ELEMENTS)
        kept.append((dist.all_reduce(tensor, async_op=True), tensor))


def adds_callbacks():
    for _ in range(3):
        future = dist.all_reduce(torch.ones(ELEMENTS), async_op=True).get_future()
        kept.append(future.then(lambda done: done.value()[0].sum()).then(lambda done: done.value() + 1))


def destroys_its_group():
    drop_works()
    dist.destroy_process_group()


def has_several_groups():
    groups = [dist.new_group() for _ in range(2)]
    for group in groups:
        drop_works(group)
    dist.destroy_process_group(groups[0])


def calls_exit():
    drop_works()
    sys.exit(0)


def raises():
    drop_works()
    raise ValueError("on purpose")


def drops_messages():
    """Each rank sends a message that the other rank receives."""
    dist.isend(torch.ones(ELEMENTS), 1 - rank())
    received = torch.zeros(ELEMENTS)
    dist.recv(received, 1 - rank())
    assert received.sum() == ELEMENTS


def drops_a_batch():
    messages = [dist.P2POp(dist.isend, torch.ones(ELEMENTS), 1 - rank())]
    messages.append(dist.P2POp(dist.irecv, torch.zeros(ELEMENTS), 1 - rank()))
    dist.batch_isend_irecv(messages)


def drops_receives():
    """Nobody sends these messages."""
    for _ in range(3):
        dist.irecv(torch.zeros(10), 1 - rank())


def starts_works_in_a_thread():
    thread = threading.Thread(target=drop_works)
    thread.start()
    thread.join()


PROGRAMS = (
    drops_works,
    keeps_works,
    adds_callbacks,
    destroys_its_group,
    has_several_groups,
    calls_exit,
    raises,
    drops_messages,
    drops_a_batch,
    drops_receives,
    starts_works_in_a_thread,
)


def end_of(program, turn):
    """Runs the program in a child process, which ends as Python programs do. Returns the child's exit code."""
    directory = pathlib.Path(os.environ["CHECK_DIRECTORY"], f"{program.__name__}-{turn}")
    directory.mkdir(exist_ok=True)
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        os.environ["CHECK_DIRECTORY"] = str(directory)
        init()
        program()
        sys.exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@check(ranks=(2,), fresh=True, group=False, timeout_s=120 + 40 * ENDS)
def programs_end_with_operations_in_flight():
    """Every program of every kind ends with its own exit code: no signal ends it."""
    import unisono.torch  # noqa: F401  # so that the child processes need not import it

    failures = []
    for turn in range(ENDS):
        for program in PROGRAMS:
            code = end_of(program, turn)
            if code != (1 if program is raises else 0):
                failures.append((program.__name__, turn, code))
    assert not failures, failures


def flag(name):
    return pathlib.Path(os.environ["CHECK_DIRECTORY"], name)


def wait_for_flag(name):
    while not flag(name).exists():
        torch.ones(100).sum()


def receive_after_the_end():
    wait_for_flag("at its end")
    received = torch.zeros(ELEMENTS)
    dist.recv(received, 0)
    assert received.sum() == ELEMENTS
    with fails(names(0), within_s=15, kinds=kinds()):
        dist.barrier()


@check(ranks=(2,), fresh=True, group=False)
def a_dropped_message_arrives_after_destroy():
    """Rank 1 receives the message only after rank 0 has begun to destroy its group."""
    init()
    if rank() == 1:
        return receive_after_the_end()
    dist.isend(torch.ones(ELEMENTS), 1)
    flag("at its end").touch()
    dist.destroy_process_group()
    os._exit(0)


@check(ranks=(2,), fresh=True, group=False)
def a_dropped_message_arrives_after_the_end_of_the_program():
    init()
    if rank() == 1:
        return receive_after_the_end()
    dist.isend(torch.ones(ELEMENTS), 1)
    flag("at its end").touch()


@check(ranks=(2,), fresh=True, group=False)
def a_dropped_message_of_a_split_group_arrives():
    """torch keeps no Python object for the backend of such a group."""
    init()
    group = dist.group.WORLD.split_group([0, 1], group_name="split")
    kept.append(group)
    if rank() == 1:
        wait_for_flag("at its end")
        received = torch.zeros(ELEMENTS)
        group.recv([received], 0, 0).wait()
        assert received.sum() == ELEMENTS
        return
    group.send([torch.ones(ELEMENTS)], 1, 0)
    flag("at its end").touch()


@check(ranks=(2,), fresh=True, group=False)
def a_dropped_sum_is_complete_on_the_other_rank():
    """Rank 1 begins the sum only when rank 0's program is at its end."""
    init()
    tensor = torch.ones(ELEMENTS)
    if rank() == 0:
        dist.all_reduce(tensor, async_op=True)
        flag("at its end").touch()
        return
    wait_for_flag("at its end")
    dist.all_reduce(tensor)
    assert tensor.sum() == world() * ELEMENTS


@check(ranks=(2,), fresh=True, group=False)
def destroy_ends_receives():
    """Nobody sends these messages. Destroying the group does not wait for them."""
    init(timeout_s=300)
    works = [dist.irecv(torch.zeros(10), 1 - rank()), dist.irecv(torch.zeros(10))]
    dist.barrier()
    dist.destroy_process_group()
    for work in works:
        with fails(r"unavailable: .*aborted: the process group was destroyed at rank \d", within_s=5, kinds=kinds()):
            work.wait()


@check(ranks=(2,), fresh=True, group=False, lost=(0,))
def an_uncaught_exception_ends_what_is_in_flight():
    """The other rank learns why its call will never end."""
    init(timeout_s=300)
    if rank() == 0:
        dist.irecv(torch.zeros(10), 1)
        raise ValueError("on purpose")
    text = "rank 0 aborted the operation: aborted: the program of rank 0 has ended with ValueError"
    with fails(text, within_s=30, kinds=kinds()):
        dist.recv(torch.zeros(10), 0)


@check(ranks=(2,), fresh=True, group=False, lost=(0,))
def a_handler_of_a_signal_exits():
    """Rank 0 exits in a handler of SIGTERM. The program ends at once, although the operation has not ended."""
    init(timeout_s=300)
    if rank() == 1:
        with fails("rank 0 aborted the operation: aborted: rank 0 was interrupted by a signal", within_s=30, kinds=kinds()):
            dist.recv(torch.zeros(10), 0)
        return
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(3))
    main = threading.main_thread().ident
    threading.Timer(0.3, lambda: signal.pthread_kill(main, signal.SIGTERM)).start()
    dist.recv(torch.zeros(10), 1)

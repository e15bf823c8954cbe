"""Every failure has a class, and a text that names the rank, the call or the array. Nothing hangs, and nothing is freed too
early."""

import gc
import os
import pickle
import signal
import subprocess
import sys
import threading
import weakref

import numpy as np
import pytest
import ranks
import unisono


def after_a_death():
    group = unisono.join()
    x = np.ones(1000, np.float32)
    group.all_reduce(x)
    if group.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    with pytest.raises(unisono.PeerLost, match="rank 1") as caught:
        group.all_reduce(x)
    assert caught.value.code == "peer_lost" and isinstance(caught.value, RuntimeError)
    reformed = group.reform()
    assert [member.rank for member in reformed.lost] == [1] and reformed.joined == [] and "1 lost" in str(reformed)
    assert (group.world_size, group.epoch) == (2, 2) == (reformed.world_size, reformed.epoch)
    y = np.ones(3, np.int32)
    group.all_reduce(y)
    return y.tolist()


def test_a_killed_rank_is_named_and_the_living_go_on(tmp_path):
    first, dead, third = ranks.run(after_a_death, 3, tmp_path, may_fail=True)
    assert dead.code == -signal.SIGKILL
    assert first.result == third.result == [2, 2, 2], first.text + third.text


def dies_in_an_encoded_call():
    """Rank 1 dies during an encoded operation. After the error, `left` belongs to the caller again and may be changed."""
    group = unisono.join()
    x = np.linspace(-1, 1, 1_000_003, dtype=np.float32)
    out, left = np.empty_like(x), np.zeros_like(x)

    def start():
        return group.all_reduce_async(
            x, out, op="avg", codec="int5", schedule="two_step", encode_error=left, error_feedback=True
        )

    for _ in range(3):
        start().wait()
    work = start()
    if group.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    with pytest.raises(unisono.PeerLost, match="rank 1"):
        work.wait()
        for _ in range(10):  # rank 1 may have sent all its data of the first operation before it died
            start().wait()
    assert np.isfinite(left).all()
    group.reform()
    left[:] = 0
    mean = np.zeros_like(x)
    for _ in range(8):
        start().wait()
        mean += out / 8
    one = np.abs(out - x).max()
    return group.world_size, float(one), float(np.abs(mean - x).max()), bool(left.any())


def test_a_rank_killed_in_a_call_with_error_feedback(tmp_path):
    first, dead, third = ranks.run(dies_in_an_encoded_call, 3, tmp_path, may_fail=True)
    assert dead.code == -signal.SIGKILL
    for living in (first, third):
        size, one, mean, is_left = living.result or pytest.fail(living.text)
        assert size == 2 and is_left
        assert 0 < one < 0.2 and mean < one / 2, "what encoding left over was not added later"


def taken_in(folder):
    number = int(os.environ["RANK"])
    group = unisono.join(join_running=True) if number == 2 else unisono.join(rank=number, world_size=2)
    while group.world_size < 3:
        group.reform()
    ones = np.ones(1, np.int32)
    group.all_reduce(ones)
    return int(ones[0])


def test_a_process_joins_a_running_group(tmp_path):
    assert ranks.run(taken_in, 3, tmp_path, (str(tmp_path),)) == [3, 3, 3]


def mismatched():
    group = unisono.join()
    with pytest.raises(unisono.Invalid, match="all_reduce") as caught:
        group.all_reduce(np.ones(10 + group.rank, np.float32))
    assert isinstance(caught.value, ValueError) and caught.value.code == "invalid"
    with pytest.raises(unisono.Invalid):
        group.all_reduce(np.ones(10, np.float32), agreement=1 + group.rank)
    with pytest.raises(unisono.Invalid, match="input has 2 elements, expected 1"):
        group.all_gather(np.ones(2, np.float32), counts=[1, 1])
    with pytest.raises(unisono.Invalid):
        group.reduce_scatter(np.ones(3, np.float32))
    with pytest.raises(unisono.Invalid):
        group.all_reduce(np.ones(3, np.float32), op="band")
    with pytest.raises(unisono.Invalid, match="rank 5"):
        group.broadcast(np.ones(3, np.float32), root=5)
    return True


def test_calls_that_differ_are_invalid_on_all_ranks(tmp_path):
    assert ranks.run(mismatched, 2, tmp_path) == [True, True]


def deadlines():
    group = unisono.join()
    x = np.ones(4, np.float32)
    if group.rank == 1:
        group.recv(np.empty(1, np.int8), source=0)
    else:
        work = group.all_reduce_async(x, id=1, timeout=0.4)
        with pytest.raises(unisono.Late, match="still running"):
            work.wait(timeout=0.01)
        with pytest.raises(TimeoutError, match="rank 1"):
            work.wait()
        assert work.done() and work.report().contributors < 2
        with pytest.raises(unisono.Late, match="rank 1"):
            group.all_reduce(x, id=2, timeout=0.05)
        group.send(np.zeros(1, np.int8), to=1)
    return group.all_reduce(x, id=3).contributors


def test_a_late_rank_is_named_and_the_group_goes_on(tmp_path):
    assert ranks.run(deadlines, 2, tmp_path) == [2, 2]


def alone(tmp_path, **options):
    return unisono.join(rank=0, world_size=1, rendezvous=f"file://{tmp_path}/alone", **options)


def test_joining_alone_names_the_missing_ranks(tmp_path):
    with pytest.raises(unisono.Late, match="1 of 2"):
        unisono.join(rank=0, world_size=2, rendezvous=f"file://{tmp_path}/x", join_timeout=0.2)


@pytest.mark.parametrize("array, error, words", [
    (np.ones(3, np.complex64), TypeError, "all_reduce: input: elements are complex64; wanted: float32"),
    (np.ones(3, bool), TypeError, "elements are bool"),
    (np.ones(3, ">f4"), TypeError, "float32"),
    (np.ones(3, "M8[s]"), TypeError, "datetime64"),
    (np.array([object()]), TypeError, "object"),
    ([1.0, 2.0], TypeError, "list is no array"),
    (None, TypeError, "NoneType"),
    (3.0, TypeError, "float is no array"),
    (np.ones((4, 4), np.float32)[:, ::2], ValueError, r"shape \(4, 2\) that is not C-contiguous"),
    (np.asfortranarray(np.ones((2, 3), np.float32)), ValueError, "not C-contiguous"),
    (np.frombuffer(b"1234", np.float32), ValueError, r"shape \(1,\) that is read-only"),
    (b"1234", ValueError, "read-only"),
    (
        np.lib.stride_tricks.as_strided(np.ones(1, np.float32), (4,), (0,)),
        ValueError,
        r"^all_reduce: input: an array of shape \(4,\) that is not C-contiguous, and so cannot hold a result$",
    ),
    (np.broadcast_to(np.float32(1), (2, 3)), ValueError, r"^all_reduce: input: an array of shape \(2, 3\) that is not C-contiguous"),
])
def test_arrays_that_cannot_be_used_are_refused_by_what_is_wrong(tmp_path, array, error, words):
    with pytest.raises(error, match=words):
        alone(tmp_path).all_reduce(array)


@pytest.mark.parametrize("options, error, words", [
    ({"op": "mean"}, ValueError, "op: 'mean'; wanted: sum, avg, min"),
    ({"op": 3}, TypeError, "op is of the type int; wanted: a string"),
    ({"schedule": "tri"}, ValueError, "wanted: automatic, ring"),
    ({"timeout": -1.0}, ValueError, "timeout: -1"),
    ({"timeout": float("nan")}, ValueError, "timeout"),
    ({"timeout": "soon"}, TypeError, "timeout cannot be 'soon'"),
    ({"id": -1}, TypeError, "id cannot be -1"),
    ({"codec": "int9"}, unisono.Invalid, "int9"),
    ({"codec": 4}, TypeError, "codec is of the type int"),
    ({"delivery": "lost"}, ValueError, "wanted: reliable, lossy or automatic"),
    ({"delivery": "reliable:loss_budget=0.1"}, ValueError, "no options"),
    ({"delivery": "lossy:budget=1"}, unisono.Invalid, "budget"),
    ({"encode_error": np.ones(3)}, TypeError, "^all_reduce: encode_error: elements are f64; wanted: float32$"),
    (
        {"encode_error": np.lib.stride_tricks.as_strided(np.ones(1, np.float32), (3,), (0,))},
        ValueError,
        r"^all_reduce: encode_error: an array of shape \(3,\) that is not C-contiguous, and so cannot hold a result$",
    ),
    (
        {"encode_error": np.zeros(3, np.float32), "error_feedback": True, "delivery": "lossy"},
        unisono.Invalid,
        "delivery: lossy calls have no encode_error and no error_feedback, because nobody knows the error of a message that is lost$",
    ),
    ({"dtype": "bf16"}, TypeError, "elements are f32, and dtype says bf16"),
    ({"opp": "sum"}, TypeError, r"all_reduce\(\) got an unexpected keyword argument 'opp'"),
])
def test_options_that_make_no_sense_are_refused_by_name(tmp_path, options, error, words):
    with pytest.raises(error, match=words):
        alone(tmp_path).all_reduce(np.ones(3, np.float32), **options)


def test_scatter_and_join_say_what_is_missing(tmp_path):
    with pytest.raises(TypeError, match="root needs an input"):
        alone(tmp_path).scatter(None)
    with pytest.raises(TypeError, match="unexpected keyword argument 'ranks'"):
        unisono.join(ranks=1)


def test_arrays_are_let_go_when_an_operation_is_done(tmp_path):
    group = alone(tmp_path)
    for keeps_work in (True, False):
        x = np.ones(10, np.float32)
        gone = weakref.ref(x)
        work = group.all_reduce_async(x)
        work.wait()
        if not keeps_work:
            del work
        del x
        gc.collect()
        assert gone() is None
    x = np.ones(10, np.float32)
    before = sys.getrefcount(x)
    group.all_reduce(x)
    with pytest.raises(unisono.Invalid):
        group.all_reduce(x, op="band")
    assert sys.getrefcount(x) == before
    report = group.all_gather(x)
    gone = weakref.ref(report.output)
    del report
    assert gone() is None


def dropped():
    group = unisono.join()
    core = sys.modules["unisono._core"]
    if group.rank == 0:
        x = np.full(100_000, 3, np.float32)
        gone = weakref.ref(x)
        group.recv_async(x, source=1, id=0)  # the Work is dropped at once
        with pytest.raises(ValueError, match="referenced|refer"):
            x.resize(5)  # the running operation exports the array's memory
        del x
        gc.collect()
        assert gone() is not None and core._kept() == 1
        group.send(np.zeros(1, np.int8), to=1, tag=1)
        group.barrier()
        while core._kept() > 0:  # until the group's thread has received the message
            group.barrier_async(id=1)
        assert gone() is None
    else:
        group.recv(np.zeros(1, np.int8), source=0, tag=1)
        group.send(np.arange(100_000, dtype=np.float32), to=0)
        group.barrier()
    return True


def test_a_dropped_works_array_lives_until_it_is_done(tmp_path):
    assert ranks.run(dropped, 2, tmp_path) == [True, True]


def ended_in_flight():
    group = unisono.join()
    globals()["group"] = group
    globals()["work"] = group.recv_async(np.empty(10, np.float32), source=1 - group.rank)
    group.all_reduce_async(np.ones(10, np.float32), id=7) if group.rank == 0 else None
    group.barrier()
    return group.rank


def test_the_interpreter_ends_with_a_group_and_works_in_flight(tmp_path):
    ended = ranks.run(ended_in_flight, 2, tmp_path, may_fail=True)
    assert [(end.code, end.text, end.result) for end in ended] == [(0, "", 0), (0, "", 1)]


def sent_before_the_end(folder, how):
    """Rank 1 receives the message only when rank 0's program is at its end."""
    group = unisono.join()
    elements = 1 << 22  # so many that the message is in flight when the program ends
    if group.rank == 0:
        work = group.send_async(np.ones(elements, np.float32), to=1)
        if how == "kept":
            globals().update(group=group, work=work)
        return True
    while not os.path.exists(os.path.join(folder, "result-0")):
        pass
    received = np.zeros(elements, np.float32)
    group.recv(received, source=0)
    return bool((received == 1).all())


@pytest.mark.parametrize("how", ["dropped", "kept"])
def test_a_message_in_flight_arrives_although_the_interpreter_ends(tmp_path, how):
    assert ranks.run(sent_before_the_end, 2, tmp_path, (str(tmp_path), how)) == [True, True]


def ended_with_objects():
    group = unisono.join()
    elastic = unisono.Elastic.join(run_id="alone", found=True, tensor_elements=[5], interface="127.0.0.1")
    parameters = np.zeros(5, np.float32)
    sgd = unisono.MoshpitSgd(elastic, parameters, "local_steps=1")
    sgd.after_step(parameters, 1)
    reducer = unisono.GradientReducer(group, {"w": (5, 1)}, "dense")
    reducer.reduce({"w": np.zeros(5, np.float32)})
    drop = unisono.DropCompute(group, 1, "0.05:rule=at,warmup=0")
    step = drop.run(np.zeros(5, np.float32), lambda position, gradients: threading.Event().wait(0.5))
    globals().update(locals())
    return step.computed


def test_the_interpreter_ends_with_objects_whose_threads_are_busy(tmp_path):
    """An abandoned micro-batch continues in another thread. The interpreter waits for its end."""
    ended = ranks.run(ended_with_objects, 2, tmp_path, may_fail=True)
    assert [(end.code, end.text, end.result) for end in ended] == [(0, "", 0), (0, "", 0)]


def threads():
    group = unisono.join()
    counted, stop, results = [0], threading.Event(), {}

    def count():
        while not stop.is_set():
            counted[0] += 1

    def reduce(number):
        for i in range(50):
            x = np.full(1000, number, np.float32)
            group.all_reduce(x, id=1000 * number + i + 1)
            assert x[0] == 2 * number
        results[number] = True

    counting = threading.Thread(target=count)
    workers = [threading.Thread(target=reduce, args=(number,)) for number in (1, 2)]
    for thread in [counting, *workers]:
        thread.start()
    for thread in workers:
        thread.join(60)
    stop.set()
    counting.join(60)
    assert counted[0] > 0
    return results == {1: True, 2: True}


def test_threads_share_a_group_and_others_run_meanwhile(tmp_path):
    assert ranks.run(threads, 2, tmp_path) == [True, True]


def released():
    """The main thread waits in recv(). Another thread of the process must run Python code before it sends the data, so recv()
    must release the GIL."""
    group = unisono.join()
    others = group.split([0, 1])
    x, begun = np.zeros(1, np.float32), threading.Event()

    def send():
        begun.wait(60)
        others.barrier()  # by now the main thread calls recv()
        total = sum(i % 7 for i in range(100_000))
        group.send(np.array([total], np.float32), to=1 - group.rank, tag=3)

    thread = threading.Thread(target=send)
    thread.start()
    group.barrier()
    sys.setswitchinterval(1000)
    begun.set()
    group.recv(x, source=1 - group.rank, tag=3)
    thread.join(60)
    return float(x[0])


def test_a_blocking_call_lets_other_threads_run(tmp_path):
    assert ranks.run(released, 2, tmp_path) == [float(sum(i % 7 for i in range(100_000)))] * 2


def interrupted(what):
    signal.signal(signal.SIGINT, signal.default_int_handler)  # SIGINT may be ignored, as in programs in a shell's background
    main = threading.main_thread()
    interrupt = threading.Timer(0.3, lambda: signal.pthread_kill(main.ident, signal.SIGINT))
    if what == "join":
        interrupt.start()
        with pytest.raises(KeyboardInterrupt):
            unisono.join(rank=0, world_size=2, rendezvous=os.environ["UNISONO_RENDEZVOUS"] + "-alone", join_timeout=60)
        return True
    if what == "measured":
        group = unisono.join()
        if group.rank == 0:
            interrupt.start()
            with pytest.raises(KeyboardInterrupt):
                group.all_reduce(np.ones(5, np.float32), measure_error=True)
        else:
            group.recv(np.zeros(1, np.int8), source=0, tag=9)
            group.all_reduce(np.ones(5, np.float32), measure_error=True)
            return True
        group.send(np.zeros(1, np.int8), to=1, tag=9)
        while sys.modules["unisono._core"]._kept() > 0:  # until the interrupted call has ended
            pass
        return True
    if what == "elastic":
        run = unisono.Elastic.join(run_id="alone", found=True, tensor_elements=[5], min_peers=2, interface="127.0.0.1")
        interrupt.start()
        with pytest.raises(KeyboardInterrupt):
            run.ready(60)
        threading.Timer(0.3, lambda: signal.pthread_kill(main.ident, signal.SIGINT)).start()
        with pytest.raises(KeyboardInterrupt):
            run.average(np.ones(5, np.float32))
        return True
    group = unisono.join()
    if group.rank == 0:
        interrupt.start()
        with pytest.raises(KeyboardInterrupt):
            (
                group.recv(np.empty(5, np.float32), source=1)
                if what == "call"
                else group.recv_async(np.empty(5, np.float32), source=1).wait()
            )
        group.send(np.zeros(1, np.int8), to=1, tag=9)
    else:
        group.recv(np.zeros(1, np.int8), source=0, tag=9)
    group.barrier()
    return True


@pytest.mark.parametrize("what", ["join", "call", "work", "measured", "elastic"])
def test_ctrl_c_ends_waiting(tmp_path, what):
    count = 1 if what in ("join", "elastic") else 2
    assert ranks.run(interrupted, count, tmp_path, (what,)) == [True] * count


def test_errors_have_codes_and_can_be_pickled():
    for name in ("Invalid", "Unavailable", "PeerLost", "Late", "Corrupt", "Unsupported", "Internal"):
        error = getattr(unisono, name)("x: y")
        assert isinstance(error, unisono.Error) and error.code.replace("_", "") == name.lower()
        assert str(pickle.loads(pickle.dumps(error))) == "x: y"


def test_a_group_travels_in_a_capsule(tmp_path):
    core = sys.modules["unisono._core"]
    group = alone(tmp_path)
    again = core.group_from_capsule(core.group_to_capsule(group))
    del group
    assert again.world_size == 1 and again.all_reduce(np.ones(1, np.float32)).contributors == 1
    import datetime
    with pytest.raises(ValueError, match="incorrect name"):
        core.group_from_capsule(datetime.datetime_CAPI)


def test_the_module_needs_no_torch():
    code = "import sys, unisono; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)

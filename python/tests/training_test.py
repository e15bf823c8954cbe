"""Calls of training loops: compressed gradients, dropped micro-batches, sharded steps. Each runs in a group of real processes,
with checked results."""

import os
import signal
import threading
import time

import numpy as np
import pytest
import ranks
import unisono

SHAPES = {"weight": (64, 50), "bias": (64,)}


def compressed(text="arc:ratio=0.25,start=1,auto_off=off,min_elements=64"):
    group = unisono.join()
    rng = np.random.default_rng(group.rank)
    reducer = unisono.GradientReducer(group, SHAPES, text)
    sent = {name: np.zeros(shape, np.float64) for name, shape in SHAPES.items()}
    given = {name: np.zeros(shape, np.float64) for name, shape in SHAPES.items()}
    for step in range(6):
        if step == 5:
            reducer.flush()
        gradients = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in SHAPES.items()}
        for name in SHAPES:
            given[name] += gradients[name]
        reducer.reduce({"bias": gradients["bias"]})
        reducer.reduce({"weight": gradients["weight"]})
        report = reducer.finish()
        assert report.applied and report.step == step and report.elements == 64 * 51
        assert 0 < report.payload_ratio() < (0.5 if 0 < step < 5 else 1.01)
        for name in SHAPES:
            sent[name] += gradients[name]
    for name in SHAPES:  # summed over all steps, the outputs are the averages of the inputs
        group.all_reduce(given[name], op="avg")
        np.testing.assert_allclose(sent[name], given[name], atol=1e-4)
    assert reducer.step == 6 and reducer.total().step == 6 and "compressed" in repr(report) + str(report)
    return sent["weight"].tobytes()


def test_what_a_reducer_leaves_out_comes_later_and_ranks_agree(tmp_path):
    first, second = ranks.run(compressed, 2, tmp_path)
    assert first == second


def test_power_sgd_loses_nothing_and_ranks_agree(tmp_path):
    first, second = ranks.run(compressed, 2, tmp_path, ("power_sgd:rank=4,start=1,auto_off=off,min_elements=64",))
    assert first == second


def reducer_state(folder):
    group = unisono.join()
    text = "random-k:ratio=0.5,start=0,auto_off=off,min_elements=1"
    reducer = unisono.GradientReducer(group, [("w", np.empty((8, 4)))], unisono.Compression(text))
    gradient = np.arange(32, dtype=np.float32)
    reducer.reduce({"w": gradient})
    reducer.finish()
    reducer.step_skipped()
    state = reducer.save()
    other = unisono.GradientReducer(group, {"w": (8, 4)}, text)
    other.load(state)
    results = []
    for each in (reducer, other):
        gradient = np.ones(32, np.float32)
        each.reduce({"w": gradient})
        each.finish()
        results.append(gradient)
    np.testing.assert_array_equal(*results)
    other.reduce({"w": gradient})
    for early in (other.save, lambda: other.load(state)):
        with pytest.raises(unisono.Invalid, match="in the middle of a step"):
            early()
    other.finish()
    with pytest.raises(unisono.Corrupt):
        other.load(state[:-1])
    with pytest.raises(unisono.Invalid, match="there is no parameter v"):
        other.reduce({"v": gradient})
    with pytest.raises(ValueError, match="has 31 elements, the parameter 32"):
        other.reduce({"w": gradient[:31]})
    with pytest.raises(TypeError, match="wanted: float32"):
        other.reduce({"w": np.ones(32)})
    return True


def test_a_reducers_state_is_saved_and_wrong_gradients_are_refused(tmp_path):
    assert ranks.run(reducer_state, 2, tmp_path, (str(tmp_path),)) == [True, True]


def test_a_plan_says_what_would_be_sent():
    plan = unisono.CompressionPlan({"w": (100, 100), "b": np.empty(100)}, "arc:ratio=0.1")
    assert plan.elements == 10_100 and plan.parameters[0].compressed and not plan.parameters[1].compressed
    assert "1 of 2 parameters compressed" in str(plan) and plan.parameters[1].reason
    with pytest.raises(unisono.Invalid):
        unisono.CompressionPlan({"w": (1, 1)}, unisono.Compression(ratio=2.0))
    plan = unisono.CompressionPlan({"w": (100, 100)}, unisono.Compression(method="power_sgd", rank=3))
    assert plan.payload == 600 and plan.parameters[0].factor_columns == 3 and plan.parameters[0].kept_rows == 0
    with pytest.raises(unisono.Invalid, match="ratio does not go with power_sgd"):
        unisono.Compression("power_sgd:ratio=0.1")


def reducer_after_a_loss():
    group = unisono.join()
    reducer = unisono.GradientReducer(group, {"w": (64, 32)}, "arc:ratio=0.25,start=0,auto_off=off")
    gradient = np.ones((64, 32), np.float32)
    reducer.reduce({"w": gradient})
    reducer.finish()
    if group.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    reducer.reduce({"w": gradient})
    with pytest.raises(unisono.PeerLost):
        reducer.finish()
    group.reform()
    resumed = reducer.resume(group)
    assert [lost.member.rank for lost in resumed.lost] == [1] and resumed.step == reducer.step
    reducer.reduce({"w": gradient})
    return reducer.finish().applied


def test_a_reducer_goes_on_without_a_rank_that_died(tmp_path):
    first, dead, third = ranks.run(reducer_after_a_loss, 3, tmp_path, may_fail=True)
    assert dead.code == -signal.SIGKILL
    assert (first.result, third.result) == (True, True), first.text + third.text


def dropping_by_hand():
    group = unisono.join()
    drop = unisono.DropCompute(group, 4, unisono.DropOptions("off", replay=[2, 3]) if group.rank == 0 else "off")
    computed = []
    for _ in range(3):
        drop.begin_step()
        gradients = np.zeros(10, np.float32)
        positions = []
        while drop.next():
            positions.append(drop.position)
            gradients += 0.25
        group.all_reduce(gradients, op="avg")
        step = drop.end_step()
        computed.append(step.computed)
        assert step.applied and step.planned == 4 and step.computed == len(positions) and "computed=" in repr(step)
    drop.pause()
    state = drop.save()
    drop.load(state)
    assert drop.recorded_head(4).startswith("step,rank") and drop.report().steps == 0
    assert drop.finish().state in ("off", "warming up") and str(drop.total())
    return computed


def test_micro_batches_are_left_out_step_by_step(tmp_path):
    assert ranks.run(dropping_by_hand, 2, tmp_path) == [[2, 3, 4], [4, 4, 4]]


def dropping_by_functions(rule):
    group = unisono.join()
    drop = unisono.DropCompute(group, 3, f"60:rule={rule}")
    parameters, seen = np.zeros(5, np.float32), []
    gradients = np.zeros(5, np.float32)

    def compute(position, memory):
        seen.append(position)
        memory += 1 / 3

    def apply(averages, step):
        parameters[:] -= step.scale * averages

    for _ in range(2):
        step = drop.run(gradients, compute, apply)
        assert step.computed == 3 and not gradients.any()
    np.testing.assert_allclose(parameters, -2, rtol=1e-6)
    drop.drain(compute, apply)
    return seen


@pytest.mark.parametrize("rule", ["after", "at"])
def test_a_whole_step_is_made_of_functions(tmp_path, rule):
    assert ranks.run(dropping_by_functions, 2, tmp_path, (rule,)) == [[0, 1, 2, 3, 4, 5]] * 2


def functions_that_fail():
    group = unisono.join()
    drop = unisono.DropCompute(group, 2, "off")
    gradients, kept = np.zeros(5, np.float32), []

    def broken(position, memory):
        raise KeyError(position)

    with pytest.raises(KeyError):
        drop.run(gradients, broken)
    drop.resume(group)
    with pytest.raises(RuntimeError, match="compute has kept an array"):
        drop.run(gradients, lambda position, memory: kept.append(memory[:2]))
    drop.resume(group)
    with pytest.raises(RuntimeError, match="in use"):
        drop.run(gradients, lambda position, memory: drop.end_step())
    return True


def test_what_a_function_raises_is_raised_by_the_step(tmp_path):
    assert ranks.run(functions_that_fail, 2, tmp_path) == [True, True]


class Momentum(unisono.ShardOptimizer):
    state_count = 1

    def update(self, task):
        momentum, = task.states
        momentum *= np.float32(0.9)
        momentum += task.scale * task.gradient
        task.values -= np.float32(task.rate) * momentum


def sharded(own, transport, options):
    group = unisono.join(transport=transport)
    initial = np.full(5000, group.rank + 1, np.float32)  # rank 0's values are used
    optimizer = Momentum(rate=0.1) if own else unisono.SGD(rate=0.1, momentum=0.9)
    step = unisono.ShardedStep(group, initial, optimizer, options)
    parameters = step.parameters
    assert parameters[0] == 1 and not parameters.flags.writeable
    while step.step < 3:
        report = step.run(parameters * np.float32(group.rank + 0.5))
        assert report.applied and report.step == step.step and report.total_us > 0 and str(report)
    step.resync()
    whole = np.empty(5000, np.float32)
    step.owners_values(whole)
    np.testing.assert_array_equal(whole, parameters)
    state = step.save()
    step.set_rate(0.0)
    step.run(parameters)
    step.load(state)
    assert step.step == 3 and step.resumed().lost == []
    return whole.tobytes()


@pytest.mark.parametrize("transport, options", [("tcp", "delivery=reliable"), ("udp", "loss_budget=0.2,drift=2")])
def test_an_optimizer_in_python_does_what_the_librarys_does(tmp_path, transport, options):
    results = []
    for own in (False, True):
        folder = tmp_path / str(own)
        folder.mkdir()
        results += [np.frombuffer(each, np.float32) for each in ranks.run(sharded, 2, folder, (own, transport, options))]
    values, gradient, momentum = np.float64(1), 0, 0
    for _ in range(3):
        gradient = values
        momentum = 0.9 * momentum + gradient
        values = values - 0.1 * momentum
    for result in results:
        np.testing.assert_allclose(result, values, rtol=1e-5)
        np.testing.assert_array_equal(result, results[0] if result is not results[3] else results[2])


class Broken(unisono.ShardOptimizer):
    def update(self, task):
        raise ZeroDivisionError


class Keeping(unisono.ShardOptimizer):
    def update(self, task):
        self.kept = task.values[:1]


def optimizers_that_fail():
    group = unisono.join()
    for optimizer, error, words in ((Broken(0.1), ZeroDivisionError, ""), (Keeping(0.1), RuntimeError, "kept an array")):
        step = unisono.ShardedStep(group, np.ones(100, np.float32), optimizer, "delivery=reliable")
        with pytest.raises(error, match=words):
            step.run(np.ones(100, np.float32))
    with pytest.raises(TypeError, match="has no update"):
        unisono.ShardedStep(group, np.ones(100, np.float32), object(), "delivery=reliable")
    with pytest.raises(unisono.Unsupported):
        unisono.ShardedStep(group, np.ones(100, np.float32), unisono.AdamW())
    return True


def test_what_an_optimizer_raises_is_raised_by_the_step(tmp_path):
    assert ranks.run(optimizers_that_fail, 2, tmp_path) == [True, True]


def interruptible_step(group, what):
    """Returns a call that waits for the other rank, and a function that tells how many of its steps have ended."""
    gradient = np.ones(64, np.float32)
    if what == "sharded":
        step = unisono.ShardedStep(group, np.zeros(64, np.float32), Momentum(rate=0.1), "delivery=reliable")
        return lambda: step.run(gradient), lambda: step.step
    if what == "reducer":
        reducer = unisono.GradientReducer(group, {"w": (8, 8)}, "arc:ratio=0.5")

        def reduced():
            reducer.reduce({"w": gradient})
            reducer.finish()

        return reduced, lambda: reducer.step
    drop = unisono.DropCompute(group, 2, f"60:rule={what}")
    steps, main = [], threading.main_thread()

    def compute(position, memory):
        assert what == "at" or threading.current_thread() is main
        memory += 0.5

    def apply(averages, step):
        assert threading.current_thread() is main and averages[0] == 1
        steps.append(step.step)

    gradients = np.zeros(64, np.float32)
    return lambda: drop.run(gradients, compute, apply), lambda: drop.report() and len(steps)


def interrupted_step(what, goes_on):
    signal.signal(signal.SIGINT, signal.default_int_handler)
    handled, sent = [], []
    signal.signal(signal.SIGUSR1, lambda *_: handled.append(time.monotonic()))

    def send(number):
        sent.append(time.monotonic())
        signal.pthread_kill(threading.main_thread().ident, number)

    group = unisono.join(timeout=300)
    call, steps = interruptible_step(group, what)
    if group.rank == 0:
        threading.Timer(0.3, send, (signal.SIGUSR1,)).start()
        threading.Timer(0.6, send, (signal.SIGINT,)).start()
        with pytest.raises(KeyboardInterrupt):
            call()
        handled.append(time.monotonic())
        # The promise is 0.2 s. On a busy machine, a thread may get its turn later.
        assert all(there - here < 1.2 for here, there in zip(sent, handled, strict=True)), (sent, handled)
        if goes_on:
            group.send(np.zeros(1, np.int8), to=1, tag=9)
            assert steps() == 1, "the next call waits for the step, and its functions run"
            call()
    elif goes_on:
        group.recv(np.zeros(1, np.int8), source=0, tag=9)
        call()
        call()
    else:
        with pytest.raises(unisono.PeerLost):
            group.recv(np.zeros(1, np.int8), source=0, tag=9)
        return True
    return not goes_on or steps() == 2


@pytest.mark.parametrize("what", ["sharded", "reducer", "after", "at"])
def test_ctrl_c_ends_the_waiting_of_a_step_which_goes_on(tmp_path, what):
    assert ranks.run(interrupted_step, 2, tmp_path, (what, True)) == [True, True]


@pytest.mark.parametrize("what", ["sharded", "reducer", "after", "at"])
def test_a_program_that_was_interrupted_in_a_step_ends_at_once(tmp_path, what):
    """Not after the timeout of the group."""
    assert ranks.run(interrupted_step, 2, tmp_path, (what, False)) == [True, True]

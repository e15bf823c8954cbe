"""Elastic runs of real processes: averaging steps, joiners that load state, groups, and MoshpitSgd on top."""

import os

import numpy as np
import pytest
import ranks
import unisono


def join(folder, number, count, **options):
    """The first peer begins the run and writes its address to a file."""
    seeds = os.path.join(folder, "seeds")
    run = unisono.Elastic.join(
        run_id="test", found=number == 0, seeds=["file:" + seeds], min_peers=count, interface="127.0.0.1", **options
    )
    if number == 0:
        with open(seeds + ".new", "w") as file:
            file.write(run.status().endpoints[0] + "\n")
        os.rename(seeds + ".new", seeds)
    return run


def steps(folder):
    number, count = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    run = join(folder, number, count, tensor_elements=[1000, 10], name=f"worker {number}")
    assert run.ready(30)
    one, two = np.full(1000, 10.0 * (number + 1), np.float32), np.full((2, 5), float(number), np.float32)
    report = run.average([one, two], weight=number + 1)
    assert report.exact and report.peers == count and report.rounds[0].outcome == "averaged" and str(report)
    weights = np.arange(1, count + 1)
    np.testing.assert_allclose(one, np.average(10.0 * weights, weights=weights), rtol=1e-6)
    np.testing.assert_allclose(two, np.average(weights - 1.0, weights=weights), rtol=1e-6)
    group = run.group(form_timeout=30)
    assert group.world_size == count
    group.barrier()
    work = run.average_async([one, two])
    one += 1  # a local step during the averaging step; it is kept
    report = work.wait(timeout=60)
    assert report.exact and work.done()
    np.testing.assert_allclose(one, np.average(10.0 * weights, weights=weights) + 1, rtol=1e-6)
    status = run.status()
    assert status.averaging_steps == 2 and {peer.name for peer in status.peers} == {f"worker {i}" for i in range(count)}
    with pytest.raises(unisono.Invalid):
        run.average([one])
    with pytest.raises(ValueError, match="read-only"):
        run.average([np.frombuffer(b"1234", np.float32), two])
    run.leave()
    run.leave()
    with pytest.raises(unisono.Unavailable):
        run.average([one, two])
    return one.tobytes()


def test_steps_give_all_peers_the_weighted_mean(tmp_path):
    results = ranks.run(steps, 3, tmp_path, (str(tmp_path),))
    assert len(set(results)) == 1


def loading(folder):
    number = int(os.environ["RANK"])
    values = np.arange(100, dtype=np.float32)
    run = join(folder, number, 2, tensor_elements=[100])
    if number == 0:
        run.set_state({"step": b"17"})
        run.offer_values([values])
        print("offered", flush=True)
    state = run.state()
    if number == 1 and state.loaded:
        np.testing.assert_array_equal(state.values, values)
        assert state.blobs == {"step": b"17"} and state.donors >= 1 and "100 values" in repr(state)
    with run:
        assert run.ready(30)
        run.average(values)
    return state.loaded


def test_a_joiner_finds_the_others_state(tmp_path):
    processes = [ranks.start(loading, 0, 2, str(tmp_path), (str(tmp_path),))]
    try:
        assert processes[0].stdout.readline() == "offered\n"
        processes.append(ranks.start(loading, 1, 2, str(tmp_path), (str(tmp_path),)))
        text = "".join(process.communicate(timeout=90)[0] for process in processes)
    finally:
        for process in processes:
            process.kill()
            process.wait()
    assert (ranks.result_of(str(tmp_path), 0), ranks.result_of(str(tmp_path), 1)) == (False, True), text


def local_sgd(folder):
    number, count = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    run = join(folder, number, count, tensor_elements=[50])
    assert run.ready(30)
    parameters = np.full(50, 100.0 * number, np.float32)
    sgd = unisono.MoshpitSgd(run, parameters, unisono.MoshpitSgdOptions("local_steps=2", overlap=False))
    asked = []
    sgd.give_state(lambda: asked.append(1) or {"mine": bytes([number])})
    averaged = 0
    for _ in range(8):
        parameters -= 0.5 * (parameters - (number + 1))  # each peer's own optimum
        step = sgd.after_step(parameters, samples=4)
        averaged += step.averaging is not None
    sgd.drain(parameters, timeout=60)
    assert sgd.save() and sgd.steps == 8
    sgd.load(sgd.save())
    step = sgd.finish(parameters)
    report = sgd.report()
    assert (
        asked
        and report.averaging_steps >= 1
        and report.steps == 8
        and 0 < report.useful_share() <= 1
        and str(report)
        and "began=" in repr(step)
    )
    run.leave()
    return parameters.tobytes()


def test_local_steps_end_with_the_same_parameters(tmp_path):
    results = [np.frombuffer(each, np.float32) for each in ranks.run(local_sgd, 2, tmp_path, (str(tmp_path),))]
    np.testing.assert_array_equal(*results)
    assert 1 <= results[0][0] <= 2


def failing_state(folder):
    run = join(folder, 0, 1, tensor_elements=[5])
    assert run.ready(30)
    parameters = np.zeros(5, np.float32)
    sgd = unisono.MoshpitSgd(run, parameters, "local_steps=1,overlap=off")
    sgd.give_state(lambda: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        sgd.after_step(parameters, 1)
    with pytest.raises(unisono.Invalid):
        unisono.MoshpitSgd(run, np.zeros(6, np.float32))
    sgd.abandon()
    return True


def test_what_give_state_raises_is_raised_and_other_sizes_are_refused(tmp_path):
    assert ranks.run(failing_state, 1, tmp_path, (str(tmp_path),)) == [True]


def test_joining_a_run_without_an_answer_is_unavailable():
    with pytest.raises(unisono.Unavailable, match="NO_SEED"):
        unisono.Elastic.join(run_id="nobody", seeds=["127.0.0.1:1"], tensor_elements=[1], join_timeout=0.2)
    with pytest.raises(unisono.Invalid):
        unisono.Elastic.join(run_id="", found=True)
    with pytest.raises(TypeError, match="unexpected keyword argument 'runid'"):
        unisono.Elastic.join(runid="x")

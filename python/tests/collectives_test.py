"""Collectives of a group of processes over NumPy arrays: results for each element type, blocking and asynchronous."""

import numpy as np
import pytest
import ranks
import unisono

DTYPES = ["float32", "float64", "float16", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"]


def blocking_and_async(group, name, *arguments, **options):
    """Makes the call twice, blocking and asynchronously, and returns its output."""
    report = getattr(group, name)(*arguments, **options)
    again = getattr(group, name + "_async")(*arguments, **options).wait()
    assert report.operation == again.operation
    if report.output is None:
        return None
    np.testing.assert_array_equal(report.output, again.output)
    return report.output


def reductions():
    group = unisono.join()
    rank, world = group.rank, group.world_size
    for name in DTYPES:
        x = np.arange(6, dtype=name).reshape(2, 3) + rank
        y = np.empty_like(x)
        report = group.all_reduce(x, y)
        np.testing.assert_array_equal(y, sum(np.arange(6).reshape(2, 3) + r for r in range(world)))
        assert report.contributors == world and report.output is None
        work = group.all_reduce_async(x, op="max")
        assert work.wait(timeout=30).operation == "all_reduce" and work.done()
        np.testing.assert_array_equal(x, np.arange(6).reshape(2, 3) + world - 1)
    values = np.full(4, rank + 1, np.float32)
    group.all_reduce(values, op="avg", schedule="ring", order="any", timeout=20, slice_bytes=64)
    np.testing.assert_array_equal(values, np.full(4, (world + 1) / 2))
    blocks = np.arange(world * 2, dtype=np.float32).reshape(world, 2)
    np.testing.assert_array_equal(blocking_and_async(group, "reduce_scatter", blocks), world * blocks[rank])
    in_place = blocks.copy()
    group.reduce_scatter_in_place(in_place)
    np.testing.assert_array_equal(in_place[rank], world * blocks[rank])
    counts = [r + 1 for r in range(world)]
    uneven = np.ones(sum(counts), np.int32)
    np.testing.assert_array_equal(
        blocking_and_async(group, "reduce_scatter", uneven, counts=counts), np.full(counts[rank], world)
    )
    at_root = np.full(3, rank, np.int64)
    group.reduce(at_root, root=1)
    np.testing.assert_array_equal(at_root, [sum(range(world))] * 3 if rank == 1 else [rank] * 3)
    return rank


@pytest.mark.parametrize("world", [1, 2, 3])
def test_reductions_of_every_type_leave_the_sum_on_every_rank(tmp_path, world):
    function = reductions if world > 1 else reduction_of_one
    assert ranks.run(function, world, tmp_path) == list(range(world))


def reduction_of_one():
    group = unisono.join()
    x = np.ones(3, np.float32)
    assert group.all_reduce(x).world_size == 1
    np.testing.assert_array_equal(group.all_gather(x).output, [[1, 1, 1]])
    return group.rank


def gatherings():
    group = unisono.join()
    rank, world = group.rank, group.world_size
    block = np.full((2, 2), rank, np.int16)
    expected = np.stack([np.full((2, 2), r) for r in range(world)])
    gathered = blocking_and_async(group, "all_gather", block)
    assert gathered.dtype == np.int16
    np.testing.assert_array_equal(gathered, expected)
    in_place = np.zeros((world, 2), np.int32)
    in_place[rank] = rank
    group.all_gather_in_place(in_place)
    np.testing.assert_array_equal(in_place[:, 1], np.arange(world))
    counts = [2 * r for r in range(world)]  # rank 0 has no elements
    uneven = np.full(counts[rank], rank, np.float64)
    np.testing.assert_array_equal(
        blocking_and_async(group, "all_gather", uneven, counts=counts), np.repeat(np.arange(world), counts)
    )
    at_root = blocking_and_async(group, "gather", block, root=2)
    assert at_root is None if rank != 2 else np.array_equal(at_root, expected)
    parts = np.arange(world * 3, dtype=np.float32).reshape(world, 3)
    mine = np.empty(3, np.float32)
    group.scatter(parts if rank == 1 else None, mine, root=1)
    np.testing.assert_array_equal(mine, parts[rank])
    if rank == 1:
        np.testing.assert_array_equal(group.scatter(parts, root=1).output, parts[1])
    else:
        group.scatter(None, mine, root=1)
    return rank


def exchanges():
    group = unisono.join()
    rank, world = group.rank, group.world_size
    text = np.frombuffer(b"same" if rank == 1 else b"....", np.uint8)
    text = text if rank == 1 else text.copy()  # root's array may be read-only
    group.broadcast(text, root=1)
    assert text.tobytes() == b"same"
    outgoing = np.array([10 * rank + r for r in range(world)], np.int32)
    np.testing.assert_array_equal(blocking_and_async(group, "all_to_all", outgoing), [10 * r + rank for r in range(world)])
    send_counts = [r for r in range(world)]
    received = group.all_to_all(
        np.full(sum(send_counts), rank, np.int8), send_counts=send_counts, recv_counts=[rank] * world
    ).output
    np.testing.assert_array_equal(received, np.repeat(np.arange(world), rank))
    if rank == 0:
        message = bytearray(b"0123456789")  # no array, but it has the buffer protocol
        group.send(message, to=2, tag=2**32 - 1)
    elif rank == 2:
        message = np.empty(10, np.uint8)
        assert group.recv_async(message, source=0, tag=2**32 - 1).wait().received_messages >= 1
        assert message.tobytes() == b"0123456789"
    group.barrier()
    group.barrier_async().wait()
    return rank


@pytest.mark.parametrize("function", [gatherings, exchanges])
def test_blocks_and_messages_end_where_they_belong(tmp_path, function):
    assert ranks.run(function, 3, tmp_path) == [0, 1, 2]


def bfloat16():
    group = unisono.join()
    bits = (np.array([1.5, -2.0, 0.25], np.float32).view(np.uint32) >> 16).astype(np.uint16)
    group.all_reduce(bits, dtype="bf16")
    np.testing.assert_array_equal((bits.astype(np.uint32) << 16).view(np.float32), np.array([3, -4, 0.5]))
    gathered = group.all_gather(bits[:1], dtype="bf16").output
    assert gathered.dtype == np.uint16 and gathered.shape == (2, 1)
    integers = np.full(2, 40000, np.uint16)
    group.all_reduce(integers)
    np.testing.assert_array_equal(integers, np.full(2, 80000 % 65536))
    try:
        import ml_dtypes
    except ImportError:
        return "no ml_dtypes"
    x = np.array([1.5, 2], ml_dtypes.bfloat16)
    group.all_reduce(x)
    np.testing.assert_array_equal(x.astype(np.float32), [3, 4])
    assert group.all_gather(x).output.dtype == ml_dtypes.bfloat16
    return "ml_dtypes"


def test_bfloat16_is_uint16_with_a_dtype_or_an_array_of_ml_dtypes(tmp_path):
    assert len(set(ranks.run(bfloat16, 2, tmp_path))) == 1


def odd_shapes():
    group = unisono.join()
    empty = np.empty((0, 3), np.float32)
    assert group.all_reduce(empty).contributors == 2
    assert group.all_gather(empty).output.shape == (2, 0, 3)
    scalar = np.array(2.0, np.float64)
    group.all_reduce(scalar)
    assert scalar == 4 and scalar.shape == ()
    assert group.all_gather(scalar).output.tolist() == [4, 4]
    values = np.array([np.nan, np.inf, 1], np.float32) if group.rank == 0 else np.ones(3, np.float32)
    group.all_reduce(values, op="min")
    assert np.isnan(values[0]) and values[1] == 1
    strided = np.zeros((4, 4), np.float32)
    group.all_reduce(strided[1:3])  # rows are contiguous
    wide = np.ones(4, np.float32)[None, :]
    group.all_reduce(wide)
    np.testing.assert_array_equal(wide, [[2, 2, 2, 2]])
    return True


def test_empty_and_scalar_arrays_and_nan_work(tmp_path):
    assert ranks.run(odd_shapes, 2, tmp_path) == [True, True]


def subgroups():
    group = unisono.join()
    pair = group.split([2, 0]) if group.rank != 1 else None
    if pair is None:
        return None
    x = np.array([pair.rank], np.int32)
    gathered = pair.all_gather(x).output
    assert gathered.tolist() == [[0], [1]] and pair.world_size == 2
    return pair.rank


def test_subgroups_number_their_ranks_in_the_order_given(tmp_path):
    assert ranks.run(subgroups, 3, tmp_path) == [1, None, 0]


def codecs():
    group = unisono.join()
    x = np.random.default_rng(group.rank).standard_normal(100_000).astype(np.float32)
    exact = x.copy()
    group.all_reduce(exact)
    result, lost = np.empty_like(x), np.empty_like(x)
    report = group.all_reduce(x, result, codec="int8", schedule="two_step", encode_error=lost)
    assert 8 < report.bits_per_element() < 10 and report.passes == 2 and report.codec == unisono.Codec("int8")
    total = lost.copy()
    group.all_reduce(total)
    np.testing.assert_allclose(result + total, exact, rtol=0, atol=1e-4)
    by_hand, fed, left = np.empty_like(x), np.empty_like(x), lost.copy()
    group.all_reduce(x + lost, by_hand, codec="int8", schedule="two_step", encode_error=lost)
    group.all_reduce(x, fed, codec="int8", schedule="two_step", encode_error=left, error_feedback=True)
    assert np.array_equal(by_hand, fed) and np.array_equal(lost, left)
    with pytest.raises(unisono.Invalid, match="error_feedback needs encode_error"):
        group.all_reduce(x, codec="int8", error_feedback=True)
    measured = group.all_reduce(x, result, codec=unisono.Codec.quantized(4), schedule="two_step", measure_error=True)
    assert 0 < measured.measured_error < 0.1 and 10 < measured.snr_db() < 40
    assert np.array_equal(group.all_gather(result[:10]).output[0], result[:10])
    with pytest.raises(unisono.Invalid, match="measure_error"):
        group.all_reduce_async(x, result, measure_error=True).wait()
    with pytest.raises(ValueError, match="encode_error has 3 elements"):
        group.all_reduce(x, codec="int8", encode_error=np.empty(3, np.float32))
    return result.tobytes()


def test_codecs_report_their_errors_and_give_all_ranks_the_same_bits(tmp_path):
    first, second = ranks.run(codecs, 2, tmp_path)
    assert first == second


def shards():
    group = unisono.join()
    x = np.arange(1000, dtype=np.float32)
    layout = group.shard_layout(x)
    assert sum(layout.count(r) for r in range(layout.world)) == 1000
    shard = group.reduce_shards(x).output
    np.testing.assert_array_equal(shard, 2 * x[layout.begin(group.rank):layout.end(group.rank)])
    whole = np.zeros_like(x)
    group.gather_shards(shard, whole)
    np.testing.assert_array_equal(whole, 2 * x)
    return True


def test_shards_are_reduced_and_gathered(tmp_path):
    assert ranks.run(shards, 2, tmp_path) == [True, True]


def lossy():
    group = unisono.join(transport="udp")
    assert group.datagram_bytes() > 0
    x = np.ones(50_000, np.float32)
    report = group.all_reduce(x, op="avg", delivery="lossy:loss_budget=0.2,estimator=count")
    np.testing.assert_allclose(x, 1)
    assert (
        report.delivery.used in ("lossy", "reliable")
        and report.delivery.contribute.ran
        and len(report.delivery.contribute.streams) == 2
    )
    assert report.delivery.outcome == "ok" and str(report.delivery)
    again = group.all_reduce(x, op="avg", delivery="lossy", lossy=unisono.DeliveryOptions("loss_budget=0.1", deadline_max=5.0))
    assert again.delivery is not None
    return group.all_reduce(x, op="avg", delivery="automatic").delivery.used


def test_lossy_calls_report_missing_datagrams(tmp_path):
    assert set(ranks.run(lossy, 2, tmp_path)) <= {"lossy", "reliable"}


def observing():
    group = unisono.join()
    group.all_reduce(np.ones(4, np.float32))
    members = group.members()
    assert [m.rank for m in members] == [0, 1] and members[group.rank].link == "self"
    counters = group.counters()
    assert (
        counters.ended >= 1
        and counters.collectives[0].collective == "all_reduce"
        and counters.links[1 - group.rank].transport == "shm"
    )
    assert "inside hosts" in str(group.link_speeds()) and group.link_speeds().inside_hosts.latency_us > 0
    group.dump_record("record")
    group.barrier()  # no rank leaves before all have read the members
    return repr(group)


def test_a_group_describes_its_members_links_and_counters(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert ranks.run(observing, 2, tmp_path) == [f"<unisono.Group: rank {r} of 2, epoch 1>" for r in range(2)]
    assert (tmp_path / "record").stat().st_size > 0

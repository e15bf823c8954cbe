"""Every element type through every collective that moves data, and through every reduction that it supports."""

import torch
import torch.distributed as dist

from .common import cannot, check, rank, same, world

MOVED = [
    torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float16, torch.bfloat16,
    torch.float32, torch.float64,
    torch.complex64, torch.complex128, torch.uint16, torch.uint32, torch.uint64, torch.float8_e4m3fn, torch.float8_e5m2,
]  # fmt: skip
INTEGERS = [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64]
FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]


def sample(of, dtype, elements=16):
    """Returns rank `of`'s tensor of this type. It has small whole numbers, or false and true, and no NaN."""
    numbers = (torch.arange(elements) + of) % (2 if dtype == torch.bool else 7)
    if dtype.is_complex:
        return torch.complex(numbers.double(), (numbers + of).double()).to(dtype)
    return numbers.to(dtype)


def with_each(what, types, body):
    """Calls body(dtype) for each type, and collects failures, so that one run reports the failures of all types."""
    wrong = []
    for dtype in types:
        name = str(dtype).removeprefix("torch.")
        if cannot(name) or cannot(f"{what} {name}"):
            continue
        try:
            body(dtype)
        except Exception as error:  # noqa: BLE001
            wrong.append(f"{what} {name}: {type(error).__name__}: {str(error).splitlines()[0]}")
    assert not wrong, "\n".join(wrong)


@check(ranks=(3,))
def broadcast_of_all_types():
    def body(dtype):
        tensor = sample(rank(), dtype)
        dist.broadcast(tensor, src=1)
        same(tensor, sample(1, dtype))

    with_each("broadcast", MOVED, body)


@check(ranks=(3,))
def all_gather_of_all_types():
    def body(dtype):
        outputs = [torch.zeros(16).to(dtype) for _ in range(world())]
        dist.all_gather(outputs, sample(rank(), dtype))
        for of, output in enumerate(outputs):
            same(output, sample(of, dtype))

    with_each("all_gather", MOVED, body)


@check(ranks=(3,))
def all_gather_into_tensor_of_all_types():
    def body(dtype):
        output = torch.zeros(16 * world()).to(dtype)
        dist.all_gather_into_tensor(output, sample(rank(), dtype))
        same(output, torch.cat([sample(of, dtype) for of in range(world())]))

    with_each("all_gather_into_tensor", MOVED, body)


@check(ranks=(3,))
def gather_and_scatter_of_all_types():
    def body(dtype):
        outputs = [torch.zeros(16).to(dtype) for _ in range(world())] if rank() == 1 else None
        dist.gather(sample(rank(), dtype), outputs, dst=1)
        for of, output in enumerate(outputs or ()):
            same(output, sample(of, dtype))
        output = torch.zeros(16).to(dtype)
        dist.scatter(output, [sample(to, dtype) for to in range(world())] if rank() == 0 else None, src=0)
        same(output, sample(rank(), dtype))

    with_each("gather and scatter", MOVED, body)


@check(ranks=(3,))
def all_to_all_single_of_all_types():
    def body(dtype):
        output = torch.zeros(4 * world()).to(dtype)
        dist.all_to_all_single(output, torch.cat([sample(rank() + to, dtype, 4) for to in range(world())]))
        same(output, torch.cat([sample(of + rank(), dtype, 4) for of in range(world())]))

    with_each("all_to_all_single", MOVED, body)


@check(ranks=(2,))
def send_and_recv_of_all_types():
    def body(dtype):
        if rank() == 0:
            dist.send(sample(0, dtype), 1)
        else:
            tensor = torch.zeros(16).to(dtype)
            dist.recv(tensor, 0)
            same(tensor, sample(0, dtype))

    with_each("send and recv", MOVED, body)


def reduced(operation, dtype):
    """Returns the expected reduction of all ranks' samples, computed in int64 or float64 and rounded once."""
    wide = torch.int64 if dtype in INTEGERS or dtype == torch.bool else torch.float64
    samples = torch.stack([reducible(of, dtype).to(wide) for of in range(world())])
    if operation == dist.ReduceOp.SUM:
        result = samples.sum(0)
    elif operation == dist.ReduceOp.AVG:
        result = samples.sum(0) / world()
    elif operation == dist.ReduceOp.PRODUCT:
        result = samples.prod(0)
    elif operation == dist.ReduceOp.MIN:
        result = samples.min(0).values
    elif operation == dist.ReduceOp.MAX:
        result = samples.max(0).values
    else:
        result = samples[0]
        combine = {"BAND": torch.bitwise_and, "BOR": torch.bitwise_or, "BXOR": torch.bitwise_xor}[name_of(operation)]
        for sampled in samples[1:]:
            result = combine(result, sampled)
    return result.to(dtype)


def reducible(of, dtype):
    """Returns numbers so small that the product over a few ranks fits in one byte. Signed types get numbers of both signs."""
    numbers = (torch.arange(16) * (of + 1)) % (2 if dtype == torch.bool else 5)
    if dtype not in (torch.bool, torch.uint8):
        numbers = torch.where(torch.arange(16) % 3 == of % 3, -numbers, numbers)
    return numbers.to(dtype)


def name_of(operation):
    names = ("SUM", "AVG", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR")
    return next(name for name in names if getattr(dist.ReduceOp, name) == operation)


CALLS = {
    "all_reduce": lambda tensor, operation: dist.all_reduce(tensor, op=operation),
    "reduce": lambda tensor, operation: dist.reduce(tensor, dst=0, op=operation),
}


def reduces(call, operation, types):
    def body(dtype):
        tensor = reducible(rank(), dtype)
        CALLS[call](tensor, operation)
        if call == "all_reduce" or rank() == 0:
            same(tensor, reduced(operation, dtype))

    with_each(f"{call} {name_of(operation)}", types, body)


@check(ranks=(2, 3))
def sums():
    for call in CALLS:
        reduces(call, dist.ReduceOp.SUM, INTEGERS + FLOATS)


@check(ranks=(3,))
def products():
    for call in CALLS:
        reduces(call, dist.ReduceOp.PRODUCT, INTEGERS + FLOATS)


@check(ranks=(3,))
def minima_and_maxima():
    for call in CALLS:
        reduces(call, dist.ReduceOp.MIN, INTEGERS + FLOATS)
        reduces(call, dist.ReduceOp.MAX, INTEGERS + FLOATS)


@check(ranks=(2, 3))
def averages():
    reduces("all_reduce", dist.ReduceOp.AVG, [torch.float32, torch.float64])
    reduces("reduce", dist.ReduceOp.AVG, [torch.float32, torch.float64])
    for dtype in (torch.float16, torch.bfloat16):  # averages of whole numbers may be rounded once or twice
        tensor = reducible(rank(), dtype)
        dist.all_reduce(tensor, op=dist.ReduceOp.AVG)
        same(tensor, reduced(dist.ReduceOp.AVG, dtype), tolerance=0.008)


@check(ranks=(2, 3))
def averages_of_reduce_scatter():
    output = torch.empty(4)
    dist.reduce_scatter_tensor(output, torch.arange(4.0 * world()) * (rank() + 1), op=dist.ReduceOp.AVG)
    expected = torch.arange(4.0 * world()).chunk(world())[rank()] * (world() + 1) / 2
    same(output, expected, tolerance=1e-6)


@check(ranks=(2, 3))
def bits():
    for operation in (dist.ReduceOp.BAND, dist.ReduceOp.BOR, dist.ReduceOp.BXOR):
        for call in CALLS:
            reduces(call, operation, INTEGERS)


@check(ranks=(2, 3))
def truth_values():
    """For bool, SUM and MAX mean "or", PRODUCT and MIN mean "and", as with NCCL, and BXOR means parity. Results have no bytes
    other than 0 and 1."""
    table = [reducible(of, torch.bool) for of in range(world())]
    either, both, parity = torch.stack(table).any(0), torch.stack(table).all(0), torch.stack(table).sum(0) % 2 == 1
    expected = {"SUM": either, "MAX": either, "BOR": either, "PRODUCT": both, "MIN": both, "BAND": both, "BXOR": parity}
    wrong = []
    for name, right in expected.items():
        if cannot(f"bool {name}"):
            continue
        tensor = reducible(rank(), torch.bool)
        try:
            dist.all_reduce(tensor, op=getattr(dist.ReduceOp, name))
            same(tensor, right)
        except Exception as error:  # noqa: BLE001
            wrong.append(f"bool {name}: {error}")
    assert not wrong, "\n".join(wrong)


@check(ranks=(3,))
def complex_sums():
    for dtype in (torch.complex64, torch.complex128):
        tensor = sample(rank(), dtype)
        dist.all_reduce(tensor)
        same(tensor, sum(sample(of, dtype) for of in range(world())))
        tensor = sample(rank(), dtype)
        dist.reduce(tensor, dst=2)
        if rank() == 2:
            same(tensor, sum(sample(of, dtype) for of in range(world())))


@check(ranks=(2,))
def unsigned_sums():
    def body(dtype):
        tensor = sample(rank(), dtype)
        dist.all_reduce(tensor)
        same(tensor, (sample(0, torch.int64) + sample(1, torch.int64)).to(dtype))

    with_each("all_reduce SUM", [torch.uint16, torch.uint32, torch.uint64], body)


@check(ranks=(2, 3))
def reduce_scatter_of_all_types():
    def body(dtype):
        output = torch.zeros(4, dtype=dtype)
        dist.reduce_scatter_tensor(output, torch.cat([sample(rank() + to, dtype, 4) for to in range(world())]))
        same(output, sum(sample(of + rank(), torch.int64, 4) for of in range(world())).to(dtype))

    with_each("reduce_scatter_tensor", INTEGERS + FLOATS, body)


@check(ranks=(3,))
def not_a_number_and_infinities():
    """A sum with a NaN is NaN on all ranks. The sum of infinities of both signs is NaN."""
    tensor = torch.tensor(
        [float("nan") if rank() == 1 else 1.0, float("inf"), float("inf") if rank() == 0 else float("-inf"), 1.0]
    )
    dist.all_reduce(tensor)
    assert tensor[0].isnan() and tensor[1] == float("inf") and tensor[2].isnan() and tensor[3] == world()


@check(ranks=(2, 4))
def half_precision_sums_round_little():
    """Four ranks sum tensors of 4096 numbers. The error is at most one rounding per addition."""
    generator = torch.Generator().manual_seed(7)
    parts = torch.randn(world(), 4096, generator=generator, dtype=torch.float64)
    for dtype, epsilon in ((torch.float16, 2**-11), (torch.bfloat16, 2**-8)):
        rounded = parts.to(dtype)
        tensor = rounded[rank()].clone()
        dist.all_reduce(tensor)
        error = (tensor.double() - rounded.double().sum(0)).abs()
        assert (error <= rounded.double().abs().sum(0) * epsilon * world()).all()

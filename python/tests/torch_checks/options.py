"""Effects of Unisono's options on torch's collectives. Only for the backend unisono."""

import os
import pathlib

import torch
import torch.distributed as dist

from .common import backend, check, fails, rank, same, world


def report():
    import unisono.torch

    return unisono.torch.report()


@check(ranks=(2,))
def call_options_hold_inside_and_nest():
    if backend() != "unisono":
        return
    import unisono.torch

    tensor = torch.linspace(-1, 1, 100_000) * (rank() + 1)
    exact = torch.linspace(-1, 1, 100_000) * sum(range(1, world() + 1))
    with unisono.torch.call_options(codec="int8", schedule="two_step"):
        coarse = tensor.clone()
        dist.all_reduce(coarse)
        assert report()["codec"].startswith("int8"), report()
        with unisono.torch.call_options(schedule="ring"):
            plain = tensor.clone()
            dist.all_reduce(plain)
            assert report()["schedule"] == "ring" and report()["codec"] == "plain", report()
        dist.all_reduce(tensor.clone())
        assert report()["codec"].startswith("int8"), report()
    same(plain, exact)
    same(coarse, exact, 0.05)
    assert not torch.equal(coarse, plain)
    dist.all_reduce(tensor)
    assert report()["codec"] == "plain", report()
    same(tensor, exact)


WRONG_SETTINGS = {  # setting -> value and text
    "codec": ("int99", 'codec: name "int99" is none of int2 … int8, auto, plain, quantize, f16, bf16, fp8'),
    "schedule": (
        "circle",
        'schedule "circle": auto, ring, two_step, halving_doubling, hierarchical, one_shot, direct, tree or double_tree',
    ),
    "order": ("alphabetical", 'order "alphabetical": auto, rank or any'),
    "delivery": ("lossy:budget=1", 'bad_option: option "budget" is none of loss_budget, estimator, on_empty, deadline'),
}


def sum_says(codec):
    tensor = torch.linspace(-1, 1, 100_000) * (rank() + 1)
    dist.all_reduce(tensor)
    assert report()["codec"].startswith(codec), report()
    exact = torch.linspace(-1, 1, 100_000) * sum(range(1, world() + 1))
    assert torch.equal(tensor, exact) == (codec == "plain")


@check(ranks=(2,))
def call_options_that_make_no_sense_change_nothing():
    """After a wrong setting was caught, calls have the settings that they had before, inside other call_options, too."""
    if backend() != "unisono":
        return
    import unisono.torch

    for name, (value, text) in WRONG_SETTINGS.items():
        wrong = {"codec": "int4", "schedule": "two_step"} | {name: value}
        with fails("^" + text, within_s=1, kinds=(ValueError,)):
            with unisono.torch.call_options(**wrong):
                raise AssertionError("a wrong setting was accepted")
        sum_says("plain")
        with unisono.torch.call_options(codec="int2", schedule="two_step"):
            sum_says("int2")
            with fails("^" + text, within_s=1, kinds=(ValueError,)):
                with unisono.torch.call_options(**wrong):
                    raise AssertionError("a wrong setting was accepted")
            sum_says("int2")
        sum_says("plain")


@check(ranks=(2,))
def call_options_end_with_an_error_in_their_block():
    if backend() != "unisono":
        return
    import unisono.torch

    with fails("of the caller", within_s=5):
        with unisono.torch.call_options(codec="int8", schedule="two_step"):
            with unisono.torch.call_options(codec="int4", schedule="two_step"):
                sum_says("int4")
                raise RuntimeError("of the caller")
    sum_says("plain")


@check(ranks=(2,))
def options_of_a_group():
    """A group whose options differ from those of the default group."""
    if backend() != "unisono":
        return
    import unisono.torch

    tcp = dist.new_group(pg_options=unisono.torch.Options(transport="tcp"))
    coarse = dist.new_group(pg_options=unisono.torch.Options(codec="int4", schedule="two_step"))
    for group, codec in ((tcp, "plain"), (coarse, "int4")):
        tensor = torch.full((50_000,), float(rank()))
        dist.all_reduce(tensor, group=group)
        same(tensor, torch.full((50_000,), float(sum(range(world())))), 0.2)
        assert unisono.torch.report(group)["codec"].startswith(codec), unisono.torch.report(group)


@check(ranks=(2,))
def a_group_with_a_tuning_file():
    """Schedules of one group come from its tuning file. If the file is wrong, all ranks raise an error that names the line."""
    if backend() != "unisono":
        return
    import unisono.torch

    path = pathlib.Path(os.environ["CHECK_DIRECTORY"]) / "tuning"
    for text in ("unisono tuning 1\ngroup 2 auto\nall_reduce 1000000 ring slice 65536\n", "unisono tuning 1\ngroup of two\n"):
        if rank() == 0:
            path.write_text(text)
        dist.barrier()
        options = unisono.torch.Options(tuning=str(path), order="any")
        if "of" in text:
            with fails("line 2: expected 'group PLACEMENT TRANSPORT'", within_s=10, kinds=(ValueError, RuntimeError)):
                dist.new_group(pg_options=options)
            continue
        tuned = dist.new_group(pg_options=options)
        for group in (tuned, None):
            tensor = torch.full((50_000,), float(rank() + 1))
            dist.all_reduce(tensor, group=group)
            same(tensor, torch.full((50_000,), 3.0))
            assert (unisono.torch.report(group)["schedule"] == "ring") == (group is tuned), unisono.torch.report(group)


@check(ranks=(2,))
def options_that_make_no_sense():
    if backend() != "unisono":
        return
    import unisono.torch

    for wrong in ({"codec": "int9"}, {"schedule": "circle"}, {"delivery": "lossy:budget=1"}, {"order": "alphabetical"}):
        try:
            unisono.torch.Options(**wrong)
        except ValueError as error:
            assert next(iter(wrong.values())).split(":")[0] in str(error) or "bad_option" in str(error), error
        else:
            raise AssertionError(wrong)
    try:
        unisono.torch.backend_of(dist.new_group(backend="gloo"))
    except ValueError as error:
        assert "gloo" in str(error)
    else:
        raise AssertionError("a group of Gloo's has no Unisono backend")


@check(ranks=(2, 3))
def sums_with_a_factor():
    """PREMUL_SUM in all collectives. Tensors other than the result do not change."""
    if backend() != "unisono":
        return
    twice = dist._make_nccl_premul_sum(2.0)
    given = torch.arange(4.0 * world()) + rank()
    right = 2 * sum(torch.arange(4.0 * world()) + one for one in range(world()))
    mine = right.view(world(), 4)[rank()]

    tensor = given.clone()
    dist.all_reduce(tensor, twice)
    same(tensor, right)
    tensor = given.clone()
    dist.reduce(tensor, 0, twice)
    same(tensor, right if rank() == 0 else given)
    for form in range(3):
        tensor, output = given.clone(), torch.full((4,), 7.0)
        if form == 0:
            dist.reduce_scatter(output, list(tensor.chunk(world())), twice)
        elif form == 1:
            dist.reduce_scatter_tensor(output, tensor, twice)
        else:
            with dist._coalescing_manager():
                dist.reduce_scatter_tensor(output, tensor, twice)
        same(output, mine)
        same(tensor, given)

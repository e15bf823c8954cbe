"""Order and delivery inside Unisono's hooks: they stay as the user has set them. Error feedback and lossy delivery exclude each
other, and so are refused by name."""

import torch
import torch.distributed as dist

from .common import fails, rank, same, same_on_all_ranks, world
from .methods_common import check, ut
from .methods_hooks import ARC, POWER_SGD, OneBucket

MANY = 20_000
LOSSY = "lossy:loss_budget=0.2"
REFUSED = (
    "^unisono: error feedback needs reliable delivery, because nobody knows the error of a message that is lost. The delivery of "
    "this call is lossy, by call_options, by the group's Options or by UNISONO_DELIVERY: make it reliable, or use no error "
    "feedback$"
)


def a_bucket(elements=MANY):
    parameter = torch.nn.Parameter(torch.zeros(elements // 100, 100))
    return parameter, OneBucket(parameter, torch.linspace(-1, 1, elements) * (rank() + 1))


def average():
    return torch.linspace(-1, 1, MANY) * (world() + 1) / 2


def states_with_error_feedback(network, group):
    compressed = [
        (ut.ArcTopKState(network, ARC, group), ut.arc_top_k_hook),
        (ut.PowerSgdState(network, POWER_SGD, group), ut.power_sgd_hook),
    ]
    return compressed + [
        (ut.LowBitState(group, codec, error_feedback=True, schedule="two_step"), ut.low_bit_hook) for codec in ("int8", "plain")
    ]


def refused_in(group):
    """All states with error feedback are refused, and nothing is exchanged. Others are lossy."""
    parameter, bucket = a_bucket()
    network = torch.nn.Module()
    network.register_parameter("weight", parameter)
    for state, hook in states_with_error_feedback(network, group):
        with fails(REFUSED, within_s=5, kinds=(ValueError,)):
            hook(state, bucket)
    state = ut.LowBitState(group, "int8", schedule="two_step")
    result = ut.low_bit_hook(state, a_bucket()[1]).wait()
    same(result, average(), 0.05)
    report = state.report()["last"]
    assert report["lossy"] is True and report["codec"].startswith("int8"), report
    same(ut.fp16_hook(group, a_bucket()[1]).wait(), average(), 1e-2)
    assert ut.report(group)["lossy"] is True, ut.report(group)


def accepted_in(group, reason=""):
    """Error feedback is used, with reliable delivery."""
    for codec in ("int8", "plain"):
        state = ut.LowBitState(group, codec, error_feedback=True, schedule="two_step")
        result = ut.low_bit_hook(state, a_bucket()[1]).wait()
        same(result, average(), 0.05)
        same_on_all_ranks(result, group)
        report = state.report()["last"]
        assert not report.get("lossy") and reason in report.get("delivery", ""), report


@check(ranks=(2,), env={"UNISONO_TRANSPORT": "udp", "UNISONO_DELIVERY": LOSSY})
def error_feedback_with_lossy_delivery_from_the_environment():
    refused_in(None)
    with ut.call_options(delivery="reliable"):
        accepted_in(None)
    refused_in(None)


@check(ranks=(2,), env={"UNISONO_TRANSPORT": "udp"})
def error_feedback_with_lossy_delivery_from_options():
    refused_in(dist.new_group(pg_options=ut.Options(delivery=LOSSY)))
    with ut.call_options(delivery=LOSSY):
        refused_in(None)
        with ut.call_options():  # the innermost settings are the only ones that count
            accepted_in(None)
    accepted_in(None)


@check(ranks=(2,), env={"UNISONO_TRANSPORT": "udp"})
def error_feedback_with_automatic_delivery():
    """An automatic call is reliable, and its report says why."""
    with ut.call_options(delivery="automatic"):
        accepted_in(None, "lossy calls have no encode_error and no error_feedback")


@check(ranks=(3,), env={"UNISONO_ORDER": "rank", "UNISONO_SCHEDULE": "ring"})
def the_order_of_the_user_holds_inside_hooks():
    """The ring cannot add in rank order, so a hook that uses it shows which order holds."""
    state = ut.LowBitState(codec="plain", schedule="ring")
    with fails("rank order", within_s=10):
        ut.low_bit_hook(state, a_bucket()[1]).wait()
    with ut.call_options(order="any"):
        same(ut.low_bit_hook(state, a_bucket()[1]).wait(), average(), 1e-6)

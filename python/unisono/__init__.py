"""All-Reduce for clusters that straggle, drop packets, have thin links, and whose peers come and go.

  import numpy, unisono

  group = unisono.join()                      # RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT: torchrun's variables
  gradient = numpy.ones(1000, numpy.float32)
  report = group.all_reduce(gradient, op="avg")
  print(report)

Arrays are C-contiguous NumPy arrays, or anything else with the buffer protocol, of float32, float64, float16, bfloat16 (of ml_dtypes, or uint16 with
dtype="bf16") and integers of 8 to 64 bits. Times are seconds, as floats; fields of reports say their unit in their name. Errors are subclasses of Error.
Blocking calls release the GIL. docs/python.md says more.
"""

from unisono._core import (
    AdamW,
    Codec,
    Compression,
    CompressionCosts,
    CompressionPlan,
    CompressionReport,
    Counters,
    DeliveryOptions,
    DeliveryReport,
    DropCompute,
    DropOptions,
    DropReport,
    DropStep,
    Elastic,
    ElasticPeer,
    ElasticState,
    ElasticStatus,
    ElasticWork,
    GradientReducer,
    Group,
    LinkSpeeds,
    Member,
    MoshpitSgd,
    MoshpitSgdOptions,
    MoshpitSgdReport,
    MoshpitStep,
    PlannedParameter,
    Reformed,
    Report,
    Resumed,
    RoundSummary,
    SGD,
    ShardLayout,
    ShardUpdate,
    ShardedDrift,
    ShardedOptions,
    ShardedReport,
    ShardedResumed,
    ShardedStep,
    StepCodec,
    SweepReport,
    Work,
    __version__,
    join,
)
from unisono._errors import Corrupt, Error, Internal, Invalid, Late, PeerLost, Unavailable, Unsupported
from unisono._options import CallOptions, ElasticOptions, JoinOptions
from unisono._optimizer import ShardOptimizer

__all__ = [name for name in dir() if not name.startswith("_")] + ["__version__"]

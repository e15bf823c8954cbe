"""Keyword arguments of calls, as types: for annotations, and for dicts that are passed on as **options."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Callable, Literal, TypedDict

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from unisono._core import Codec, DeliveryOptions, Event, StepCodec

ReduceOp = Literal["sum", "avg", "min", "max", "prod", "band", "bor", "bxor"]
Order = Literal["automatic", "auto", "in_rank_order", "any"]
Schedule = Literal["automatic", "auto", "ring", "two_step", "halving_doubling", "hierarchical", "one_shot", "direct", "tree", "double_tree"]
DType = Literal["f32", "f64", "f16", "bf16", "i8", "i16", "i32", "i64", "u8", "u16", "u32", "u64"]


class JoinOptions(TypedDict, total=False):
    """Options of unisono.join(). A missing value or None comes from the environment, or is the default
    (docs/guides/operations.md). Times are in seconds."""

    rank: int | None
    world_size: int | None
    rendezvous: str | None
    """"tcp://host:port" or "file:///path"."""
    key: str | None
    """The secret key of the job: 64 hexadecimal digits, as `unisono key` prints them; equal on all ranks."""
    security: Literal["automatic", "auto", "required", "off"] | None
    """required: joining fails without a key. off: no encryption, and no warning."""
    job: str | None
    """Distinguishes jobs that use one address."""
    interface: str | None
    """Network interface, by name or address, to listen on."""
    transport: Literal["auto", "shm", "tcp", "udp"] | None
    join_running: bool
    """Wait until a running group re-forms, and join it then."""
    join_timeout: float
    """Time for all ranks to meet: 60."""
    timeout: float
    """The deadline of operations that name none: 300."""
    reform_timeout: float
    """During re-forming, a peer that stays silent for this long is removed: 0.2. One whose link fails is waited for, up to 10."""
    min_world: int
    """Re-forming with fewer survivors ends the group; equal on all ranks."""
    require_majority: bool
    """Of a group that the network splits, only the majority goes on: True."""
    rate_limit_mbps: int
    datagram_checksum: bool
    streams_per_link: int
    link_timeout: float
    """A link between hosts that cannot be connected anew for this long is lost: 10."""
    resend_memory_per_link: int
    """Bytes that are copied per TCP link, so that they can be sent again: 16 MiB."""
    resend_memory: int
    """The same, for all TCP links of the process: 256 MiB."""
    tuning: str
    """A file that `unisono tune` wrote; rank 0's file counts."""
    codec: str | Codec
    """Codec of calls that name none; equal on all ranks."""
    compute_threads: int
    payload_checksum: bool
    on_event: Callable[[Event], None] | None
    """Gets what no call returns, in a thread of its own (docs/guides/troubleshooting.md). Without it, the logger "unisono" gets it."""


class CallOptions(TypedDict, total=False):
    """Options of each collective. A value that is missing or None is the default."""

    op: ReduceOp
    """Operation of reductions: "sum". avg is the sum divided by the world size."""
    order: Order
    """in_rank_order: equal bits for every schedule and timing."""
    schedule: Schedule
    timeout: float | None
    """Seconds until the call ends with Late; None: the group's."""
    id: int | None
    """Ranks match operations by this number instead of by call order; below 2**56, and not 0."""
    slice_bytes: int | None
    agreement: int | None
    """A number that must be equal on all ranks: if one differs, the call raises Invalid on all of them."""
    codec: str | Codec | None
    """How elements are encoded; None: the group's codec."""
    encode_error: NDArray[Any] | None
    """float32, as many elements as the input: receives this rank's encoding error. all_reduce and reduce_scatter of float32."""
    error_feedback: bool
    """Adds encode_error to the input first: error feedback, with one encode_error for all steps, zeros before the first."""
    measure_error: bool
    """Fills Report.measured_error. Blocking all_reduce only, which then cannot be interrupted; equal on all ranks."""
    delivery: str
    """"reliable", "lossy" or "automatic", the last two also with options: "lossy:loss_budget=0.2" (docs/guides/packet_loss.md). Needs the transport udp."""
    lossy: str | DeliveryOptions
    """The same options as an object."""
    shard_unit: int
    """reduce_shards and gather_shards: shard sizes are multiples of this many elements."""
    needed_ranges: list[list[int]] | None
    """Lossy gather_shards: for each rank, the ranges that must arrive, in ascending order."""
    dtype: DType | None
    """The meaning of elements: "bf16" for arrays of uint16."""


class ElasticOptions(TypedDict, total=False):
    """Options of Elastic.join(). Only run_id is required. Times are in seconds."""

    run_id: str
    """Distinguishes runs."""
    found: bool
    """Begin the run, at once."""
    seeds: list[str]
    """Where to find peers: "host:port", "file:PATH", "dht:host:port"."""
    tensor_elements: list[int]
    """Sizes of the arrays given to average(), in order; equal on all peers."""
    name: str
    interface: str
    port: int
    role: Literal["peer", "client", "reducer"]
    key: str | None
    """The secret key of the run: 64 hexadecimal digits, as `unisono key` prints them; equal on all peers."""
    security: Literal["automatic", "auto", "required", "off"] | None
    """As in JoinOptions."""
    profile: Literal["lan", "wan"]
    max_group: int
    rounds: int
    min_peers: int
    """The first averaging step waits for this many peers."""
    min_chunks: int
    max_peers: int
    grid: Literal["fitted", "published", "chunk_keys"]
    commit: Literal["agreed", "per_result"]
    contribute: str | StepCodec
    result: str | StepCodec
    join_timeout: float
    gather_timeout: float
    stall_timeout: float
    on_event: Callable[[Event], None] | None
    """As in JoinOptions."""

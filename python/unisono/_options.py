"""Keywords of calls, as types: for annotations, and to be kept and passed on as **options."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, TypedDict

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from unisono._core import Codec, DeliveryOptions, StepCodec

ReduceOp = Literal["sum", "avg", "min", "max", "prod", "band", "bor", "bxor"]
Order = Literal["automatic", "auto", "in_rank_order", "any"]
Schedule = Literal["automatic", "auto", "ring", "two_step", "halving_doubling", "hierarchical", "one_shot", "direct", "tree", "double_tree"]
DType = Literal["f32", "f64", "f16", "bf16", "i8", "i16", "i32", "i64", "u8", "u16", "u32", "u64"]


class JoinOptions(TypedDict, total=False):
    """Of unisono.join(). What is missing, or None, comes from the environment, else it is the default (docs/guides/operations.md). Times are in seconds."""

    rank: int | None
    world_size: int | None
    rendezvous: str | None
    """"tcp://host:port" or "file:///path"."""
    job: str | None
    """Two jobs at one address are told apart by it."""
    interface: str | None
    """Network interface, by name or address, to listen on."""
    transport: Literal["auto", "shm", "tcp", "udp"] | None
    join_running: bool
    """Wait to be taken in at the next re-forming of a running group."""
    join_timeout: float
    """For everyone to come together: 60."""
    timeout: float
    """The deadline of operations that name none: 300."""
    reform_timeout: float
    """How long a silent peer is waited for when the group is re-formed: 0.2."""
    min_world: int
    """Fewer survivors of a re-forming end the group; equal on all ranks."""
    require_majority: bool
    rate_limit_mbps: int
    datagram_checksum: bool
    streams_per_link: int
    tuning: str
    """A file that `unisono tune` wrote; rank 0's counts."""
    codec: str | Codec
    """Of calls that name none; equal on all ranks."""
    compute_threads: int
    payload_checksum: bool


class CallOptions(TypedDict, total=False):
    """Of each collective. What is missing, or None, is the default."""

    op: ReduceOp
    """Of reductions: "sum". avg is the sum divided by the world size."""
    order: Order
    """in_rank_order: the same bits whatever the schedule and the timing."""
    schedule: Schedule
    timeout: float | None
    """Seconds until the call ends with Late; None: the group's."""
    id: int | None
    """Operations are matched by this number instead of by the order of calls; below 2**56, and not 0."""
    slice_bytes: int | None
    agreement: int | None
    """A number that all ranks must give alike: where one differs, the call is Invalid on all of them."""
    codec: str | Codec | None
    """How elements travel; None: the group's."""
    encode_error: NDArray[Any] | None
    """float32, as many elements as the input: what encoding at this rank loses is written there. all_reduce and reduce_scatter of float32."""
    error_feedback: bool
    """What is in encode_error is added to the input first: error feedback, with one encode_error for all steps, zeros before the first."""
    measure_error: bool
    """Report.measured_error. Blocking all_reduce only, which cannot be interrupted then; all ranks alike."""
    delivery: str
    """"reliable", "lossy" or "automatic", the last two perhaps with options: "lossy:loss_budget=0.2" (docs/guides/packet_loss.md). Needs the transport udp."""
    lossy: str | DeliveryOptions
    """The same options as an object."""
    shard_unit: int
    """Of reduce_shards and gather_shards: shards have multiples of so many elements."""
    needed_ranges: list[list[int]] | None
    """Of gather_shards, lossy: by rank, which of its ranges must come, ascending."""
    dtype: DType | None
    """What elements are meant to be: "bf16" for arrays of uint16."""


class ElasticOptions(TypedDict, total=False):
    """Of Elastic.join(). Only run_id must be there. Times are in seconds."""

    run_id: str
    """Runs are told apart by it."""
    found: bool
    """Begin the run, at once."""
    seeds: list[str]
    """Where peers can be found: "host:port", "file:PATH", "dht:host:port"."""
    tensor_elements: list[int]
    """Of what average() is given, in order; equal on all peers."""
    name: str
    interface: str
    port: int
    role: Literal["peer", "client", "reducer"]
    run_key: str
    """A secret that all peers know: who does not show it is refused."""
    profile: Literal["lan", "wan"]
    max_group: int
    rounds: int
    min_peers: int
    """The first averaging step waits for so many."""
    min_chunks: int
    max_peers: int
    grid: Literal["fitted", "published", "chunk_keys"]
    commit: Literal["agreed", "per_result"]
    contribute: str | StepCodec
    result: str | StepCodec
    join_timeout: float
    gather_timeout: float
    stall_timeout: float

"""The base class of custom optimizers for ShardedStep."""

from __future__ import annotations

from unisono._core import ShardUpdate


class ShardOptimizer:
    """Computes new values of a rank's own shard from its reduced gradient. Every rank updates only its own shard, with an equal
    optimizer.

    class Momentum(unisono.ShardOptimizer):
        state_count = 1

        def update(self, task):
            momentum, = task.states
            momentum *= 0.9
            momentum += task.scale * task.gradient
            task.values -= task.rate * momentum
    """

    state_count: int = 0
    """Floats of state per element; ShardedStep keeps, saves and backs them up."""

    def __init__(self, rate: float) -> None:
        self.rate = rate
        """The learning rate; ShardedStep.set_rate() changes it."""

    def update(self, task: ShardUpdate) -> None:
        """Changes task.values and task.states in place. Called once per contiguous part of the shard with a gradient; held
        parts are skipped.

        The arrays are valid during the call only. ShardedStep.run() raises the errors raised here.
        """
        raise NotImplementedError

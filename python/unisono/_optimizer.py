"""What an optimizer of one's own for ShardedStep derives from."""

from __future__ import annotations

from unisono._core import ShardUpdate


class ShardOptimizer:
    """Makes new values of an owned shard from its reduced gradient. Every rank updates its own shard only; alike on all ranks.

    class Momentum(unisono.ShardOptimizer):
        state_count = 1

        def update(self, task):
            momentum, = task.states
            momentum *= 0.9
            momentum += task.scale * task.gradient
            task.values -= task.rate * momentum
    """

    state_count: int = 0
    """Numbers of state per element; they are kept, saved and backed up by ShardedStep."""

    def __init__(self, rate: float) -> None:
        self.rate = rate
        """The learning rate; ShardedStep.set_rate() changes it."""

    def update(self, task: ShardUpdate) -> None:
        """Changes task.values and task.states in place. Called once per stretch of the shard that has a gradient: what is held back is not given at all.

        The arrays are lent for the call. What is raised here is raised by ShardedStep.run().
        """
        raise NotImplementedError

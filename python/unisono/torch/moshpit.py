"""Moshpit averaging: training in a run whose processes come and go, without a process group (docs/guides/elastic.md).

    optimizer = unisono.torch.MoshpitOptimizer(torch.optim.AdamW(model.parameters()), run_id="demo", seeds=["10.0.0.1:4040"],
    every=8) while not optimizer.left:
        optimizer.zero_grad()
        loss_of(model, batch()).backward()
        optimizer.step()                                         # a local step; after every 8, an averaging step averages all
        peers

Source: M. Ryabinin et al., Moshpit SGD (arXiv:2103.03239); outer optimizers as in DiLoCo (arXiv:2311.08105).
"""

import io
import signal
import threading
import types
from typing import Any, Callable, Dict, List, Optional, Sequence

import torch

import unisono
from unisono.torch._shared import array_of, bytes_tensor, parameters_of_groups, tensor_bytes

__all__ = ["MoshpitOptimizer"]

OPTIMIZER, EXTRA = "torch.optimizer", "torch.extra."


class MoshpitOptimizer(torch.optim.Optimizer):
    """Local steps of an optimizer, and an average with all peers every few steps.

    optimizer: of dense float32 parameters on the CPU. run_id: distinguishes runs. found: begins the run; seeds: where to find
    peers, as "host:port" or "file:PATH" (one of the two, or both). every: local steps from one merged average until the next
    averaging step begins. average: "parameters", or "pseudo_gradients" with an outer optimizer
    ("outer=nesterov,rate=0.7,momentum=0.9"). overlap: local steps continue during an averaging step; their changes are kept.
    options: more unisono.MoshpitSgdOptions, as text. share_state: sends joiners this optimizer's state besides the parameters.
    extra: returns more for them, name -> bytes; called before each averaging step. leave_on_sigterm: the next step() after
    SIGTERM says goodbye to the peers, then the signal has its former effect. elastic: further unisono.ElasticOptions
    (min_peers, interface, port, key, profile, contribute, result, ...).

    If the run had values, they replace the parameters and the optimizer's state. Errors: unisono.Invalid, unisono.Unavailable
    (no seed answers).
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        run_id: str,
        seeds: Sequence[str] = (),
        found: bool = False,
        every: int = 8,
        *,
        average: str = "parameters",
        overlap: bool = True,
        options: str = "",
        share_state: bool = True,
        extra: Optional[Callable[[], Dict[str, bytes]]] = None,
        leave_on_sigterm: bool = True,
        **elastic: Any,
    ) -> None:
        self.optimizer = optimizer
        self.param_groups = optimizer.param_groups
        self._values = [each for each in parameters_of_groups(optimizer.param_groups)]
        for each in self._values:
            if each.dtype != torch.float32 or each.device.type != "cpu":
                raise ValueError(
                    f"MoshpitOptimizer: a parameter of {each.dtype} on {each.device}; float32 on the CPU is possible"
                )
        self._share_state, self._extra = share_state, extra  # sent by this peer
        self.left = False
        """This process has left the run: step() only steps the local optimizer."""
        text = ",".join(
            filter(None, [f"local_steps={every}", f"average={average}", f"overlap={'on' if overlap else 'off'}", options])
        )
        read = unisono.MoshpitSgdOptions(text)
        self.run = unisono.Elastic.join(
            run_id=run_id, seeds=list(seeds), found=found, tensor_elements=[each.numel() for each in self._values], **elastic
        )
        """The run itself: ready(), average(), group(), ..."""
        state = self.run.state()
        self._sgd = unisono.MoshpitSgd(self.run, self._arrays(), read)
        self.loaded = state.loaded
        """Whether the run had values, which are now the parameters'."""
        blobs: Dict[str, bytes] = state.blobs if state.loaded else {}
        self.extra = {name[len(EXTRA):]: data for name, data in blobs.items() if name.startswith(EXTRA)}
        """The data that the peers' `extra` provided."""
        given = blobs.get(OPTIMIZER)
        if given is not None and share_state:
            self.optimizer.load_state_dict(torch.load(io.BytesIO(given), weights_only=True))
            self.param_groups = self.optimizer.param_groups
        self._sgd.give_state(self._joiner_state)
        self.last_averaging: Optional[unisono.AveragingReport] = None
        """The last averaging step that ended."""
        self._leave_requested = False
        self._previous_handler: Any = None
        if leave_on_sigterm and threading.current_thread() is threading.main_thread():
            self._previous_handler = signal.signal(signal.SIGTERM, self._on_sigterm)

    @property
    def state(self) -> Any:  # type: ignore[override]
        return self.optimizer.state

    @property
    def defaults(self) -> Any:  # type: ignore[override]
        return self.optimizer.defaults

    def __repr__(self) -> str:
        return f"MoshpitOptimizer({self.optimizer!r})"

    def zero_grad(self, set_to_none: bool = True) -> None:
        self.optimizer.zero_grad(set_to_none)

    def add_param_group(self, param_group: Dict[str, Any]) -> None:
        """TypeError: the tensors of a run are fixed when it is joined."""
        raise TypeError("MoshpitOptimizer: parameters cannot be added to a run")

    def step(self, closure: Optional[Callable[[], Any]] = None, samples: int = 1) -> Any:  # type: ignore[override]
        """One local optimizer step; then an averaging step begins, or a finished one is merged. With overlap it never waits for
        peers.

        samples: samples in the step; this peer's weight.
        """
        loss = self.optimizer.step(closure)  # type: ignore[arg-type]
        if self._leave_requested:
            self.leave()
        elif not self.left:
            self._store_averaging(self._sgd.after_step(self._arrays(), samples))
        return loss

    def drain(self, timeout: Optional[float] = None) -> None:
        """Waits for a running averaging step and merges it, as before an evaluation. unisono.Late: it has not ended after
        `timeout` seconds."""
        self._store_averaging(self._sgd.drain(self._arrays(), timeout))

    def finish(self) -> None:
        """At the end of training: one more averaging step for the last local steps, then leave(). Peers that end at about that
        time get equal parameters."""
        if not self.left:
            self._store_averaging(self._sgd.finish(self._arrays()))
            self.leave()

    def leave(self) -> None:
        """Says goodbye to the peers, and aborts a running averaging step. Parameters stay as they are. Safe to call twice."""
        if not self.left:
            self.left = True
            self._sgd.abandon()
            self.run.leave()
        if self._previous_handler is not None:
            signal.signal(signal.SIGTERM, self._previous_handler)
            self._previous_handler = None
            if self._leave_requested:
                signal.raise_signal(signal.SIGTERM)

    def __enter__(self) -> "MoshpitOptimizer":
        return self

    def __exit__(self, *_: Any) -> None:
        self.leave()

    def status(self) -> unisono.ElasticStatus:
        """Peers, phase, layout, averaging steps, bytes."""
        return self.run.status()

    def report(self) -> unisono.MoshpitSgdReport:
        """Local steps, averaging steps, exact averaging steps, and their time, since this process joined."""
        return self._sgd.report()

    @property
    def steps(self) -> int:
        """Steps since the run began, as this peer counts them: for learning-rate schedules."""
        return self._sgd.steps

    def state_dict(self) -> Dict[str, Any]:  # type: ignore[override]
        """State of the local optimizer and of the outer one, for a restart of all peers; call after drain()."""
        return {"optimizer": self.optimizer.state_dict(), "moshpit": bytes_tensor(self._sgd.save())}

    def load_state_dict(self, state: Dict[str, Any]) -> None:  # type: ignore[override]
        """Restore the saved parameters as well. unisono.Invalid: the state has other sizes or another outer optimizer."""
        self._sgd.load(tensor_bytes(state["moshpit"]))
        self.optimizer.load_state_dict(state["optimizer"])
        self.param_groups = self.optimizer.param_groups

    def _arrays(self) -> List[Any]:
        return [array_of(each) for each in self._values]

    def _store_averaging(self, step: unisono.MoshpitStep) -> None:
        if step.averaging is not None:
            self.last_averaging = step.averaging

    def _joiner_state(self) -> Dict[str, bytes]:
        given = {} if self._extra is None else {EXTRA + name: data for name, data in self._extra().items()}
        if self._share_state:
            file = io.BytesIO()
            torch.save(self.optimizer.state_dict(), file)
            given[OPTIMIZER] = file.getvalue()
        return given

    def _on_sigterm(self, number: int, frame: Optional[types.FrameType]) -> None:
        self._leave_requested = True

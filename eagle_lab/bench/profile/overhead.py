"""What a cycle costs outside the two models: trees, masks, verification, bookkeeping.

Measured in a short real decode: every call of target and drafter is timed, and what is left of a
cycle is overhead. Knows no configuration and no files.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
import torch

from eagle_lab.bench.profile.limits import HIGH, LOW, Row
from eagle_lab.engine.clock import Clock
from eagle_lab.engine.loop import decode
from eagle_lab.engine.proposer import Proposer
from eagle_lab.engine.record import Generation
from eagle_lab.methods.build import Method
from eagle_lab.targets.cuda.graphs import CacheGraphs
from eagle_lab.targets.target import Target


def measure_overhead(
    target: Target, method: Method, prompts: Sequence[Sequence[int]], max_new_tokens: int
) -> Row:
    """Medians per cycle of one method, which decodes `prompts` side by side.

    `models_ms` is the time in passes of target and drafter, `cycle_ms` all of it. A tree that is
    drafted from one CUDA graph is a pass of the drafter as a whole.
    """
    num_captures = CacheGraphs.num_captures
    watch, generations = _watched_decode(target, method, prompts, max_new_tokens)
    if CacheGraphs.num_captures > num_captures:  # once more, without the time of capturing
        watch, generations = _watched_decode(target, method, prompts, max_new_tokens)
    # The row that ends last took part in every cycle
    cycles = np.array(max((generation.cycle_s for generation in generations), key=len))
    models = np.array(watch.cycles)
    rest = 1000 * (cycles - models)
    measured = len(cycles) > 0
    return {
        "method": method.name,
        **method.settings,
        "batch_size": len(prompts),
        "num_cycles": len(cycles),
        "cycle_ms": 1000 * float(np.median(cycles)) if measured else None,
        "models_ms": 1000 * float(np.median(models)) if measured else None,
        "overhead_ms": float(np.median(rest)) if measured else None,
        "overhead_low_ms": float(np.quantile(rest, LOW)) if measured else None,
        "overhead_high_ms": float(np.quantile(rest, HIGH)) if measured else None,
    }


def _watched_decode(
    target: Target, method: Method, prompts: Sequence[Sequence[int]], max_new_tokens: int
) -> tuple[_ModelWatch, list[Generation]]:
    assert method.proposer is not None, "peers have no cycles to watch"
    watch = _ModelWatch(target.device)
    with watch.watching(target, method.proposer):
        return watch, decode(target, method.proposer, prompts, max_new_tokens=max_new_tokens)


class _ModelWatch:
    """Adds up the seconds in calls of the models, cycle by cycle.

    Attributes:
        cycles: seconds per cycle; a cycle begins when the proposer drafts.
    """

    def __init__(self, device: torch.device):
        self.cycles: list[float] = []
        self._device = device
        self._timing = False

    @contextmanager
    def watching(self, target: Target, proposer: Proposer) -> Iterator[None]:
        """Time the models of `proposer` until the block ends."""
        with ExitStack() as stack:
            for owner, name in ((target, "score"), (target, "extend"), *proposer.model_calls()):
                stack.enter_context(_replaced(owner, name, self._timed))
            stack.enter_context(_replaced(proposer, "propose", self._beginning))
            yield

    def _timed(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any, **kwargs: Any) -> Any:
            if self._timing:  # a part of another call, maybe of a capture, which must not wait
                return call(*args, **kwargs)
            clock = Clock(self._device)
            self._timing = True
            try:
                result = call(*args, **kwargs)
            finally:
                self._timing = False
            if self.cycles:  # otherwise it belongs to the prefill
                self.cycles[-1] += clock.lap()
            return result

        return timed

    def _beginning(self, propose: Callable[..., Any]) -> Callable[..., Any]:
        def beginning(*args: Any, **kwargs: Any) -> Any:
            self.cycles.append(0.0)
            return propose(*args, **kwargs)

        return beginning


@contextmanager
def _replaced(owner: Any, name: str, wrap: Callable[[Any], Any]) -> Iterator[None]:
    """`owner.name` wrapped, for this one object and until the block ends."""
    own = vars(owner).get(name)
    setattr(owner, name, wrap(getattr(owner, name)))
    try:
        yield
    finally:
        delattr(owner, name)
        if own is not None:
            setattr(owner, name, own)

"""What a cycle costs outside the two models: trees, masks, verification, bookkeeping.

Measured in a short real decode: every call of target and drafter is timed, and what is left of a
cycle is overhead. Knows no configuration and no files.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from eagle_lab.bench.profile.limits import HIGH, LOW, Row
from eagle_lab.engine.clock import Clock
from eagle_lab.engine.loop import decode
from eagle_lab.engine.proposer import Proposer
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
    cycles, models = _watched_decode(target, method, prompts, max_new_tokens)
    if CacheGraphs.num_captures > num_captures:  # once more, without the time of capturing
        cycles, models = _watched_decode(target, method, prompts, max_new_tokens)
    rest = cycles - models
    return {
        "method": method.name,
        **method.sizes,
        "batch_size": len(prompts),
        "num_cycles": len(cycles),
        "cycle_ms": _quantile(cycles, 0.5),
        "models_ms": _quantile(models, 0.5),
        "overhead_ms": _quantile(rest, 0.5),
        "overhead_low_ms": _quantile(rest, LOW),
        "overhead_high_ms": _quantile(rest, HIGH),
    }


def _quantile(milliseconds: NDArray[np.float64], share: float) -> float | None:
    return float(np.quantile(milliseconds, share)) if len(milliseconds) else None


def _watched_decode(
    target: Target, method: Method, prompts: Sequence[Sequence[int]], max_new_tokens: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Milliseconds of each cycle, and those in calls of the models."""
    assert method.proposer is not None, "peers have no cycles to watch"
    with _watched(target, method.proposer) as seconds:
        generations = decode(target, method.proposer, prompts, max_new_tokens=max_new_tokens)
    # The row that ends last took part in every cycle
    cycles = max((generation.cycle_s for generation in generations), key=len)
    return 1000 * np.array(cycles), 1000 * np.array(seconds)


@contextmanager
def _watched(target: Target, proposer: Proposer) -> Iterator[list[float]]:
    """Seconds in calls of the models, cycle by cycle; a cycle begins when the proposer drafts."""
    seconds: list[float] = []
    timing = False

    def timed(call: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Any:
            nonlocal timing
            if timing:  # a part of another call, maybe of a capture, which must not wait
                return call(*args, **kwargs)
            clock, timing = Clock(target.device), True
            try:
                result = call(*args, **kwargs)
            finally:
                timing = False
            if seconds:  # otherwise it belongs to the prefill
                seconds[-1] += clock.lap()
            return result

        return run

    def beginning(propose: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Any:
            seconds.append(0.0)
            return propose(*args, **kwargs)

        return run

    with ExitStack() as stack:
        for owner, name in ((target, "score"), (target, "extend"), *proposer.model_calls()):
            stack.enter_context(_replaced(owner, name, timed))
        stack.enter_context(_replaced(proposer, "propose", beginning))
        yield seconds


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

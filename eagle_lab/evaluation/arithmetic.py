"""The arithmetic of speculative decoding as plain functions of numbers.

Knows no model, no file and no configuration: numbers in, numbers out (float64). "Leviathan"
stands for Leviathan et al., "Fast Inference from Transformers via Speculative Decoding"
(2211.17192); "EAGLE" for Li et al. (2401.15077).

Words: a *cycle* is one draft and one target pass. `acceptance_rate` (alpha) is the chance that
one drafted token is accepted. Costs are in units of one plain decoding step of the target.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

FloatArray = NDArray[np.float64]
VerifyCost = Callable[[int], float]
"""Cost of one target pass over that many tokens, v(n), with v(1) = 1."""


def expected_tokens_per_cycle(acceptance_rate: float, num_draft_tokens: int) -> float:
    """Expected tokens one cycle emits, the target's own included (Leviathan, equation 1).

    (1 - alpha^(gamma + 1)) / (1 - alpha) for a chain of gamma tokens whose acceptances are
    independent and equally likely. alpha 0.7, gamma 4 gives 2.7731.
    """
    _check_chain(acceptance_rate, num_draft_tokens)
    if acceptance_rate == 1.0:
        return float(num_draft_tokens + 1)
    return float((1 - acceptance_rate ** (num_draft_tokens + 1)) / (1 - acceptance_rate))


def expected_speedup(
    acceptance_rate: float,
    num_draft_tokens: int,
    draft_cost: float,
    verify_cost: VerifyCost | None = None,
) -> float:
    """Expected speedup over plain decoding (Leviathan, theorem 3.8).

    The textbook takes a target pass to cost one step however many tokens it holds:
    E / (gamma c + 1). With `verify_cost`, the measured curve of the machine, it is
    E / (gamma c + v(gamma + 1)).

    Args:
        draft_cost: c, the cost of one draft step.
        verify_cost: v(n); None is the textbook's v = 1.
    """
    if draft_cost < 0:
        raise ValueError(f"draft_cost must not be negative, got {draft_cost}")
    verify = 1.0 if verify_cost is None else float(verify_cost(num_draft_tokens + 1))
    tokens = expected_tokens_per_cycle(acceptance_rate, num_draft_tokens)
    return tokens / (num_draft_tokens * draft_cost + verify)


def tau_of_conditional(conditional: ArrayLike) -> float:
    """Tokens per cycle of a chain with these n-alphas: 1 + the sum of their running products.

    An n-alpha of NaN (never reached) adds nothing.
    """
    rates = np.nan_to_num(np.asarray(conditional, dtype=np.float64), nan=0.0)
    return float(1.0 + np.cumprod(rates).sum())


def depth_counts(
    accepted: ArrayLike, judged: ArrayLike, num_depths: int
) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Trials and successes `[cycles, num_depths]` of the drafted tokens of a run.

    Args:
        accepted: drafted tokens accepted in each cycle.
        judged: tokens judged in each cycle: the accepted ones, and the rejected one if there is
            one. Where the draft ended behind the accepted tokens, or the text did, the next token
            was never on trial: it leaves the count instead of being a rejection.

    Three cycles accept 2, 0 and 1; the last one's draft had but one token:

        depth      1    2    3
        trials     3    1    1
        successes  2    1    0
    """
    levels = np.arange(1, num_depths + 1)
    return np.asarray(judged)[:, None] >= levels, np.asarray(accepted)[:, None] >= levels


def conditional_from_lengths(
    accepted: Sequence[int], judged: Sequence[int], *, depth: int | None = None
) -> FloatArray:
    """EAGLE's n-alpha: chance of the n-th draft token, given that all before it are accepted.

    Element 0 is the paper's 0-alpha. From the accepted and judged lengths of a run, see
    `depth_counts`.

    Args:
        depth: how many n to return; by default the longest accepted length.

    Returns:
        `[depth]`, NaN where no cycle came that far.
    """
    num_depths = max(accepted, default=0) if depth is None else depth
    if not len(accepted):
        return np.full(num_depths, np.nan)
    trials, successes = depth_counts(accepted, judged, num_depths)
    num_tried, rates = trials.sum(axis=0), np.full(num_depths, np.nan)
    return np.divide(successes.sum(axis=0), num_tried, out=rates, where=num_tried > 0)


def cumulative_from_lengths(
    accepted: Sequence[int], cut: Sequence[bool], *, depth: int | None = None
) -> FloatArray:
    """Chance that a cycle accepts at least n drafted tokens, n = 1 … depth.

    A draft that ended before the n-th token accepted fewer; a cycle that the end of the text `cut`
    might have accepted more, so it leaves the count there (the product-limit estimate).

    Returns:
        `[depth]`, NaN where all cycles that came that far were cut before.
    """
    reached = [kept + (not ended) for kept, ended in zip(accepted, cut, strict=True)]
    return running_product(conditional_from_lengths(accepted, reached, depth=depth))


def running_product(rates: ArrayLike) -> FloatArray:
    """Products of the first n of `rates` along the last axis; 0 behind a 0, NaN behind a NaN."""
    values = np.asarray(rates, dtype=np.float64)
    ended = np.logical_or.accumulate(values == 0, axis=-1)
    return np.where(ended, 0.0, np.cumprod(values, axis=-1))


def _check_chain(acceptance_rate: float, num_draft_tokens: int) -> None:
    if not 0.0 <= acceptance_rate <= 1.0:
        raise ValueError(f"acceptance_rate must lie in [0, 1], got {acceptance_rate}")
    if num_draft_tokens < 0:
        raise ValueError(f"num_draft_tokens must not be negative, got {num_draft_tokens}")

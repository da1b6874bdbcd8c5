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


def acceptance_rate(target_probs: ArrayLike, draft_probs: ArrayLike) -> FloatArray:
    """Chance that a token drawn from the draft law is accepted (Leviathan, corollary 3.6).

    alpha = sum over the vocabulary of min(p, q), which is 1 - total variation distance.

    Args:
        target_probs: target law p `[..., V]`, after temperature, top-k and top-p.
        draft_probs: law q `[..., V]` the token was really drawn from.

    Returns:
        Rates `[...]`; average them over positions for the alpha of a text.
    """
    target = np.asarray(target_probs, dtype=np.float64)
    draft = np.asarray(draft_probs, dtype=np.float64)
    if target.shape != draft.shape:
        raise ValueError(f"laws of different shapes: {target.shape} and {draft.shape}")
    return np.asarray(np.minimum(target, draft).sum(axis=-1), dtype=np.float64)


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


def optimum_draft_length(
    acceptance_rate: float,
    draft_cost: float,
    verify_cost: VerifyCost | None = None,
    *,
    longest: int = 32,
) -> int:
    """Chain length with the highest expected speedup; 0 says that drafting does not pay.

    The shortest of equally good lengths wins. Lengths above `longest` are not looked at.
    """
    lengths = range(longest + 1)
    speedups = [expected_speedup(acceptance_rate, n, draft_cost, verify_cost) for n in lengths]
    return int(np.argmax(speedups))


def joint_acceptance(correct: ArrayLike) -> FloatArray:
    """Chance that the first n draft tokens are all right, for n = 1 … depth.

    Args:
        correct: `[rows, depth]` of 0/1; entry (i, n) says that the n-th token drafted from
            row i is the target's, judged alone (teacher forcing).

    [[1,1,0],[1,0,1],[0,1,1]] gives [2/3, 1/3, 0].
    """
    return np.asarray(np.cumprod(_correctness(correct), axis=1).mean(axis=0), dtype=np.float64)


def conditional_acceptance(correct: ArrayLike) -> FloatArray:
    """EAGLE's n-alpha: chance of the n-th draft token, given that all before it are accepted.

    Element 0 is the paper's 0-alpha. NaN where no row is left to judge by. The running product
    is `joint_acceptance`; the product of unconditional accuracies is neither.

    [[1,1,0],[1,0,1],[0,1,1]] gives [2/3, 1/2, 0].
    """
    joint = joint_acceptance(correct)
    before = np.concatenate(([1.0], joint[:-1]))
    return np.divide(joint, before, out=np.full_like(joint, np.nan), where=before > 0)


def expected_tau(correct: ArrayLike) -> float:
    """Tokens per cycle a chain would emit on these rows: 1 + the sum of joint acceptances.

    [[1,1,0],[1,0,1],[0,1,1]] gives 2.0.
    """
    return tau_of_conditional(conditional_acceptance(correct))


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
    """n-alpha from the accepted and judged lengths of a run, see `depth_counts`.

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


def _correctness(correct: ArrayLike) -> FloatArray:
    matrix = np.asarray(correct, dtype=np.float64)
    if matrix.ndim != 2 or not len(matrix):
        raise ValueError(f"expected a matrix [rows, depth] with rows, got shape {matrix.shape}")
    if not np.isin(matrix, (0.0, 1.0)).all():
        raise ValueError("a correctness matrix holds only 0 and 1")
    return matrix


def _check_chain(acceptance_rate: float, num_draft_tokens: int) -> None:
    if not 0.0 <= acceptance_rate <= 1.0:
        raise ValueError(f"acceptance_rate must lie in [0, 1], got {acceptance_rate}")
    if num_draft_tokens < 0:
        raise ValueError(f"num_draft_tokens must not be negative, got {num_draft_tokens}")

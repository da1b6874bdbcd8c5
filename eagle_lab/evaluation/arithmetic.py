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
    """Chance that a token drawn from the draft law is accepted (Leviathan, theorem 3.5).

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


def conditional_from_lengths(
    accepted: Sequence[int], cut: Sequence[bool] | None = None, *, depth: int | None = None
) -> FloatArray:
    """n-alpha from the accepted lengths of a run.

    Args:
        accepted: drafted tokens accepted in each cycle.
        cut: cycles that EOS or the length limit ended; the token after their last accepted
            one was never judged, so there they leave the count instead of being a rejection.
        depth: how many n to return; by default the longest accepted length.

    Returns:
        `[depth]`, NaN where no cycle came that far.
    """
    lengths = np.asarray(accepted, dtype=np.int64)
    was_cut = np.zeros(len(lengths), dtype=bool) if cut is None else np.asarray(cut, dtype=bool)
    levels = np.arange(1, (int(lengths.max(initial=0)) if depth is None else depth) + 1)
    taken = lengths[:, None] >= levels
    judged = taken | ((lengths[:, None] == levels - 1) & ~was_cut[:, None])
    num_taken, num_judged = taken.sum(axis=0), judged.sum(axis=0)
    rates = np.full(len(levels), np.nan)
    return np.divide(num_taken, num_judged, out=rates, where=num_judged > 0)


def cumulative_from_lengths(accepted: Sequence[int], *, depth: int | None = None) -> FloatArray:
    """Share of cycles that accepted at least n drafted tokens, n = 1 … depth."""
    lengths = np.asarray(accepted, dtype=np.int64)
    levels = np.arange(1, (int(lengths.max(initial=0)) if depth is None else depth) + 1)
    if not len(lengths):
        return np.full(len(levels), np.nan)
    return np.asarray((lengths[:, None] >= levels).mean(axis=0), dtype=np.float64)


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

"""CPU kernels around a drafter's choices, in float32: its most probable tokens, what nodes see.

Shapes: B batch rows, N columns of a pass, M tree slots, S cache slots, D draft vocabulary,
W children.
"""

from __future__ import annotations

import numpy as np
from numba import carray, njit, types

from eagle_lab.models.attention_kernels import exponential
from eagle_lab.models.kernel_blocks import bytes_at, floats, integers


@njit(fastmath=True)
def _log_sum(logits, best):  # type: ignore[no-untyped-def]
    """log of the sum of exp(logit - best)."""
    total = np.float32(0)
    for token in range(len(logits)):
        total += exponential(logits[token] - best)
    return np.log(total)


@njit
def _keep_best(logits, values, tokens):  # type: ignore[no-untyped-def]
    """The best logits in descending order and their tokens; of equals the lower token is first."""
    count = len(values)
    values[:] = -np.inf
    for token in range(len(logits)):
        logit = logits[token]
        if token >= count and not logit > values[count - 1]:
            continue
        place = min(token, count - 1)
        while place > 0 and logit > values[place - 1]:
            values[place], tokens[place] = values[place - 1], tokens[place - 1]
            place -= 1
        values[place], tokens[place] = logit, token


@njit(types.void(*[types.int64] * 6), cache=True)
def best_tokens(logits, num_rows, num_logits, count, log_probs, tokens):  # type: ignore[no-untyped-def]
    """The `count` best of each row's `logits` [D]: their log-probabilities and ids [W]."""
    for row in range(num_rows):
        source = carray(floats(logits + 4 * row * num_logits), (num_logits,))
        values = carray(floats(log_probs + 4 * row * count), (count,))
        _keep_best(source, values, carray(integers(tokens + 8 * row * count), (count,)))
        best = values[0]
        log_sum = _log_sum(source, best)
        for place in range(count):
            values[place] = values[place] - best - log_sum


@njit(types.void(*[types.int64] * 7), cache=True)
def tree_mask(  # type: ignore[no-untyped-def]
    lengths, visible, batch, num_columns, num_tree_slots, num_slots, mask
):
    """1 for the slots that columns see, [B, N, S] bytes: the first `lengths` [B] of a row, then
    those of the M behind them that are `visible` [B, N, M].
    """
    prefixes = carray(integers(lengths), (batch,))
    shown = carray(bytes_at(visible), (batch, num_columns, num_tree_slots))
    seen = carray(bytes_at(mask), (batch, num_columns, num_slots))
    for row in range(batch):
        prefix = prefixes[row]
        for column in range(num_columns):
            seen[row, column, :prefix] = 1
            seen[row, column, prefix : prefix + num_tree_slots] = shown[row, column]
            seen[row, column, prefix + num_tree_slots :] = 0

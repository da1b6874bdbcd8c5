"""CPU kernels of attention over a cache, and of a drafter's choice of tokens, in float32.

Attention goes piece by piece: a few queries of one key-value head, whose scores stay in a core's
own cache from the dot products to the weighted sum of values.

Import it only inside `ops.kernels`: Numba compiles at import, see `build`.

Shapes: B batch rows, T tokens of a pass, N columns, M tree slots, S cache slots, d head width,
D vocabulary, W chosen tokens.
"""

from __future__ import annotations

import numpy as np
from numba import carray, njit, prange, types

from eagle_lab.targets.cpu.intrinsics import (
    LANES,
    ROWS,
    bytes_at,
    float_of_bits,
    floats,
    integers,
    weighted_sums_1,
    weighted_sums_4,
)
from eagle_lab.targets.cpu.linear import row_block

QUERY_ROWS = 32
"""Most queries of a piece."""
_STEP = 128
"""Scores are padded to a multiple: at least a step of any loop that the compiler unrolls."""


@njit
def copy(source, target, width):  # type: ignore[no-untyped-def]
    """`width` floats from one address to another."""
    read, written = carray(floats(source), (width,)), carray(floats(target), (width,))
    for k in range(width):
        written[k] = read[k]


@njit(types.void(*[types.int64] * 18), cache=True)
def store(  # type: ignore[no-untyped-def]
    key, key_row, key_head, key_token, value, value_row, value_head, value_token,
    keys, values, cache_row, cache_head, lengths, offset,
    batch, num_kv, num_tokens, width,
):  # fmt: skip
    """Copy `key` and `value` [B, kv, T, d] to slots `lengths` [B] + `offset` + t of the cache.

    `key_...`, `value_...` and `cache_...` are strides; slots lie d floats apart.
    """
    first_slots = carray(integers(lengths), (batch,))
    for row in range(batch):
        for head in range(num_kv):
            place = row * cache_row + head * cache_head + (first_slots[row] + offset) * width
            for token in range(num_tokens):
                start = row * key_row + head * key_head + token * key_token
                copy(key + 4 * start, keys + 4 * (place + token * width), width)
                start = row * value_row + head * value_head + token * value_token
                copy(value + 4 * start, values + 4 * (place + token * width), width)


@njit(inline="always")
def exponential(x):  # type: ignore[no-untyped-def]
    """exp(x) for x <= 87, to two units in the last place; below -87 that of -87.

    Range reduction and the polynomial of Cephes' expf: plain arithmetic, which compiles to vector
    code inside a loop.
    """
    x = max(x, np.float32(-87))
    power = np.floor(x * np.float32(1.44269504) + np.float32(0.5))
    x = x - power * np.float32(0.693147181)
    y = np.float32(1.9875691500e-4)
    y = y * x + np.float32(1.3981999507e-3)
    y = y * x + np.float32(8.3334519073e-3)
    y = y * x + np.float32(4.1665795894e-2)
    y = y * x + np.float32(1.6666665459e-1)
    y = y * x + np.float32(5.0000001201e-1)
    y = y * x * x + x + np.float32(1)
    return y * float_of_bits(np.int32((np.int32(power) + np.int32(127)) << np.int32(23)))


@njit(fastmath=True)
def _softmax(scores, visible):  # type: ignore[no-untyped-def]
    """Softmax over the `visible` [S] slots of `scores` [S padded to whole steps], in place.

    Other slots, and padding, get 0. With nothing but whole steps of the vector code, a sum does not
    depend on how many invisible slots stand after it.
    """
    lowest = np.float32(-3e38)
    best = lowest
    for slot in range(len(visible)):
        score = scores[slot] if visible[slot] else lowest
        scores[slot] = score
        best = max(best, score)
    scores[len(visible) :] = lowest
    total = np.float32(0)
    for slot in range(len(scores)):
        weight = exponential(scores[slot] - best)
        weight = weight if scores[slot] > np.float32(-1e38) else np.float32(0)
        scores[slot] = weight
        total += weight
    for slot in range(len(scores)):
        scores[slot] /= total


@njit
def _columns(rows, num_rows, weights, outputs, column):  # type: ignore[no-untyped-def]
    """LANES columns of `outputs` [T, d], from `column` on: `weights` [T, S] times the rows."""
    num_tokens, stride = weights.shape
    width = outputs.shape[1]
    token = 0
    while token < num_tokens:
        source = weights.ctypes.data + 4 * token * stride
        target = outputs.ctypes.data + 4 * (token * width + column)
        if num_tokens - token >= 4:
            weighted_sums_4(rows, width, source, stride, num_rows, target, width)
            token += 4
        else:
            weighted_sums_1(rows, width, source, stride, num_rows, target, width)
            token += 1


@njit(types.void(*[types.int64] * 15, types.float32, types.int64), parallel=True, cache=True)
def attention(  # type: ignore[no-untyped-def]
    query, query_row, query_head, query_token, keys, values, cache_row, cache_head, mask,
    batch, num_heads, num_kv, num_tokens, num_slots, width, scaling, outputs,
):  # fmt: skip
    """Softmax attention of the query heads to their key-value heads.

    Args:
        query: [B, heads, T, d]; query_row, query_head, query_token are its strides.
        keys: [B, kv, S, d]; cache_row, cache_head are its strides, slots lie d floats apart.
        values: like `keys`.
        mask: [B, T, S] bytes, not 0 where a query sees a slot; each sees at least one.
        num_slots: S, at least ROWS.
        width: d, a multiple of LANES.
        scaling: factor on the dot products.
        outputs: [B, T, heads, d].
    """
    groups = num_heads // num_kv
    num_rows = groups * num_tokens  # queries that share a key-value head
    num_pieces = (num_rows + QUERY_ROWS - 1) // QUERY_ROWS
    num_padded = (num_slots + _STEP - 1) // _STEP * _STEP
    for work in prange(batch * num_kv * num_pieces):
        row, head = work // (num_kv * num_pieces), work // num_pieces % num_kv
        first = work % num_pieces * QUERY_ROWS
        count = min(QUERY_ROWS, num_rows - first)
        states = np.empty((count, width), np.float32)  # queries, then what they attended to
        weights = np.empty((count, num_padded), np.float32)
        for i in range(count):
            group, token = divmod(first + i, num_tokens)
            start = row * query_row + (head * groups + group) * query_head + token * query_token
            source = carray(floats(query + 4 * start), (width,))
            for k in range(width):
                states[i, k] = source[k] * scaling
        cache = 4 * (row * cache_row + head * cache_head)
        for block in range((num_slots + ROWS - 1) // ROWS):
            slot = min(block * ROWS, num_slots - ROWS)
            row_block(
                keys + cache + 4 * slot * width,
                width,
                0,
                states.ctypes.data,
                count,
                width,
                weights.ctypes.data + 4 * slot,
                num_padded,
            )
        for i in range(count):
            token = (first + i) % num_tokens
            visible = carray(bytes_at(mask + (row * num_tokens + token) * num_slots), (num_slots,))
            _softmax(weights[i], visible)
        for column in range(0, width, LANES):
            _columns(values + cache + 4 * column, num_slots, weights, states, column)
        for i in range(count):
            group, token = divmod(first + i, num_tokens)
            start = ((row * num_tokens + token) * num_heads + head * groups + group) * width
            copy(states.ctypes.data + 4 * i * width, outputs + 4 * start, width)


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
    those of the M after them that are `visible` [B, N, M].
    """
    prefixes = carray(integers(lengths), (batch,))
    tree = carray(bytes_at(visible), (batch, num_columns, num_tree_slots))
    whole = carray(bytes_at(mask), (batch, num_columns, num_slots))
    for row in range(batch):
        prefix = prefixes[row]
        for column in range(num_columns):
            whole[row, column, :prefix] = 1
            whole[row, column, prefix : prefix + num_tree_slots] = tree[row, column]
            whole[row, column, prefix + num_tree_slots :] = 0

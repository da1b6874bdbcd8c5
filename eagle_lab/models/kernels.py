"""CPU kernels for passes over few tokens, in float32: linear layers, RMS norms, attention.

A linear layer over few tokens is bound by reading its weights, so the kernel reads each row once
for all tokens, fetches the next rows ahead, and leaves the weights where and as they are. Each
output is one sum in one fixed order, whichever other tokens share the pass: a token's bits are
the same in a verify pass and alone. Attention keeps its scores in the cache of a core.

Compiled by Numba when this module is imported, for the machine's own vector registers, and kept
on disk beside this file (or in the user's cache). Importing therefore takes seconds the first
time; `fast_layers` does it when the first layer needs it. Tensors come in as addresses: the
callers answer for shapes, dtype, contiguity and lifetime.

Shapes: N rows of weights (outputs), T tokens, K inputs; B batch rows, S cache slots, d head width.
"""

from __future__ import annotations

import numpy as np
from numba import carray, njit, prange, types

from eagle_lab.models.kernel_blocks import (
    LANES,
    MAX_TOKENS,
    ROWS,
    bytes_at,
    dot_products_1,
    dot_products_2,
    dot_products_3,
    dot_products_4,
    float_of_bits,
    floats,
    weighted_sums_1,
    weighted_sums_4,
)

QUERY_ROWS = 32
"""Most queries that attend in one piece of work: their scores stay in a core's own cache."""


@njit(inline="always")
def _row_block(  # type: ignore[no-untyped-def]
    rows, row_stride, tokens, num_tokens, width, outputs, output_stride
):
    """ROWS rows times all tokens [T, K]."""
    token = 0
    while token < num_tokens:
        source = tokens + 4 * token * width
        target = outputs + 4 * token * output_stride
        left = num_tokens - token
        if MAX_TOKENS == 4 and left >= 4:
            dot_products_4(rows, row_stride, source, width, width, target, output_stride)
            token += 4
        elif MAX_TOKENS == 4 and left == 3:
            dot_products_3(rows, row_stride, source, width, width, target, output_stride)
            token += 3
        elif left >= 2:
            dot_products_2(rows, row_stride, source, width, width, target, output_stride)
            token += 2
        else:
            dot_products_1(rows, row_stride, source, width, width, target, output_stride)
            token += 1


@njit(types.void(*[types.int64] * 10), parallel=True, cache=True)
def linear(  # type: ignore[no-untyped-def]
    inputs, num_tokens, width, first, num_first, second, num_second, third, num_third, outputs
):
    """Up to three weight matrices [N_i, K] times the same inputs [T, K] -> [T, N_1 + N_2 + N_3].

    `first`, `second`, `third` are addresses, `num_...` their N; a missing matrix has N = 0.
    """
    stride = num_first + num_second + num_third
    end_first = (num_first + ROWS - 1) // ROWS
    end_second = end_first + (num_second + ROWS - 1) // ROWS
    end_third = end_second + (num_third + ROWS - 1) // ROWS
    for block in prange(end_third):
        if block < end_first:
            weights, num_rows, column, row = first, num_first, 0, block * ROWS
        elif block < end_second:
            weights, num_rows, column = second, num_second, num_first
            row = (block - end_first) * ROWS
        else:
            weights, num_rows, column = third, num_third, num_first + num_second
            row = (block - end_second) * ROWS
        row = min(row, num_rows - ROWS)  # the last block may repeat rows of the one before
        place = outputs + 4 * (column + row)
        _row_block(weights + 4 * row * width, width, inputs, num_tokens, width, place, stride)


@njit(
    types.void(*[types.int64] * 4, types.float32, types.float32, types.int64),
    fastmath=True,
    cache=True,
)
def rms_norm(  # type: ignore[no-untyped-def]
    inputs, num_tokens, width, weight, offset, epsilon, outputs
):
    """x / sqrt(mean(x^2) + epsilon) * (offset + weight) for each row x of [T, K]."""
    source = carray(floats(inputs), (num_tokens, width))
    target = carray(floats(outputs), (num_tokens, width))
    scale = carray(floats(weight), (width,))
    for token in range(num_tokens):
        row, squares = source[token], np.float32(0)
        for k in range(width):
            squares += row[k] * row[k]
        factor = np.float32(1) / np.sqrt(squares / np.float32(width) + epsilon)
        for k in range(width):
            target[token, k] = row[k] * factor * (offset + scale[k])


@njit(fastmath=True)
def _softmax(scores, seen):  # type: ignore[no-untyped-def]
    """Softmax of `scores` [S] over the slots `seen` [S], in place; 0 elsewhere.

    exp by range reduction and the polynomial of Cephes' expf, which compiles to vector code.
    """
    best = np.float32(-3e38)
    for slot in range(len(scores)):
        score = scores[slot] if seen[slot] else np.float32(-3e38)
        best = max(best, score)
    total = np.float32(0)
    for slot in range(len(scores)):
        x = max(scores[slot] - best, np.float32(-87))
        power = np.floor(x * np.float32(1.44269504) + np.float32(0.5))
        x = x - power * np.float32(0.693147181)
        y = np.float32(1.9875691500e-4)
        y = y * x + np.float32(1.3981999507e-3)
        y = y * x + np.float32(8.3334519073e-3)
        y = y * x + np.float32(4.1665795894e-2)
        y = y * x + np.float32(1.6666665459e-1)
        y = y * x + np.float32(5.0000001201e-1)
        y = y * x * x + x + np.float32(1)
        y = y * float_of_bits(np.int32((np.int32(power) + np.int32(127)) << np.int32(23)))
        y = y if seen[slot] else np.float32(0)
        scores[slot] = y
        total += y
    for slot in range(len(scores)):
        scores[slot] /= total


@njit
def _columns(rows, row_stride, weights, outputs, column):  # type: ignore[no-untyped-def]
    """LANES columns of `outputs` [T, d], from `column` on: `weights` [T, S] times the rows."""
    num_tokens, num_rows = weights.shape
    width = outputs.shape[1]
    token = 0
    while token < num_tokens:
        source = weights.ctypes.data + 4 * token * num_rows
        target = outputs.ctypes.data + 4 * (token * width + column)
        if num_tokens - token >= 4:
            weighted_sums_4(rows, row_stride, source, num_rows, num_rows, target, width)
            token += 4
        else:
            weighted_sums_1(rows, row_stride, source, num_rows, num_rows, target, width)
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
    for work in prange(batch * num_kv * num_pieces):
        row, head = work // (num_kv * num_pieces), work // num_pieces % num_kv
        first = work % num_pieces * QUERY_ROWS
        count = min(QUERY_ROWS, num_rows - first)
        states = np.empty((count, width), np.float32)  # queries, then what they attended to
        weights = np.empty((count, num_slots), np.float32)
        for i in range(count):
            group, token = divmod(first + i, num_tokens)
            start = row * query_row + (head * groups + group) * query_head + token * query_token
            source = carray(floats(query + 4 * start), (width,))
            for k in range(width):
                states[i, k] = source[k] * scaling
        cache = 4 * (row * cache_row + head * cache_head)
        for block in range((num_slots + ROWS - 1) // ROWS):
            slot = min(block * ROWS, num_slots - ROWS)
            _row_block(
                keys + cache + 4 * slot * width,
                width,
                states.ctypes.data,
                count,
                width,
                weights.ctypes.data + 4 * slot,
                num_slots,
            )
        for i in range(count):
            token = (first + i) % num_tokens
            seen = carray(bytes_at(mask + (row * num_tokens + token) * num_slots), (num_slots,))
            _softmax(weights[i], seen)
        for column in range(0, width, LANES):
            _columns(values + cache + 4 * column, width, weights, states, column)
        for i in range(count):
            group, token = divmod(first + i, num_tokens)
            start = ((row * num_tokens + token) * num_heads + head * groups + group) * width
            target = carray(floats(outputs + 4 * start), (width,))
            for k in range(width):
                target[k] = states[i, k]

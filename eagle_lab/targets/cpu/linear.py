"""CPU kernels of linear layers and RMS norms over few tokens, in float32.

A linear layer over few tokens is bound by reading its weights, so the kernel reads each row once
for all tokens, fetches the next rows ahead, and leaves the weights where and as they are. Each
output is one sum in one fixed order, whichever other tokens share the pass: a token's bits are the
same in a verify pass and alone.

Tensors come in as addresses: `ops` answers for shapes, dtype, contiguity and lifetime. Import it
only inside `ops.kernels`: Numba compiles at import, see `build`.

Shapes: N rows of weights (outputs), T tokens, K inputs.
"""

from __future__ import annotations

import numpy as np
from numba import carray, njit, prange, types

from eagle_lab.targets.cpu.intrinsics import (
    MAX_TOKENS,
    ROWS,
    dot_products_1,
    dot_products_2,
    dot_products_3,
    dot_products_4,
    floats,
    packed_dot_products_1,
    packed_dot_products_2,
    packed_dot_products_3,
    packed_dot_products_4,
)


@njit(inline="always")
def row_block(  # type: ignore[no-untyped-def]
    rows, row_stride, packed, tokens, num_tokens, width, outputs, output_stride
):
    """ROWS rows times all tokens [T, K]; `row_stride` counts floats, or words of packed rows."""
    token = 0
    while token < num_tokens:
        source = tokens + 4 * token * width
        target = outputs + 4 * token * output_stride
        count = min(num_tokens - token, MAX_TOKENS)
        if packed:
            words = width // 2
            if count == 4:
                packed_dot_products_4(rows, row_stride, source, width, words, target, output_stride)
            elif count == 3:
                packed_dot_products_3(rows, row_stride, source, width, words, target, output_stride)
            elif count == 2:
                packed_dot_products_2(rows, row_stride, source, width, words, target, output_stride)
            else:
                packed_dot_products_1(rows, row_stride, source, width, words, target, output_stride)
        elif count == 4:
            dot_products_4(rows, row_stride, source, width, width, target, output_stride)
        elif count == 3:
            dot_products_3(rows, row_stride, source, width, width, target, output_stride)
        elif count == 2:
            dot_products_2(rows, row_stride, source, width, width, target, output_stride)
        else:
            dot_products_1(rows, row_stride, source, width, width, target, output_stride)
        token += count


@njit(types.void(*[types.int64] * 11), parallel=True, cache=True)
def linear(  # type: ignore[no-untyped-def]
    inputs, num_tokens, width, packed,
    first, num_first, second, num_second, third, num_third, outputs,
):  # fmt: skip
    """Up to three weight matrices [N_i, K] times the same inputs [T, K] -> [T, N_i] each.

    `first`, `second`, `third` are addresses, `num_...` their N; a missing matrix has N = 0. All are
    `packed` (not 0) or none is. The results lie one after the other.
    """
    stride = width // 2 if packed else width
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
        place = outputs + 4 * (num_tokens * column + row)
        start = weights + 4 * row * stride
        row_block(start, stride, packed, inputs, num_tokens, width, place, num_rows)


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

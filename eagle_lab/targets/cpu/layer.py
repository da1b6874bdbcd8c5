"""CPU kernel of a whole decoder layer of the Llama family, in float32.

Its parts are the kernels that the layer's modules would call one by one; in one call, nothing
stands between them. Import it only inside `ops.kernels`: Numba compiles at import, see `build`.

Shapes: B batch rows, T tokens, K hidden width, I inner width of the MLP, S cache slots, d head
width.
"""

from __future__ import annotations

import numpy as np
from numba import carray, njit, prange, types

from eagle_lab.targets.cpu.attention import attention, copy, exponential, store
from eagle_lab.targets.cpu.intrinsics import floats
from eagle_lab.targets.cpu.linear import linear, rms_norm


@njit
def _add(source, count, target):  # type: ignore[no-untyped-def]
    """Add `count` floats to those at `target`."""
    added, total = carray(floats(source), (count,)), carray(floats(target), (count,))
    for i in range(count):
        total[i] += added[i]


@njit
def _add_bias(bias, num_rows, width, target):  # type: ignore[no-untyped-def]
    """Add `bias` [width] to each row of `target`; address 0 is no bias."""
    if bias:
        for row in range(num_rows):
            _add(bias, width, target + 4 * row * width)


@njit
def _rotate(  # type: ignore[no-untyped-def]
    states, batch, num_tokens, num_heads, width, cosine, sine, angle_row
):
    """Rotary positions, in place: `states` [B, T, heads, d]; cosine and sine [B or 1, T, d].

    The halves of a head are the pairs that turn (RoFormer 2104.09864, in the form of Llama's
    code). `angle_row` is the stride between rows of the angles.
    """
    half = width // 2
    for row in range(batch):
        for token in range(num_tokens):
            angle = 4 * (row * angle_row + token * width)
            cosines = carray(floats(cosine + angle), (width,))
            sines = carray(floats(sine + angle), (width,))
            for head in range(num_heads):
                place = ((row * num_tokens + token) * num_heads + head) * width
                state = carray(floats(states + 4 * place), (width,))
                for i in range(half):
                    first, second = state[i], state[i + half]
                    state[i] = first * cosines[i] - second * sines[i]
                    state[i + half] = second * cosines[i + half] + first * sines[i + half]


@njit(fastmath=True)
def _gate_row(gate, up, width):  # type: ignore[no-untyped-def]
    gates, ups = carray(floats(gate), (width,)), carray(floats(up), (width,))
    for i in range(width):
        value = gates[i]
        gates[i] = value / (np.float32(1) + exponential(min(-value, np.float32(87)))) * ups[i]


@njit(types.void(*[types.int64] * 4), parallel=True, cache=True)
def _gate(gate, up, num_rows, width):  # type: ignore[no-untyped-def]
    """silu(gate) * up for rows [width], in place of `gate`."""
    for row in prange(num_rows):
        _gate_row(gate + 4 * row * width, up + 4 * row * width, width)


@njit(inline="always")
def scratch_size(width, query_width, kv_width, inner_width):  # type: ignore[no-untyped-def]
    """Floats per row that `decoder_layer` needs for what lies between its parts."""
    return 2 * width + 2 * query_width + 2 * kv_width + 2 * inner_width


@njit(types.void(*[types.int64] * 36, types.float32, types.float32), cache=True)
def decoder_layer(  # type: ignore[no-untyped-def]
    hidden, outputs, scratch, batch, num_tokens, width, num_heads, num_kv, head_width, inner_width,
    packed,
    attention_norm, query, key, value, output, mlp_norm, gate, up, down,
    query_bias, key_bias, value_bias, query_norm, key_norm,
    cosine, sine, angle_row,
    keys, values, cache_row, cache_head, lengths, offset, mask, num_slots,
    scaling, epsilon,
):  # fmt: skip
    """A layer's pass over `hidden` [B, T, K], to `outputs` [B, T, K]:

        middle = hidden + attention(norm(hidden))
        output = middle + mlp(norm(middle))

    Args:
        scratch: room for B * T * `scratch_size` floats.
        packed: whether (not 0) the weight matrices are, see `ops.pack`.
        attention_norm, ..., down: weights; norms are [K], and 0 for the first is no norm.
        query_bias, ..., key_norm: biases, and norms of the heads [d]; 0 where there are none.
        cosine, sine, angle_row: see `_rotate`.
        keys, ..., scaling: see `store` and `attention`.
        epsilon: of all norms.
    """
    num_rows = batch * num_tokens
    query_width, kv_width = num_heads * head_width, num_kv * head_width
    normed = scratch
    queries = normed + 4 * num_rows * width
    new_keys = queries + 4 * num_rows * query_width
    new_values = new_keys + 4 * num_rows * kv_width
    attended = new_values + 4 * num_rows * kv_width
    middle = attended + 4 * num_rows * query_width
    gates = middle + 4 * num_rows * width
    ups = gates + 4 * num_rows * inner_width

    if attention_norm:
        rms_norm(hidden, num_rows, width, attention_norm, 0.0, epsilon, normed)
    else:
        copy(hidden, normed, num_rows * width)
    linear(
        normed, num_rows, width, packed,
        query, query_width, key, kv_width, value, kv_width, queries,
    )  # fmt: skip
    _add_bias(query_bias, num_rows, query_width, queries)
    _add_bias(key_bias, num_rows, kv_width, new_keys)
    _add_bias(value_bias, num_rows, kv_width, new_values)
    if query_norm:
        num_states = num_rows * num_heads
        rms_norm(queries, num_states, head_width, query_norm, 0.0, epsilon, queries)
    if key_norm:
        rms_norm(new_keys, num_rows * num_kv, head_width, key_norm, 0.0, epsilon, new_keys)
    _rotate(queries, batch, num_tokens, num_heads, head_width, cosine, sine, angle_row)
    _rotate(new_keys, batch, num_tokens, num_kv, head_width, cosine, sine, angle_row)
    row, query_row = num_tokens * kv_width, num_tokens * query_width
    store(
        new_keys, row, head_width, kv_width, new_values, row, head_width, kv_width,
        keys, values, cache_row, cache_head, lengths, offset,
        batch, num_kv, num_tokens, head_width,
    )  # fmt: skip
    attention(
        queries, query_row, head_width, query_width, keys, values, cache_row, cache_head, mask,
        batch, num_heads, num_kv, num_tokens, num_slots, head_width, scaling, attended,
    )  # fmt: skip
    linear(attended, num_rows, query_width, packed, output, width, 0, 0, 0, 0, middle)
    _add(hidden, num_rows * width, middle)

    rms_norm(middle, num_rows, width, mlp_norm, 0.0, epsilon, normed)
    linear(normed, num_rows, width, packed, gate, inner_width, up, inner_width, 0, 0, gates)
    _gate(gates, ups, num_rows, inner_width)
    linear(gates, num_rows, inner_width, packed, down, width, 0, 0, 0, 0, outputs)
    _add(middle, num_rows * width, outputs)

"""CPU kernels for passes over few tokens: linear layers and RMS norms in float32.

A linear layer over few tokens is bound by reading its weights, so the kernel reads each row once
for all tokens, fetches the next rows ahead, and leaves the weights where and as they are. Each
output is one sum in one fixed order, whichever other tokens share the pass: a token's bits are
the same in a verify pass and alone.

Compiled by Numba when this module is imported, for the machine's own vector registers, and kept
on disk beside this file (or in the user's cache). Importing therefore takes seconds the first
time; `fast_layers` does it when the first layer needs it. Tensors come in as addresses: the
callers answer for shapes, dtype, contiguity and lifetime.

Shapes: N rows of weights (outputs), T tokens, K inputs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import binding, ir
from numba import carray, njit, prange, types
from numba.core import cgutils
from numba.extending import intrinsic

_FEATURES = binding.get_host_cpu_features()
LANES = 16 if _FEATURES.get("avx512f") else 8 if _FEATURES.get("avx") else 4
"""Floats of a vector register; K must be a multiple."""
ROWS = 4
"""Rows of weights per block; N must be at least this."""
_TOKENS = 2 if LANES == 8 else 4  # AVX has 16 registers, AVX-512 and NEON have 32

_INT, _FLOAT, _VOID = ir.IntType(64), ir.FloatType(), ir.VoidType()
_VECTOR = ir.VectorType(_FLOAT, LANES)
_BYTE_POINTER, _INT32 = ir.IntType(8).as_pointer(), ir.IntType(32)


def _dot_products(num_tokens: int) -> Callable[..., None]:
    """Intrinsic: the ROWS x num_tokens dot products of a block, all sums in registers."""

    @intrinsic
    def block(  # type: ignore[no-untyped-def]
        typing_context, weights, weight_stride, inputs, input_stride, width, outputs, output_stride
    ):
        signature = types.void(*[types.int64] * 7)

        def generate(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
            _emit_block(builder, num_tokens, *arguments)
            return context.get_dummy_value()

        return signature, generate

    return block


def _emit_block(
    builder: ir.IRBuilder,
    num_tokens: int,
    weights: ir.Value,
    weight_stride: ir.Value,
    inputs: ir.Value,
    input_stride: ir.Value,
    width: ir.Value,
    outputs: ir.Value,
    output_stride: ir.Value,
) -> None:
    """The block's code: a loop over K in steps of LANES, then one sum across lanes per output.

    Addresses are integers, strides count floats.
    """

    def pointer(address: ir.Value, offset: ir.Value) -> ir.Value:
        """Pointer to float `offset` behind `address`."""
        return builder.gep(builder.inttoptr(address, _FLOAT.as_pointer()), [offset])

    def load(start: ir.Value, offset: ir.Value) -> ir.Value:
        place = builder.bitcast(builder.gep(start, [offset]), _VECTOR.as_pointer())
        return builder.load(place, align=4)

    fused = cgutils.get_or_insert_function(
        builder.module, ir.FunctionType(_VECTOR, [_VECTOR] * 3), f"llvm.fma.v{LANES}f32"
    )
    prefetch = cgutils.get_or_insert_function(
        builder.module,
        ir.FunctionType(_VOID, [_BYTE_POINTER, _INT32, _INT32, _INT32]),
        "llvm.prefetch.p0",
    )
    block_stride = builder.mul(weight_stride, _INT(ROWS))
    rows = [pointer(weights, builder.mul(weight_stride, _INT(row))) for row in range(ROWS)]
    tokens = [pointer(inputs, builder.mul(input_stride, _INT(t))) for t in range(num_tokens)]

    before, loop = builder.block, builder.append_basic_block("inputs")
    behind = builder.append_basic_block("sums")
    builder.branch(loop)
    builder.position_at_end(loop)
    k = builder.phi(_INT)
    k.add_incoming(_INT(0), before)
    sums = [[builder.phi(_VECTOR) for _ in tokens] for _ in rows]
    token_values = [load(token, k) for token in tokens]
    results = []
    for row, row_sums in zip(rows, sums, strict=True):
        row_values = load(row, k)
        ahead = builder.bitcast(builder.gep(row, [builder.add(k, block_stride)]), _BYTE_POINTER)
        builder.call(prefetch, [ahead, _INT32(0), _INT32(2), _INT32(1)])  # read, into L2, data
        for total, values in zip(row_sums, token_values, strict=True):
            result = builder.call(fused, [row_values, values, total])
            total.add_incoming(ir.Constant(_VECTOR, [0.0] * LANES), before)
            total.add_incoming(result, loop)
            results.append(result)
    following = builder.add(k, _INT(LANES))
    k.add_incoming(following, loop)
    builder.cbranch(builder.icmp_signed("<", following, width), loop, behind)

    builder.position_at_end(behind)
    for index, result in enumerate(results):
        row, token = divmod(index, num_tokens)
        place = builder.add(builder.mul(output_stride, _INT(token)), _INT(row))
        builder.store(_sum_of_lanes(builder, result), pointer(outputs, place))


def _sum_of_lanes(builder: ir.IRBuilder, values: ir.Value) -> ir.Value:
    """The sum of a vector's lanes, halves added to halves."""
    half = LANES // 2
    while half:
        halves = [
            builder.shuffle_vector(
                values,
                ir.Constant(values.type, ir.Undefined),
                ir.Constant(ir.VectorType(_INT32, half), list(range(start, start + half))),
            )
            for start in (0, half)
        ]
        values = builder.fadd(*halves)
        half //= 2
    return builder.extract_element(values, _INT32(0))


_one, _two, _three, _four = (_dot_products(count) for count in (1, 2, 3, 4))


@njit(inline="always")
def _row_block(  # type: ignore[no-untyped-def]
    weights, inputs, num_tokens, width, outputs, output_stride
):
    """ROWS rows at `weights` times all tokens."""
    token = 0
    while token < num_tokens:
        source = inputs + 4 * token * width
        target = outputs + 4 * token * output_stride
        left = num_tokens - token
        if _TOKENS == 4 and left >= 4:
            _four(weights, width, source, width, width, target, output_stride)
            token += 4
        elif _TOKENS == 4 and left == 3:
            _three(weights, width, source, width, width, target, output_stride)
            token += 3
        elif left >= 2:
            _two(weights, width, source, width, width, target, output_stride)
            token += 2
        else:
            _one(weights, width, source, width, width, target, output_stride)
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
        _row_block(
            weights + 4 * row * width,
            inputs,
            num_tokens,
            width,
            outputs + 4 * (column + row),
            stride,
        )


@intrinsic
def _floats(typing_context, address):  # type: ignore[no-untyped-def]
    """An address as a pointer to floats."""

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], _FLOAT.as_pointer())

    return types.CPointer(types.float32)(types.int64), generate


@njit(
    types.void(types.int64, types.int64, types.int64, types.int64, types.float32, types.float32,
               types.int64),
    fastmath=True, cache=True,
)  # fmt: skip
def rms_norm(  # type: ignore[no-untyped-def]
    inputs, num_tokens, width, weight, offset, epsilon, outputs
):
    """x / sqrt(mean(x^2) + epsilon) * (offset + weight) for each row x of [T, K]."""
    source = carray(_floats(inputs), (num_tokens, width))  # type: ignore[call-arg]
    target = carray(_floats(outputs), (num_tokens, width))
    scale = carray(_floats(weight), (width,))
    for token in range(num_tokens):
        row, squares = source[token], np.float32(0)
        for k in range(width):
            squares += row[k] * row[k]
        factor = np.float32(1) / np.sqrt(squares / np.float32(width) + epsilon)
        for k in range(width):
            target[token, k] = row[k] * factor * (offset + scale[k])

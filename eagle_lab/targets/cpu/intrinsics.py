"""Building blocks of the CPU kernels, written for the vector registers of the machine at hand.

Each function here is a Numba intrinsic: code for a small block of results that stays in registers
from the first product to the last sum. The order of a result's sum is fixed and the same in every
block, whatever else the block computes. Addresses are integers, strides count floats.

Import it only inside `ops.kernels`: Numba compiles at import, see `build`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import binding, ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

_FEATURES = binding.get_host_cpu_features()
LANES = 16 if _FEATURES.get("avx512f") else 8 if _FEATURES.get("avx") else 4
"""Floats of a vector register."""
ROWS = 4
"""Rows of a block."""
MAX_TOKENS = 2 if LANES == 8 else 4  # AVX has 16 registers, AVX-512 and NEON have 32

_INT, _INT32, _FLOAT, _VOID = ir.IntType(64), ir.IntType(32), ir.FloatType(), ir.VoidType()
_VECTOR = ir.VectorType(_FLOAT, LANES)
_BYTE_POINTER = ir.IntType(8).as_pointer()


def _dot_products(num_tokens: int, packed: bool = False) -> Callable[..., None]:
    """Intrinsic: ROWS rows [K] times `num_tokens` tokens [K].

    Output (token, row) goes to `outputs + token * output_stride + row`. Packed rows are K / 2 words
    of two weights each, see `ops.pack`; their stride and `width` count words.
    """

    @intrinsic
    def dot_products(  # type: ignore[no-untyped-def]
        typing_context, rows, row_stride, tokens, token_stride, width, outputs, output_stride
    ):
        def generate(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
            _emit_dot_products(builder, num_tokens, packed, *arguments)
            return context.get_dummy_value()

        return types.void(*[types.int64] * 7), generate

    return dot_products


def _emit_dot_products(
    builder: ir.IRBuilder,
    num_tokens: int,
    packed: bool,
    rows: ir.Value,
    row_stride: ir.Value,
    tokens: ir.Value,
    token_stride: ir.Value,
    width: ir.Value,
    outputs: ir.Value,
    output_stride: ir.Value,
) -> None:
    """A loop over the rows in steps of LANES, then the sums across lanes.

    The rows that the next block will want are fetched ahead. A step of packed rows is two steps of
    plain ones, in the same order: equal weights give equal bits.
    """
    parts = 2 if packed else 1
    row_starts = [_place(builder, rows, row_stride, row) for row in range(ROWS)]
    token_starts = [_place(builder, tokens, token_stride, token) for token in range(num_tokens)]
    block_stride = builder.mul(row_stride, _INT(ROWS))
    with _Sums(builder, ROWS * num_tokens, width, LANES) as sums:
        first = builder.mul(sums.index, _INT(parts))
        places = [builder.add(first, _INT(part * LANES)) for part in range(parts)]
        token_values = [[_load(builder, start, at) for start in token_starts] for at in places]
        for row, start in enumerate(row_starts):
            words = _load(builder, start, sums.index)
            _prefetch(builder, builder.gep(start, [builder.add(sums.index, block_stride)]))
            unpacked = _unpack(builder, words) if packed else [words]
            for row_values, values_of_part in zip(unpacked, token_values, strict=True):
                for token, values in enumerate(values_of_part):
                    sums.add(token * ROWS + row, row_values, values)
    for token in range(num_tokens):
        total = _sums_of_lanes(builder, sums.totals[token * ROWS : (token + 1) * ROWS])
        _store(builder, total, _place(builder, outputs, output_stride, token))


def _unpack(builder: ir.IRBuilder, words: ir.Value) -> list[ir.Value]:
    """The weights in the lower and in the upper halves of LANES words."""
    integers = ir.VectorType(_INT32, LANES)
    words = builder.bitcast(words, integers)
    lower = builder.shl(words, ir.Constant(integers, [16] * LANES))
    upper = builder.and_(words, ir.Constant(integers, [-(1 << 16)] * LANES))
    return [builder.bitcast(part, _VECTOR) for part in (lower, upper)]


def _weighted_sums(num_tokens: int) -> Callable[..., None]:
    """Intrinsic: LANES columns of rows [S], summed with the weights [S] of `num_tokens` tokens.

    The LANES results of a token go to `outputs + token * output_stride`.
    """

    @intrinsic
    def weighted_sums(  # type: ignore[no-untyped-def]
        typing_context, rows, row_stride, weights, weight_stride, num_rows, outputs, output_stride
    ):
        def generate(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
            _emit_weighted_sums(builder, num_tokens, *arguments)
            return context.get_dummy_value()

        return types.void(*[types.int64] * 7), generate

    return weighted_sums


def _emit_weighted_sums(
    builder: ir.IRBuilder,
    num_tokens: int,
    rows: ir.Value,
    row_stride: ir.Value,
    weights: ir.Value,
    weight_stride: ir.Value,
    num_rows: ir.Value,
    outputs: ir.Value,
    output_stride: ir.Value,
) -> None:
    """A loop over S, one row at a time."""
    start = _place(builder, rows, row_stride, 0)
    weight_starts = [_place(builder, weights, weight_stride, token) for token in range(num_tokens)]
    with _Sums(builder, num_tokens, num_rows, 1) as sums:
        row_values = _load(builder, start, builder.mul(sums.index, row_stride))
        for token, weight_start in enumerate(weight_starts):
            weight = builder.load(builder.gep(weight_start, [sums.index]))
            sums.add(token, _spread(builder, weight), row_values)
    for token, total in enumerate(sums.totals):
        _store(builder, total, _place(builder, outputs, output_stride, token))


class _Sums:
    """A loop that adds products of vectors to `count` sums held in registers.

    Attributes:
        index: the loop's index: 0, step, ... below `end`, which is at least 1.
        totals: the sums, once the block is left.
    """

    def __init__(self, builder: ir.IRBuilder, count: int, end: ir.Value, step: int):
        self._builder, self._end, self._step = builder, end, step
        self._before = builder.block
        self._loop = builder.append_basic_block("loop")
        builder.branch(self._loop)
        builder.position_at_end(self._loop)
        self.index = builder.phi(_INT)
        self._sums = [builder.phi(_VECTOR) for _ in range(count)]
        self.totals = [*self._sums]
        self._multiply_add = cgutils.get_or_insert_function(
            builder.module, ir.FunctionType(_VECTOR, [_VECTOR] * 3), f"llvm.fmuladd.v{LANES}f32"
        )

    def add(self, place: int, first: ir.Value, second: ir.Value) -> None:
        """Add `first * second` to the sum at `place`, rounding once where the machine can."""
        arguments = [first, second, self.totals[place]]
        self.totals[place] = self._builder.call(self._multiply_add, arguments)

    def __enter__(self) -> _Sums:
        return self

    def __exit__(self, *_: object) -> None:
        builder = self._builder
        following = builder.add(self.index, _INT(self._step))
        self.index.add_incoming(_INT(0), self._before)
        self.index.add_incoming(following, self._loop)
        for phi, total in zip(self._sums, self.totals, strict=True):
            phi.add_incoming(ir.Constant(_VECTOR, [0.0] * LANES), self._before)
            phi.add_incoming(total, self._loop)
        after = builder.append_basic_block("after")
        builder.cbranch(builder.icmp_signed("<", following, self._end), self._loop, after)
        builder.position_at_end(after)


def _place(builder: ir.IRBuilder, address: ir.Value, stride: ir.Value, count: int) -> ir.Value:
    """Pointer to the float `count` strides after `address`."""
    start = builder.inttoptr(address, _FLOAT.as_pointer())
    return builder.gep(start, [builder.mul(stride, _INT(count))])


def _load(builder: ir.IRBuilder, start: ir.Value, offset: ir.Value) -> ir.Value:
    """LANES floats from `offset` after `start` on."""
    place = builder.bitcast(builder.gep(start, [offset]), _VECTOR.as_pointer())
    return builder.load(place, align=4)


def _store(builder: ir.IRBuilder, values: ir.Value, start: ir.Value) -> None:
    builder.store(values, builder.bitcast(start, values.type.as_pointer()), align=4)


def _spread(builder: ir.IRBuilder, value: ir.Value) -> ir.Value:
    """A vector of LANES equal floats."""
    single = builder.insert_element(ir.Constant(_VECTOR, ir.Undefined), value, _INT32(0))
    mask = ir.Constant(ir.VectorType(_INT32, LANES), [0] * LANES)
    return builder.shuffle_vector(single, single, mask)


def _prefetch(builder: ir.IRBuilder, pointer: ir.Value) -> None:
    """Ask for a cache line ahead of its use: to read (0), into the second level (2), data (1)."""
    function = cgutils.get_or_insert_function(
        builder.module,
        ir.FunctionType(_VOID, [_BYTE_POINTER, _INT32, _INT32, _INT32]),
        "llvm.prefetch.p0",
    )
    place = builder.bitcast(pointer, _BYTE_POINTER)
    builder.call(function, [place, _INT32(0), _INT32(2), _INT32(1)])


def _sums_of_lanes(builder: ir.IRBuilder, vectors: list[ir.Value]) -> ir.Value:
    """The sums of ROWS vectors' lanes, as one vector of ROWS floats.

    Halves are added to halves, of two vectors at a time while there are two: [a | A], [b | B]
    become [a + A | b + B]. Every sum takes the same steps, whichever vectors it travels with.
    """

    def halves(first: ir.Value, second: ir.Value, part: int, place: int) -> ir.Value:
        """The first or second halves of all parts of a vector, or of two, one after the other."""
        num_lanes = first.type.count
        width = 2 * num_lanes if second is not first else num_lanes
        lanes = [lane for lane in range(width) if lane % part // (part // 2) == place]
        mask = ir.Constant(ir.VectorType(_INT32, len(lanes)), lanes)
        return builder.shuffle_vector(first, second, mask)

    part = LANES  # lanes that still make up one sum
    while part > 1:
        firsts = vectors[::2]
        seconds = vectors[1::2] or firsts
        vectors = [
            builder.fadd(halves(*pair, part, 0), halves(*pair, part, 1))
            for pair in zip(firsts, seconds, strict=True)
        ]
        part //= 2
    return vectors[0]


dot_products_1, dot_products_2, dot_products_3, dot_products_4 = map(_dot_products, (1, 2, 3, 4))
packed_dot_products_1, packed_dot_products_2, packed_dot_products_3, packed_dot_products_4 = (
    _dot_products(num_tokens, packed=True) for num_tokens in (1, 2, 3, 4)
)
weighted_sums_1, weighted_sums_4 = map(_weighted_sums, (1, 4))


def _pointer(element: types.Type, code: ir.Type) -> Any:
    """Intrinsic: an address as a pointer to `element`."""

    @intrinsic
    def pointer(typing_context, address):  # type: ignore[no-untyped-def]
        def generate(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
            return builder.inttoptr(arguments[0], code.as_pointer())

        return types.CPointer(element)(types.int64), generate

    return pointer


floats = _pointer(types.float32, _FLOAT)
integers = _pointer(types.int64, _INT)
bytes_at = _pointer(types.uint8, ir.IntType(8))


@intrinsic
def _float_of_bits(typing_context, bits):  # type: ignore[no-untyped-def]
    """The float with the given 32 bits."""

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
        return builder.bitcast(arguments[0], _FLOAT)

    return types.float32(types.int32), generate


float_of_bits: Any = _float_of_bits  # Numba gives the first argument

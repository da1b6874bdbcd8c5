"""Weights of a linear layer in half the bytes, for kernels that wait for their weights.

A float32 whose lower 16 bits are 0 is a bfloat16 number: two such weights share a 32-bit word, and
the kernel takes them apart by a shift and a mask, which gives back the very same float32 values.
So results have the bits that the plain weights give; what rounds, and once, is `round_weights`.

    row of weights   0 ... L-1 | L ... 2L-1 | 2L ...     L floats of a vector register
    row of words     (0, L), (1, L+1) ... (L-1, 2L-1) | ...    (lower half, upper half)

Shapes: K inputs, N outputs.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def round_weights(weight: Tensor) -> Tensor:
    """The nearest bfloat16 values, in the dtype of `weight`."""
    return weight.to(torch.bfloat16).to(weight.dtype)


def pack(weight: Tensor, lanes: int) -> Tensor | None:
    """`weight` [N, K] as words [N, K / 2], or None where that would change it.

    Args:
        weight: float32, contiguous.
        lanes: floats of a vector register; K must be a multiple of twice as many.
    """
    num_rows, width = weight.shape
    bits = weight.detach().view(torch.int32)
    if width % (2 * lanes) or bool((bits & 0xFFFF).any()):
        return None
    lower, upper = bits.view(num_rows, width // (2 * lanes), 2, lanes).unbind(2)
    words = (lower >> 16) & 0xFFFF | upper
    return words.reshape(num_rows, width // 2)


def all_packed(weights: Sequence[Tensor], lanes: int) -> list[Tensor]:
    """`weights` packed, or as they are unless each can be."""
    packed = [pack(weight, lanes) for weight in weights]
    together = [words for words in packed if words is not None]
    return together if len(together) == len(packed) else list(weights)


def is_packed(weight: Tensor) -> bool:
    """Whether `weight` came out of `pack`."""
    return weight.dtype is torch.int32

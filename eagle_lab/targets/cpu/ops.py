"""Operations of a pass by the CPU kernels, as functions of tensors, and packed weights for them.

Everything is float32 on a CPU, without gradients; callers ask first (`suits`, `applies`, `fits`,
`can_attend`). Numba uses as many threads as torch. The kernels take addresses and strides, which
are known here and in `patch.LayerCall` only.

Packed weights take half the bytes, for kernels that wait for their weights. A float32 whose lower
16 bits are 0 is a bfloat16 number: two such weights share a 32-bit word, and the kernel takes them
apart by a shift and a mask, which gives back the very same float32 values. So results have the bits
that the plain weights give; only `round_weights` rounds, once.

    row of weights   0 ... L-1 | L ... 2L-1 | 2L ...     L floats of a vector register
    row of words     (0, L), (1, L+1) ... (L-1, 2L-1) | ...    (lower half, upper half)

Shapes: K inputs, N outputs; B rows, T columns of a pass, S cache slots, d head width.
"""

from __future__ import annotations

import functools
import logging
import threading
from collections import ChainMap
from collections.abc import Sequence
from types import SimpleNamespace

import torch
from torch import Tensor, nn

from eagle_lab.targets.cpu.build import kernel_folder, use_kernel_folder

log = logging.getLogger(__name__)


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


def pack_all(weights: Sequence[Tensor], lanes: int) -> list[Tensor]:
    """`weights` packed, or as they are unless each can be."""
    packed = [pack(weight, lanes) for weight in weights]
    together = [words for words in packed if words is not None]
    return together if len(together) == len(packed) else list(weights)


def is_packed(weight: Tensor) -> bool:
    """Whether `weight` came out of `pack`."""
    return weight.dtype is torch.int32


MAX_ROWS = 512
"""Above this many rows torch's matrix product is as fast. Measured, a whole pass of SmolLM2-135M on
one core against the same through torch's product: 0.81 over 160 rows, 0.91 over 256, 0.95 over 512,
1.0 over 1,000."""


@functools.cache
def kernels() -> SimpleNamespace:
    """All names of the kernel modules; logs it where they must be compiled first.

    The only place that imports those modules: Numba compiles while they are imported, and keeps
    the machine code in the folder that is set around the import.
    """
    if not kernel_folder().exists():
        log.info("compiling the CPU kernels, once: a minute or so ...")
    num_threads = torch.get_num_threads()
    try:
        with use_kernel_folder():
            from eagle_lab.targets.cpu import attention, intrinsics, layer
            from eagle_lab.targets.cpu import linear as linear_kernels
    finally:
        torch.set_num_threads(num_threads)  # Numba's start gives OpenMP all cores, torch with it
    modules = (intrinsics, linear_kernels, attention, layer)
    return SimpleNamespace(**dict(ChainMap(*map(vars, modules))))


def suits(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether there are kernels for `dtype` on `device`."""
    return device.type == "cpu" and dtype == torch.float32


def fits(weight: Tensor) -> bool:
    """Whether the linear kernel can read `weight` [N, K]."""
    rows, width = weight.shape
    aligned = width % kernels().LANES == 0 and rows >= kernels().ROWS
    return aligned and weight.is_contiguous()


def applies(inputs: Tensor, weight: Tensor) -> bool:
    """Whether a pass over `inputs` [..., K] is one for the kernels: few rows, no gradient."""
    return (
        inputs.dtype is torch.float32
        and weight.dtype is torch.float32
        and inputs.is_cpu
        and weight.is_cpu
        and inputs.numel() <= MAX_ROWS * inputs.shape[-1]
        and not (torch.is_grad_enabled() and (inputs.requires_grad or weight.requires_grad))
    )


def linear(
    inputs: Tensor, weight: Tensor, bias: Tensor | None = None, packed: Tensor | None = None
) -> Tensor:
    """`torch.nn.functional.linear`, [..., K] -> [..., N], by the kernel where it applies.

    `packed` is `weight` once more, for the kernel; see `pack`.
    """
    if not (applies(inputs, weight) and fits(weight)):
        return nn.functional.linear(inputs, weight, bias)
    [output] = multiply(inputs, [weight if packed is None else packed])
    return output if bias is None else output + bias


def multiply(inputs: Tensor, weights: Sequence[Tensor]) -> list[Tensor]:
    """`inputs` [..., K] times one to three `weights` [N_i, K] -> [..., N_i] each.

    Either all weights are packed, see `pack`, or none is.
    """
    inputs = inputs.contiguous()
    width = inputs.shape[-1]
    num_rows = inputs.numel() // width
    sizes = [weight.shape[0] for weight in weights]
    outputs = inputs.new_empty(num_rows * sum(sizes))
    places = [(weight.data_ptr(), size) for weight, size in zip(weights, sizes, strict=True)]
    first, second, third = (*places, (0, 0), (0, 0))[:3]
    match_threads()
    kernels().linear(
        inputs.data_ptr(), num_rows, width, is_packed(weights[0]), *first, *second, *third,
        outputs.data_ptr(),
    )  # fmt: skip
    shape = inputs.shape[:-1]
    if len(sizes) == 1:
        return [outputs.view(*shape, sizes[0])]
    parts = outputs.split([num_rows * size for size in sizes])
    return [part.view(*shape, size) for part, size in zip(parts, sizes, strict=True)]


def rms_norm(inputs: Tensor, weight: Tensor, offset: float, epsilon: float) -> Tensor:
    """`inputs` [..., K] over their root mean square, times `offset + weight` [K]."""
    inputs = inputs.contiguous()
    output, width = torch.empty_like(inputs), inputs.shape[-1]
    kernels().rms_norm(
        inputs.data_ptr(), inputs.numel() // width, width, weight.data_ptr(), offset, epsilon,
        output.data_ptr(),
    )  # fmt: skip
    return output


def store(key: Tensor, value: Tensor, cache: Tensor, lengths: Tensor, offset: int) -> None:
    """Copy `key`, `value` [B, kv, T, d] to slots `lengths` [B] + `offset` + t of each row.

    `cache` [2, B, kv, C, d] holds keys and values of a layer; the slots must be there.
    """
    batch, num_kv, num_tokens, width = key.shape
    key, value = _rows_contiguous(key), _rows_contiguous(value)
    keys, values = cache
    kernels().store(
        key.data_ptr(), *key.stride()[:3], value.data_ptr(), *value.stride()[:3],
        keys.data_ptr(), values.data_ptr(), *keys.stride()[:2], lengths.data_ptr(), offset,
        batch, num_kv, num_tokens, width,
    )  # fmt: skip


def can_attend(query: Tensor, key: Tensor) -> bool:
    """Whether the attention kernel takes `query` [B, heads, T, d] and `key` [B, kv, S, d]."""
    num_slots, width = key.shape[2:]
    return (
        suits(query.device, query.dtype)
        and num_slots >= kernels().ROWS
        and width % kernels().LANES == 0
        and key.stride()[2:] == (width, 1)
        and not (torch.is_grad_enabled() and query.requires_grad)
    )


def attend(query: Tensor, key: Tensor, value: Tensor, mask: Tensor, scaling: float) -> Tensor:
    """Attention output [B, heads, T, d], columns outermost in memory.

    Args:
        query: [B, heads, T, d].
        key: [B, kv, S, d], see `can_attend`.
        value: [B, kv, S, d], strides as `key`'s.
        mask: [B, 1, T, S] boolean, True = attend.
        scaling: factor on the dot products.
    """
    batch, num_heads, num_tokens, width = query.shape
    query, mask = _rows_contiguous(query), mask.contiguous()
    output = query.new_empty(batch, num_tokens, num_heads, width)
    match_threads()
    kernels().attention(
        query.data_ptr(), *query.stride()[:3], key.data_ptr(), value.data_ptr(),
        *key.stride()[:2], mask.data_ptr(), batch, num_heads, key.shape[1], num_tokens,
        key.shape[2], width, scaling, output.data_ptr(),
    )  # fmt: skip
    return output.transpose(1, 2)


def tree_mask(lengths: Tensor, visible: Tensor, num_slots: int) -> Tensor:
    """[B, 1, N, S] True for the first `lengths` [B] slots and for the `visible` [B, N, M] of the M
    after them; S is `num_slots`.
    """
    batch, num_columns, num_tree_slots = visible.shape
    visible = visible.contiguous()
    mask = visible.new_empty(batch, 1, num_columns, num_slots)
    kernels().tree_mask(
        lengths.data_ptr(), visible.data_ptr(), batch, num_columns, num_tree_slots, num_slots,
        mask.data_ptr(),
    )  # fmt: skip
    return mask


def best_tokens(logits: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Log-probabilities and ids [..., W] of the `count` best of `logits` [..., D], best first.

    Of equals the lower id comes first.
    """
    logits, shape = logits.contiguous(), (*logits.shape[:-1], count)
    log_probs, tokens = logits.new_empty(shape), logits.new_empty(shape, dtype=torch.long)
    num_logits = logits.shape[-1]
    kernels().best_tokens(
        logits.data_ptr(), logits.numel() // num_logits, num_logits, count, log_probs.data_ptr(),
        tokens.data_ptr(),
    )  # fmt: skip
    return log_probs, tokens


def _rows_contiguous(values: Tensor) -> Tensor:
    """`values` with the last dimension contiguous."""
    return values if values.stride(-1) == 1 else values.contiguous()


_of_this_thread = threading.local()


def scratch(num_floats: int) -> int:
    """Address of `num_floats` floats that last until this thread asks again."""
    buffer: Tensor | None = getattr(_of_this_thread, "buffer", None)
    if buffer is None or buffer.numel() < num_floats:
        buffer = _of_this_thread.buffer = torch.empty(num_floats, dtype=torch.float32)
    return buffer.data_ptr()


def match_threads() -> None:
    """Let Numba use as many threads as torch does."""
    num_threads = torch.get_num_threads()
    if getattr(_of_this_thread, "num_threads", None) != num_threads:
        import numba

        most: int = numba.config.NUMBA_NUM_THREADS  # type: ignore[attr-defined]
        numba.set_num_threads(min(num_threads, most))
        _of_this_thread.num_threads = num_threads

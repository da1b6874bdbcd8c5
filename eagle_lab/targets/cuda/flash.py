"""Flash kernels for the committed prefix, on CUDA: attention that also tells its log-sum-exp.

Two sources, each one function in the form of `attention.prefix_part`:

- the package flash-attn, if it is installed (the extra `flash`): soft-caps, and long prefixes
  split over the chip;
- the kernel that torch itself ships (`torch.nn.attention.varlen`, torch >= 2.12), without
  soft-caps.

Both take float16 and bfloat16 on GPUs from Ampere on, and head widths that are multiples of 8 up
to 256. A kernel is used only for shapes for which it was once held against plain operations here.

Shapes: B rows, N query columns, S slots, d head width.
"""

from __future__ import annotations

import functools
import inspect
import logging

import torch
from torch import Tensor

from eagle_lab.targets.attention import PrefixPart, prefix_part

log = logging.getLogger(__name__)

_TOLERANCE = 0.02  # half precision: 2^-8 for outputs around 1


def prefix_kernel(query: Tensor, num_kv: int, softcap: float | None) -> PrefixPart | None:
    """The kernel for `query` [B, heads, N, d] over `num_kv` key-value heads; None without one.

    The first call for a device, dtype and shape of heads tries the kernels, which waits for the
    device: make it before capturing a CUDA graph.
    """
    if not query.is_cuda or query.dtype not in (torch.float16, torch.bfloat16):
        return None
    return _chosen(query.device, query.dtype, query.shape[1], num_kv, query.shape[3], softcap)


@functools.cache
def _chosen(
    device: torch.device,
    dtype: torch.dtype,
    num_heads: int,
    num_kv: int,
    width: int,
    softcap: float | None,
) -> PrefixPart | None:
    if torch.cuda.get_device_capability(device) < (8, 0) or width % 8 or width > 256:
        return None
    kernels: tuple[PrefixPart, ...] = (_flash_attn,)
    if softcap is None and torch_has_flash():
        kernels = _flash_attn, _torch_flash
    for kernel in kernels:
        try:
            if agrees(kernel, device, dtype, num_heads, num_kv, width, softcap):
                return kernel
            problem = "other numbers than plain attention"
        except ModuleNotFoundError:  # nothing to tell
            continue
        except (ImportError, RuntimeError, TypeError, ValueError) as error:
            problem = f"{type(error).__name__}: {error}"
        log.warning("attention does without %s: %s", kernel.__name__.strip("_"), problem)
    return None


def torch_has_flash() -> bool:
    """Whether this torch ships a kernel that takes the length of each row (from 2.12 on)."""
    try:
        from torch.nn.attention.varlen import varlen_attn
    except ImportError:
        return False
    return {"enable_gqa", "seqused_k"} <= inspect.signature(varlen_attn).parameters.keys()


@torch.no_grad()
def agrees(
    kernel: PrefixPart,
    device: torch.device,
    dtype: torch.dtype,
    num_heads: int,
    num_kv: int,
    width: int,
    softcap: float | None = None,
) -> bool:
    """Whether `kernel` computes what `prefix_part` does, for ragged rows, an empty one among them.

    Outputs and log-sum-exps may differ by 0.02, a few roundings of half precision.
    """
    lengths = torch.tensor([300, 0, 1, 129], device=device)
    generator = torch.Generator(device).manual_seed(0)

    def drawn(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, device=device).to(dtype)

    for num_columns in (1, 7):
        # laid out as in a cache: room after the slots, columns outermost in queries
        query = drawn(4, num_columns, num_heads, width).transpose(1, 2)
        key, value = drawn(2, 4, num_kv, 320, width)[..., :301, :]
        case = query, key, value, lengths, width**-0.5, softcap
        for ours, plain in zip(kernel(*case), prefix_part(*case), strict=True):
            if ours.shape != plain.shape:
                return False
            difference = torch.where(ours == plain, 0.0, ours.float() - plain)  # -inf both
            if not bool((difference.abs() <= _TOLERANCE).all()):
                return False
    return True


def _flash_attn(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    lengths: Tensor,
    scaling: float,
    softcap: float | None,
) -> tuple[Tensor, Tensor]:
    """See `prefix_part`; `flash_attn_with_kvcache` of flash-attn 2 (2307.08691)."""
    from flash_attn import flash_attn_with_kvcache

    output, lse = flash_attn_with_kvcache(
        query.transpose(1, 2),
        key.transpose(1, 2),
        value.transpose(1, 2),
        cache_seqlens=lengths.int(),
        softmax_scale=scaling,
        softcap=softcap or 0.0,
        return_softmax_lse=True,
    )  # [B, N, heads, d], [B, heads, N]
    return output.transpose(1, 2), _empty_marked(lse, lengths)


def _torch_flash(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    lengths: Tensor,
    scaling: float,
    softcap: float | None,
) -> tuple[Tensor, Tensor]:
    """See `prefix_part`; no soft-cap. Rows are sequences that start where the cache has them.

    The kernel wants keys [slots of all rows, kv, d] and where each row starts in them. Slot t of
    row b and head h lies at b * row + h * head + t * d in memory: one flat view with steps of d
    has it as slot b * row / d + t, so nothing is copied.
    """
    from torch.nn.attention.varlen import AuxRequest, varlen_attn

    batch, num_heads, num_columns, width = query.shape
    num_kv, num_slots = key.shape[1:3]
    row, head, step, _ = key.stride()
    flat = ((batch - 1) * (row // step) + num_slots, num_kv, width), (step, head, 1)
    rows = torch.arange(batch + 1, dtype=torch.int32, device=query.device)
    output, lse = varlen_attn(
        query.transpose(1, 2).reshape(batch * num_columns, num_heads, width),
        key.as_strided(*flat),
        value.as_strided(*flat),
        rows * num_columns,
        rows * (row // step),
        num_columns,
        num_slots,
        return_aux=AuxRequest(lse=True),
        scale=scaling,
        enable_gqa=num_heads != num_kv,
        seqused_k=lengths.int(),
    )  # [B * N, heads, d], [heads, B * N]
    output = output.view(batch, num_columns, num_heads, width).transpose(1, 2)
    lse = lse.view(num_heads, batch, num_columns).transpose(0, 1)
    return output, _empty_marked(lse, lengths)


def _empty_marked(lse: Tensor, lengths: Tensor) -> Tensor:
    """`lse` [B, heads, N] with -inf for rows of length 0, where the kernels say +inf or -inf."""
    return lse.masked_fill((lengths == 0)[:, None, None], -torch.inf)

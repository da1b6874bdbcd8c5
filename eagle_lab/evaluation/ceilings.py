"""What the machine can do at most, and how much work a pass is.

A pass that is bound by memory cannot be faster than its weights can be read, one bound by
arithmetic not faster than its products can be computed. Both limits are measured, in the same run
as the passes: reading a block far larger than any cache, and a square matrix product, of noise,
for a GPU is faster with equal numbers, which switch fewer of its transistors.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn

from eagle_lab.drafters.eagle1 import Eagle1
from eagle_lab.models.target import Target

Probe = Callable[[], object]
READ = "read"
_READ_BYTES = {"cpu": 2**28, "cuda": 2**31}
_MATRIX_SIZE = {"cpu": 1024, "cuda": 8192}
_NOISE = 2**20


def probes(device: torch.device, dtype: torch.dtype) -> dict[str, tuple[Probe, float]]:
    """What is run to find the limits, with its amount of bytes (`read`) or flops (a dtype's name).

    Products are measured in float32, bfloat16 and `dtype`, the target's own.
    """
    num_bytes, size = _READ_BYTES[device.type], _MATRIX_SIZE[device.type]
    noise = torch.randn(_NOISE, device=device)
    block = noise.repeat(num_bytes // 4 // _NOISE)
    found: dict[str, tuple[Probe, float]] = {READ: (block.max, float(num_bytes))}
    for precision in dict.fromkeys((torch.float32, torch.bfloat16, dtype)):
        matrix = torch.randn(size, size, device=device).to(precision)
        found[dtype_name(precision)] = (partial(torch.matmul, matrix, matrix), 2.0 * size**3)
    return found


def dtype_name(dtype: torch.dtype) -> str:
    """`float32` for torch.float32."""
    return str(dtype).removeprefix("torch.")


@dataclass(frozen=True)
class Model:
    """What the work of a model's passes depends on.

    Attributes:
        num_weights: that every token is multiplied with; an embedding is a look-up and not counted.
        num_layers, num_heads, num_kv_heads, head_dim: of its attention.
        bytes_per_number: of weights and cache.
    """

    num_weights: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    bytes_per_number: int

    @classmethod
    def of_target(cls, target: Target) -> Model:
        """A dense target; of a mixture of experts all experts would be counted."""
        embedding = _count(target.embedding)
        num_weights = _count(target.model.get_decoder()) - embedding + target.head_weight.numel()
        return cls(num_weights, target.num_layers, *_heads(target.config), target.dtype.itemsize)

    @classmethod
    def of_drafter(cls, drafter: Eagle1) -> Model:
        """A drafter with its head over the draft vocabulary."""
        config = drafter.config
        head = (config.draft_vocab_size or config.vocab_size) * config.hidden_size
        return cls(
            _count(drafter) + head,
            len(drafter.layers),
            *_heads(config),
            drafter.fc.weight.element_size(),
        )

    def read_bytes(self, batch_size: int, context: int, num_tokens: int) -> float:
        """Bytes that a pass reads at least: weights once, and each row's keys and values once."""
        slots = batch_size * (context + num_tokens)
        cached = 2 * self.num_layers * self.num_kv_heads * self.head_dim * slots
        return float(self.bytes_per_number * (self.num_weights + cached))

    def flops(self, batch_size: int, context: int, num_tokens: int) -> float:
        """Multiplications and additions of a pass's matrix products, attention included."""
        scored = self.num_layers * self.num_heads * self.head_dim * (context + num_tokens)
        return float(batch_size * num_tokens * (2 * self.num_weights + 4 * scored))


def _count(module: nn.Module) -> int:
    return sum(weight.numel() for weight in module.parameters())


def _heads(config: Any) -> tuple[int, int, int]:
    """Query heads, key-value heads and their width."""
    heads = config.num_attention_heads
    width = getattr(config, "head_dim", None) or config.hidden_size // heads
    return heads, getattr(config, "num_key_value_heads", None) or heads, width

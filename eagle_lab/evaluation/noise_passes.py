"""Passes behind a cache that was never computed: its keys and values are noise.

What a pass costs does not depend on what the cache says, and reading 128 long prompts takes longer
than all measurements behind them. Shapes: B rows, T tokens, H hidden width.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from eagle_lab.decoding.eagle_chain import EagleChain
from eagle_lab.drafters.eagle1 import Eagle1
from eagle_lab.evaluation.passes import DraftPasses, Passes, TargetPasses
from eagle_lab.evaluation.profiling import Profiler
from eagle_lab.models.cache import TreeCache
from eagle_lab.models.target import Target


def fill_with_noise(cache: TreeCache, config: Any, context: int, room: int, like: Tensor) -> None:
    """Commit `context` slots of noise in every row of an empty cache, with `room` slots behind.

    Args:
        config: of the attention: `num_key_value_heads` and `head_dim`.
        like: gives dtype and device.
    """
    num_rows = len(cache.lengths)
    heads = like.new_empty(num_rows, config.num_key_value_heads, 0, config.head_dim)
    for layer in range(cache.num_layers):
        cache.room(layer, context + room, heads).normal_()
    cache.advance(torch.full((num_rows,), context, device=like.device))


class NoiseTargetPasses(TargetPasses):
    """The verify pass of a target with noise in its cache."""

    def __init__(self, target: Target, tokens: Tensor, context: int):
        """`tokens` [B, T]; those behind `context` are scored, as many slots are free for them."""
        self._target, self._next = target, tokens[:, context:]
        self._cache = target.new_cache(len(tokens))
        room = self._next.shape[1]
        fill_with_noise(self._cache, target.config, context, room, target.head_weight)


class NoiseDraftPasses(DraftPasses):
    """A draft level of a drafter with noise in its cache."""

    def __init__(self, target: Target, drafter: Eagle1, tokens: Tensor, context: int):
        """See `NoiseTargetPasses`."""
        self._proposer, self._next = EagleChain(target, drafter), tokens[:, context:]
        weight, num_rows = drafter.fc.weight, len(tokens)
        self._features = weight.new_empty(num_rows, 1, drafter.config.hidden_size).normal_()
        self._proposer.cache = target.new_cache(num_rows, num_layers=1)
        room = self._next.shape[1]
        fill_with_noise(self._proposer.cache, drafter.config, context, room, weight)


class NoiseProfiler(Profiler):
    """Times passes behind noise; Hugging Face's own layers are left out."""

    def _prepared(self, tokens: Tensor, context: int) -> dict[str, Passes]:
        passes: dict[str, Passes] = {"target": NoiseTargetPasses(self.target, tokens, context)}
        if self.drafter is not None:
            passes["draft"] = NoiseDraftPasses(self.target, self.drafter, tokens, context)
        return passes

"""Passes after a cache that was never computed: its keys and values are noise.

What a pass costs does not depend on what the cache says, and reading 128 long prompts takes longer
than all measurements after them. Shapes: B rows, T tokens, H hidden width.

What a pass of each model costs: cost curves over tokens, batch sizes and contexts.

Every round times every pass once, in a new order, so that a machine that slows down slows all of
them; a first round warms up and is not counted. The limits of the machine are timed in the same
rounds. Knows no configuration and no files.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import nullcontext

import numpy as np
import torch
from rich.console import Console
from rich.progress import track
from torch import Tensor

from eagle_lab.bench.profile.limits import (
    Model,
    Profile,
    Setting,
    attention_of,
    dtype_name,
    probes,
)
from eagle_lab.bench.profile.passes import DraftPasses, Passes, PlainPasses, TargetPasses
from eagle_lab.bench.profile.settings import PassSettings
from eagle_lab.drafters.base import AttentionShape, Drafter
from eagle_lab.engine.clock import Clock
from eagle_lab.errors import UserError
from eagle_lab.methods.eagle import EagleChain
from eagle_lab.targets.cache import TreeCache
from eagle_lab.targets.target import Target


class Profiler:
    """Times the passes of a target and, if there is one, of its drafter.

    Args:
        seed: of the tokens and of the order within a round.

    Raises:
        UserError: a context and a pass after it do not fit the target's context.
    """

    def __init__(
        self,
        target: Target,
        drafter: Drafter | None,
        settings: PassSettings,
        *,
        seed: int = 0,
        console: Console | None = None,
    ):
        needed = max(settings.contexts) + max(settings.num_tokens)
        if needed > target.context_length:
            raise UserError(
                f"profile.contexts up to {max(settings.contexts)} and passes of up to "
                f"{max(settings.num_tokens)} tokens need {needed}, but the context of "
                f"{target.name} is {target.context_length}"
            )
        self.target, self.drafter, self.settings = target, drafter, settings
        self._seed, self._console = seed, console

    @torch.no_grad()
    def run(self) -> Profile:
        """Fill the caches, warm up, and time all passes in `settings.repeats` rounds."""
        prepared = self._passes()
        limits = probes(self.target.device, self.target.dtype)
        settings = [
            Setting(*place, num_tokens)
            for place in prepared
            for num_tokens in dict.fromkeys(self.settings.num_tokens)
        ]
        clock = Clock(self.target.device)
        passes: dict[Setting, list[float]] = defaultdict(list)
        probed: dict[str, list[float]] = defaultdict(list)
        for number, timed in self._schedule([*settings, *limits]):
            if isinstance(timed, Setting):
                ready = prepared[timed[:3]].ready(timed.num_tokens)
            else:
                ready = nullcontext(limits[timed][0])
            with ready as run:
                clock.lap()
                run()
                seconds = clock.lap()
            if number and isinstance(timed, Setting):
                passes[timed].append(1000 * seconds)
            elif number:
                probed[str(timed)].append(seconds)
        models = {"target": Model.of_target(self.target)}
        if self.drafter is not None:
            models["draft"] = Model.of_drafter(self.drafter)
        ceilings = {
            name: limits[name][1] / float(np.median(times)) for name, times in probed.items()
        }
        return Profile(dict(passes), ceilings, models, dtype_name(self.target.dtype))

    def _passes(self) -> dict[tuple[str, int, int], Passes]:
        """Passes with their caches filled, by model, batch size and context."""
        longest = max(self.settings.contexts) + max(self.settings.num_tokens)
        generator = torch.Generator().manual_seed(self._seed)
        prepared: dict[tuple[str, int, int], Passes] = {}
        for batch_size in dict.fromkeys(self.settings.batch_sizes):
            shape = (batch_size, longest)
            tokens = torch.randint(self.target.vocab_size, shape, generator=generator)
            tokens = tokens.to(self.target.device)
            for context in dict.fromkeys(self.settings.contexts):
                for name, passes in self._prepared(tokens, context).items():
                    prepared[name, batch_size, context] = passes
        return prepared

    def _prepared(self, tokens: Tensor, context: int) -> dict[str, Passes]:
        """Passes of each model after the first `context` of `tokens` [B, T]."""
        ours = TargetPasses(self.target, tokens, context)
        passes: dict[str, Passes] = {
            "target": ours,
            "plain": PlainPasses(self.target, tokens, context),
        }
        if self.drafter is not None:
            passes["draft"] = DraftPasses(self.target, self.drafter, tokens, ours.features)
        return passes

    def _schedule(self, timed: Sequence[Setting | str]) -> Iterator[tuple[int, Setting | str]]:
        """Everything once per round, shuffled; round 0 warms up. Draws a line of progress."""
        order = random.Random(self._seed)
        num_rounds = 1 + self.settings.repeats
        rounds = ((number, order.sample(timed, len(timed))) for number in range(num_rounds))
        yield from track(
            ((number, one) for number, chosen in rounds for one in chosen),
            description="timing passes",
            total=num_rounds * len(timed),
            console=self._console,
            disable=self._console is None,
            refresh_per_second=2,
        )


def fill_with_noise(
    cache: TreeCache, shape: AttentionShape, context: int, room: int, like: Tensor
) -> None:
    """Commit `context` slots of noise in every row of an empty cache, with `room` slots after.

    Args:
        shape: of the attention.
        like: gives dtype and device.
    """
    num_rows = len(cache.lengths)
    heads = like.new_empty(num_rows, shape.num_kv_heads, 0, shape.head_dim)
    for layer in range(cache.num_layers):
        cache.room(layer, context + room, heads).normal_()
    cache.advance(torch.full((num_rows,), context, device=like.device))


class NoiseTargetPasses(TargetPasses):
    """The verify pass of a target with noise in its cache."""

    def __init__(self, target: Target, tokens: Tensor, context: int):
        """`tokens` [B, T]; those after `context` are scored, as many slots are free for them."""
        self._target, self._next = target, tokens[:, context:]
        self._cache = target.new_cache(len(tokens))
        room = self._next.shape[1]
        fill_with_noise(self._cache, attention_of(target), context, room, target.head_weight)


class NoiseDraftPasses(DraftPasses):
    """A draft level of a drafter with noise in its cache."""

    def __init__(self, target: Target, drafter: Drafter, tokens: Tensor, context: int):
        """See `NoiseTargetPasses`."""
        self._proposer, self._next = EagleChain(target, drafter), tokens[:, context:]
        weight, num_rows, shape = next(drafter.parameters()), len(tokens), drafter.attention
        self._states = weight.new_empty(num_rows, 1, drafter.config.hidden_size).normal_()
        self._proposer.cache = target.new_cache(num_rows, num_layers=shape.num_layers)
        room = self._next.shape[1]
        fill_with_noise(self._proposer.cache, shape, context, room, weight)


class NoiseProfiler(Profiler):
    """Times passes after noise; Hugging Face's own layers are left out."""

    def _prepared(self, tokens: Tensor, context: int) -> dict[str, Passes]:
        passes: dict[str, Passes] = {"target": NoiseTargetPasses(self.target, tokens, context)}
        if self.drafter is not None:
            passes["draft"] = NoiseDraftPasses(self.target, self.drafter, tokens, context)
        return passes

"""What a pass of each model costs: cost curves over tokens, batch sizes and contexts.

Every round times every pass once, in a new order, so that a machine that slows down slows all of
them; a first round warms up and is not counted. The limits of the machine are timed in the same
rounds. Knows no configuration and no files.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext

import numpy as np
import torch
from rich.console import Console
from rich.progress import track

from eagle_lab.bench.profile.limits import Model, Profile, Setting, dtype_name, probes
from eagle_lab.bench.profile.passes import Passes, after_text
from eagle_lab.bench.profile.settings import PassSettings
from eagle_lab.drafters.base import Drafter
from eagle_lab.engine.clock import Clock
from eagle_lab.errors import UserError
from eagle_lab.targets.target import Target


class Profiler:
    """Times the passes of a target and, if there is one, of its drafter.

    Args:
        seed: of the tokens and of the order within a round.
        prepare: makes the passes of each model after a context: `after_text` or `after_noise`.

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
        prepare: Callable[..., dict[str, Passes]] = after_text,
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
        self._seed, self._prepare, self._console = seed, prepare, console

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
        ceilings = {name: limits[name][1] / float(np.median(one)) for name, one in probed.items()}
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
                found = self._prepare(self.target, self.drafter, tokens, context)
                for name, passes in found.items():
                    prepared[name, batch_size, context] = passes
        return prepared

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

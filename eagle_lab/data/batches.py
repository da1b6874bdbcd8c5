"""Which conversations are answered together, and in which order: a pure function of its inputs.

Prompts are taken in windows of eight batches. Inside a window those with equally many turns and the
same sampling law are sorted by length and split evenly, so little is padded; the window's batches
then come in random order, so that a capture that stops early is no selection of short prompts.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, pairwise
from typing import Generic, TypeVar

from eagle_lab.errors import UserError

WINDOW = 8
Item = TypeVar("Item")


@dataclass(frozen=True)
class Batch(Generic[Item]):
    """Conversations answered together, all with the same sampling law."""

    items: tuple[Item, ...]
    sampled: bool = False


class BatchPlan(Generic[Item]):
    """Batches of `items`, made anew and alike by each iteration.

    Args:
        items: in order; an endless iterable is fine if the caller stops.
        measure: length of an item in tokens and the number of its turns; None leaves it out.
        is_sampled: whether an item is answered by sampling.
        batch_size: most items of a batch.
        seed: of the order of batches within a window.
        first_window: batches of the first window, for items that take time to come by; each
            later one has twice as many, up to `WINDOW`.
    """

    def __init__(
        self,
        items: Callable[[], Iterable[Item]],
        measure: Callable[[Item], tuple[int, int] | None],
        is_sampled: Callable[[Item], bool],
        batch_size: int,
        seed: int,
        first_window: int = WINDOW,
    ):
        if batch_size < 1:
            raise UserError(f"data.batch_size={batch_size} must be at least 1")
        self.items = items
        self.measure = measure
        self.is_sampled = is_sampled
        self.batch_size = batch_size
        self.seed = seed
        self.first_window = first_window
        self.num_skipped = 0
        """Items left out so far by this iteration."""

    def __iter__(self) -> Iterator[Batch[Item]]:
        """The batches in order."""
        source = iter(self.items())
        shuffle = random.Random(self.seed)
        self.num_skipped = 0
        num_batches = self.first_window
        while window := list(islice(source, num_batches * self.batch_size)):
            batches = self._window(window)
            shuffle.shuffle(batches)
            yield from batches
            num_batches = min(2 * num_batches, WINDOW)

    def _window(self, items: Sequence[Item]) -> list[Batch[Item]]:
        groups: dict[tuple[bool, int], list[tuple[int, int]]] = {}
        for place, item in enumerate(items):
            measured = self.measure(item)
            if measured is None:
                self.num_skipped += 1
                continue
            length, num_turns = measured
            groups.setdefault((self.is_sampled(item), num_turns), []).append((length, place))
        batches: list[Batch[Item]] = []
        for (sampled, _), group in sorted(groups.items()):
            ordered = [items[place] for _, place in sorted(group)]
            batches += [Batch(tuple(part), sampled) for part in split(ordered, self.batch_size)]
        return batches


def split(items: Sequence[Item], most: int) -> list[Sequence[Item]]:
    """Consecutive parts of nearly equal size, none above `most`: 7 by 3 gives 2, 2, 3."""
    num_parts = -(-len(items) // most)
    bounds = [len(items) * part // max(num_parts, 1) for part in range(num_parts + 1)]
    return [items[a:b] for a, b in pairwise(bounds)]

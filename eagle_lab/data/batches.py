"""Batches: which conversations a capture answers together, and which a training learns from.

A capture takes its prompts in windows of eight batches. Inside a window those with equally many
turns and the same sampling distribution are sorted by length and split evenly, so little is padded;
the window's batches then come in random order, so that a capture that stops early is no selection
of short prompts.

A training batch is several whole documents (conversations) laid end to end, with no padding: every
matrix product of the drafter sees one long row of tokens, and only attention needs to know where a
document ends. Shapes: T tokens of a document, P tokens of a batch, F feature width.

    tokens      a0 a1 a2 a3 | b0 b1 b2
    positions    0  1  2  3 |  0  1  2
    document     0  0  0  0 |  1  1  1

Orders are pure functions of their inputs. Knows nothing of stores, drafters or losses.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, pairwise
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor
from torch.utils.data import Sampler

WINDOW = 8
Item = TypeVar("Item")


@dataclass(frozen=True)
class Batch(Generic[Item]):
    """Conversations answered together, all with the same sampling distribution."""

    items: tuple[Item, ...]
    sampled: bool = False


def plan_batches(
    items: Iterable[Item],
    place: Callable[[Item], tuple[bool, int, int] | None],
    batch_size: int,
    seed: int,
    first_window: int = WINDOW,
) -> Iterator[Batch[Item]]:
    """Batches of `items`, as the module's header says.

    Args:
        items: in order; an endless iterable is fine if the caller stops.
        place: whether an item is answered by sampling, its number of turns and its length in
            tokens; None leaves it out.
        batch_size: most items of a batch.
        seed: of the order of batches within a window.
        first_window: batches of the first window, for items that take time to come by; each
            later one has twice as many, up to `WINDOW`.
    """
    source, shuffle = iter(items), random.Random(seed)
    num_batches = first_window
    while window := list(islice(source, num_batches * batch_size)):
        groups: dict[tuple[bool, int], list[tuple[int, int]]] = {}
        for number, item in enumerate(window):
            if (found := place(item)) is not None:
                sampled, num_turns, length = found
                groups.setdefault((sampled, num_turns), []).append((length, number))
        batches = [
            Batch(tuple(window[number] for _, number in part), sampled)
            for (sampled, _), group in sorted(groups.items())
            for part in split(sorted(group), batch_size)
        ]
        shuffle.shuffle(batches)
        yield from batches
        num_batches = min(2 * num_batches, WINDOW)


def split(items: Sequence[Item], most: int) -> list[Sequence[Item]]:
    """Consecutive parts of nearly equal size, none above `most`: 7 by 3 gives 2, 2, 3."""
    num_parts = -(-len(items) // most)
    bounds = [len(items) * part // max(num_parts, 1) for part in range(num_parts + 1)]
    return [items[a:b] for a, b in pairwise(bounds)]


@dataclass
class Document:
    """One conversation, cut to the longest allowed length.

    Attributes:
        tokens: ids, int64 [T].
        supervised: whether a token was written by the assistant, bool [T].
        features: the target's at each token, by name, float32 [T, F]; the last token of a stored
            conversation never went through the target and has zeros, which no row reads.
    """

    tokens: Tensor
    supervised: Tensor
    features: dict[str, Tensor]


@dataclass
class PackedBatch:
    """Documents end to end; see the module's drawing.

    Attributes:
        tokens, supervised: [P] as in `Document`.
        features: by name, float32 [P, F].
        positions: index within the document [P].
        document: which document a token belongs to [P].
        lengths: tokens of each document.
    """

    tokens: Tensor
    supervised: Tensor
    features: dict[str, Tensor]
    positions: Tensor
    document: Tensor
    lengths: list[int]

    def to(self, device: torch.device | str, non_blocking: bool = False) -> PackedBatch:
        """The batch on another device."""

        def moved(tensor: Tensor) -> Tensor:
            return tensor.to(device, non_blocking=non_blocking)

        return PackedBatch(
            tokens=moved(self.tokens),
            supervised=moved(self.supervised),
            features={name: moved(one) for name, one in self.features.items()},
            positions=moved(self.positions),
            document=moved(self.document),
            lengths=self.lengths,
        )


def pack(documents: Sequence[Document]) -> PackedBatch:
    """Lay documents end to end."""
    lengths = [len(document.tokens) for document in documents]
    return PackedBatch(
        tokens=torch.cat([document.tokens for document in documents]),
        supervised=torch.cat([document.supervised for document in documents]),
        features={
            name: torch.cat([document.features[name] for document in documents])
            for name in documents[0].features
        },
        positions=torch.cat([torch.arange(length) for length in lengths]),
        document=torch.repeat_interleave(torch.tensor(lengths)),
        lengths=lengths,
    )


class PackedBatchSampler(Sampler[list[int]]):
    """Batches of about `batch_tokens` tokens: the same number in every epoch, reshuffled in each.

    The documents of an epoch, in random order, are cut at equal shares of the tokens, so a batch
    exceeds its share by at most one document. The order is a function of (seed, epoch)
    alone; `state_dict` says where in which epoch the next batch lies.
    """

    def __init__(
        self, lengths: Sequence[int], *, batch_tokens: int, seed: int, shuffle: bool
    ) -> None:
        self.lengths = torch.tensor(list(lengths), dtype=torch.float64)
        wanted = max(1, round(float(self.lengths.sum()) / batch_tokens))
        self.num_batches = min(wanted, len(self.lengths))
        self.seed, self.shuffle = seed, shuffle
        self.epoch, self.next_batch = 0, 0

    def __len__(self) -> int:
        return self.num_batches

    def __iter__(self) -> Iterator[list[int]]:
        if self.next_batch >= self.num_batches:  # the epoch before was read to its end
            self.epoch, self.next_batch = self.epoch + 1, 0
        for batch in self.batches_of(self.epoch)[self.next_batch :]:
            self.next_batch += 1
            yield batch

    def batches_of(self, epoch: int) -> list[list[int]]:
        """The batches of one epoch, none of them empty."""
        order = torch.arange(len(self.lengths))
        if self.shuffle:
            generator = torch.Generator().manual_seed(self.seed * 1_000_003 + epoch)
            order = torch.randperm(len(self.lengths), generator=generator)
        ends = self.lengths[order].cumsum(0)
        middles = (ends - self.lengths[order] / 2) / ends[-1]
        shares = (middles * self.num_batches).long().clamp_(max=self.num_batches - 1).tolist()
        shares = _without_gaps(shares, self.num_batches)
        batches: list[list[int]] = [[] for _ in range(self.num_batches)]
        for item, share in zip(order.tolist(), shares, strict=True):
            batches[share].append(item)
        return batches

    def state_dict(self) -> dict[str, Any]:
        """Epoch and next batch."""
        return {"epoch": self.epoch, "next_batch": self.next_batch}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a saved state."""
        self.epoch, self.next_batch = state["epoch"], state["next_batch"]


def _without_gaps(shares: list[int], num_batches: int) -> list[int]:
    """Non-decreasing batch numbers, moved as little as needed so that each number occurs."""
    fixed: list[int] = []
    for item, share in enumerate(shares):
        items_left = len(shares) - item
        lowest = num_batches - items_left  # each later batch needs an item
        highest = fixed[-1] + 1 if fixed else 0
        fixed.append(min(max(share, lowest), highest))
    return fixed

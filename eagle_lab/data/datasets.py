"""Conversations of a feature store: how they are split, and as documents to train on.

Knows nothing of drafters or losses. A store is anything with `len()`, `lengths()` and `[i]` that
yields `tokens` [T], `supervised` [T], `features` [T - 1, F] and `conversation_id`.
"""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
from collections.abc import Hashable, Sequence
from typing import Any, Protocol

import torch
from torch.utils.data import Dataset

from eagle_lab.data.packing import Document
from eagle_lab.errors import UserError


class Store(Protocol):
    """A feature store as far as training needs it; `eagle_lab.data.store.FeatureStore` is one."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> Any:
        """A conversation: tokens [T], supervised [T], features [T - 1, F], conversation_id."""

    def lengths(self) -> list[int]:
        """T of every conversation."""


def split_conversations(
    conversation_ids: Sequence[Hashable], *, val_fraction: float, seed: int
) -> tuple[list[int], list[int]]:
    """Indices for training and for validation; sequences of one conversation stay together.

    Conversations are ranked by a hash of seed and id, so the split does not depend on their
    order, and a store that grows moves few conversations across.

    Raises:
        UserError: fewer than two conversations, or a fraction outside (0, 1).
    """
    if not 0 < val_fraction < 1:
        raise UserError(f"val_fraction={val_fraction}; allowed: above 0 and below 1")
    unique = sorted(set(conversation_ids), key=lambda name: _rank(name, seed))
    if len(unique) < 2:
        raise UserError(
            f"{len(unique)} usable conversation(s): training needs at least two, one of them to "
            "validate on"
        )
    num_val = min(max(round(val_fraction * len(unique)), 1), len(unique) - 1)
    held_out = set(unique[:num_val])
    train = [i for i, name in enumerate(conversation_ids) if name not in held_out]
    val = [i for i, name in enumerate(conversation_ids) if name in held_out]
    return train, val


def nested_share(
    indices: Sequence[int],
    conversation_ids: Sequence[Hashable],
    lengths: Sequence[int],
    *,
    max_tokens: int | None,
    seed: int,
) -> list[int]:
    """Those of `indices` that make a random share of at most `max_tokens` tokens, at least one.

    Conversations come in the order of the same hash as in `split_conversations`, whatever store
    they lie in: a share is spread over all stores, and a larger one holds every smaller one.

    Args:
        indices: ascending.
        conversation_ids: of each of `indices`.
        lengths: tokens of each of `indices`.
        max_tokens: None takes all.
    """
    if max_tokens is None:
        return list(indices)
    order = sorted(range(len(indices)), key=lambda i: (_rank(conversation_ids[i], seed), i))
    totals = itertools.accumulate(lengths[i] for i in order)
    num_kept = sum(1 for total in totals if total <= max_tokens)
    return sorted(indices[i] for i in order[: max(num_kept, 1)])


class WithWholeTexts:
    """A store in some of whose conversations every token is supervised.

    Args:
        store: with the masks as they were captured.
        indices: of those conversations.
    """

    def __init__(self, store: Store, indices: Sequence[int]) -> None:
        self.store, self.indices = store, frozenset(indices)

    def __len__(self) -> int:
        return len(self.store)

    def lengths(self) -> list[int]:
        """T of every conversation."""
        return self.store.lengths()

    def __getitem__(self, index: int) -> Any:
        """A conversation, see `Store`."""
        stored = self.store[index]
        if index not in self.indices:
            return stored
        return dataclasses.replace(stored, supervised=torch.ones_like(stored.supervised))


class DocumentDataset(Dataset[Document]):
    """Some conversations of a store, as int64 tokens and float32 features.

    Args:
        indices: which of the store's conversations.
        max_length: longer ones are cut to their first `max_length` tokens.
    """

    def __init__(
        self,
        store: Store,
        indices: Sequence[int],
        *,
        max_length: int,
    ) -> None:
        self.store, self.indices = store, list(indices)
        stored = store.lengths()
        self.lengths = [min(stored[i], max_length) for i in self.indices]

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, item: int) -> Document:
        index, length = self.indices[item], self.lengths[item]
        stored = self.store[index]
        features = torch.zeros(length, stored.features.shape[1])
        num_features = min(length, len(stored.features))
        features[:num_features] = stored.features[:num_features]
        return Document(
            tokens=stored.tokens[:length].long(),
            supervised=stored.supervised[:length].bool(),
            features=features,
        )


def _rank(name: Hashable, seed: int) -> str:
    return hashlib.sha256(f"{seed}:{name}".encode()).hexdigest()

"""Training and validation data of a drafter, from a feature store.

Reads the store's masks once: conversations without a token to learn from are skipped and counted,
longer ones are cut and counted, and the rest is split by conversation. Batches are packed (see
packing.py); the training loader resumes in the middle of an epoch.

Conversations of a feature store: how they are split, and as documents to train on.

Knows nothing of drafters or losses. A store is anything with `len()`, `lengths()` and `[i]` that
yields `tokens` [T], `supervised` [T], `features` (by name, [T - 1, F]) and `conversation_id`.
"""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import logging
import warnings
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from lightning.pytorch import LightningDataModule
from torch import Tensor
from torch.utils.data import DataLoader, Dataset
from torchdata.stateful_dataloader import StatefulDataLoader

from eagle_lab.data.batches import Document, PackedBatchSampler, pack
from eagle_lab.errors import UserError
from eagle_lab.targets.features import TOP
from eagle_lab.training.settings import ALL, DataSettings


@dataclass(frozen=True)
class DataCounts:
    """What became of the store's conversations; tokens and labels are of those in use."""

    num_conversations: int
    num_skipped: int
    num_cut: int
    num_train: int
    num_val: int
    num_train_tokens: int
    num_train_labels: int
    num_val_tokens: int

    def __str__(self) -> str:
        return (
            f"{self.num_conversations} conversations: {self.num_train} to train on "
            f"({self.num_train_tokens} tokens, {self.num_train_labels} of them labels), "
            f"{self.num_val} to validate on ({self.num_val_tokens} tokens), "
            f"{self.num_skipped} skipped without a label, {self.num_cut} cut to max_length"
        )


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
        features = {}
        for name, kept in stored.features.items():
            features[name] = torch.zeros(length, kept.shape[1])
            features[name][: len(kept)] = kept[:length]
        return Document(
            tokens=stored.tokens[:length].long(),
            supervised=stored.supervised[:length].bool(),
            features=features,
        )


def _rank(name: Hashable, seed: int) -> str:
    return hashlib.sha256(f"{seed}:{name}".encode()).hexdigest()


FIRST_LABEL = 2  # row 0 drafts token 2: a supervised token before that is no label
log = logging.getLogger(__name__)


class DrafterDataModule(LightningDataModule):
    """Packed batches of a store.

    Attributes:
        store: as it was captured.
        documents: the same with the masks that `settings.supervise` asks for.

    Raises:
        UserError: no conversation has a label (an all-zero mask), or fewer than two have.
    """

    def __init__(self, store: Store, settings: DataSettings) -> None:
        super().__init__()
        self.store, self.settings = store, settings
        self.documents: Store = store
        self._token_counts: dict[int, Tensor] = {}
        self.train_indices: list[int] = []
        self.val_indices: list[int] = []
        self.counts = self._read()
        log.info("%s", self.counts)

    def _read(self) -> DataCounts:
        usable, ids, num_labels, num_cut = [], [], {}, 0
        lengths = [min(length, self.settings.max_length) for length in self.store.lengths()]
        for index, length in enumerate(lengths):
            stored = self.store[index]
            num_cut += len(stored.tokens) > length
            supervised = stored.supervised[:length].bool()
            num_labels[index] = int(supervised[FIRST_LABEL:].sum())
            if num_labels[index]:
                usable.append(index)
                ids.append(stored.conversation_id)
                self._token_counts[index] = stored.tokens[:length][supervised].long()
        if not usable:
            raise UserError(
                f"none of the store's {len(self.store)} conversations has an assistant token to "
                "learn from (the supervision mask is all zero): check the chat template"
            )
        train, val = split_conversations(
            ids, val_fraction=self.settings.val_fraction, seed=self.settings.seed
        )
        self.train_indices = nested_share(
            [usable[i] for i in train],
            [ids[i] for i in train],
            [lengths[usable[i]] for i in train],
            max_tokens=self.settings.max_tokens,
            seed=self.settings.seed,
        )
        self.val_indices = [usable[i] for i in val]
        if self.settings.supervise == ALL:
            self.documents = WithWholeTexts(self.store, self.train_indices)
            num_labels |= {i: lengths[i] - FIRST_LABEL for i in self.train_indices}
        return DataCounts(
            num_conversations=len(self.store),
            num_skipped=len(self.store) - len(usable),
            num_cut=num_cut,
            num_train=len(self.train_indices),
            num_val=len(self.val_indices),
            num_train_tokens=sum(lengths[i] for i in self.train_indices),
            num_train_labels=sum(num_labels[i] for i in self.train_indices),
            num_val_tokens=sum(lengths[i] for i in self.val_indices),
        )

    def token_counts(self, vocab_size: int) -> Tensor:
        """Occurrences of each token among the assistant's, training conversations only [V]."""
        counts = torch.zeros(vocab_size, dtype=torch.long)
        for index in self.train_indices:
            counts += torch.bincount(self._token_counts[index], minlength=vocab_size)
        return counts

    def train_batches(self) -> DataLoader[Any]:
        """One pass over the training documents in store order: for closed-form starts."""
        return self._in_order(self.train_indices)

    @property
    def num_train_batches(self) -> int:
        """Batches of an epoch."""
        return len(self._train_sampler())

    def _train_sampler(self) -> PackedBatchSampler:
        return PackedBatchSampler(
            self._dataset(self.train_indices).lengths,
            batch_tokens=self.settings.batch_tokens,
            seed=self.settings.seed,
            shuffle=True,
        )

    def train_dataloader(self) -> StatefulDataLoader:
        """Shuffled batches; its state says which comes next."""
        dataset, sampler = self._dataset(self.train_indices), self._train_sampler()
        with warnings.catch_warnings():
            # torchdata calls a function of torch that torch has deprecated
            warnings.filterwarnings("ignore", message="'set_vital' is deprecated")
            return StatefulDataLoader(dataset, batch_sampler=sampler, collate_fn=pack)

    def val_dataloader(self) -> DataLoader[Any]:
        """Held-out documents, the same batches every time."""
        return self._in_order(self.val_indices)

    def _in_order(self, indices: list[int]) -> DataLoader[Any]:
        dataset = self._dataset(indices)
        sampler = PackedBatchSampler(
            dataset.lengths, batch_tokens=self.settings.batch_tokens, seed=0, shuffle=False
        )
        batches = sampler.batches_of(0)
        return DataLoader(dataset, batch_sampler=batches, collate_fn=pack)

    def _dataset(self, indices: list[int]) -> DocumentDataset:
        return DocumentDataset(self.documents, indices, max_length=self.settings.max_length)


def check_store(store: Any, target: Any, names: Sequence[str] = (TOP,)) -> None:
    """Refuse a store that was not captured from this target, or lacks a feature of `names`.

    Raises:
        UserError: names both fingerprints, or the features that are missing.
    """
    captured_from = store.fingerprint.parts["target"]
    if captured_from != target.fingerprint:
        raise UserError(
            f"feature store {store.folder} was captured from a target with fingerprint "
            f"{captured_from}; '{target.name}' has {target.fingerprint}: capture again with this "
            "target, or train with the one it came from"
        )
    missing = sorted(set(names) - set(store.feature_widths))
    if missing:
        raise UserError(
            f"feature store {store.folder} holds the features {', '.join(store.feature_widths)}; "
            f"this drafter reads {', '.join(missing)}, too: capture with "
            f"data.features=[{','.join(names)}]"
        )

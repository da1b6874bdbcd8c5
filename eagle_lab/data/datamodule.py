"""Training and validation data of a drafter, from a feature store.

Reads the store's masks once: conversations without a token to learn from are skipped and counted,
longer ones are cut and counted, and the rest is split by conversation. Batches are packed (see
batches.py); the training loader resumes in the middle of an epoch.

Knows nothing of drafters or losses.
"""

from __future__ import annotations

import hashlib
import itertools
import logging
import warnings
from collections.abc import Hashable, Iterable, Sequence
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

FIRST_LABEL = 2  # row 0 drafts token 2: a supervised token before that is no label
log = logging.getLogger(__name__)


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
        """A conversation: tokens [T], supervised [T], features by name [T - 1, F], its id."""

    def lengths(self) -> list[int]:
        """T of every conversation."""


def _rank(name: Hashable, seed: int) -> str:
    return hashlib.sha256(f"{seed}:{name}".encode()).hexdigest()


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


class DocumentDataset(Dataset[Document]):
    """Some conversations of a store, as int64 tokens and float32 features.

    Args:
        store: where they lie.
        indices: of those conversations.
        max_length: longer ones are cut to this many tokens.
        whole: supervise every token, not the assistant's alone.
    """

    def __init__(
        self, store: Store, indices: Sequence[int], *, max_length: int, whole: bool = False
    ) -> None:
        self.store, self.indices, self.whole = store, list(indices), whole
        lengths = store.lengths()
        self.lengths = [min(lengths[index], max_length) for index in self.indices]

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, item: int) -> Document:
        index, length = self.indices[item], self.lengths[item]
        stored = self.store[index]
        supervised = stored.supervised[:length].bool()
        features = {}
        for name, kept in stored.features.items():
            features[name] = torch.zeros(length, kept.shape[1])
            features[name][: len(kept)] = kept[:length]
        return Document(
            tokens=stored.tokens[:length].long(),
            supervised=torch.ones_like(supervised) if self.whole else supervised,
            features=features,
        )


class DrafterDataModule(LightningDataModule):
    """Packed batches of a store.

    Attributes:
        store: as it was captured.
        counts: what became of its conversations.
        train_indices: of the conversations to train on.
        val_indices: of those that are held out.

    Raises:
        UserError: no conversation has a label (an all-zero mask), or fewer than two have.
    """

    def __init__(self, store: Store, settings: DataSettings) -> None:
        super().__init__()
        self.store, self.settings = store, settings
        self._token_counts: dict[int, Tensor] = {}
        self.counts = self._read()
        log.info("%s", self.counts)

    def _read(self) -> DataCounts:
        settings = self.settings
        lengths = [min(length, settings.max_length) for length in self.store.lengths()]
        ids: dict[int, str] = {}  # of the conversations with a label
        num_labels, num_cut = {}, 0
        for index, length in enumerate(lengths):
            stored = self.store[index]
            num_cut += len(stored.tokens) > length
            supervised = stored.supervised[:length].bool()
            if supervised[FIRST_LABEL:].any():
                ids[index] = stored.conversation_id
                num_labels[index] = int(supervised[FIRST_LABEL:].sum())
                self._token_counts[index] = stored.tokens[:length][supervised].long()
        if not ids:
            raise UserError(
                f"none of the store's {len(lengths)} conversations has an assistant token to "
                "learn from (the supervision mask is all zero): check the chat template"
            )
        usable = list(ids)
        train, val = split_conversations(
            list(ids.values()), val_fraction=settings.val_fraction, seed=settings.seed
        )
        train, self.val_indices = [usable[i] for i in train], [usable[i] for i in val]
        self.train_indices = nested_share(
            train,
            [ids[i] for i in train],
            [lengths[i] for i in train],
            max_tokens=settings.max_tokens,
            seed=settings.seed,
        )
        if settings.supervise == ALL:
            num_labels |= {i: lengths[i] - FIRST_LABEL for i in self.train_indices}
        return DataCounts(
            num_conversations=len(lengths),
            num_skipped=len(lengths) - len(usable),
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

    @property
    def num_train_batches(self) -> int:
        """Batches of an epoch."""
        return len(self._sampler(self._train_documents(), shuffle=True))

    def train_dataloader(self) -> StatefulDataLoader:
        """Shuffled batches; its state says which comes next."""
        documents = self._train_documents()
        sampler = self._sampler(documents, shuffle=True)
        with warnings.catch_warnings():
            # torchdata calls a function of torch that torch has deprecated
            warnings.filterwarnings("ignore", message="'set_vital' is deprecated")
            return StatefulDataLoader(documents, batch_sampler=sampler, collate_fn=pack)

    def train_batches(self) -> DataLoader[Any]:
        """One pass over the training documents in store order: for closed-form starts."""
        return self._in_order(self._train_documents())

    def val_dataloader(self) -> DataLoader[Any]:
        """Held-out documents, the same batches every time; what they supervise are answers."""
        return self._in_order(self._documents(self.val_indices))

    def _train_documents(self) -> DocumentDataset:
        return self._documents(self.train_indices, whole=self.settings.supervise == ALL)

    def _documents(self, indices: list[int], whole: bool = False) -> DocumentDataset:
        max_length = self.settings.max_length
        return DocumentDataset(self.store, indices, max_length=max_length, whole=whole)

    def _sampler(self, documents: DocumentDataset, shuffle: bool) -> PackedBatchSampler:
        size, seed = self.settings.batch_tokens, self.settings.seed
        return PackedBatchSampler(documents.lengths, batch_tokens=size, seed=seed, shuffle=shuffle)

    def _in_order(self, documents: DocumentDataset) -> DataLoader[Any]:
        batches = self._sampler(documents, shuffle=False).batches_of(0)
        return DataLoader(documents, batch_sampler=batches, collate_fn=pack)


def check_store(store: Any, target: Any, names: Iterable[str] = (TOP,)) -> None:
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
    wanted, there = dict.fromkeys(names), store.feature_widths
    if missing := [name for name in wanted if name not in there]:
        raise UserError(
            f"feature store {store.folder} holds the features {', '.join(there)}; this drafter "
            f"reads {', '.join(missing)}, too: capture with data.features=[{','.join(wanted)}]"
        )

"""Training and validation data of a drafter, from a feature store.

Reads the store's masks once: conversations without a token to learn from are skipped and counted,
longer ones are cut and counted, and the rest is split by conversation. Batches are packed (see
packing.py); the training loader resumes in the middle of an epoch.
"""

from __future__ import annotations

import logging
import warnings
from typing import Any

import torch
from lightning.pytorch import LightningDataModule
from torch import Tensor
from torch.utils.data import DataLoader
from torchdata.stateful_dataloader import StatefulDataLoader

from eagle_lab.data.data_settings import ALL, DataCounts, DataSettings
from eagle_lab.data.datasets import (
    DocumentDataset,
    Store,
    WithWholeTexts,
    nested_share,
    split_conversations,
)
from eagle_lab.data.packing import PackedBatchSampler, pack
from eagle_lab.errors import UserError

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


def check_store(store: Any, target: Any) -> None:
    """Refuse a store that was not captured from this target, or not in the form EAGLE-1 takes.

    Raises:
        UserError: names both fingerprints, or both feature widths.
    """
    captured_from = store.fingerprint.parts["target"]
    if captured_from != target.fingerprint:
        raise UserError(
            f"feature store {store.folder} was captured from a target with fingerprint "
            f"{captured_from}; '{target.name}' has {target.fingerprint}: capture again with this "
            "target, or train with the one it came from"
        )
    if store.feature_width != target.hidden_size:
        layers = store.fingerprint.parts.get("layers")
        raise UserError(
            f"feature store {store.folder} holds features {store.feature_width} wide (layers "
            f"{layers}); an eagle1 drafter takes the target's top feature, {target.hidden_size} "
            "wide: capture with target.feature_layers=null"
        )

"""Conversations with made-up features, for a target of 16 hidden units and 12 tokens."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from eagle_lab.data.batches import Document, PackedBatch, pack
from eagle_lab.data.datamodule import DataSettings, DrafterDataModule
from eagle_lab.drafters.eagle1.network import Eagle1, Eagle1Config
from tests.drafters.fakes import FakeTarget

HIDDEN, VOCAB = 16, 12


@dataclass
class FakeConversation:
    tokens: Tensor
    supervised: Tensor
    features: Tensor
    conversation_id: str


class FakeStore:
    """Each conversation's first third is the user's; features come from a fixed random walk."""

    folder = Path("fake-store")
    feature_width = HIDDEN

    def __init__(self, lengths: list[int], *, seed: int = 0, target: str = "fake-0") -> None:
        generator = torch.Generator().manual_seed(seed)
        self.conversations = [
            FakeConversation(
                tokens=torch.randint(0, VOCAB, (length,), generator=generator),
                supervised=torch.arange(length) >= length // 3,
                features=torch.randn(length - 1, HIDDEN, generator=generator),
                conversation_id=f"c{number}",
            )
            for number, length in enumerate(lengths)
        ]
        self.fingerprint = SimpleNamespace(parts={"target": target, "layers": None})

    def __len__(self) -> int:
        return len(self.conversations)

    def __getitem__(self, index: int) -> FakeConversation:
        return self.conversations[index]

    def lengths(self) -> list[int]:
        return [len(one.tokens) for one in self.conversations]


def documents(lengths: list[int], seed: int = 0) -> list[Document]:
    """Documents with a feature at every token but the last."""
    generator = torch.Generator().manual_seed(seed)
    return [
        Document(
            tokens=torch.randint(0, VOCAB, (length,), generator=generator),
            supervised=torch.rand(length, generator=generator) < 0.7,
            features=torch.randn(length, HIDDEN, generator=generator),
        )
        for length in lengths
    ]


def batch_of(lengths: list[int], seed: int = 0) -> PackedBatch:
    return pack(documents(lengths, seed))


def new_drafter(
    target: FakeTarget | None = None,
    kept: list[int] | None = None,
    *,
    seed: int = 0,
    **switches: Any,
) -> Eagle1:
    """A drafter whose random layer matters: weights large enough to change every output."""
    target = target or FakeTarget()
    config = Eagle1Config.from_target(
        target, draft_vocab_size=None if kept is None else len(kept), **switches
    )
    torch.manual_seed(seed)
    drafter = Eagle1(config, None if kept is None else torch.tensor(kept))
    for parameter in drafter.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    drafter.attach(target)
    return drafter


def fake_data(lengths: list[int], *, batch_tokens: int = 20, seed: int = 0) -> DrafterDataModule:
    settings = DataSettings(
        batch_tokens=batch_tokens, max_length=100, val_fraction=0.2, max_tokens=None, seed=0
    )
    return DrafterDataModule(FakeStore(lengths, seed=seed), settings)

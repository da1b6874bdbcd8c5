"""Conversations with made-up features, for a target of 16 hidden units and 12 tokens."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import torch
from torch import Tensor

from eagle_lab.data.batches import Document, PackedBatch, pack
from eagle_lab.data.datamodule import DrafterDataModule
from eagle_lab.drafters.eagle1.network import Eagle1
from eagle_lab.training.settings import TrainerSettings
from tests.drafters.fakes import FakeTarget, eagle1

HIDDEN, VOCAB = 16, 12


@dataclass
class FakeConversation:
    tokens: Tensor
    supervised: Tensor
    features: dict[str, Tensor]
    conversation_id: str


class FakeStore:
    """Each conversation's first third is the user's; features come from a fixed random walk."""

    folder = Path("fake-store")
    feature_widths: ClassVar = {"top": HIDDEN}

    def __init__(self, lengths: list[int], *, seed: int = 0, target: str = "fake-0") -> None:
        generator = torch.Generator().manual_seed(seed)
        self.conversations = [
            FakeConversation(
                tokens=torch.randint(0, VOCAB, (length,), generator=generator),
                supervised=torch.arange(length) >= length // 3,
                features={"top": torch.randn(length - 1, HIDDEN, generator=generator)},
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
            features={"top": torch.randn(length, HIDDEN, generator=generator)},
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
    ids = None if kept is None else torch.tensor(kept)
    drafter = eagle1(target or FakeTarget(), ids, **switches)
    torch.manual_seed(seed)
    for parameter in drafter.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return drafter.train()


def fake_data(lengths: list[int], *, batch_tokens: int = 20, seed: int = 0) -> DrafterDataModule:
    settings = trainer(batch_tokens=batch_tokens)
    return DrafterDataModule(FakeStore(lengths, seed=seed), settings)


def trainer(**changes: Any) -> TrainerSettings:
    """Settings of a small training: batches of 30 tokens, two epochs, a row for every step."""
    small: dict[str, Any] = {
        "batch_tokens": 30, "max_length": 100, "val_fraction": 0.2, "max_tokens": None,
        "supervise": "answers", "ttt_steps": 1, "step_decay": 0.8, "feature_weight": 1.0,
        "token_weight": 0.1, "noise": 0.0, "learning_rate": 1e-2, "warmup_steps": 3,
        "schedule": "cosine", "final_learning_rate": 0.0, "beta1": 0.9, "beta2": 0.95,
        "weight_decay": 0.0, "val_depth": 3, "seed": 0, "max_epochs": 2, "max_minutes": None,
        "accumulate": 1, "clip_norm": 0.5, "precision": "float32", "val_every_steps": None,
        "log_every_steps": 1, "checkpoint_minutes": 5.0, "init_from": None,
        "least_squares_start": False, "save_precision": "float32",
    }  # fmt: skip
    return TrainerSettings(**{**small, **changes})

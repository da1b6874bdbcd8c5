"""Where a drafter's weights begin: fresh, as the best linear predictor, or from a trained one."""

from __future__ import annotations

import logging
import time
from pathlib import Path
from typing import Any

import torch

from eagle_lab.data.datamodule import DrafterDataModule
from eagle_lab.drafters.checkpoint import load_drafter
from eagle_lab.drafters.eagle1 import Eagle1, Eagle1Config
from eagle_lab.drafters.vocabulary import most_frequent
from eagle_lab.training.least_squares import least_squares_start

log = logging.getLogger(__name__)


def new_drafter(
    target: Any,
    data: DrafterDataModule,
    *,
    draft_vocab_size: int | None,
    seed: int,
    **switches: Any,
) -> Eagle1:
    """A drafter with random weights; a reduced vocabulary holds the training answers' commonest.

    Args:
        switches: see `Eagle1Config.from_target`.
    """
    config = Eagle1Config.from_target(target, draft_vocab_size=draft_vocab_size, **switches)
    kept = None
    if config.draft_vocab_size is not None:
        counts = data.token_counts(target.vocab_size)
        kept = most_frequent(counts, config.draft_vocab_size)
        covered = float(counts[kept].sum() / counts.sum())
        log.info("draft vocabulary of %d covers %.1f %% of the answers", len(kept), 100 * covered)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        drafter = Eagle1(config, kept)
    return _ready(drafter, target)


def trained_drafter(target: Any, folder: str | Path) -> Eagle1:
    """A trained drafter to go on with: its own switches, its own vocabulary, float32 weights."""
    drafter, _ = load_drafter(folder, target, dtype=torch.float32)
    log.info("starting from the drafter in %s", folder)
    return _ready(drafter, target)


def start_as_linear_predictor(drafter: Eagle1, data: DrafterDataModule) -> None:
    """The least-squares start over the training conversations."""
    start = time.perf_counter()
    explained = least_squares_start(drafter, data.train_batches())
    log.info(
        "least-squares start: %.1f %% of the next feature's variance explained, %.0f s",
        100 * explained, time.perf_counter() - start,
    )  # fmt: skip


def _ready(drafter: Eagle1, target: Any) -> Eagle1:
    drafter.to(target.device).train()
    drafter.attach(target)
    return drafter

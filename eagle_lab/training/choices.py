"""The target's greedy choice behind every stored feature, computed once.

With a reduced draft vocabulary a row counts for cross-entropy only if the target's best token of
its whole vocabulary can be drafted. That needs the full head over each supervised feature once,
not once per epoch; the answers are kept beside the checkpoints.
"""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from eagle_lab.data.datamodule import DrafterDataModule
from eagle_lab.data.datasets import Store
from eagle_lab.data.packing import UNKNOWN_CHOICE

CHUNK = 256  # rows whose [CHUNK, V] logits exist at one time
FILE = "target_choices.safetensors"
log = logging.getLogger(__name__)


@torch.no_grad()
def greedy_choices(store: Store, indices: Sequence[int], target: Any) -> dict[int, Tensor]:
    """Choice for the token after each position, int32 [T] per store index.

    Only positions whose next token is supervised are computed; the others hold UNKNOWN_CHOICE.
    """
    start, num_rows, choices = time.perf_counter(), 0, {}
    for index in indices:
        stored = store[index]
        rows = stored.supervised[1:].bool().nonzero()[:, 0]
        chosen = torch.full((len(stored.tokens),), UNKNOWN_CHOICE, dtype=torch.int32)
        for some in rows.split(CHUNK):
            features = stored.features[some].to(target.device)
            chosen[some] = target.head(features).argmax(-1).to("cpu", torch.int32)
        choices[index] = chosen
        num_rows += len(rows)
    log.info("the target's choices at %d labels: %.0f s", num_rows, time.perf_counter() - start)
    return choices


def cached_choices(data: DrafterDataModule, target: Any, folder: Path) -> dict[int, Tensor]:
    """`greedy_choices` of all of `data`, read from `folder` if they were computed there before."""
    store: Any = data.store
    indices = data.train_indices + data.val_indices
    labels = (data.settings.supervise, *indices)
    path, key = folder / FILE, {"store": store.digest, "conversations": _digest(labels)}
    try:
        with safe_open(path, framework="pt") as file:
            if file.metadata() == key:
                flat = file.get_tensor("choices").split(file.get_tensor("lengths").tolist())
                return dict(zip(indices, flat, strict=True))
    except (SafetensorError, OSError):
        pass  # not there, or torn: compute them
    choices = greedy_choices(data.documents, indices, target)
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {
        "choices": torch.cat([choices[index] for index in indices]),
        "lengths": torch.tensor([len(choices[index]) for index in indices]),
    }
    partial = path.with_name(path.name + ".partial")
    save_file(tensors, partial, metadata=key)
    partial.replace(path)
    return choices


def _digest(values: Sequence[Any]) -> str:
    return hashlib.sha256(repr(values).encode()).hexdigest()[:16]

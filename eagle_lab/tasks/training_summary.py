"""What a training tells of itself: summary.json, and `training` in the drafter's config.json.

It is what model cards are made of, and a drafter may be published, so paths that leave the working
folder are shortened and the host is left out.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import torch
from omegaconf import DictConfig, OmegaConf

from eagle_lab.data.datamodule import DrafterDataModule
from eagle_lab.data.joined_store import JoinedStore
from eagle_lab.data.store import FeatureStore
from eagle_lab.drafters.checkpoint import read_config
from eagle_lab.drafters.eagle1 import Eagle1
from eagle_lab.drafters.shipped import drafter_folder
from eagle_lab.models.target import Target
from eagle_lab.reports.claim_provenance import publishable, without_paths
from eagle_lab.training.fit import FitResult

# Hub id and licence of targets that go by a name of ours
_HUB = {"smollm2_135m": ("HuggingFaceTB/SmolLM2-135M-Instruct", "apache-2.0")}
_NOT_OURS = ("status", "end", "target", "target_fingerprint")  # said elsewhere, or not known yet


def summarise(
    config: DictConfig, data: DrafterDataModule, result: FitResult, provenance: dict[str, Any]
) -> dict[str, Any]:
    """Result, data, recipe and origin of one run."""
    store = data.store
    assert isinstance(store, JoinedStore)
    kept = publishable(provenance)
    summary: dict[str, Any] = without_paths(
        {
            "validation": result.best_row,
            "num_steps": result.num_steps,
            "minutes": result.minutes,
            "data": {
                **dataclasses.asdict(data.counts),
                "store_digest": store.digest,
                "sources": [source_of(one) for one in store.stores],
            },
            "recipe": OmegaConf.to_container(config.trainer, resolve=True),
            "seed": config.seed,
            "torch": torch.__version__,
            "provenance": {key: value for key, value in kept.items() if key not in _NOT_OURS},
        }
    )
    return summary


def source_of(store: FeatureStore) -> dict[str, Any]:
    """Where a store's conversations came from, and how many they are."""
    parts, names = store.fingerprint.parts, ("num_conversations", "num_tokens", "num_supervised")
    computed = (parts.get("dtype") or {}).get("computed")
    counts = {name: store.index[name] for name in names}
    return {**(parts.get("data") or {}), **counts, "computed_in": computed}


def origin_of(config: DictConfig, target: Target) -> dict[str, Any]:
    """How the weights began, with the whole training of a drafter that they go on from.

    `earlier_stages` are the summaries of the runs before this one, oldest first.
    """
    trainer, name = config.trainer, config.target.name
    hub_id, licence = _HUB.get(name, (_hub_id(name), None))
    facts = {"base_model": hub_id, "licence": licence}
    if trainer.init_from is None:
        start = "least squares" if trainer.least_squares_start else "random weights"
        return {**facts, "start": start}
    before = dict(read_config(drafter_folder(trainer.init_from, target))["training"])
    stages = [*before.pop("earlier_stages", []), before]
    return {**facts, "start": "the stage before", "earlier_stages": stages}


def vocabulary_facts(drafter: Eagle1, data: DrafterDataModule, vocab_size: int) -> dict[str, Any]:
    """Size of the draft vocabulary, and the share of the answers' tokens that it covers."""
    kept = drafter.draft_to_target
    if kept is None:
        return {}
    counts = data.token_counts(vocab_size)
    coverage = float(counts[kept.cpu()].sum() / counts.sum())
    return {"draft_vocabulary": {"size": len(kept), "coverage": coverage}}


def _hub_id(name: str) -> str | None:
    return name if name.count("/") == 1 and not Path(name).exists() else None

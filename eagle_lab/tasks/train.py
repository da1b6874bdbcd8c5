"""`+experiment=train` and `+experiment=train_draft`: a drafter or a draft model from a store.

Reads as: data, network, module, fit, save. In the run's folder: `drafter/` (the weights that
validated best, and their model card) or `draft_model/` (an ordinary Hugging Face folder),
`training_curve.csv` (every few steps), `summary.csv` (every validation), `summary.json`,
`checkpoints/`. Interrupted, the same command goes on where it stopped. How a kind of drafter is
trained is its recipe's business.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from omegaconf import DictConfig, OmegaConf

from eagle_lab.config import drafter_kind, settings_of
from eagle_lab.data.datamodule import DrafterDataModule, check_store
from eagle_lab.data.store import FeatureStore, JoinedStore
from eagle_lab.drafters.base import Drafter
from eagle_lab.drafters.card import write_card
from eagle_lab.drafters.checkpoint import recipe_of, save_drafter
from eagle_lab.drafters.folder import drafter_folder, read_config
from eagle_lab.errors import UserError
from eagle_lab.reports import make_report
from eagle_lab.reports.claims.measure import publishable, without_paths
from eagle_lab.runs.folder import RunFolder
from eagle_lab.runs.job import loggers_from, target_from
from eagle_lab.targets.load import DTYPES
from eagle_lab.targets.pruned import layer_pruned, save_model, spread_layers
from eagle_lab.targets.target import Target
from eagle_lab.training.base import TrainingModule
from eagle_lab.training.distillation import DistillationModule, refuse_unused
from eagle_lab.training.fit import FitResult, Row, fit, last_checkpoint
from eagle_lab.training.recipe import trained_drafter
from eagle_lab.training.settings import TrainerSettings

Train = Callable[[RunFolder, DictConfig, TrainerSettings, Target], Path]
# Hub id and licence of targets that go by a name of ours
_HUB = {"smollm2_135m": ("HuggingFaceTB/SmolLM2-135M-Instruct", "apache-2.0")}
_NOT_OURS = ("status", "end", "target", "target_fingerprint")  # said elsewhere, or not known yet


def run(config: DictConfig) -> None:
    """Train a drafter as `config` says, into `config.output_dir`."""
    trainer = settings_of(config.trainer)
    if trainer.init_from is None:
        kind, _ = drafter_kind(config)
        recipe_of(kind).check(kind, trainer)
    _run(config, trainer, train_drafter)


def run_draft_model(config: DictConfig) -> None:
    """Train a draft model as `config` says, into `config.output_dir`."""
    trainer = settings_of(config.trainer)
    for name in ("init_from", "least_squares_start"):
        refuse_unused(name, getattr(trainer, name))
    _run(config, trainer, train_draft_model)


def _run(config: DictConfig, trainer: TrainerSettings, train: Train) -> None:
    loggers_from(config)  # a mistake is named before anything that takes time
    if config.overwrite:  # and must not cost the run that is there
        store_from(config)
    with RunFolder.open(config, task=config.task) as folder:
        if folder.finished:
            print(f"this run is finished: {folder.path}")
            return
        target = target_from(config)
        trained = train(folder, config, trainer, target)
        folder.finish(target=target.name, target_fingerprint=target.fingerprint)
        print(f"{trained.name}: {trained}")
    print(f"report: {make_report(folder.path)}")


def train_drafter(
    folder: RunFolder, config: DictConfig, trainer: TrainerSettings, target: Target
) -> Path:
    """Train in an open folder with a loaded target; returns the drafter's folder.

    Raises:
        UserError: no store, one of another target, nothing to learn from, or a bad setting.
        KeyboardInterrupt: after saving where training stands.
    """
    origin = origin_of(config, target)
    if trainer.init_from is None:
        kind, settings = drafter_kind(config)
        recipe = recipe_of(kind)
        data = data_from(config, trainer, target, recipe.feature_names(kind))
        drafter = recipe.new(kind, target, data, settings, trainer.seed)
        if last_checkpoint(checkpoints_of(folder)) is None:  # else its weights come later
            recipe.start(drafter, data, trainer)
    else:
        drafter = trained_drafter(target, drafter_folder(trainer.init_from, target))
        recipe = recipe_of(type(drafter))
        data = data_from(config, trainer, target, recipe.feature_names(type(drafter)))
    result = fit_in(folder, config, trainer, recipe.module(drafter, trainer), data)
    facts = origin | vocabulary_facts(drafter, data)
    summary = summarize(config, data, result, folder.provenance) | without_paths(facts)
    folder.write_json("summary.json", summary)
    saved = save_drafter(
        drafter,
        folder.path / "drafter",
        target=target,
        training_summary=summary,
        dtype=DTYPES[trainer.save_precision],
    )
    write_card(saved)
    return saved


def train_draft_model(
    folder: RunFolder, config: DictConfig, trainer: TrainerSettings, target: Target
) -> Path:
    """Train layers of the target as a draft model; see `train_drafter`."""
    data = data_from(config, trainer, target, ["top"])
    model = layer_pruned(target, layers_from(config, target))
    module = DistillationModule(model, target, trainer)
    result = fit_in(folder, config, trainer, module, data)
    folder.write_json("summary.json", summarize(config, data, result, folder.provenance))
    for parameter in model.parameters():
        parameter.data = parameter.data.to(DTYPES[trainer.save_precision])
    return save_model(model, target.tokenizer, folder.path / "draft_model")


def fit_in(
    folder: RunFolder,
    config: DictConfig,
    trainer: TrainerSettings,
    module: TrainingModule,
    data: DrafterDataModule,
) -> FitResult:
    """Fit `module`, which then has its best weights, and write its curve along the way."""

    def write(train_rows: list[Row], val_rows: list[Row]) -> None:
        write_curve(folder, train_rows, val_rows)

    loggers = loggers_from(config)
    return fit(module, data, checkpoints_of(folder), trainer, write=write, loggers=loggers)


def checkpoints_of(folder: RunFolder) -> Path:
    """Where a run keeps what it goes on from."""
    return folder.path / "checkpoints"


def data_from(
    config: DictConfig, trainer: TrainerSettings, target: Target, names: Sequence[str]
) -> DrafterDataModule:
    """The data of the stores that `data.store` names, which are this target's and hold the features
    of `names`.
    """
    store = store_from(config)
    check_store(store, target, names)
    return DrafterDataModule(store, trainer)


def store_from(config: DictConfig) -> JoinedStore:
    """The stores that `data.store` names."""
    if not config.data.store:
        raise UserError(
            "data.store is not set: give the folder of a feature store, as written by "
            "+experiment=capture"
        )
    folders = config.data.store
    return JoinedStore.open([folders] if isinstance(folders, str) else list(folders))


def layers_from(config: DictConfig, target: Target) -> list[int]:
    """The target's layers that the draft model starts from."""
    asked = config.draft_model
    if asked.layers is not None:
        return list(asked.layers)
    return spread_layers(asked.num_layers, target.num_layers)


def write_curve(folder: RunFolder, train_rows: list[Row], val_rows: list[Row]) -> None:
    """`training_curve.csv` holds all rows in order of steps, `summary.csv` the validations."""
    rows = sorted(train_rows + val_rows, key=lambda row: (row["step"], "val_tau" in row))
    folder.write_csv("training_curve.csv", rows)
    folder.write_csv("summary.csv", val_rows)


def summarize(
    config: DictConfig, data: DrafterDataModule, result: FitResult, provenance: dict[str, Any]
) -> dict[str, Any]:
    """Result, data, recipe and origin of one run, for summary.json and the model card.

    A drafter may be published, so paths that leave the working folder are shortened and the host is
    left out.
    """
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


def vocabulary_facts(drafter: Drafter, data: DrafterDataModule) -> dict[str, Any]:
    """Size of the draft vocabulary, and the share of the answers' tokens that it covers."""
    kept = drafter.draft_to_target
    if kept is None:
        return {}
    counts = data.token_counts(drafter.config.vocab_size)
    coverage = float(counts[kept.cpu()].sum() / counts.sum())
    return {"draft_vocabulary": {"size": len(kept), "coverage": coverage}}


def _hub_id(name: str) -> str | None:
    return name if name.count("/") == 1 and not Path(name).exists() else None

"""`+experiment=train`: a drafter from a feature store.

Reads as: data, drafter, module, fit, save. In the run's folder: `drafter/` (the weights that
validated best, and their model card), `training_curve.csv` (every few steps), `summary.csv` (every
validation), `summary.json`, `checkpoints/`. Interrupted, the same command goes on where it stopped.

What a training tells of itself: summary.json, and `training` in the drafter's config.json.

It is what model cards are made of, and a drafter may be published, so paths that leave the working
folder are shortened and the host is left out.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from omegaconf import DictConfig, OmegaConf

from eagle_lab.data.datamodule import DataSettings, DrafterDataModule, check_store
from eagle_lab.data.store import FeatureStore, JoinedStore
from eagle_lab.drafters.card import write_card
from eagle_lab.drafters.checkpoint import KINDS, drafter_folder, read_config, save_drafter
from eagle_lab.drafters.eagle1.network import Eagle1
from eagle_lab.drafters.eagle1.recipe import (
    DrafterModule,
    new_drafter,
    start_as_linear_predictor,
    trained_drafter,
)
from eagle_lab.errors import UserError, choose
from eagle_lab.reports import make_report
from eagle_lab.reports.claims.measure import publishable, without_paths
from eagle_lab.runs.folder import RunFolder
from eagle_lab.runs.job import loggers_from, target_from
from eagle_lab.targets.load import DTYPES
from eagle_lab.targets.target import Target
from eagle_lab.training.base import TrainingModule
from eagle_lab.training.fit import FitResult, Row, fit, last_checkpoint
from eagle_lab.training.settings import FitSettings, Optimization

# Hub id and licence of targets that go by a name of ours
_HUB = {"smollm2_135m": ("HuggingFaceTB/SmolLM2-135M-Instruct", "apache-2.0")}
_NOT_OURS = ("status", "end", "target", "target_fingerprint")  # said elsewhere, or not known yet


def summarize(
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


def run(config: DictConfig) -> None:
    """Train as `config` says, into `config.output_dir`."""
    run_training(config, train)


def run_training(
    config: DictConfig, train_in: Callable[[RunFolder, DictConfig, Target], Path]
) -> None:
    """Open the run's folder, train with `train_in`, and say where its result is."""
    check_settings(config)
    if config.overwrite:  # a mistake must not cost the run that is there
        store_from(config)
    with RunFolder.open(config, task=config.task) as folder:
        if folder.finished:
            print(f"this run is finished: {folder.path}")
            return
        target = target_from(config)
        trained = train_in(folder, config, target)
        folder.finish(target=target.name, target_fingerprint=target.fingerprint)
        print(f"{trained.name}: {trained}")
    print(f"report: {make_report(folder.path)}")


def check_settings(config: DictConfig) -> None:
    """Refuse values that cannot be, before anything that takes time is done."""
    choose(config.drafter.kind, KINDS, "drafter.kind")
    optimization_from(config), fit_settings_from(config)
    data_settings_from(config), saved_dtype_from(config), loggers_from(config)


def train(folder: RunFolder, config: DictConfig, target: Target) -> Path:
    """Train in an open folder with a loaded target; returns the drafter's folder.

    Raises:
        UserError: no store, one of another target, nothing to learn from, or a bad setting.
        KeyboardInterrupt: after saving where training stands.
    """
    optimization, saved_dtype = optimization_from(config), saved_dtype_from(config)
    data = data_from(config, target)
    origin = origin_of(config, target)
    resumed = last_checkpoint(checkpoints_of(folder)) is not None
    drafter = drafter_from(config, target, data, resumed=resumed)
    module = DrafterModule(drafter, optimization)
    facts = origin | vocabulary_facts(drafter, data, target.vocab_size)
    summary = fit_in(folder, config, module, data, facts)
    saved = save_drafter(
        drafter,
        folder.path / "drafter",
        target=target,
        training_summary=summary,
        dtype=saved_dtype,
    )
    write_card(saved)
    return saved


def fit_in(
    folder: RunFolder,
    config: DictConfig,
    module: TrainingModule,
    data: DrafterDataModule,
    facts: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Fit `module`, which then has its best weights, and write curve and summary.

    Args:
        facts: what else the summary tells.
    """

    def write(train_rows: list[Row], val_rows: list[Row]) -> None:
        write_curve(folder, train_rows, val_rows)

    result = fit(
        module,
        data,
        checkpoints_of(folder),
        fit_settings_from(config),
        write=write,
        loggers=loggers_from(config),
    )
    summary = summarize(config, data, result, folder.provenance) | without_paths(dict(facts or {}))
    folder.write_json("summary.json", summary)
    return summary


def checkpoints_of(folder: RunFolder) -> Path:
    """Where a run keeps what it goes on from."""
    return folder.path / "checkpoints"


def data_from(config: DictConfig, target: Target) -> DrafterDataModule:
    """The data of the stores that `data.store` names, checked against the target."""
    store = store_from(config)
    check_store(store, target)
    return DrafterDataModule(store, data_settings_from(config))


def store_from(config: DictConfig) -> JoinedStore:
    """The stores that `data.store` names."""
    if not config.data.store:
        raise UserError(
            "data.store is not set: give the folder of a feature store, as written by "
            "+experiment=capture"
        )
    folders = config.data.store
    return JoinedStore.open([folders] if isinstance(folders, str) else list(folders))


def drafter_from(
    config: DictConfig, target: Target, data: DrafterDataModule, *, resumed: bool
) -> Eagle1:
    """A trained drafter to go on from, or a new one; a resumed run's weights come later."""
    asked = config.drafter
    if config.trainer.init_from is not None:
        return trained_drafter(target, drafter_folder(config.trainer.init_from, target))
    drafter = new_drafter(
        target,
        data,
        draft_vocab_size=asked.draft_vocab_size,
        seed=config.seed,
        inner_norm=asked.inner_norm,
        fc_bias=asked.fc_bias,
        intermediate_size=asked.intermediate_size,
    )
    if config.trainer.least_squares_start and not resumed:
        start_as_linear_predictor(drafter, data)
    return drafter


def data_settings_from(config: DictConfig) -> DataSettings:
    """The trainer section's share that the data module takes."""
    return _settings(DataSettings, config.trainer, seed=config.seed)


def optimization_from(config: DictConfig) -> Optimization:
    """The trainer section's share that the Lightning module takes."""
    return _settings(Optimization, config.trainer, seed=config.seed)


def fit_settings_from(config: DictConfig) -> FitSettings:
    """The trainer section's share that Lightning's trainer takes."""
    return _settings(FitSettings, config.trainer)


def saved_dtype_from(config: DictConfig) -> torch.dtype:
    """The precision that the drafter's folder holds."""
    return DTYPES[choose(config.trainer.save_precision, DTYPES, "trainer.save_precision")]


def write_curve(folder: RunFolder, train_rows: list[Row], val_rows: list[Row]) -> None:
    """`training_curve.csv` holds all rows in order of steps, `summary.csv` the validations."""
    rows = sorted(train_rows + val_rows, key=lambda row: (row["step"], "val_tau" in row))
    folder.write_csv("training_curve.csv", rows)
    folder.write_csv("summary.csv", val_rows)


def _settings(kind: type[Any], section: DictConfig, **more: Any) -> Any:
    """A settings dataclass filled from the keys of its names."""
    names = [field.name for field in dataclasses.fields(kind) if field.name not in more]
    return kind(**{name: section[name] for name in names}, **more)

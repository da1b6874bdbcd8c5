"""`+experiment=train`: a drafter from a feature store.

Reads as: data, drafter, module, fit, save. In the run's folder: `drafter/` (the weights that
validated best, and their model card), `training_curve.csv` (every few steps), `summary.csv` (every
validation), `summary.json`, `checkpoints/`. Interrupted, the same command goes on where it stopped.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from omegaconf import DictConfig

from eagle_lab.data.data_settings import DataSettings
from eagle_lab.data.datamodule import DrafterDataModule, check_store
from eagle_lab.data.joined_store import JoinedStore
from eagle_lab.drafters.checkpoint import KINDS, save_drafter
from eagle_lab.drafters.eagle1 import Eagle1
from eagle_lab.drafters.shipped import drafter_folder
from eagle_lab.errors import UserError, choose
from eagle_lab.models.load import DTYPES
from eagle_lab.models.target import Target
from eagle_lab.reports import make_report
from eagle_lab.reports.claim_provenance import without_paths
from eagle_lab.reports.model_card import write_card
from eagle_lab.tasks.run_folder import RunFolder
from eagle_lab.tasks.target import target_from
from eagle_lab.tasks.training_summary import origin_of, summarise, vocabulary_facts
from eagle_lab.training.base import TrainingModule
from eagle_lab.training.curve import Row
from eagle_lab.training.fit import fit, last_checkpoint
from eagle_lab.training.module import DrafterModule
from eagle_lab.training.settings import FitSettings, Optimisation
from eagle_lab.training.start import new_drafter, start_as_linear_predictor, trained_drafter


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
    optimisation_from(config), fit_settings_from(config)
    data_settings_from(config), saved_dtype_from(config)


def train(folder: RunFolder, config: DictConfig, target: Target) -> Path:
    """Train in an open folder with a loaded target; returns the drafter's folder.

    Raises:
        UserError: no store, one of another target, nothing to learn from, or a bad setting.
        KeyboardInterrupt: after saving where training stands.
    """
    optimisation, saved_dtype = optimisation_from(config), saved_dtype_from(config)
    data = data_from(config, target)
    origin = origin_of(config, target)
    resumed = last_checkpoint(checkpoints_of(folder)) is not None
    drafter = drafter_from(config, target, data, resumed=resumed)
    module = DrafterModule(drafter, optimisation)
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
        loggers=loggers_from(config, folder.path),
    )
    summary = summarise(config, data, result, folder.provenance) | without_paths(dict(facts or {}))
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


def optimisation_from(config: DictConfig) -> Optimisation:
    """The trainer section's share that the Lightning module takes."""
    return _settings(Optimisation, config.trainer, seed=config.seed)


def fit_settings_from(config: DictConfig) -> FitSettings:
    """The trainer section's share that Lightning's trainer takes."""
    return _settings(FitSettings, config.trainer)


def saved_dtype_from(config: DictConfig) -> torch.dtype:
    """The precision that the drafter's folder holds."""
    return DTYPES[choose(config.trainer.save_precision, DTYPES, "trainer.save_precision")]


def loggers_from(config: DictConfig, folder: Path) -> list[Any]:
    """Lightning loggers beside our own training_curve.csv."""
    if choose(config.logger.kind, ("csv", "tensorboard", "none"), "logger.kind") != "tensorboard":
        return []
    from lightning.pytorch.loggers import TensorBoardLogger

    try:
        return [TensorBoardLogger(save_dir=folder, name="tensorboard", version="")]
    except ModuleNotFoundError as error:
        raise UserError("logger=tensorboard needs the package tensorboard: pip install it") from (
            error
        )


def write_curve(folder: RunFolder, train_rows: list[Row], val_rows: list[Row]) -> None:
    """`training_curve.csv` holds all rows in order of steps, `summary.csv` the validations."""
    rows = sorted(train_rows + val_rows, key=lambda row: (row["step"], "val_tau" in row))
    folder.write_csv("training_curve.csv", rows)
    folder.write_csv("summary.csv", val_rows)


def _settings(kind: type[Any], section: DictConfig, **more: Any) -> Any:
    """A settings dataclass filled from the keys of its names."""
    names = [field.name for field in dataclasses.fields(kind) if field.name not in more]
    return kind(**{name: section[name] for name in names}, **more)

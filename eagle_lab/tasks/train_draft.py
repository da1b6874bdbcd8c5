"""`+experiment=train_draft`: a small draft model from a target's own layers and a feature store.

Reads as: data, model, module, fit, save. In the run's folder: `draft_model/` (an ordinary Hugging
Face folder with the weights that validated best), and beside it what `+experiment=train` leaves.
"""

from __future__ import annotations

from pathlib import Path

from omegaconf import DictConfig

from eagle_lab.runs.folder import RunFolder
from eagle_lab.targets.pruned import layer_pruned, save_model, spread_layers
from eagle_lab.targets.target import Target
from eagle_lab.tasks.train import (
    data_from,
    fit_in,
    optimization_from,
    run_training,
    saved_dtype_from,
)
from eagle_lab.training.distillation import DistillationModule, refuse_unused


def run(config: DictConfig) -> None:
    """Train as `config` says, into `config.output_dir`."""
    for name in ("init_from", "least_squares_start"):
        refuse_unused(name, config.trainer[name])
    run_training(config, train)


def train(folder: RunFolder, config: DictConfig, target: Target) -> Path:
    """Train in an open folder with a loaded target; returns the draft model's folder.

    Raises:
        UserError: no store, one of another target, nothing to learn from, or a bad setting.
        KeyboardInterrupt: after saving where training stands.
    """
    saved_dtype = saved_dtype_from(config)
    data = data_from(config, target)
    model = layer_pruned(target, layers_from(config, target))
    fit_in(folder, config, DistillationModule(model, target, optimization_from(config)), data)
    for parameter in model.parameters():
        parameter.data = parameter.data.to(saved_dtype)
    return save_model(model, target.tokenizer, folder.path / "draft_model")


def layers_from(config: DictConfig, target: Target) -> list[int]:
    """The target's layers that the draft model starts from."""
    asked = config.draft_model
    if asked.layers is not None:
        return list(asked.layers)
    return spread_layers(asked.num_layers, target.num_layers)

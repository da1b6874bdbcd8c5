"""From the configuration's target section to a `Target`."""

from __future__ import annotations

from omegaconf import DictConfig

from eagle_lab.models.load import load_target
from eagle_lab.models.target import Target


def target_from(config: DictConfig) -> Target:
    """Load the target that `config.target` names, on `config.device` in `config.dtype`.

    Raises:
        UserError: no such model, no CUDA, or an unknown device or dtype.
    """
    asked = config.target
    return load_target(
        asked.name,
        device=config.device,
        dtype=config.dtype,
        feature_layers=asked.feature_layers,
        trust_remote_code=asked.trust_remote_code,
        threads=config.threads,
        architecture=asked.architecture,
        tied_head=asked.tied_head,
    )

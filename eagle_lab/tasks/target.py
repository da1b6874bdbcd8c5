"""From the configuration's target section to a `Target`."""

from __future__ import annotations

from omegaconf import DictConfig

from eagle_lab.errors import choose
from eagle_lab.models.load import load_target
from eagle_lab.models.target import Target

_FAST_LAYERS = {"auto": None, "true": True, "false": False}


def target_from(config: DictConfig) -> Target:
    """Load the target that `config.target` names, on `config.device` in `config.dtype`.

    Raises:
        UserError: no such model, no CUDA, an unknown device, dtype or attention, or fast layers
            that are asked for where there are none.
    """
    asked = config.target
    fast_layers = choose(config.fast_layers.lower(), _FAST_LAYERS, "value of fast_layers")
    return load_target(
        asked.name,
        device=config.device,
        dtype=config.dtype,
        feature_layers=asked.feature_layers,
        trust_remote_code=asked.trust_remote_code,
        threads=config.threads,
        fast_layers=_FAST_LAYERS[fast_layers],
        attention=config.attention,
        architecture=asked.architecture,
        tied_head=asked.tied_head,
    )

"""From the configuration's target section to a `Target`."""

from __future__ import annotations

from omegaconf import DictConfig

from eagle_lab.errors import choose
from eagle_lab.models.load import choose_device, load_target, wants_graphs
from eagle_lab.models.recorder import CudaRecorder
from eagle_lab.models.target import Target

_SWITCH = {"auto": None, "true": True, "false": False}


def target_from(config: DictConfig) -> Target:
    """Load the target that `config.target` names, on `config.device` in `config.dtype`.

    Raises:
        UserError: no such model, no CUDA, an unknown device, dtype or attention, or fast layers
            or graphs that are asked for where there are none.
    """
    asked = config.target
    fast_layers = choose(config.fast_layers.lower(), _SWITCH, "value of fast_layers")
    return load_target(
        asked.name,
        device=config.device,
        dtype=config.dtype,
        feature_layers=asked.feature_layers,
        trust_remote_code=asked.trust_remote_code,
        threads=config.threads,
        fast_layers=_SWITCH[fast_layers],
        attention=config.attention,
        graphs=_graphs(config),
        architecture=asked.architecture,
        tied_head=asked.tied_head,
    )


def recorder_from(config: DictConfig) -> type[CudaRecorder] | None:
    """What makes a recorder of CUDA graphs, as `config.graphs` asks; None where none are used.

    Raises:
        UserError: graphs are asked for on a CPU.
    """
    wanted = wants_graphs(_graphs(config), choose_device(config.device))
    return CudaRecorder if wanted else None


def _graphs(config: DictConfig) -> bool | None:
    return _SWITCH[choose(config.graphs.lower(), _SWITCH, "value of graphs")]

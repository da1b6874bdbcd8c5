"""From the configuration's target section to a `Target`."""

from __future__ import annotations

import warnings

from omegaconf import DictConfig

from eagle_lab.errors import UserError, choose
from eagle_lab.models.graphs import CudaRecorder
from eagle_lab.models.load import choose_device, load_target
from eagle_lab.models.target import Target
from eagle_lab.models.verify_graphs import VerifyGraphs, no_graphs_reason

_SWITCH = {"auto": None, "true": True, "false": False}


def target_from(config: DictConfig) -> Target:
    """Load the target that `config.target` names, on `config.device` in `config.dtype`.

    Raises:
        UserError: no such model, no CUDA, an unknown device, dtype or attention, or fast layers
            or graphs that are asked for where there are none.
    """
    asked = config.target
    fast_layers = choose(config.fast_layers.lower(), _SWITCH, "value of fast_layers")
    new_recorder = recorder_from(config)
    target = load_target(
        asked.name,
        device=config.device,
        dtype=config.dtype,
        feature_layers=asked.feature_layers,
        trust_remote_code=asked.trust_remote_code,
        threads=config.threads,
        fast_layers=_SWITCH[fast_layers],
        attention=config.attention,
        architecture=asked.architecture,
        tied_head=asked.tied_head,
    )
    if new_recorder is None:
        return target
    if reason := no_graphs_reason(target.config):
        warnings.warn(f"no CUDA graphs for {target.name}: {reason}", stacklevel=2)
    else:
        target.graphs = VerifyGraphs(target, new_recorder())
    return target


def recorder_from(config: DictConfig) -> type[CudaRecorder] | None:
    """What makes a recorder of CUDA graphs, as `config.graphs` asks; None where none are used.

    Raises:
        UserError: graphs are asked for on a CPU.
    """
    on_cuda = choose_device(config.device).type == "cuda"
    wanted = _SWITCH[choose(config.graphs.lower(), _SWITCH, "value of graphs")]
    if wanted and not on_cuda:
        raise UserError("graphs=true, but they need a GPU; use graphs=auto")
    return CudaRecorder if on_cuda and wanted is not False else None

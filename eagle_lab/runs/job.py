"""What jobs share: a start that no earlier job influences, and the parts a configuration names."""

from __future__ import annotations

import logging
import random
from dataclasses import asdict
from typing import Any

import numpy as np
import torch
from hydra.errors import InstantiationException
from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf

from eagle_lab.engine.sampling import Sampling
from eagle_lab.errors import Missing, UserError, choose
from eagle_lab.methods.sizes import sizes_for
from eagle_lab.targets.cuda.graphs import CudaGraphCapture
from eagle_lab.targets.load import choose_device, load_target, wants_graphs
from eagle_lab.targets.target import Target

log = logging.getLogger(__name__)
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


def graph_capture_from(config: DictConfig) -> type[CudaGraphCapture] | None:
    """The class that captures CUDA graphs, as `config.graphs` asks; None where none are used.

    Raises:
        UserError: graphs are asked for on a CPU.
    """
    wanted = wants_graphs(_graphs(config), choose_device(config.device))
    return CudaGraphCapture if wanted else None


def _graphs(config: DictConfig) -> bool | None:
    return _SWITCH[choose(config.graphs.lower(), _SWITCH, "value of graphs")]


def reset(seed: int, threads: int | None) -> None:
    """Seed every generator, start CUDA's peak-memory counters afresh, set torch's CPU threads.

    Raises:
        UserError: `threads` below 1, or a seed that is negative or beyond 63 bits.
    """
    if not 0 <= seed < 2**63:
        raise UserError(f"seed={seed}: must be 0 to {2**63 - 1}")
    if threads is not None and threads < 1:
        raise UserError(f"threads={threads}: must be 1 or more, or null")
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
    if threads is not None:
        torch.set_num_threads(threads)


def sampling_from(config: DictConfig, section: str) -> Sampling:
    """How a section, `eval` or `data`, samples; its errors carry the section's name."""
    asked = config[section]
    try:
        return Sampling(asked.temperature, asked.top_p, asked.top_k)
    except UserError as error:
        raise UserError(f"{section}.{error}") from None


def entries_from(config: DictConfig) -> dict[str, dict[str, Any]]:
    """`config.method`, resolved; `auto` in `config.tree` is replaced first, see `settle_sizes`."""
    settle_sizes(config)
    entries = OmegaConf.to_container(config.method, resolve=True)
    assert isinstance(entries, dict)
    return {str(name): dict(settings) for name, settings in entries.items()}


def settle_sizes(config: DictConfig) -> None:
    """Put the sizes that suit `config.device` where `config.tree` has `auto`; say those in use."""
    sizes, chosen = sizes_for(choose_device(config.device)), []
    used = {key for settings in config.method.values() for key in settings}
    for name, size in asdict(sizes).items():
        if config.tree[name] == "auto":
            config.tree[name] = size
            shown = {"paths": f"of {len(sizes.paths)} nodes" if sizes.paths else "of EAGLE-1"}
            chosen += [f"{name} {shown.get(name, size)}"] if name in used else []
    if chosen:
        log.info("sizes of drafts that suit the device: %s", ", ".join(chosen))


def loggers_from(config: DictConfig) -> list[Any]:
    """The Lightning logger of `config.logger`, writing into the run's folder; none for `none`.

    Makes no files yet.

    Raises:
        Missing: the logger's package is not installed.
        UserError: the logger takes no such argument.
    """
    if not config.logger:
        return []
    try:
        return [instantiate(config.logger, save_dir=config.output_dir, _convert_="all")]
    except InstantiationException as error:
        name = config.logger["_target_"].rpartition(".")[2]
        kind = Missing if isinstance(error.__cause__, ModuleNotFoundError) else UserError
        raise kind(f"logger {name}: {' '.join(str(error.__cause__ or error).split())}") from error

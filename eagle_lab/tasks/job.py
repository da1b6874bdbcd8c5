"""What jobs share: a start that no earlier job influences, their target, where results came from.

From the configuration's target section to a `Target`.

What a result came from: command, code, versions, machine.

Code and versions are those of the process's first look: what it imported does not change.

Imports no library to ask for its version, and looks at torch only if the run has loaded it.
"""

from __future__ import annotations

import os
import platform
import random
import shlex
import subprocess
import sys
from datetime import UTC, datetime
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import torch
from omegaconf import DictConfig, OmegaConf

from eagle_lab.engine.sampling import Sampling
from eagle_lab.errors import UserError, choose
from eagle_lab.targets.cuda.graphs import CudaGraphCapture
from eagle_lab.targets.load import choose_device, load_target, wants_graphs
from eagle_lab.targets.target import Target

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


_PACKAGES = (
    "eagle-lab", "torch", "transformers", "tokenizers", "safetensors", "hydra-core", "lightning",
    "numpy", "numba", "flash-attn",
)  # fmt: skip


def now() -> str:
    """The time in UTC, ISO 8601, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def collect(device: str) -> dict[str, Any]:
    """Everything about code and machine that a later reader may ask for."""
    commit, dirty = git_state(Path(__file__).parent)
    return {
        "command": shlex.join(sys.orig_argv),
        "git_commit": commit,
        "git_dirty": dirty,
        "versions": dict(versions()),
        "machine": {
            "host": platform.node(),
            "system": platform.platform(),
            "cpu": _cpu_name(),
            "num_cpus": len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count(),
        },
        **_torch_state(device),
    }


@cache
def versions() -> dict[str, str]:
    """Python and the installed ones of the packages that decide a result."""
    found = {"python": platform.python_version()}
    for name in _PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


@cache
def git_state(folder: Path) -> tuple[str | None, bool | None]:
    """Commit, and whether tracked files differ from it; (None, None) for code outside git."""
    if not _git(folder, "ls-files", "--", "."):
        return None, None
    changes = _git(folder, "status", "--porcelain", "--untracked-files=no", "--", ":/")
    return _git(folder, "rev-parse", "HEAD"), bool(changes)


def _git(folder: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *arguments],
            capture_output=True, text=True, check=True, timeout=20,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


def _torch_state(device: str) -> dict[str, Any]:
    torch = sys.modules.get("torch")
    if torch is None:
        return {"device": device, "device_name": None, "torch_threads": None}
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    on_gpu = device.startswith("cuda") and torch.cuda.is_available()
    return {
        "device": device,
        "device_name": torch.cuda.get_device_name() if on_gpu else _cpu_name(),
        "torch_threads": torch.get_num_threads(),
    }


def _cpu_name() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


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
    """`config.method`, resolved."""
    entries = OmegaConf.to_container(config.method, resolve=True)
    assert isinstance(entries, dict)
    return {str(name): dict(settings) for name, settings in entries.items()}

"""What a result came from: command, code, versions, machine.

Code and versions are those of the process's first look: what it imported does not change. Imports
no library to ask for its version, and looks at torch only if the run has loaded it.
"""

from __future__ import annotations

import os
import platform
import shlex
import subprocess
import sys
from datetime import UTC, datetime
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

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
        "command": command(),
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


def command() -> str:
    """What was typed; the console script without the interpreter that ran it."""
    words = sys.orig_argv
    if len(words) > 1 and Path(words[1]).name == "eagle-lab":
        words = ["eagle-lab", *words[2:]]
    return shlex.join(words)


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

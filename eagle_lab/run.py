"""The command line: `eagle-lab +experiment=NAME [group=option] [key=value]`.

`python -m eagle_lab.run` is the same. Hydra's entry and the table of tasks, nothing else. Exit code
0 only if every job did what it says; 1 with one line that says what to change; 130 after Ctrl-C.
HYDRA_FULL_ERROR=1 shows tracebacks.
"""

from __future__ import annotations

import importlib
import itertools
import os
import sys
import warnings
from pathlib import Path

import hydra
from hydra._internal.utils import get_args_parser
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig

from eagle_lab import catalog, failures
from eagle_lab.config import CONF_DIR, check
from eagle_lab.errors import choose
from eagle_lab.runs import terminal

# Where the function `run` of each task is, or MODULE:FUNCTION
TASKS = {
    **{
        name: f"eagle_lab.tasks.{name}"
        for name in (
            "capture", "train", "bench", "sweep", "profile", "report", "quickstart", "chat",
        )
    },
    "train_draft": "eagle_lab.tasks.train:run_draft_model",
    "bench_gpu": "eagle_lab.tasks.gpu",
    "bench_gpu_shapes": "eagle_lab.tasks.gpu:run_shapes",
}  # fmt: skip
# Reads results only, and opens without torch
_WITHOUT_TORCH = ("report",)

_SHOW_TRACEBACKS = os.environ.get("HYDRA_FULL_ERROR") == "1"

_PACKAGE = Path(__file__).parent
_format_any_warning = warnings.formatwarning


def main() -> int:
    """Run what the command line asks for and return the exit code."""
    arguments = sorted(sys.argv[1:], key=_is_override)  # Hydra's parser wants its options first
    sys.argv[1:] = arguments
    failures.FAILED_JOBS.clear()
    catalog.OWN_FOLDERS[:] = _own_folders(arguments)
    warnings.formatwarning = _format_warning
    shown = os.environ.get("HYDRA_FULL_ERROR", "0")
    os.environ["HYDRA_FULL_ERROR"] = "1"  # Hydra then hands its errors to us instead of printing
    try:
        for flag in (word.partition("=")[0] for word in arguments if word.startswith("-")):
            choose(flag, get_args_parser()._option_string_actions, "option")
        if "--help" in arguments or "-h" in arguments:
            print(catalog.help_text())
            return 0
        hydra.main(version_base="1.3", config_path=str(CONF_DIR), config_name="config")(_job)()
    except KeyboardInterrupt as interrupt:
        print(f"\ninterrupted{interrupt}", file=sys.stderr)
        return 130
    except BrokenPipeError:  # whoever read the output has left, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except Exception as error:
        if _SHOW_TRACEBACKS:
            raise
        print(failures.one_line(error), file=sys.stderr)
        return 1
    finally:
        os.environ["HYDRA_FULL_ERROR"] = shown
        catalog.OWN_FOLDERS.clear()
    return 1 if failures.FAILED_JOBS else 0


def _job(config: DictConfig) -> None:
    """One job of this process; its failure is printed and counted, so that a sweep goes on."""
    name = _place_in_sweep(config)
    try:
        check(config)
        catalog.require_task(config.task)
        module, _, function = TASKS[choose(config.task, TASKS, "task")].partition(":")
        task = getattr(importlib.import_module(module), function or "run")
        if config.task not in _WITHOUT_TORCH:
            importlib.import_module("eagle_lab.runs.job").reset(config.seed, config.threads)
        with terminal.messages_shown():
            task(config)
    except KeyboardInterrupt:
        root = Path(config.output_dir).parent if name else Path(config.output_dir)
        kept = f"; output_dir={root} on the same command goes on from here"
        raise KeyboardInterrupt(kept if root.is_dir() else "") from None
    except Exception as error:
        if _SHOW_TRACEBACKS:
            raise
        failures.FAILED_JOBS.append(f"{name}{failures.one_line(error)}")
        print(failures.FAILED_JOBS[-1], file=sys.stderr)


def _format_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    line: str | None = None,
) -> str:
    """A warning of the package is one line without its place in the code."""
    if Path(filename).is_relative_to(_PACKAGE):
        return f"warning: {message}\n"
    return _format_any_warning(message, category, filename, lineno, line)


def _place_in_sweep(config: DictConfig) -> str:
    """In a multirun, move the job to its numbered folder; returns the words that name the job."""
    state = HydraConfig.get()
    if state.mode != RunMode.MULTIRUN:
        return ""
    config.output_dir = str(Path(config.output_dir) / str(state.job.num))
    print(f"job {state.job.num}: {' '.join(state.overrides.task)}")
    return f"job {state.job.num} failed: "


def _is_override(word: str) -> bool:
    return not word.startswith("-") and ("=" in word or word.startswith("~"))


def _own_folders(arguments: list[str]) -> list[Path]:
    """Folders given by --config-dir."""
    flags = ("--config-dir", "-cd")
    pairs = itertools.pairwise([*arguments, ""])
    following = [value for word, value in pairs if word in flags]
    joined = [word.partition("=")[2] for word in arguments if word.startswith("--config-dir=")]
    return [Path(folder) for folder in following + joined]


if __name__ == "__main__":
    # By its own name, so that other processes of a launcher find these functions
    from eagle_lab.run import main as _main

    sys.exit(_main())

"""The root folder of a multirun: one configuration and grid, numbered jobs below.

Hydra calls this before and after the jobs of a sweep (conf/config.yaml names it).
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.experimental.callback import Callback
from omegaconf import DictConfig, OmegaConf, open_dict

from eagle_lab import catalog, failures
from eagle_lab.tasks.run_folder import RunFolder


class SweepRoot(Callback):
    """Opens the root as a run's folder, so that another grid in the same place is refused."""

    def __init__(self) -> None:
        self._folder: RunFolder | None = None

    def on_multirun_start(self, config: DictConfig, **kwargs: Any) -> None:
        """Create, resume or refuse the root; a refusal ends the program before any job."""
        try:
            catalog.require_task(config.task)
            self._folder = RunFolder.open(root_config(config), task="multirun")
        except Exception as error:
            # Hydra turns a callback's exceptions into warnings, so this one leaves by another door
            print(failures.one_line(error), file=sys.stderr)
            raise SystemExit(1) from error

    def on_multirun_end(self, config: DictConfig, **kwargs: Any) -> None:
        """Call the sweep finished if every job was."""
        if self._folder is not None:
            if failures.FAILED_JOBS:
                self._folder.close()
            else:
                self._folder.finish()

    def __del__(self) -> None:
        # Hydra calls nobody when the jobs of a sweep cannot be composed
        if self._folder is not None:
            self._folder.close()


def root_config(config: DictConfig) -> DictConfig:
    """The jobs' common configuration, and the grid under `sweep`."""
    root = config.copy()
    overrides = OverridesParser.create().parse_overrides(list(config.hydra.overrides.task))
    grid = dict(config.hydra.sweeper.params or {})
    grid |= {
        o.key_or_group: (o.input_line or "").partition("=")[2]
        for o in overrides
        if o.is_sweep_override()
    }
    with open_dict(root):
        del root["hydra"]
        root.sweep = OmegaConf.create(grid)
    # A root whose jobs never began holds nothing worth keeping
    root.overwrite = root.overwrite or not any(Path(root.output_dir).glob("[0-9]*"))
    return root

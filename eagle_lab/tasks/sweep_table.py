"""sweep.csv at the root of a multirun: the jobs' summaries as one table.

Hydra calls this after the jobs (conf/config.yaml names it).
"""

from __future__ import annotations

from typing import Any

from hydra.experimental.callback import Callback
from omegaconf import DictConfig

from eagle_lab.errors import UserError
from eagle_lab.reports.collect import write_sweep


class SweepTable(Callback):
    """Collects whatever jobs have a summary, also when some failed."""

    def on_multirun_end(self, config: DictConfig, **kwargs: Any) -> None:
        """Write sweep.csv; jobs of other kinds than a bench leave none."""
        try:
            print(f"all jobs in one table: {write_sweep(config.output_dir)}")
        except UserError:
            return

"""`+experiment=report report.run=PATH`: the report of a run or of a sweep, written into its folder.

Opens results only; loads neither torch nor a model.
"""

from __future__ import annotations

from omegaconf import DictConfig

from eagle_lab.errors import UserError
from eagle_lab.reports import make_report


def run(config: DictConfig) -> None:
    """Make the report of `config.report.run` and say where it is.

    Raises:
        UserError: if no folder is named, or it is no run folder, or holds no results yet.
    """
    if not config.report.run:
        raise UserError(
            "nothing to report on: report.run=PATH names the output_dir of a run, "
            "or the root of a sweep"
        )
    print(f"report: {make_report(config.report.run)}")

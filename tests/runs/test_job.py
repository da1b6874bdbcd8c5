"""The parts that a configuration names: loggers, and sampling with its section's name."""

from __future__ import annotations

import csv
import sys
from pathlib import Path

import pytest

from eagle_lab.config import compose
from eagle_lab.errors import Missing, UserError
from eagle_lab.runs.job import loggers_from, sampling_from


@pytest.mark.parametrize(("name", "file"), [("csv", "metrics.csv"), ("tensorboard", "events.*")])
@pytest.mark.filterwarnings("ignore:Experiment logs directory")
def test_a_logger_writes_into_the_runs_folder(tmp_path: Path, name: str, file: str) -> None:
    (logger,) = loggers_from(compose([f"logger={name}", f"output_dir={tmp_path / 'run'}"]))
    assert not (tmp_path / "run").exists()
    for step in (1, 2):
        logger.log_metrics({"val_tau": 2.5 * step}, step=step)
    logger.finalize("success")
    (written,) = (tmp_path / "run").rglob(file)
    if name == "csv":
        with written.open() as rows:
            assert [row["val_tau"] for row in csv.DictReader(rows)] == ["2.5", "5.0"]


def test_no_logger_is_none() -> None:
    assert loggers_from(compose(["logger=none"])) == []


@pytest.mark.parametrize("name", ["tensorboard", "wandb", "mlflow"])
def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    available = {"tensorboard": ("_TENSORBOARD_AVAILABLE", "_TENSORBOARDX_AVAILABLE")}
    home = "lightning.fabric.loggers" if name == "tensorboard" else "lightning.pytorch.loggers"
    __import__(f"{home}.{name}")
    for flag in available.get(name, (f"_{name.upper()}_AVAILABLE",)):
        monkeypatch.setattr(sys.modules[f"{home}.{name}"], flag, Absent(name))
    with pytest.raises(Missing, match=name) as error:
        loggers_from(compose([f"logger={name}"]))
    assert "\n" not in str(error.value)


class Absent:
    """A package that is not there, as Lightning speaks of it."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __bool__(self) -> bool:
        return False

    def __str__(self) -> str:
        return f"Requirement\n'{self.name}' not met"


def test_an_unknown_argument_of_a_logger_is_named() -> None:
    with pytest.raises(UserError, match="colour"):
        loggers_from(compose(["logger=csv", "+logger.colour=red"]))


@pytest.mark.parametrize(("key", "value"), [("temperature", -1), ("top_p", 2), ("top_k", -1)])
@pytest.mark.parametrize("section", ["eval", "data"])
def test_a_distribution_that_cannot_be_names_its_key(section: str, key: str, value: int) -> None:
    with pytest.raises(UserError, match=rf"^{section}\.{key}={value}"):
        sampling_from(compose([f"{section}.{key}={value}"]), section)

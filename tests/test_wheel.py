"""The wheel holds the configuration and works away from the checkout."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
import zipfile
from configparser import ConfigParser
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
from hatchling.builders.wheel import WheelBuilder

import eagle_lab
from eagle_lab import run
from eagle_lab.drafters.folder import shipped_drafters

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    return Path(next(WheelBuilder(str(ROOT)).build(directory=str(folder), versions=["standard"])))


def test_configuration_assets_and_licence_are_inside(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    for path in (ROOT / "conf").rglob("*.yaml"):
        assert f"eagle_lab/{path.relative_to(ROOT)}" in names
    for path in (ROOT / "eagle_lab").rglob("*.py"):
        assert str(path.relative_to(ROOT)) in names
    for path in (ROOT / "eagle_lab/assets").rglob("*"):
        if path.is_file() and "__pycache__" not in path.parts:
            assert str(path.relative_to(ROOT)) in names
    assert any(name.endswith("licenses/LICENSE") for name in names)
    assert any(name.endswith("licenses/NOTICE") for name in names)


def test_the_console_script_is_the_module(wheel: Path) -> None:
    archive = zipfile.ZipFile(wheel)
    (name,) = [name for name in archive.namelist() if name.endswith("entry_points.txt")]
    scripts = ConfigParser()
    scripts.read_string(archive.read(name).decode())
    assert EntryPoint("eagle-lab", scripts["console_scripts"]["eagle-lab"], "").load() is run.main


def test_the_unpacked_wheel_finds_its_own_configuration(wheel: Path, tmp_path: Path) -> None:
    site = tmp_path / "site"
    zipfile.ZipFile(wheel).extractall(site)
    program = (
        "from eagle_lab.config import CONF_DIR, compose;"
        "from eagle_lab.drafters.folder import shipped_drafters;"
        "print(CONF_DIR, compose().eval.turns, *shipped_drafters())"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(site)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == [str(site / "eagle_lab/conf"), "2", *shipped_drafters()]


def test_the_version_is_said_once_everywhere() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["version"] == eagle_lab.__version__
    assert f"version: {eagle_lab.__version__}" in (ROOT / "CITATION.cff").read_text()

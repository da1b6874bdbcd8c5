"""Imports go one way, and importing the package costs nothing."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import eagle_lab

ROOT = Path(__file__).resolve().parent.parent


def lint_imports(folder: Path) -> subprocess.CompletedProcess[str]:
    program = "from importlinter.cli import lint_imports as lint; exit(lint(no_cache=True))"
    return subprocess.run(
        [sys.executable, "-c", program], cwd=folder, capture_output=True, text=True, check=False
    )


def test_imports_keep_the_contracts() -> None:
    done = lint_imports(ROOT)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("module", "line", "contract"),
    [
        ("errors.py", "import eagle_lab.files", "Imports go one way"),
        ("engine/draft_tree.py", "import eagle_lab.targets.cache", "Imports go one way"),
        ("engine/verify.py", "import omegaconf", "know Hydra"),
        ("engine/loop.py", "import lightning", "know Lightning"),
        ("reports/tables.py", "import torch", "without torch"),
        ("reports/tables.py", "import eagle_lab.engine.sampling", "without torch"),
        ("a_new_room.py", "import json", "Imports go one way"),
    ],
)
def test_a_forbidden_import_breaks_a_contract(
    tmp_path: Path, module: str, line: str, contract: str
) -> None:
    shutil.copytree(ROOT / "eagle_lab", tmp_path / "eagle_lab")
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    with (tmp_path / "eagle_lab" / module).open("a") as file:
        file.write(f"\n{line}\n")
    done = lint_imports(tmp_path)
    assert done.returncode == 1
    broken = [text for text in done.stdout.splitlines() if " BROKEN" in text]
    assert any(contract in text for text in broken), done.stdout


def loaded_by(statement: str) -> set[str]:
    """Top-level modules in memory after `statement` in a new interpreter."""
    program = f"import sys\n{statement}\nprint(*{{name.partition('.')[0] for name in sys.modules}})"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    return set(done.stdout.split())


def test_importing_the_package_loads_nothing_heavy() -> None:
    heavy = {"torch", "transformers", "lightning", "hydra", "omegaconf", "numpy", "matplotlib"}
    assert not loaded_by("import eagle_lab; dir(eagle_lab)") & heavy


def test_the_command_line_and_reports_open_without_torch() -> None:
    heavy = {"torch", "transformers", "lightning"}
    assert not loaded_by("import eagle_lab.run, eagle_lab.tasks.report") & heavy


@pytest.mark.parametrize("name", [name for name in eagle_lab.__all__ if name[0] != "_"])
def test_every_public_name_loads(name: str) -> None:
    value = getattr(eagle_lab, name)
    assert value.__name__ == name
    assert value.__doc__


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = eagle_lab.no_such_name

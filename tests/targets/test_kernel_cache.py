"""Compiled kernels are found again by what all their sources hold, not by the file of each."""

import shutil
import subprocess
import sys
from pathlib import Path

import numba
import pytest

from eagle_lab.targets.cpu import build
from eagle_lab.targets.cpu.build import SOURCES, digest_of, use_kernel_folder


def test_a_change_in_any_source_is_another_folder(tmp_path: Path) -> None:
    here = Path(build.__file__).parent
    for name in SOURCES:
        shutil.copy(here / name, tmp_path)
    before = digest_of(tmp_path)
    assert before == digest_of(here)
    for name in SOURCES:
        (tmp_path / name).write_text((here / name).read_text() + "\n")
        assert digest_of(tmp_path) not in (before, digest_of(here))
        shutil.copy(here / name, tmp_path)


def test_every_file_of_kernels_counts() -> None:
    here = Path(build.__file__).parent
    compiled = {path.name for path in here.glob("*.py") if "from numba import" in path.read_text()}
    assert compiled - {"build.py"} <= set(SOURCES)


def test_the_setting_of_others_comes_back(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path))
    with use_kernel_folder():
        assert Path(numba.config.CACHE_DIR).parent == tmp_path
    assert str(tmp_path) == numba.config.CACHE_DIR


@pytest.mark.slow
def test_the_kernels_are_kept_there(tmp_path: Path) -> None:
    code = "from eagle_lab.targets.cpu.ops import kernels; kernels()"
    environment = {"NUMBA_CACHE_DIR": str(tmp_path), "PATH": ""}
    subprocess.run([sys.executable, "-c", code], env=environment, check=True, timeout=300)
    [folder] = tmp_path.iterdir()
    assert any(folder.rglob("*decoder_layer*.nbc"))

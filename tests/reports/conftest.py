"""Run folders that several tests read; none writes into them but the report itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.reports.fake_run import write_bench, write_one_process_sweep, write_sweep


@pytest.fixture(scope="session")
def bench_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_bench(tmp_path_factory.mktemp("bench") / "run")


@pytest.fixture(scope="session")
def sweep_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_sweep(tmp_path_factory.mktemp("sweep") / "root")


@pytest.fixture(scope="session")
def one_process_sweep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_one_process_sweep(tmp_path_factory.mktemp("one") / "run")

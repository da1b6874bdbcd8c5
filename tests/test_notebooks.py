"""The notebooks run from top to bottom, and are kept without outputs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import nbformat
import pytest
from ipykernel.kernelspec import get_kernel_dict
from jupyter_client.kernelspec import KernelSpec, KernelSpecManager
from jupyter_client.manager import AsyncKernelManager
from nbclient import NotebookClient

from tests.reports.fake_run import write_bench, write_sweep

NOTEBOOKS = Path(__file__).resolve().parent.parent / "notebooks"
pytestmark = pytest.mark.timeout(600)
NAMES = ("01_tour.ipynb", "02_sweep_analysis.ipynb")


class RunningPython(KernelSpecManager):
    """Every kernel is the Python that runs the tests, whatever is installed on the machine."""

    def get_kernel_spec(self, kernel_name: str) -> KernelSpec:
        return KernelSpec(resource_dir="", **get_kernel_dict())


class Kernels(AsyncKernelManager):
    def __init__(self, **settings: Any) -> None:
        super().__init__(kernel_spec_manager=RunningPython(), **settings)


def execute(name: str) -> nbformat.NotebookNode:
    notebook = nbformat.read(NOTEBOOKS / name, as_version=4)
    client = NotebookClient(
        notebook,
        kernel_manager_class=Kernels,
        timeout=500,
        resources={"metadata": {"path": str(NOTEBOOKS)}},
    )
    return client.execute()


def outputs(notebook: nbformat.NotebookNode) -> str:
    """Everything shown, as HTML, Markdown or plain text."""
    shown = [
        output.get("data", {"text/plain": output.get("text", "")})
        for cell in notebook.cells
        for output in cell.get("outputs", [])
    ]
    return "\n".join(str(value) for data in shown for value in data.values())


@pytest.fixture(autouse=True)
def own_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No history or settings of the person whose machine this is."""
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(tmp_path / "jupyter"))
    monkeypatch.delenv("EAGLE_LAB_RUN", raising=False)


@pytest.mark.parametrize("name", NAMES)
def test_notebooks_are_stored_without_outputs(name: str):
    notebook = nbformat.read(NOTEBOOKS / name, as_version=4)
    nbformat.validate(notebook)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            assert cell.outputs == []
            assert cell.execution_count is None


def test_the_tour_makes_its_own_bench():
    shown = outputs(execute("01_tour.ipynb"))
    assert "generations.jsonl" in shown
    assert "Exactness: " in shown
    assert shown.count("data:image/png;base64,") == 6
    assert "target_fingerprint" in shown


def test_the_sweep_analysis_makes_its_own_sweep():
    shown = outputs(execute("02_sweep_analysis.ipynb"))
    assert "Highest τ of eagle_dynamic: " in shown
    assert "infeasible" in shown
    assert shown.count("data:image/png;base64,") == 4


def test_the_tour_of_a_given_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("EAGLE_LAB_RUN", str(write_bench(tmp_path / "run", timing=False)))
    shown = outputs(execute("01_tour.ipynb"))
    assert "Highest τ: eagle_dynamic, " in shown
    assert shown.count("data:image/png;base64,") == 4


def test_the_analysis_of_a_given_sweep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    root = write_sweep(tmp_path / "root", num_questions=5)
    monkeypatch.setenv("EAGLE_LAB_RUN", str(root))
    shown = outputs(execute("02_sweep_analysis.ipynb"))
    assert "Fastest of eagle_dynamic: eagle_dynamic, depth " in shown
    assert "StepCosts(draft_base=" in shown

"""One rule finds a drafter, and what lies in the package is fit to ship.

The checks of the package's own drafters have nothing to check where none is there.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
import yaml
from safetensors import safe_open

import eagle_lab
from eagle_lab.drafters import folder as drafter_folders
from eagle_lab.drafters.card import write_card
from eagle_lab.drafters.checkpoint import load_drafter, save_drafter
from eagle_lab.drafters.folder import drafter_folder, shipped_drafters, shown_name
from eagle_lab.errors import Missing, UserError
from eagle_lab.methods.eagle_trees import EagleDynamic
from tests.drafters.fakes import FakeTarget, eagle1

LARGEST = 12_000_000  # bytes of a folder
FIT = list(shipped_drafters().values())
EMBEDDED = "445af5c8c6ec3c15"  # fingerprint of SmolLM2-135M-Instruct as it is fetched
QUESTIONS = [
    "Give three tips for staying healthy.",
    "Write a short story about a lighthouse keeper.",
    "Explain what a prime number is.",
]
LEAST_TAU = 2.4  # tokens per target pass of the 59-node tree over the first 64 of each answer


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package with one drafter, `fake_eagle1`, for the fake target."""
    monkeypatch.setattr(drafter_folders, "SHIPPED_DRAFTERS", tmp_path / "drafters")
    target = FakeTarget()
    folder = tmp_path / "drafters" / "fake_eagle1"
    return save_drafter(eagle1(target), folder, target=target, training_summary={})


def test_none_is_the_packages_own_for_exactly_this_target(own: Path) -> None:
    assert drafter_folder(None, FakeTarget()) == own  # type: ignore[arg-type]
    with pytest.raises(Missing, match="fake"):
        drafter_folder(None, FakeTarget(fingerprint="fake-1"))  # type: ignore[arg-type]


def test_a_name_is_the_packages_and_anything_else_a_folder(
    own: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = FakeTarget()
    assert drafter_folder("fake_eagle1", target) == own  # type: ignore[arg-type]
    monkeypatch.chdir(tmp_path)
    shutil.copytree(own, "fake_eagle1")
    assert drafter_folder("fake_eagle1", target) == own  # type: ignore[arg-type]
    there = drafter_folder("./fake_eagle1", target)  # type: ignore[arg-type]
    assert there.resolve() == tmp_path / "fake_eagle1"
    with pytest.raises(UserError, match="'fake_eagle'.*fake_eagle1"):
        drafter_folder("fake_eagle", target)  # type: ignore[arg-type]


def test_tables_name_the_packages_own_without_its_path(own: Path) -> None:
    assert shown_name(own) == "fake_eagle1"
    assert shown_name(Path("runs/train/drafter")) == "runs/train/drafter"
    assert shown_name(Path("./fake_eagle1")) == "./fake_eagle1"


@pytest.mark.parametrize("folder", FIT, ids=lambda folder: folder.name)
def test_a_shipped_drafter_is_small_half_precision_and_has_its_card(
    folder: Path, tmp_path: Path
) -> None:
    names = sorted(path.name for path in folder.iterdir())
    assert names == ["README.md", "config.json", "model.safetensors"]
    assert sum(path.stat().st_size for path in folder.iterdir()) <= LARGEST
    with safe_open(folder / "model.safetensors", framework="pt") as file:
        dtypes = {key: file.get_tensor(key).dtype for key in file.keys()}  # noqa: SIM118
    assert set(dtypes.values()) <= {torch.float16, torch.int64}
    assert dtypes["fc.weight"] == torch.float16
    card = (folder / "README.md").read_text(encoding="utf-8")
    described = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    assert yaml.safe_load(card.split("---\n")[1])["license"] == "apache-2.0"
    assert write_card(shutil.copytree(folder, tmp_path / "copy")).read_text("utf-8") == card
    assert described["target"]["fingerprint"] == EMBEDDED
    assert EMBEDDED in card


@pytest.mark.slow
@pytest.mark.parametrize("folder", FIT, ids=lambda folder: folder.name)
def test_a_shipped_drafter_drafts_well_for_the_embedded_target(folder: Path) -> None:
    target = eagle_lab.load_target("smollm2_135m", device="cpu")
    assert drafter_folder(None, target) == folder
    drafter, matches = load_drafter(folder, target)
    assert matches
    assert target.fingerprint == EMBEDDED
    tree = EagleDynamic(target, drafter, depth=6, width=10, num_nodes=59)
    answers = eagle_lab.generate(target, None, QUESTIONS, max_new_tokens=64, proposer=tree)
    lengths = [length for one in answers for length in one.generation.emitted_lengths]
    assert sum(lengths) / len(lengths) >= LEAST_TAU

"""A model card tells what the folder holds, the same each time, and nothing it does not know."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from safetensors.numpy import save_file

from eagle_lab.errors import UserError
from eagle_lab.reports.model_card import add_evaluation, write_card

SOURCE = {
    "prompts": "training", "num_conversations": 1509, "num_tokens": 377307,
    "num_supervised": 270130, "sampled_share": 0.4, "temperature": 0.8, "computed_in": "bfloat16",
}  # fmt: skip


def stage(**changes: Any) -> dict[str, Any]:
    """`training` of a folder after one run."""
    return {
        "validation": {
            "num_tokens": 2000, "val_tau": 1.984, "val_acceptance_1": 0.533,
            "val_acceptance_2": 0.47, "val_num_chains": 17779,
        },
        "num_steps": 2472,
        "minutes": 15.06,
        "start": "least squares",
        "data": {
            "num_conversations": 1509, "num_train": 1434, "num_train_tokens": 358000,
            "num_train_labels": 256000, "num_val": 75, "store_digest": "b439",
            "sources": [SOURCE],
        },
        "draft_vocabulary": {"size": 6144, "coverage": 0.978},
        "recipe": {"learning_rate": 7e-4, "ttt_steps": 1, "val_fraction": 0.05, "init_from": None},
        "seed": 0,
        "base_model": "ORG/Base",
        "licence": "apache-2.0",
        "provenance": {
            "device_name": "AMD EPYC", "machine": {"num_cpus": 2}, "start": "2026-11-29T17:50:38",
            "git_commit": "b4dec78b4dbafee5c16d37bb07637b9192718c9e",
        },
        **changes,
    }  # fmt: skip


def folder_of(path: Path, training: dict[str, Any]) -> Path:
    """A drafter folder of 6 + 4 weights and a vocabulary of three ids."""
    path.mkdir(parents=True)
    weights = {
        "fc.weight": np.zeros((3, 2), np.float32),
        "norm.weight": np.zeros(4, np.float16),
        "d2t": np.zeros(3, np.int64),
    }
    save_file(weights, path / "model.safetensors")
    described = {
        "kind": "eagle1",
        "dimensions": {"vocab_size": 49152, "hidden_size": 576},
        "switches": {"inner_norm": True, "draft_vocab_size": 6144, "fc_bias": False},
        "target": {"name": "Base", "fingerprint": "445af5c8c6ec3c15"},
        "training": training,
    }
    (path / "config.json").write_text(json.dumps(described))
    return path


def card_of(folder: Path) -> tuple[dict[str, Any], str]:
    """YAML and Markdown of the card."""
    _, front, text = write_card(folder).read_text(encoding="utf-8").split("---\n", 2)
    return yaml.safe_load(front), text


def test_it_tells_target_data_recipe_and_acceptance(tmp_path: Path) -> None:
    front, text = card_of(folder_of(tmp_path / "drafter", stage()))
    assert front["license"] == "apache-2.0"
    assert front["base_model"] == "ORG/Base"
    assert "eagle1" in front["tags"]
    assert "datasets" not in front and "model-index" not in front
    assert text.startswith("\n# EAGLE-1 drafter for Base\n")
    for said in (
        "445af5c8c6ec3c15", "6,144 of the target's 49,152", "fall under apache-2.0",
        "| training | 1,509 | 377,307 | 270,130 | 0.4 | 0.8 | bfloat16 |",
        "1,434 were trained on (358,000 tokens, 256,000 of them labels) and 75 held out",
        "15.1 minutes", "| started as | least squares |", "| learning_rate | 0.0007 |",
        "| hardware | AMD EPYC, 2 CPUs |", "| commit | b4dec78b4dba |", "| 97.8% |",
        "| draft 1 | 0.533 |", "| draft 2 | 0.470 |", "| 1.984 |",
    ):  # fmt: skip
        assert said in text, said
    assert "init_from" not in text and "stage" not in text


def test_weights_are_counted_without_the_vocabulary(tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "drafter", stage())
    save_file({"a": np.zeros((2000, 600), np.float16)}, folder / "model.safetensors")
    assert "1.2 million weights" in card_of(folder)[1]
    save_file({"a": np.zeros((280, 100), np.float16)}, folder / "model.safetensors")
    assert "of 28 thousand weights" in card_of(folder)[1]


@pytest.mark.parametrize(
    ("target", "training", "name", "option"),
    [
        ("SmolLM2-135M-Instruct", {"base_model": "ORG/SmolLM2"}, "smollm2_135m", ""),
        ("tiny_random", {}, "tiny_random", " target=tiny_random"),
        ("Base", {"base_model": "ORG/Base"}, "ORG/Base", " target=hf target.name=ORG/Base"),
        ("Base", {}, "Base", " target=hf target.name=Base"),
    ],
)
def test_its_commands_name_the_target(
    tmp_path: Path, target: str, training: dict[str, Any], name: str, option: str
) -> None:
    folder = folder_of(tmp_path / "drafter", training)
    described = json.loads((folder / "config.json").read_text())
    described["target"]["name"] = target
    (folder / "config.json").write_text(json.dumps(described))
    text = card_of(folder)[1]
    assert f'eagle_lab.load_target("{name}")\n' in text
    for task in ("bench", "chat"):
        assert f"+experiment={task}{option} drafter.path=FOLDER\n" in text


def test_every_stage_has_its_column_and_a_changed_split_is_told(tmp_path: Path) -> None:
    first = stage(minutes=10.0)
    second = stage(minutes=5.0, start="the stage before", earlier_stages=[first])
    text = card_of(folder_of(tmp_path / "same", second))[1]
    assert "| setting | stage 1 | stage 2 |" in text
    assert "| started as | least squares | the stage before |" in text
    assert "15.0 minutes" in text
    assert "flatters" not in text
    other_data = {**first["data"], "store_digest": "0000"}
    second["earlier_stages"] = [stage(data=other_data)]
    assert "flatters" in card_of(folder_of(tmp_path / "other", second))[1]


def test_data_sets_of_the_hub_are_named_as_such(tmp_path: Path) -> None:
    training = stage()
    training["data"]["sources"] = [SOURCE, {**SOURCE, "prompts": "dataset:ORG/chats"}]
    assert card_of(folder_of(tmp_path / "drafter", training))[0]["datasets"] == ["ORG/chats"]


def test_what_is_not_recorded_is_left_out(tmp_path: Path) -> None:
    front, text = card_of(folder_of(tmp_path / "drafter", {}))
    assert "license" not in front and "base_model" not in front
    for heading in ("Training data", "Recipe", "Held-out", "Measured"):
        assert heading not in text
    assert "## Use" in text and "## Licence" in text


def test_what_is_no_drafter_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no drafter folder"):
        write_card(tmp_path)
    with pytest.raises(UserError, match="no drafter folder"):
        add_evaluation(tmp_path, tmp_path)


def test_it_is_written_without_torch(tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "drafter", stage())
    program = (
        "import sys; from eagle_lab.reports.model_card import write_card;"
        f"write_card({str(folder)!r}); sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0

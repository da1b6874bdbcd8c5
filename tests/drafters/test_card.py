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

from eagle_lab.drafters.card import add_evaluation, write_card
from eagle_lab.errors import UserError

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
        "data": {"num_train": 1434, "num_val": 75, "store_digest": "b439", "sources": [SOURCE]},
        "draft_vocabulary": {"size": 6144, "coverage": 0.978},
        "recipe": {"learning_rate": 7e-4, "ttt_steps": 1, "val_fraction": 0.05, "init_from": None},
        "base_model": "ORG/Base",
        "licence": "apache-2.0",
        "provenance": {"device_name": "AMD EPYC", "git_commit": "b4dec78b4dbafee5c16d37bb"},
        **changes,
    }  # fmt: skip


def folder_of(path: Path, training: dict[str, Any], **changes: Any) -> Path:
    """A drafter folder of a kind that the package does not know: 6 + 4 weights and three ids."""
    path.mkdir(parents=True)
    weights = {
        "fc.weight": np.zeros((3, 2), np.float32),
        "norm.weight": np.zeros(4, np.float16),
        "d2t": np.zeros(3, np.int64),
    }
    save_file(weights, path / "model.safetensors")
    described = {
        "kind": "toy2",
        "description": "A network of toys.",
        "target": {"name": "Base", "fingerprint": "445af5c8c6ec3c15"},
        "training": training,
        **changes,
    }
    (path / "config.json").write_text(json.dumps(described))
    return path


def card_of(folder: Path) -> tuple[dict[str, Any], str]:
    """YAML and Markdown of the card."""
    _, front, text = write_card(folder).read_text(encoding="utf-8").split("---\n", 2)
    return yaml.safe_load(front), text


def rows_of(text: str, heading: str) -> list[list[str]]:
    """Cells of the table under a heading, its column names first."""
    section = text.split(f"## {heading}\n")[1].split("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("| ")]
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines]
    return [cells[0], *cells[2:]]


def evaluation(start: str, *rows: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """What a bench measured: each row's method, tau_micro and what else is given."""
    filled = [
        {"label": row["method"], "tau_macro": 2.5, "num_questions": 80, "num_tokens": 900, **row}
        for row in rows
    ]
    provenance = {
        "command": f"run {start}", "git_commit": "0" * 40, "dtype": "float32",
        "device_name": "AMD EPYC", "start": start,
    }  # fmt: skip
    return {
        "benchmark": "bench80", "temperature": 1.0, "batch_size": 16, "turns": 2,
        "max_new_tokens": 64, "replay": False, "rows": filled, "provenance": provenance, **changes,
    }  # fmt: skip


def test_it_tells_target_data_recipe_and_acceptance(tmp_path: Path) -> None:
    front, text = card_of(folder_of(tmp_path / "drafter", stage()))
    assert (front["license"], front["base_model"]) == ("apache-2.0", "ORG/Base")
    assert {"toy2", "toy", "speculative-decoding"} <= set(front["tags"])
    assert "datasets" not in front and "model-index" not in front
    for fact in ("Base", "445af5c8c6ec3c15", "A network of toys.", "apache-2.0", " 10 weights"):
        assert fact in text
    assert rows_of(text, "Training data")[1] == [
        "training", "1,509", "377,307", "270,130", "0.4", "0.8", "bfloat16",
    ]  # fmt: skip
    recipe = dict(rows_of(text, "Recipe"))
    assert recipe["started as"] == "least squares" and recipe["minutes"] == "15.1"
    assert recipe["learning_rate"] == "0.0007" and recipe["commit"] == "b4dec78b4dba"
    assert "init_from" not in recipe and "seed" not in recipe
    acceptance = dict(rows_of(text, "Held-out acceptance"))
    assert (acceptance["draft 1"], acceptance["draft 2"]) == ("0.533", "0.470")


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
    described = {"name": target, "fingerprint": "0"}
    text = card_of(folder_of(tmp_path / "drafter", training, target=described))[1]
    assert f'eagle_lab.load_target("{name}")\n' in text
    for task in ("bench", "chat"):
        assert f"+experiment={task}{option} drafter.path=FOLDER\n" in text


def test_every_stage_has_its_column(tmp_path: Path) -> None:
    second = stage(minutes=5.0, start="the stage before", earlier_stages=[stage(minutes=10.0)])
    recipe = rows_of(card_of(folder_of(tmp_path / "drafter", second))[1], "Recipe")
    assert recipe[0] == ["setting", "stage 1", "stage 2"]
    assert ["started as", "least squares", "the stage before"] in recipe
    assert ["minutes", "10", "5"] in recipe


def test_data_sets_of_the_hub_are_named_as_such(tmp_path: Path) -> None:
    training = stage(data={"sources": [SOURCE, {**SOURCE, "prompts": "dataset:ORG/chats"}]})
    assert card_of(folder_of(tmp_path / "drafter", training))[0]["datasets"] == ["ORG/chats"]


def test_what_is_not_recorded_is_left_out(tmp_path: Path) -> None:
    front, text = card_of(folder_of(tmp_path / "drafter", {}))
    assert "license" not in front and "base_model" not in front
    headings = {line for line in text.splitlines() if line.startswith("## ")}
    assert headings == {"## Use", "## Intended use and limits", "## License"}


def test_an_evaluation_replaces_only_itself(tmp_path: Path) -> None:
    """Same benchmark, temperature, batch size, method and settings; pooled τ comes first."""
    folder = folder_of(tmp_path / "drafter", {})
    small = {"method": "dynamic", "num_nodes": 8.0, "tau_micro": 2.1}
    large = {"method": "dynamic", "num_nodes": 59.0, "tau_micro": 3.1}
    add_evaluation(folder, evaluation("2026-01-01", small, large))
    add_evaluation(folder, evaluation("2026-01-01", small, temperature=0.0))
    add_evaluation(folder, evaluation("2026-01-02", {"method": "static", "tau_micro": 1.7}))
    add_evaluation(folder, evaluation("2026-01-03", {**small, "tau_micro": 2.2}))
    front, text = card_of(folder)
    table = rows_of(text, "Measured: bench80, T = 1, batch 16")
    assert table[0][:4] == ["method", "nodes", "τ", "τ, mean over turns"]
    assert [row[:4] for row in table[1:]] == [
        ["dynamic", "59", "3.10", "2.50"],
        ["static", "", "1.70", "2.50"],
        ["dynamic", "8", "2.20", "2.50"],
    ]
    assert len(rows_of(text, "Measured: bench80, T = 0, batch 16")) == 2
    results = [one for result in front["model-index"][0]["results"] for one in result["metrics"]]
    assert sorted(one["value"] for one in results) == [1.7, 2.1, 2.2, 3.1]
    add_evaluation(folder, evaluation("2026-01-04", small, large))
    starts = [key[-10:] for key in json.loads((folder / "config.json").read_text())["evaluation"]]
    assert starts == ["2026-01-01", "2026-01-02", "2026-01-04"]


def test_settings_tell_rows_apart_where_both_have_them(tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "drafter", {})
    row = {"method": "dynamic", "num_nodes": 8.0, "tau_micro": 2.0}
    add_evaluation(folder, evaluation("1", row))
    add_evaluation(folder, evaluation("2", {**row, "settings": '{"stop": 0.1}'}))  # the older goes
    add_evaluation(folder, evaluation("3", {**row, "settings": '{"stop": 0.2}'}))
    assert len(rows_of(card_of(folder)[1], "Measured: bench80, T = 1, batch 16")) == 3


def test_what_is_no_drafter_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="config.json"):
        write_card(tmp_path)
    with pytest.raises(UserError, match="config.json"):
        add_evaluation(tmp_path, {})


def test_it_is_written_without_torch(tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "drafter", stage())
    program = (
        "import sys; from eagle_lab.drafters.card import write_card;"
        f"write_card({str(folder)!r}); sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0

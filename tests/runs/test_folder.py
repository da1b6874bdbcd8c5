"""A run's folder: resumes what is unfinished, refuses what is another, never shows half a file."""

from __future__ import annotations

import contextlib
import csv
import errno
import hashlib
import io
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from omegaconf import DictConfig, OmegaConf

from eagle_lab.config import compose
from eagle_lab.errors import UserError
from eagle_lab.runs import provenance
from eagle_lab.runs.folder import GrowingFile, RunFolder, read_rows

BASE = compose(["target=tiny_random"])
PROMPT = '{"question_id": 1, "category": "math", "turns": ["1+1?"]}\n'


def make(folder: Path, **changes: Any) -> DictConfig:
    """The default configuration in `folder` with `changes`, `__` standing for the dot of a key."""
    config = BASE.copy()
    config.output_dir = str(folder)
    for key, value in changes.items():
        OmegaConf.update(config, key.replace("__", "."), value)
    return config


def begin(folder: Path, **changes: Any) -> RunFolder:
    return RunFolder.open(make(folder, **changes), task="fake")


def names(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir())


def refusal(config: DictConfig, task: str = "fake") -> str:
    """The one line with which a folder is refused."""
    with pytest.raises(UserError) as error:
        RunFolder.open(config, task=task)
    assert "\n" not in str(error.value)
    return str(error.value)


def test_a_run_from_start_to_end(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "run"
    with begin(path) as folder:
        assert not folder.resumed and not folder.finished
        folder.write_json("summary.json", {"tau": 3.0})
        folder.finish(note="done")
    assert names(path) == ["config.yaml", "provenance.json", "summary.json"]
    with begin(path) as again:
        assert again.finished
    assert json.loads((path / "summary.json").read_text()) == {"tau": 3.0}


def test_the_provenance_names_command_code_machine_and_times(tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text(PROMPT)
    config = make(tmp_path / "run", eval__prompts=str(prompts), seed=7, device="cpu")
    with RunFolder.open(config, task="bench") as folder:
        folder.finish(num_questions=1)
    record = json.loads((tmp_path / "run/provenance.json").read_text())
    assert record["git_commit"] is None or len(record["git_commit"]) == 40
    assert record["git_dirty"] in (None, True, False)
    assert {"python", "torch", "transformers", "hydra-core", "lightning"} <= set(record["versions"])
    assert record["versions"]["torch"] == torch.__version__
    assert record["command"] and record["device_name"] and record["start"] <= record["end"]
    expected = {
        "task": "bench", "device": "cpu", "dtype": "float32", "seed": 7, "threads": None,
        "torch_threads": torch.get_num_threads(), "prompts": str(prompts), "status": "finished",
        "prompts_sha256": hashlib.sha256(prompts.read_bytes()).hexdigest(), "num_questions": 1,
    }  # fmt: skip
    assert {key: record[key] for key in expected} == expected


def test_a_command_is_kept_as_it_was_typed(monkeypatch: pytest.MonkeyPatch) -> None:
    for program in (["python", "-m", "eagle_lab.run"], ["/venv/python", "/venv/eagle-lab"]):
        monkeypatch.setattr(sys, "orig_argv", [*program, "+experiment=bench"])
        typed = program if "-m" in program else ["eagle-lab"]
        assert provenance.command() == " ".join([*typed, "+experiment=bench"])


def test_the_configuration_is_kept_resolved(tmp_path: Path) -> None:
    with begin(tmp_path, drafter__path="${target.name}/drafter"):
        kept = OmegaConf.load(tmp_path / "config.yaml")
    assert kept.drafter.path == "tiny_random/drafter"
    assert kept.tree == BASE.tree
    assert not {"output_dir", "overwrite", "logger"} & set(kept)


def test_another_configuration_is_refused_with_both_values(tmp_path: Path) -> None:
    begin(tmp_path, tree__depth=4).close()
    before = {name: (tmp_path / name).read_text() for name in names(tmp_path)}
    message = refusal(make(tmp_path, tree__depth=6, eval__temperature=1.0))
    for words in ("tree.depth", "4", "6", "eval.temperature", "0.0", "overwrite=true"):
        assert words in message
    assert {name: (tmp_path / name).read_text() for name in names(tmp_path)} == before
    with begin(tmp_path, tree__depth=4) as folder:
        folder.finish()
    assert "tree.depth" in refusal(make(tmp_path, tree__depth=6))


def test_where_curves_go_is_no_other_run(tmp_path: Path) -> None:
    RunFolder.open(compose([f"output_dir={tmp_path}", "logger=none"]), task="fake").close()
    with RunFolder.open(compose([f"output_dir={tmp_path}", "logger=csv"]), task="fake") as folder:
        assert folder.resumed


def rewrite(folder: Path, change: Any) -> None:
    """Change a run's config.yaml, as if an earlier package had written it."""
    file = folder / "config.yaml"
    header = file.read_text().splitlines(keepends=True)[0]
    kept = OmegaConf.load(file)
    change(kept)
    file.write_text(header + OmegaConf.to_yaml(kept))


def test_keys_that_the_package_has_gained_or_lost_do_not_end_a_run(tmp_path: Path) -> None:
    asked = compose(["target=tiny_random", "method=[eagle_chain]", f"output_dir={tmp_path}"])
    RunFolder.open(asked, task="fake").close()

    def age(kept: Any) -> None:
        del kept.trainer.save_precision, kept.method.eagle_chain.stop_confidence
        kept.profile.decode_tokens = 24

    rewrite(tmp_path, age)
    with RunFolder.open(asked, task="fake") as folder:
        assert folder.resumed
    kept = OmegaConf.load(tmp_path / "config.yaml")
    assert kept.trainer.save_precision == "float32"  # from now on it is part of the run

    rewrite(tmp_path, age)
    asked.trainer.save_precision = "float16"
    asked.method.eagle_chain.stop_confidence = 0.5
    message = refusal(asked)
    assert "trainer.save_precision" in message and "float16" in message
    assert "method.eagle_chain.stop_confidence" in message and "profile" not in message


@pytest.mark.parametrize("chosen", ["prompt_lookup", "prompt_lookup,suffix,vanilla"])
def test_a_method_more_or_less_is_another_run(tmp_path: Path, chosen: str) -> None:
    before = compose(["method=[prompt_lookup,suffix]", f"output_dir={tmp_path}"])
    RunFolder.open(before, task="fake").close()
    assert "method." in refusal(compose([f"method=[{chosen}]", f"output_dir={tmp_path}"]))


def test_changed_contents_of_the_prompt_file_are_another_run(tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text(PROMPT)
    config = make(tmp_path / "run", eval__prompts=str(prompts))
    for _ in range(2):
        RunFolder.open(config, task="bench").close()
    prompts.write_text(PROMPT.replace("1+1", "1+2"))
    assert str(prompts) in refusal(config, task="bench")


def test_a_folder_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for path in (tmp_path / "file", tmp_path / "file" / "run"):
        assert f"output_dir={path}" in refusal(make(path))
    assert "nowhere" in refusal(make(tmp_path / "run", eval__prompts="nowhere.jsonl"), "bench")
    assert names(tmp_path) == ["file"]


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("name", ["thesis.tex", "config.yaml"])
def test_a_folder_that_no_run_made_is_left_alone(
    tmp_path: Path, name: str, overwrite: bool
) -> None:
    (tmp_path / name).write_text("precious: true\n")
    assert name in refusal(make(tmp_path, overwrite=overwrite))
    assert names(tmp_path) == [name]


def test_overwrite_replaces_a_run_and_everything_it_left(tmp_path: Path) -> None:
    with begin(tmp_path, seed=1) as folder:
        folder.append_jsonl("generations.jsonl", {"row": 1})
        folder.write_text("figures/tau.png", "picture")
        folder.finish()
    with begin(tmp_path, seed=2, overwrite=True) as folder:
        assert not folder.resumed
        assert folder.read_jsonl("generations.jsonl") == []
    assert names(tmp_path) == ["config.yaml", "provenance.json"]
    with begin(tmp_path, seed=2) as folder:
        assert folder.resumed


def test_an_interrupted_replacement_can_be_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with begin(tmp_path, seed=1) as folder:
        for name in ("a.txt", "b.txt"):
            folder.write_text(name, name)
    unlink = Path.unlink

    def fail_at_b(path: Path, missing_ok: bool = False) -> None:
        if path.name == "b.txt":
            raise KeyboardInterrupt
        unlink(path, missing_ok)

    monkeypatch.setattr(Path, "unlink", fail_at_b)
    with pytest.raises(KeyboardInterrupt):
        begin(tmp_path, seed=2, overwrite=True)
    monkeypatch.undo()
    with begin(tmp_path, seed=2, overwrite=True):
        assert names(tmp_path) == [".lock", "config.yaml", "provenance.json"]


def test_a_second_process_is_refused(tmp_path: Path) -> None:
    with begin(tmp_path):
        for overwrite in (False, True):
            assert str(tmp_path) in refusal(make(tmp_path, overwrite=overwrite))
    begin(tmp_path).close()


def test_an_unfinished_run_goes_on_and_says_so(tmp_path: Path) -> None:
    name = "generations.jsonl"
    with begin(tmp_path) as folder:
        with pytest.raises(FileNotFoundError):
            folder.commit(name)
        for row in (1, 2):
            folder.append_jsonl(name, {"row": row})
    assert f"{name}.partial" in names(tmp_path)
    with begin(tmp_path) as folder:
        assert folder.resumed
        assert folder.read_jsonl(name) == [{"row": 1}, {"row": 2}]
        folder.append_jsonl(name, {"row": 3})
        assert len(folder.read_jsonl(name)) == 3
        folder.commit(name)
        assert len(folder.read_jsonl(name)) == 3
    with begin(tmp_path) as folder:
        folder.commit(name)
        with pytest.raises(ValueError, match=name):
            folder.append_jsonl(name, {"row": 4})
        folder.finish()
    record = json.loads((tmp_path / "provenance.json").read_text())
    assert len(record["resumed"]) == 2
    assert all("command" in start for start in record["resumed"])


@given(cut=st.integers(min_value=0))
@settings(max_examples=60, deadline=None)
def test_wherever_a_kill_cuts_the_file_whole_rows_stay_and_go_on(
    tmp_path_factory: pytest.TempPathFactory, cut: int
) -> None:
    path = tmp_path_factory.mktemp("cut") / "rows.jsonl"
    rows = [{"row": i, "text": "a\nü" * i} for i in range(4)]

    def grow(added: list[dict[str, Any]]) -> None:
        growing = GrowingFile(path)
        for row in added:
            growing.append(row)
        growing.close()

    grow(rows)
    content = path.read_bytes()
    path.write_bytes(content[: cut % (len(content) + 1)])
    kept = read_rows(path)
    assert kept == rows[: len(kept)]
    grow(rows[len(kept) :])
    assert path.read_bytes() == content


def test_damage_in_the_middle_is_named_by_line(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"row": 1}\n{"row": \n{"row": 3}\n')
    with pytest.raises(UserError, match=r"rows\.jsonl, line 2"):
        read_rows(path)


def test_a_disk_that_fills_in_the_middle_of_a_row_leaves_the_rows_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with begin(tmp_path) as folder:
        folder.append_jsonl("rows.jsonl", {"row": 1})
        growing = folder._growing["rows.jsonl"]
        monkeypatch.setattr(growing, "_file", FullDisk(growing._file, room=7))
        with pytest.raises(OSError, match="No space left"):
            folder.append_jsonl("rows.jsonl", {"row": 2})
        assert (tmp_path / "rows.jsonl.partial").read_text() == '{"row": 1}\n'
        monkeypatch.undo()
        folder.append_jsonl("rows.jsonl", {"row": 2})
        assert folder.read_jsonl("rows.jsonl") == [{"row": 1}, {"row": 2}]


class FullDisk:
    """A file on a disk with `room` bytes left: short write first, then an error."""

    def __init__(self, file: io.FileIO, room: int) -> None:
        self._file, self._room = file, room
        self.fileno, self.truncate = file.fileno, file.truncate

    def write(self, data: bytes) -> int:
        if not self._room:
            raise OSError(errno.ENOSPC, "No space left on device")
        written = self._file.write(data[: self._room])
        self._room -= written
        return written


def test_a_kill_between_the_first_files_is_no_obstacle(tmp_path: Path) -> None:
    (tmp_path / "config.yaml.partial").write_text("half")
    (tmp_path / ".lock").write_text("123")
    begin(tmp_path).close()
    (tmp_path / "provenance.json").unlink()
    with begin(tmp_path) as folder:
        assert not folder.finished
    assert names(tmp_path) == ["config.yaml", "provenance.json"]


def test_a_run_that_fails_before_any_result_leaves_no_folder(tmp_path: Path) -> None:
    path = tmp_path / "run"

    def fail(error: BaseException, *, rows: int = 0) -> None:
        with contextlib.suppress(BaseException), begin(path) as folder:
            (path / "shards").mkdir(exist_ok=True)
            for number in range(rows):
                folder.append_jsonl("rows.jsonl", {"n": number})
            raise error

    fail(UserError("no feature store"))
    assert not path.exists()
    fail(KeyboardInterrupt())
    assert names(path) == ["config.yaml", "provenance.json", "shards"]
    fail(OSError("full"), rows=1)
    assert names(path) == ["config.yaml", "provenance.json", "rows.jsonl.partial", "shards"]


def test_tables_have_empty_cells_for_what_does_not_apply(tmp_path: Path) -> None:
    rows = [
        {"method": "vanilla", "tau": np.float32(1.5), "match": True, "depth": None},
        {"method": "chain", "tau": float("nan"), "num": torch.tensor(3)},
    ]
    with begin(tmp_path) as folder:
        folder.write_csv("summary.csv", rows)
        folder.write_csv("narrow.csv", [{"tau": 1}], ["method", "tau"])
        with pytest.raises(ValueError, match="tau"):
            folder.write_csv("bad.csv", [{"tau": 1}], ["method"])
    with (tmp_path / "summary.csv").open() as file:
        assert list(csv.DictReader(file)) == [
            {"method": "vanilla", "tau": "1.5", "match": "true", "depth": "", "num": ""},
            {"method": "chain", "tau": "", "match": "", "depth": "", "num": "3"},
        ]
    assert (tmp_path / "narrow.csv").read_text() == "method,tau\n,1\n"
    assert not (tmp_path / "bad.csv").exists()


def test_json_holds_plain_values(tmp_path: Path) -> None:
    data = {
        "array": np.arange(2), "tensor": torch.ones(2), "path": Path("a/b"), "nan": float("nan"),
        "set": {2, 1}, "tuple": (True, None),
    }  # fmt: skip
    with begin(tmp_path) as folder:
        folder.write_json("values.json", data)
        with pytest.raises(TypeError):
            folder.write_json("values.json", {"object": object()})
    assert json.loads((tmp_path / "values.json").read_text()) == {
        "array": [0, 1], "tensor": [1.0, 1.0], "path": "a/b", "nan": None, "set": [1, 2],
        "tuple": [True, None],
    }  # fmt: skip

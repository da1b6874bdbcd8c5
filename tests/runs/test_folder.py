"""A run's folder: resumes what is unfinished, refuses what is another, never shows half a file."""

from __future__ import annotations

import csv
import errno
import hashlib
import io
import json
import signal
import subprocess
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
from eagle_lab.runs.folder import GrowingFile, RunFolder, read_rows

BASE = compose(["target=tiny_random"])


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


def test_a_run_from_start_to_end(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "run"
    with begin(path) as folder:
        assert not folder.resumed
        assert not folder.finished
        folder.write_json("summary.json", {"tau": 3.0})
        folder.finish(note="done")
    assert names(path) == ["config.yaml", "provenance.json", "summary.json"]
    with begin(path) as again:
        assert again.finished
    assert json.loads((path / "summary.json").read_text()) == {"tau": 3.0}


def test_the_provenance_names_command_code_machine_and_times(tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"question_id": 1, "category": "math", "turns": ["1+1?"]}\n')
    config = make(tmp_path / "run", eval__prompts=str(prompts), seed=7, device="cpu")
    with RunFolder.open(config, task="bench") as folder:
        folder.finish(num_questions=1)
    record = json.loads((tmp_path / "run/provenance.json").read_text())
    assert record["task"] == "bench"
    assert "python" in record["command"]
    assert record["git_commit"] is None or len(record["git_commit"]) == 40
    assert record["git_dirty"] in (None, True, False)
    assert {"python", "torch", "transformers", "hydra-core", "lightning"} <= set(record["versions"])
    assert record["versions"]["torch"] == torch.__version__
    assert record["device"] == "cpu"
    assert record["device_name"]
    assert record["torch_threads"] == torch.get_num_threads()
    assert (record["dtype"], record["seed"], record["threads"]) == ("float32", 7, None)
    assert record["prompts"] == str(prompts)
    assert record["prompts_sha256"] == hashlib.sha256(prompts.read_bytes()).hexdigest()
    assert record["start"] <= record["end"]
    assert record["status"] == "finished"
    assert record["num_questions"] == 1


def test_the_configuration_is_kept_resolved(tmp_path: Path) -> None:
    with begin(tmp_path, drafter__path="${target.name}/drafter"):
        kept = OmegaConf.load(tmp_path / "config.yaml")
    assert kept.drafter.path == "tiny_random/drafter"
    assert kept.tree == BASE.tree
    assert "output_dir" not in kept


def test_another_configuration_is_refused_with_both_values(tmp_path: Path) -> None:
    begin(tmp_path, tree__depth=4).close()
    before = {name: (tmp_path / name).read_text() for name in names(tmp_path)}
    with pytest.raises(UserError) as refusal:
        begin(tmp_path, tree__depth=6, eval__temperature=1.0)
    message = str(refusal.value)
    assert "tree.depth is 4 there, 6 now" in message
    assert "eval.temperature is 0.0 there, 1.0 now" in message
    assert "overwrite=true" in message
    assert "\n" not in message
    assert {name: (tmp_path / name).read_text() for name in names(tmp_path)} == before


def without(folder: Path, *keys: str) -> None:
    """Remove keys from a run's config.yaml, as if the package had not known them then."""
    file = folder / "config.yaml"
    header = file.read_text().splitlines(keepends=True)[0]
    kept = OmegaConf.load(file)
    for key in keys:
        section, _, name = key.rpartition(".")
        OmegaConf.select(kept, section).pop(name)
    file.write_text(header + OmegaConf.to_yaml(kept))


def test_a_key_that_the_package_has_gained_does_not_end_a_run(tmp_path: Path) -> None:
    asked = compose(["target=tiny_random", "method=[eagle_chain]", f"output_dir={tmp_path}"])
    RunFolder.open(asked, task="fake").close()
    gained = ("trainer.save_precision", "method.eagle_chain.adaptive")
    without(tmp_path, *gained)
    with RunFolder.open(asked, task="fake") as folder:
        assert folder.resumed
    kept = OmegaConf.load(tmp_path / "config.yaml")
    assert kept.trainer.save_precision == "float32"  # from now on it is part of the run

    without(tmp_path, *gained)
    asked.trainer.save_precision = "float16"
    asked.method.eagle_chain.adaptive = True
    with pytest.raises(UserError) as refusal:
        RunFolder.open(asked, task="fake")
    assert "trainer.save_precision is absent there, float16 now" in str(refusal.value)
    assert "method.eagle_chain.adaptive is absent there, True now" in str(refusal.value)


def test_a_method_more_is_another_run_with_default_settings_too(tmp_path: Path) -> None:
    few = compose(["method=[prompt_lookup]", f"output_dir={tmp_path}"])
    RunFolder.open(few, task="fake").close()
    more = compose(["method=[prompt_lookup,suffix]", f"output_dir={tmp_path}"])
    with pytest.raises(UserError, match=r"method\.suffix\._target_ is absent there"):
        RunFolder.open(more, task="fake")


def test_a_finished_run_of_another_configuration_is_refused_too(tmp_path: Path) -> None:
    with begin(tmp_path, seed=1) as folder:
        folder.finish()
    with pytest.raises(UserError, match="seed is 1 there, 2 now"):
        begin(tmp_path, seed=2)


def test_changed_contents_of_the_prompt_file_are_another_run(tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.jsonl"
    row = '{"question_id": 1, "category": "math", "turns": ["1+1?"]}\n'
    prompts.write_text(row)
    config = make(tmp_path / "run", eval__prompts=str(prompts))
    RunFolder.open(config, task="bench").close()
    RunFolder.open(config, task="bench").close()
    prompts.write_text(row.replace("1+1", "1+2"))
    with pytest.raises(UserError, match=r"contents of .*prompts\.jsonl have changed"):
        RunFolder.open(config, task="bench")


def test_a_missing_prompt_file_leaves_no_folder(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="nowhere"):
        RunFolder.open(make(tmp_path / "run", eval__prompts="nowhere.jsonl"), task="bench")
    assert names(tmp_path) == []


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    beneath = tmp_path / "file" / "run"
    with pytest.raises(UserError, match=f"output_dir={beneath} cannot be made: .*another folder"):
        RunFolder.open(make(beneath), task="report")


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


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("name", ["thesis.tex", "config.yaml"])
def test_a_folder_that_no_run_made_is_left_alone(
    tmp_path: Path, name: str, overwrite: bool
) -> None:
    (tmp_path / name).write_text("precious: true\n")
    with pytest.raises(UserError, match=f"no run made .*{name}"):
        begin(tmp_path, overwrite=overwrite)
    assert names(tmp_path) == [name]


def test_a_file_in_place_of_the_folder_is_named(tmp_path: Path) -> None:
    (tmp_path / "run").touch()
    with pytest.raises(UserError, match="is a file"):
        begin(tmp_path / "run")


def test_a_second_process_is_refused(tmp_path: Path) -> None:
    with begin(tmp_path):
        with pytest.raises(UserError, match="in use"):
            begin(tmp_path)
        with pytest.raises(UserError, match="in use"):
            begin(tmp_path, overwrite=True)
    begin(tmp_path).close()


def test_an_unfinished_run_goes_on_and_says_so(tmp_path: Path) -> None:
    with begin(tmp_path) as folder:
        folder.append_jsonl("generations.jsonl", {"row": 1})
        folder.append_jsonl("generations.jsonl", {"row": 2})
    assert "generations.jsonl.partial" in names(tmp_path)
    with begin(tmp_path) as folder:
        assert folder.resumed
        assert folder.read_jsonl("generations.jsonl") == [{"row": 1}, {"row": 2}]
        folder.append_jsonl("generations.jsonl", {"row": 3})
        assert len(folder.read_jsonl("generations.jsonl")) == 3
        folder.commit("generations.jsonl")
        assert len(folder.read_jsonl("generations.jsonl")) == 3
    with begin(tmp_path) as folder:
        folder.commit("generations.jsonl")
        with pytest.raises(ValueError, match="already whole"):
            folder.append_jsonl("generations.jsonl", {"row": 4})
        folder.finish()
    record = json.loads((tmp_path / "provenance.json").read_text())
    assert len(record["resumed"]) == 2
    assert all("command" in start for start in record["resumed"])


def test_committing_what_was_never_written_is_an_error(tmp_path: Path) -> None:
    with begin(tmp_path) as folder, pytest.raises(FileNotFoundError):
        folder.commit("generations.jsonl")


@given(cut=st.integers(min_value=0))
@settings(max_examples=60, deadline=None)
def test_wherever_a_kill_cuts_the_file_whole_rows_stay_and_go_on(
    tmp_path_factory: pytest.TempPathFactory, cut: int
) -> None:
    path = tmp_path_factory.mktemp("cut") / "rows.jsonl"
    rows = [{"row": i, "text": "a\nü" * i} for i in range(4)]
    growing = GrowingFile(path)
    for row in rows:
        growing.append(row)
    growing.close()
    content = path.read_bytes()
    path.write_bytes(content[: cut % (len(content) + 1)])
    kept = read_rows(path)
    assert kept == rows[: len(kept)]
    growing = GrowingFile(path)
    for row in rows[len(kept) :]:
        growing.append(row)
    growing.close()
    assert path.read_bytes() == content


def test_damage_in_the_middle_is_named_by_line(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"row": 1}\n{"row": \n{"row": 3}\n')
    with pytest.raises(UserError, match=r"rows\.jsonl, line 2"):
        read_rows(path)


WORK = """
import sys, time
from omegaconf import OmegaConf
from eagle_lab.runs.folder import RunFolder
config = OmegaConf.load(sys.argv[1])
folder = RunFolder.open(config, task="fake")
row = len(folder.read_jsonl("rows.jsonl"))
print("open", flush=True)
while True:
    folder.append_jsonl("rows.jsonl", {"row": row, "filling": "x" * 5000})
    folder.write_json("state.json", {"row": row, "filling": "x" * 5000})
    row += 1
    time.sleep(0.001)
"""


def test_a_killed_process_leaves_whole_rows_and_the_next_goes_on(tmp_path: Path) -> None:
    config = tmp_path / "asked.yaml"
    OmegaConf.save(make(tmp_path / "run"), config)
    rows: list[dict[str, Any]] = []
    for _ in range(3):
        process = subprocess.Popen(
            [sys.executable, "-c", WORK, str(config)], stdout=subprocess.PIPE, text=True
        )
        with process:
            assert process.stdout is not None
            assert process.stdout.readline() == "open\n"
            before = len(rows)
            while len(rows := read_rows(tmp_path / "run/rows.jsonl.partial")) < before + 20:
                assert process.poll() is None
            process.send_signal(signal.SIGKILL)
        rows = read_rows(tmp_path / "run/rows.jsonl.partial")
        assert [row["row"] for row in rows] == list(range(len(rows)))
        json.loads((tmp_path / "run/state.json").read_text())
    with RunFolder.open(make(tmp_path / "run"), task="fake") as folder:
        assert folder.resumed
        assert folder.read_jsonl("rows.jsonl") == rows


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


def test_a_kill_before_the_provenance_was_written_is_no_obstacle(tmp_path: Path) -> None:
    begin(tmp_path).close()
    (tmp_path / "provenance.json").unlink()
    with begin(tmp_path) as folder:
        assert not folder.finished
    assert names(tmp_path) == ["config.yaml", "provenance.json"]


def test_a_kill_before_the_configuration_was_written_is_no_obstacle(tmp_path: Path) -> None:
    (tmp_path / "config.yaml.partial").write_text("half")
    (tmp_path / ".lock").write_text("123")
    begin(tmp_path).close()
    assert "config.yaml" in names(tmp_path)


def test_a_run_that_fails_before_any_result_leaves_no_folder(tmp_path: Path) -> None:
    path = tmp_path / "run"

    def fail(error: BaseException, *, rows: int = 0) -> None:
        with begin(path) as folder:
            (path / "shards").mkdir(exist_ok=True)
            for number in range(rows):
                folder.append_jsonl("rows.jsonl", {"n": number})
            raise error

    with pytest.raises(UserError):
        fail(UserError("no feature store"))
    assert not path.exists()
    with pytest.raises(KeyboardInterrupt):
        fail(KeyboardInterrupt())
    assert names(path) == ["config.yaml", "provenance.json", "shards"]
    with pytest.raises(OSError, match="full"):
        fail(OSError("full"), rows=1)
    assert names(path) == ["config.yaml", "provenance.json", "rows.jsonl.partial", "shards"]


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


def test_tables_have_empty_cells_for_what_does_not_apply(tmp_path: Path) -> None:
    rows = [
        {"method": "vanilla", "tau": np.float32(1.5), "match": True, "depth": None},
        {"method": "chain", "tau": float("nan"), "num": torch.tensor(3)},
    ]
    with begin(tmp_path) as folder:
        folder.write_csv("summary.csv", rows)
        folder.write_csv("empty.csv", [], ["method", "tau"])
        folder.write_csv("narrow.csv", [{"tau": 1}], ["method", "tau"])
        with pytest.raises(ValueError, match="tau"):
            folder.write_csv("bad.csv", [{"tau": 1}], ["method"])
    with (tmp_path / "summary.csv").open() as file:
        assert list(csv.DictReader(file)) == [
            {"method": "vanilla", "tau": "1.5", "match": "true", "depth": "", "num": ""},
            {"method": "chain", "tau": "", "match": "", "depth": "", "num": "3"},
        ]
    assert (tmp_path / "empty.csv").read_text() == "method,tau\n"
    assert (tmp_path / "narrow.csv").read_text() == "method,tau\n,1\n"
    assert not (tmp_path / "bad.csv").exists()


def test_json_holds_plain_values(tmp_path: Path) -> None:
    data = {
        "array": np.arange(2),
        "tensor": torch.ones(2),
        "path": Path("a/b"),
        "nan": float("nan"),
        "set": {2, 1},
        "tuple": (True, None),
    }
    with begin(tmp_path) as folder:
        folder.write_json("values.json", data)
        with pytest.raises(TypeError, match="has no place in a file"):
            folder.write_json("values.json", {"object": object()})
    assert json.loads((tmp_path / "values.json").read_text()) == {
        "array": [0, 1],
        "tensor": [1.0, 1.0],
        "path": "a/b",
        "nan": None,
        "set": [1, 2],
        "tuple": [True, None],
    }


def test_a_file_of_another_library_is_renamed_when_whole(tmp_path: Path) -> None:
    with begin(tmp_path) as folder:
        folder.partial("figures/tau.png").write_text("picture")
        assert names(tmp_path / "figures") == ["tau.png.partial"]
        folder.commit("figures/tau.png")
        assert names(tmp_path / "figures") == ["tau.png"]

"""The folder of a run: what was asked, where it came from, and results that survive a kill.

    with RunFolder.open(config, task="bench") as folder:
        if not folder.finished:
            done = folder.read_jsonl("generations.jsonl")
            folder.append_jsonl("generations.jsonl", row)      # grows generations.jsonl.partial
            folder.commit("generations.jsonl")                 # whole: renamed
            folder.write_csv("summary.csv", rows)
            folder.finish()

An unfinished run of the same configuration goes on, a finished one says so (`finished`), another
configuration is refused unless `overwrite` is true.
"""

from __future__ import annotations

import csv
import io
import json
import shutil
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from omegaconf import DictConfig, OmegaConf

from eagle_lab import files
from eagle_lab.data.prompts import prompt_file_hash
from eagle_lab.errors import UserError
from eagle_lab.tasks import provenance
from eagle_lab.tasks.growing_file import GrowingFile, read_rows
from eagle_lab.tasks.plain import cell, plain

CONFIG_HEADER = "# Configuration of this run, resolved; written by eagle_lab\n"
# Where a run lies and whether it replaces another is no part of what it is
_NOT_COMPARED = ("output_dir", "overwrite")
# Tasks whose results depend on the contents of the file `eval.prompts`
_ASK_QUESTIONS = ("bench", "sweep", "quickstart")


class RunFolder:
    """One run's folder, open for work in this process alone. Made by `open`."""

    def __init__(self, path: Path, lock: files.FolderLock, record: dict[str, Any]) -> None:
        self.path = path
        self.resumed = bool(record.get("resumed"))
        self._lock = lock
        self._provenance = record
        self._growing: dict[str, GrowingFile] = {}

    @classmethod
    def open(cls, config: DictConfig, *, task: str) -> Self:
        """Create, resume or replace the folder `config.output_dir`.

        Raises:
            UserError: the folder holds another configuration (the differing keys are named with
                both values) or something that is no run, or another process works in it.
        """
        path = Path(config.output_dir)
        if path.exists() and not path.is_dir():
            raise UserError(f"output_dir={path} is a file; a run needs a folder")
        asked = _comparable(config)
        prompts = _prompts(asked, task)
        path.mkdir(parents=True, exist_ok=True)
        lock = files.FolderLock(path)
        try:
            record = _existing(path, asked, prompts, overwrite=bool(config.overwrite))
            start = {"start": provenance.now(), **provenance.collect(str(config.device))}
            if record is None:
                files.write_text(path / "config.yaml", CONFIG_HEADER + OmegaConf.to_yaml(asked))
                record = {"task": task, "status": "running", **start, "end": None}
                keys = ("dtype", "threads", "seed")
                record |= {key: config[key] for key in keys} | prompts | {"resumed": []}
            elif record["status"] != "finished":
                record["resumed"].append(start)
            folder = cls(path, lock, record)
            if not folder.finished:
                folder.write_json("provenance.json", record)
            return folder
        except BaseException:
            lock.release()
            raise

    @property
    def finished(self) -> bool:
        """Whether the run ended as it should: there is nothing left to do."""
        return bool(self._provenance["status"] == "finished")

    def write_text(self, name: str, text: str) -> None:
        """Write a text file in one step."""
        files.write_text(self.path / name, text)

    def write_json(self, name: str, data: Any) -> None:
        """Write a JSON file in one step; numbers that JSON has no word for become null."""
        self.write_text(name, json.dumps(plain(data), indent=2, ensure_ascii=False) + "\n")

    def write_csv(
        self, name: str, rows: Sequence[Mapping[str, Any]], columns: Iterable[str] | None = None
    ) -> None:
        """Write a table in one step; None and NaN are empty cells.

        `columns` is the header and its order; left out, it is every key of `rows` in the order
        they first appear.

        Raises:
            ValueError: a row holds a key that is no column.
        """
        header = (
            list(columns)
            if columns is not None
            else list(dict.fromkeys(k for r in rows for k in r))
        )
        text = io.StringIO()
        writer = csv.DictWriter(text, header, restval="", lineterminator="\n")
        writer.writeheader()
        writer.writerows({key: cell(value) for key, value in row.items()} for row in rows)
        self.write_text(name, text.getvalue())

    def partial(self, name: str) -> Path:
        """Where to write a file that `commit` makes whole; its folder exists."""
        (self.path / name).parent.mkdir(parents=True, exist_ok=True)
        return files.partial_path(self.path / name)

    def commit(self, name: str) -> None:
        """Rename `NAME.partial` to `name`; nothing to do if that was done before a restart."""
        if name in self._growing:
            self._growing.pop(name).close()
        if self.partial(name).exists() or not (self.path / name).exists():
            files.commit(self.path / name)

    def append_jsonl(self, name: str, row: Mapping[str, Any]) -> None:
        """Add a row to `NAME.partial`; it is on its way to the disk when this returns."""
        if name not in self._growing:
            if (self.path / name).exists():
                raise ValueError(f"{name} is already whole")
            self._growing[name] = GrowingFile(self.partial(name))
        self._growing[name].append(row)

    def read_jsonl(self, name: str) -> list[dict[str, Any]]:
        """The rows so far, of the whole file or of the growing one; a torn last line is left out.

        Raises:
            UserError: any other line is damaged; names the file and line.
        """
        path = self.path / name
        return read_rows(path if path.exists() else self.partial(name))

    def finish(self, **extra: Any) -> None:
        """Note the end, with what else belongs to the provenance, and give the folder back."""
        self._provenance |= extra | {"end": provenance.now(), "status": "finished"}
        self.write_json("provenance.json", self._provenance)
        self.close()

    def close(self) -> None:
        """Give the folder back without calling the run finished."""
        for growing in self._growing.values():
            growing.close()
        self._growing.clear()
        self._lock.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def _comparable(config: DictConfig) -> DictConfig:
    """The resolved configuration as a file would hold it, without what is not compared."""
    values = OmegaConf.to_container(config, resolve=True)
    assert isinstance(values, dict)
    kept = {key: value for key, value in values.items() if key not in _NOT_COMPARED}
    config_as_read = OmegaConf.create(OmegaConf.to_yaml(OmegaConf.create(kept)))
    assert isinstance(config_as_read, DictConfig)
    return config_as_read


def _prompts(config: DictConfig, task: str) -> dict[str, Any]:
    if task not in _ASK_QUESTIONS:
        return {}
    source = config.eval.prompts
    return {"prompts": source, "prompts_sha256": prompt_file_hash(source)}


def _existing(
    path: Path, asked: DictConfig, prompts: Mapping[str, Any], *, overwrite: bool
) -> dict[str, Any] | None:
    """The provenance of the run in `path` if it is the one asked for; None if there is none."""
    config_file = path / "config.yaml"
    is_run = config_file.is_file() and config_file.read_text("utf-8").startswith(CONFIG_HEADER)
    if not is_run:
        ours = {files.LOCK_NAME, "config.yaml.partial"}
        strangers = sorted(entry.name for entry in path.iterdir() if entry.name not in ours)
        if strangers:
            raise UserError(
                f"output_dir={path} holds files that no run made ({', '.join(strangers[:3])}); "
                "take another folder"
            )
        return None
    if overwrite:
        _empty(path)
        return None
    provenance_file = path / "provenance.json"
    record = json.loads(provenance_file.read_text("utf-8")) if provenance_file.exists() else None
    there = OmegaConf.load(config_file)
    assert isinstance(there, DictConfig)
    differences = _differences(there, asked)
    hash_key = "prompts_sha256"
    if record and not differences and record.get(hash_key) != prompts.get(hash_key):
        differences = [f"contents of {prompts.get('prompts')} have changed"]
    if differences:
        shown = "; ".join(differences[:6])
        more = f"; and {len(differences) - 6} more" if len(differences) > 6 else ""
        raise UserError(
            f"output_dir={path} holds another run: {shown}{more}. "
            "Take another output_dir, or overwrite=true to replace it"
        )
    return record


def _empty(path: Path) -> None:
    """Remove a run's files, config.yaml last: whatever interrupts this, it can be done again."""
    keep = {files.LOCK_NAME, "config.yaml"}
    for entry in sorted(path.iterdir()):
        if entry.name in keep:
            continue
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        else:
            entry.unlink()
    (path / "config.yaml").unlink()


def _differences(there: DictConfig, asked: DictConfig) -> list[str]:
    old, new = _flat(OmegaConf.to_container(there)), _flat(OmegaConf.to_container(asked))
    return [
        f"{key} is {old.get(key, 'absent')} there, {new.get(key, 'absent')} now"
        for key in sorted(old.keys() | new.keys())
        if old.get(key, _ABSENT) != new.get(key, _ABSENT)
    ]


_ABSENT = object()


def _flat(value: Any, prefix: str = "") -> dict[str, Any]:
    """Dotted keys of the leaves; an empty mapping is a leaf."""
    if not isinstance(value, dict) or not value:
        return {prefix: value}
    pairs = ((f"{prefix}.{key}" if prefix else str(key), item) for key, item in value.items())
    return {name: leaf for key, item in pairs for name, leaf in _flat(item, key).items()}

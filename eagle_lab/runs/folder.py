"""The folder of a run: what was asked, where it came from, and results that survive a kill.

    with RunFolder.open(config, task="bench") as folder:
        if not folder.finished:
            done = folder.read_jsonl("generations.jsonl")
            folder.append_jsonl("generations.jsonl", row)      # grows generations.jsonl.partial
            folder.commit("generations.jsonl")                 # whole: renamed
            folder.write_csv("summary.csv", rows)
            folder.finish()

An unfinished run of the same configuration goes on, a finished one says so (`finished`), another
configuration is refused unless `overwrite` is true. A run that fails before it leaves anything
leaves no folder either, so that the corrected command finds no other run in its way.
"""

from __future__ import annotations

import csv
import io
import json
import math
import os
import shutil
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path, PurePath
from types import TracebackType
from typing import Any, Self

from omegaconf import DictConfig, OmegaConf

from eagle_lab import files
from eagle_lab.catalog import options
from eagle_lab.config import compose
from eagle_lab.data.prompts import prompt_file_hash
from eagle_lab.errors import UserError
from eagle_lab.runs import provenance

CONFIG_HEADER = "# Configuration of this run, resolved; written by eagle_lab\n"
# Where a run lies, whether it replaces another, where its curves go: no part of what it is
_NOT_COMPARED = ("output_dir", "overwrite", "logger")
# A capture is a sequence of batches: at which of them it ends may be changed while it is unfinished
_END_OF_CAPTURE = "data.num_tokens"
# Tasks whose results depend on the contents of the file `eval.prompts`
_ASK_QUESTIONS = ("bench", "sweep", "quickstart")
# Sections whose keys depend on what was chosen; elsewhere one that is gone left with the package
_OPEN_SECTIONS = ("method", "sweep", "drafter")
_ABSENT = object()
_MOST_SHOWN = 6


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
        asked = comparable(config)
        prompts = {}
        if task in _ASK_QUESTIONS:
            source = asked.eval.prompts
            prompts = {"prompts": source, "prompts_sha256": prompt_file_hash(source)}
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(
                f"output_dir={path} cannot be made: {error.strerror}; take another folder"
            ) from error
        lock = files.FolderLock(path)
        try:
            record = earlier_run(path, asked, prompts, overwrite=bool(config.overwrite))
            folder = cls(path, lock, record or {"task": task, "status": "running"})
            if not folder.finished:
                files.write_text(path / "config.yaml", CONFIG_HEADER + OmegaConf.to_yaml(asked))
                start = {"start": provenance.now(), **provenance.collect(str(config.device))}
                if record is None:
                    keys = {key: config[key] for key in ("dtype", "threads", "seed")}
                    folder._provenance |= start | {"end": None} | keys | prompts | {"resumed": []}
                else:
                    record["resumed"].append(start)
                    folder.resumed = True
                folder.write_json("provenance.json", folder._provenance)
            return folder
        except BaseException:
            lock.release()
            raise

    @property
    def finished(self) -> bool:
        """Whether the run ended as it should: there is nothing left to do."""
        return bool(self._provenance["status"] == "finished")

    @property
    def provenance(self) -> dict[str, Any]:
        """What provenance.json holds by now."""
        return dict(self._provenance)

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
        if columns is None:
            columns = dict.fromkeys(key for row in rows for key in row)
        text = io.StringIO()
        writer = csv.DictWriter(text, list(columns), restval="", lineterminator="\n")
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
        while self._growing:
            self._growing.popitem()[1].close()
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
        if isinstance(error, Exception):
            found = {entry.name for entry in self.path.rglob("*") if not entry.is_dir()}
            if found <= {"config.yaml", "provenance.json"}:  # nothing came of it
                shutil.rmtree(self.path)


def comparable(config: DictConfig) -> DictConfig:
    """The resolved configuration as a file would hold it, without what is not compared."""
    values = OmegaConf.to_container(config, resolve=True)
    assert isinstance(values, dict)
    kept = {key: value for key, value in values.items() if key not in _NOT_COMPARED}
    return _mapping(OmegaConf.create(OmegaConf.to_yaml(OmegaConf.create(kept))))


def earlier_run(
    path: Path, asked: DictConfig, prompts: Mapping[str, Any], *, overwrite: bool
) -> dict[str, Any] | None:
    """The provenance of the run in `path` if it is the one asked for; None if there is none.

    Raises:
        UserError: it holds another run, or files that no run made.
    """
    config_file, record_file = path / "config.yaml", path / "provenance.json"
    if not (config_file.is_file() and config_file.read_text("utf-8").startswith(CONFIG_HEADER)):
        ours = {files.LOCK_NAME, "config.yaml.partial"}
        if strangers := sorted({entry.name for entry in path.iterdir()} - ours):
            raise UserError(
                f"output_dir={path} holds files that no run made ({', '.join(strangers[:3])}); "
                "take another folder"
            )
        return None
    if overwrite:
        _empty(path)
        return None
    record = json.loads(record_file.read_text("utf-8")) if record_file.exists() else None
    differences = _differences(_mapping(OmegaConf.load(config_file)), asked)
    if record and record["task"] == "capture" and record["status"] != "finished":
        differences.pop(_END_OF_CAPTURE, None)
    lines = [f"{key} is {old} there, {new} now" for key, (old, new) in differences.items()]
    hash_key = "prompts_sha256"
    if record and not lines and record.get(hash_key) != prompts.get(hash_key):
        lines = [f"contents of {prompts.get('prompts')} have changed"]
    if lines:
        more = f"; and {len(lines) - _MOST_SHOWN} more" if len(lines) > _MOST_SHOWN else ""
        raise UserError(
            f"output_dir={path} holds another run: {'; '.join(lines[:_MOST_SHOWN])}{more}. "
            "Take another output_dir, or overwrite=true to replace it"
        )
    return record


def _empty(path: Path) -> None:
    """Remove a run's files, config.yaml last: whatever interrupts this, it can be done again."""
    for entry in sorted(path.iterdir()):
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        elif entry.name not in (files.LOCK_NAME, "config.yaml"):
            entry.unlink()
    (path / "config.yaml").unlink()


def _differences(there: DictConfig, asked: DictConfig) -> dict[str, tuple[Any, Any]]:
    """The keys whose values differ, with both values as one writes them.

    A key that the package has lost since is no difference, nor one that it has gained, as long as
    that has its default.
    """
    old, new = _flat(comparable(there)), _flat(asked)
    pairs = {key: (old.get(key, _ABSENT), new.get(key, _ABSENT)) for key in sorted({*old, *new})}
    pairs = {
        key: pair
        for key, pair in pairs.items()
        if pair[0] != pair[1] and (key in new or key.partition(".")[0] in _OPEN_SECTIONS)
    }
    if any(key not in old for key in pairs):
        own = [name for name in asked.method if name in options("method")]
        defaults = _flat(comparable(compose([f"method=[{','.join(own)}]"])))
        pairs = {
            key: pair
            for key, pair in pairs.items()
            if key in old or key.endswith("._target_") or pair[1] != defaults.get(key, _ABSENT)
        }
    return {key: (_shown(one), _shown(other)) for key, (one, other) in pairs.items()}


def _shown(value: Any) -> Any:
    return "absent" if value is _ABSENT else "null" if value is None else value


def _flat(config: DictConfig) -> dict[str, Any]:
    """Dotted keys of the leaves; an empty mapping is a leaf."""

    def leaves(value: Any, key: str) -> dict[str, Any]:
        if not isinstance(value, dict) or not value:
            return {key: value}
        prefix = f"{key}." if key else ""
        inner = (leaves(item, f"{prefix}{name}") for name, item in value.items())
        return {name: leaf for found in inner for name, leaf in found.items()}

    return leaves(OmegaConf.to_container(config), "")


def _mapping(config: Any) -> DictConfig:
    assert isinstance(config, DictConfig)
    return config


class GrowingFile:
    """JSON lines to which whole rows are added; a row that does not fit leaves no trace."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("ab", buffering=0)
        self._file.truncate(path.read_bytes().rfind(b"\n") + 1)  # a kill may have torn a line

    def append(self, row: Mapping[str, Any]) -> None:
        """Add one row.

        Raises:
            OSError: it could not be written; the file is as it was before.
        """
        data = (json.dumps(plain(row), ensure_ascii=False) + "\n").encode()
        start = os.fstat(self._file.fileno()).st_size
        try:
            while data:
                data = data[self._file.write(data) :]
        except BaseException:
            self._file.truncate(start)
            raise

    def close(self) -> None:
        """Send everything to the disk and close."""
        os.fsync(self._file.fileno())
        self._file.close()


def read_rows(path: Path) -> list[dict[str, Any]]:
    """Rows of a JSON lines file, [] if there is none; a last line without its end is left out.

    Raises:
        UserError: another line is damaged; names it.
    """
    if not path.exists():
        return []
    rows = []
    for number, line in enumerate(path.read_bytes().split(b"\n")[:-1], 1):
        try:
            rows.append(json.loads(line))
        except ValueError as error:
            raise UserError(f"{path}, line {number}: no JSON ({error})") from error
    return rows


def plain(value: Any) -> Any:
    """`value` in types that JSON knows, for NumPy and torch too; NaN and infinities become None.

    Raises:
        TypeError: there is no counterpart.
    """
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, set | frozenset):
        return plain(sorted(value))
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, PurePath):
        return str(value)
    if hasattr(value, "tolist"):  # arrays and scalars of NumPy and torch
        return plain(value.tolist())
    raise TypeError(f"{type(value).__name__} has no place in a file: {value!r}")


def cell(value: Any) -> Any:
    """`value` as a cell of a table: empty for None and NaN, true/false for booleans."""
    value = plain(value)
    if isinstance(value, bool):
        return str(value).lower()
    return "" if value is None else value

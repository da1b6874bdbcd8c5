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
import shutil
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from omegaconf import DictConfig, OmegaConf

from eagle_lab import files
from eagle_lab.errors import UserError
from eagle_lab.tasks import provenance
from eagle_lab.tasks.earlier_run import CONFIG_HEADER, comparable, earlier_run, prompts_used
from eagle_lab.tasks.growing_file import GrowingFile, read_rows
from eagle_lab.tasks.plain import cell, plain


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
        prompts = prompts_used(asked, task)
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(
                f"output_dir={path} cannot be made: {error.strerror}; take another folder"
            ) from error
        lock = files.FolderLock(path)
        try:
            record = earlier_run(path, asked, prompts, overwrite=bool(config.overwrite))
            start = {"start": provenance.now(), **provenance.collect(str(config.device))}
            if record is None or record["status"] != "finished":
                files.write_text(path / "config.yaml", CONFIG_HEADER + OmegaConf.to_yaml(asked))
            if record is None:
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
        if isinstance(error, Exception):
            self._remove_if_bare()

    def _remove_if_bare(self) -> None:
        """Remove a folder that says what was asked and holds nothing that came of it."""
        found = {entry.name for entry in self.path.rglob("*") if not entry.is_dir()}
        if found <= {"config.yaml", "provenance.json"}:
            shutil.rmtree(self.path)

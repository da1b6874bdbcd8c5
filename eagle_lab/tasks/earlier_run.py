"""What a folder holds before a run begins in it: nothing, the same run, another one, or no run."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from eagle_lab import files
from eagle_lab.catalog import options
from eagle_lab.config import compose
from eagle_lab.data.prompts import prompt_file_hash
from eagle_lab.errors import UserError

CONFIG_HEADER = "# Configuration of this run, resolved; written by eagle_lab\n"
# Where a run lies and whether it replaces another is no part of what it is
_NOT_COMPARED = ("output_dir", "overwrite")
# A capture is a sequence of batches: at which of them it ends may be changed while it is unfinished
_END_OF_CAPTURE = "data.num_tokens"
# Tasks whose results depend on the contents of the file `eval.prompts`
_ASK_QUESTIONS = ("bench", "sweep", "quickstart")


def comparable(config: DictConfig) -> DictConfig:
    """The resolved configuration as a file would hold it, without what is not compared."""
    values = OmegaConf.to_container(config, resolve=True)
    assert isinstance(values, dict)
    kept = {key: value for key, value in values.items() if key not in _NOT_COMPARED}
    config_as_read = OmegaConf.create(OmegaConf.to_yaml(OmegaConf.create(kept)))
    assert isinstance(config_as_read, DictConfig)
    return config_as_read


def prompts_used(config: DictConfig, task: str) -> dict[str, Any]:
    """Name and hash of the prompt file of a task that asks questions; {} for the others."""
    if task not in _ASK_QUESTIONS:
        return {}
    source = config.eval.prompts
    return {"prompts": source, "prompts_sha256": prompt_file_hash(source)}


def earlier_run(
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
    ignored = _END_OF_CAPTURE if _is_unfinished_capture(record) else None
    differences = _differences(there, asked, ignored)
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


def _is_unfinished_capture(record: Mapping[str, Any] | None) -> bool:
    return record is not None and record["task"] == "capture" and record["status"] != "finished"


def _differences(there: DictConfig, asked: DictConfig, ignored: str | None) -> list[str]:
    """The keys whose values differ, in words.

    A key that the package has gained since is no difference as long as it has its default.
    """
    old, new = _flat(OmegaConf.to_container(there)), _flat(OmegaConf.to_container(asked))
    differing = [
        key
        for key in sorted(old.keys() | new.keys())
        if key != ignored and old.get(key, _ABSENT) != new.get(key, _ABSENT)
    ]
    if any(key not in old for key in differing):
        defaults = _defaults(list(asked.method))
        differing = [
            key
            for key in differing
            if key in old or new[key] != defaults.get(key, _ABSENT) or key.endswith("._target_")
        ]
    return [
        f"{key} is {_shown(old.get(key, 'absent'))} there, {_shown(new.get(key, 'absent'))} now"
        for key in differing
    ]


def _defaults(methods: list[str]) -> dict[str, Any]:
    """The package's default of every key, those of its own methods among `methods` included."""
    own = [name for name in methods if name in options("method")]
    packaged = compose([f"method=[{','.join(own)}]"])
    return _flat(OmegaConf.to_container(comparable(packaged)))


def _shown(value: Any) -> Any:
    """A value as one writes it on the command line."""
    return "null" if value is None else value


_ABSENT = object()


def _flat(value: Any, prefix: str = "") -> dict[str, Any]:
    """Dotted keys of the leaves; an empty mapping is a leaf."""
    if not isinstance(value, dict) or not value:
        return {prefix: value}
    pairs = ((f"{prefix}.{key}" if prefix else str(key), item) for key, item in value.items())
    return {name: leaf for key, item in pairs for name, leaf in _flat(item, key).items()}

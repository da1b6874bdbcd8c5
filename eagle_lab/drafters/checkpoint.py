"""Drafters of every kind to and from a folder (see folder.py), and the class of a kind.

Loading is strict: a missing, extra or misshapen tensor is an error, and so is a drafter whose
shapes are not the target's. Equal shapes with another fingerprint load with a warning.
"""

from __future__ import annotations

import dataclasses
import importlib
import json
import shutil
import warnings
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from eagle_lab.drafters.base import Drafter, DrafterConfig
from eagle_lab.drafters.folder import CONFIG_FILE, WEIGHTS_FILE, read_config
from eagle_lab.errors import UserError, choose
from eagle_lab.files import open_to_others

FORMAT_VERSION = 1
KINDS = {"eagle1": "eagle_lab.drafters.eagle1.network.Eagle1"}
"""The package's own kinds; every other one is named by the dotted path of its class."""


def class_of(name: str, what: str) -> type[Drafter]:
    """The class of the kind `name`, or at the dotted path `name`.

    Args:
        what: said in front of a name that is wrong.

    Raises:
        UserError: an unknown kind, or a path at which there is no drafter.
    """
    found = _imported(name if "." in name else KINDS[choose(name, KINDS, what)], what)
    if not (isinstance(found, type) and issubclass(found, Drafter)):
        raise UserError(f"{what} '{name}' is no subclass of {Drafter.__module__}.Drafter")
    return found


def recipe_of(kind: type[Drafter]) -> Any:
    """The `Recipe` that trains drafters of a kind."""
    return _imported(kind.recipe, f"recipe of drafter kind '{kind.kind}'")()


def _imported(path: str, what: str) -> Any:
    module, _, name = path.rpartition(".")
    try:
        return getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise UserError(f"{what} '{path}' cannot be imported: {error}") from error


def save_drafter(
    drafter: Drafter,
    folder: str | Path,
    *,
    target: Any,
    training_summary: dict[str, Any],
    dtype: torch.dtype | None = None,
) -> Path:
    """Write the folder whole (built beside it, then renamed); an older one gives way to it.

    Args:
        dtype: store floating tensors in this dtype (half precision to ship), default as they are.
    """
    folder = Path(folder)
    partial = folder.with_name(folder.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    state = {
        name: (tensor.to(dtype) if dtype and tensor.is_floating_point() else tensor)
        .detach().to("cpu").contiguous()
        for name, tensor in drafter.state_dict().items()
    }  # fmt: skip
    save_file(state, partial / WEIGHTS_FILE, metadata={"format": "pt"})
    open_to_others(partial / WEIGHTS_FILE)
    text = json.dumps(_describe(drafter, target, training_summary), indent=2, ensure_ascii=False)
    (partial / CONFIG_FILE).write_text(text + "\n", encoding="utf-8")
    older = folder.with_name(folder.name + ".older")
    shutil.rmtree(older, ignore_errors=True)
    if folder.exists():
        folder.rename(older)
    partial.rename(folder)
    shutil.rmtree(older, ignore_errors=True)
    return folder


def load_drafter(
    path: str | Path, target: Any, *, dtype: torch.dtype | None = None, rounded: bool = False
) -> tuple[Drafter, bool]:
    """The drafter attached to `target`, in eval mode on its device, and whether it matches.

    Args:
        dtype: of the loaded weights; default the target's.
        rounded: round the weights, and those of a reduced head, to bfloat16, which the kernels of a
            CPU read in half the time.

    Raises:
        UserError: no drafter folder, a damaged one, one for a target of other shapes, or one of a
            kind that cannot be imported.
    """
    described = read_config(path)
    drafter_class, config = _rebuilt(described, Path(path) / CONFIG_FILE)
    ours, theirs = (config.hidden_size, config.vocab_size), (target.hidden_size, target.vocab_size)
    if ours != theirs:
        raise UserError(
            f"drafter {path} has hidden size {ours[0]} and vocabulary {ours[1]}; target "
            f"'{target.name}' has hidden size {theirs[0]} and vocabulary {theirs[1]}: "
            "it was trained for another target"
        )
    drafter = drafter_class(config)
    _load_strictly(drafter, Path(path) / WEIGHTS_FILE)
    if rounded:
        drafter.to(torch.bfloat16)
    drafter.to(device=target.device, dtype=dtype or target.dtype).eval()
    drafter.attach(target, rounded=rounded)
    trained_for = described["target"]
    matches = trained_for["fingerprint"] == target.fingerprint
    if not matches:
        same = ", other weights of the same name" if trained_for["name"] == target.name else ""
        warnings.warn(
            f"drafter {path} was trained for '{trained_for['name']}' (fingerprint "
            f"{trained_for['fingerprint']}), not for '{target.name}' ({target.fingerprint}){same}: "
            "it works, with lower acceptance",
            stacklevel=2,
        )
    return drafter, matches


def _rebuilt(described: dict[str, Any], file: Path) -> tuple[type[Drafter], DrafterConfig]:
    """The class and the configuration that a config.json describes."""
    drafter_class = class_of(described.get("class", described["kind"]), f"drafter kind in {file}")
    values = {**described["dimensions"], **described["switches"]}
    try:
        return drafter_class, drafter_class.Config(**values)
    except TypeError as error:
        raise UserError(
            f"{file} does not describe a drafter of kind {drafter_class.kind}: {error}"
        ) from error


def _describe(drafter: Drafter, target: Any, training_summary: dict[str, Any]) -> dict[str, Any]:
    own = type(drafter)
    path = f"{own.__module__}.{own.__qualname__}"
    values = dataclasses.asdict(drafter.config)
    fields = dataclasses.fields(drafter.config)
    dimensions = [field.name for field in fields if field.default is dataclasses.MISSING]
    return {
        "kind": own.kind,
        **({} if KINDS.get(own.kind) == path else {"class": path}),
        "format_version": FORMAT_VERSION,
        "description": drafter.description,
        "dimensions": {name: values.pop(name) for name in dimensions},
        "switches": values,
        "target": {"name": target.name, "fingerprint": target.fingerprint},
        "training": training_summary,
    }


def _load_strictly(drafter: Drafter, file: Path) -> None:
    try:
        state = load_file(file)
    except (SafetensorError, OSError) as error:
        raise UserError(f"{file} is damaged or no safetensors file: {error}") from error
    try:
        drafter.load_state_dict(state, strict=True)
    except RuntimeError as error:
        reason = " ".join(str(error).split())
        raise UserError(f"{file} does not hold the tensors its config.json says: {reason}") from (
            error
        )

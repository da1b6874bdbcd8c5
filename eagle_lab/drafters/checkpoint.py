"""The drafter folder: `config.json` and `model.safetensors` (drafter tensors only).

`config.json` holds kind, dimensions, switches, the target it was trained for (name and
fingerprint) and a summary of its training. Loading is strict: a missing, extra or misshapen
tensor is an error, and so is a drafter whose shapes are not the target's. Equal shapes with
another fingerprint load with a warning.

Which drafter is meant: the package's own for a target, one of its own by name, or a folder.

    None                     the drafter that comes with the package for exactly this target
    "smollm2_135m_eagle1"    one that comes with the package, by name
    anything else            a drafter folder; `./NAME` where a folder bears such a name

The same on the command line (`drafter.path`, `trainer.init_from`) and from Python.
"""

from __future__ import annotations

import dataclasses
import json
import shutil
import warnings
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from eagle_lab.drafters.eagle1.network import Eagle1, Eagle1Config
from eagle_lab.drafters.folder import CONFIG_FILE, WEIGHTS_FILE
from eagle_lab.errors import Missing, UserError, choose
from eagle_lab.files import open_to_others
from eagle_lab.targets.target import Target

FORMAT_VERSION = 1
SWITCHES = ("inner_norm", "draft_vocab_size", "fc_bias")
KINDS: dict[str, tuple[type[Eagle1Config], type[Eagle1]]] = {"eagle1": (Eagle1Config, Eagle1)}


def save_drafter(
    drafter: Eagle1,
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
) -> tuple[Eagle1, bool]:
    """The drafter attached to `target`, in eval mode on its device, and whether it matches.

    Args:
        dtype: of the loaded weights; default the target's.
        rounded: round the weights, and those of a reduced head, to bfloat16, which the kernels of a
            CPU read in half the time.

    Raises:
        UserError: no drafter folder, a damaged one, or one for a target of other shapes.
    """
    described = read_config(path)
    config = described["config"]
    ours, theirs = (config.hidden_size, config.vocab_size), (target.hidden_size, target.vocab_size)
    if ours != theirs:
        raise UserError(
            f"drafter {path} has hidden size {ours[0]} and vocabulary {ours[1]}; target "
            f"'{target.name}' has hidden size {theirs[0]} and vocabulary {theirs[1]}: "
            "it was trained for another target"
        )
    drafter = KINDS[described["kind"]][1](config)
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


def read_config(path: str | Path) -> dict[str, Any]:
    """`config.json` with its dimensions and switches rebuilt as the kind's config dataclass.

    Returns:
        {"kind", "config", "target": {"name", "fingerprint"}, "training"}.
    """
    path = Path(path)
    file = path / CONFIG_FILE
    if not file.is_file() or not (path / WEIGHTS_FILE).is_file():
        raise UserError(
            f"{path} is not a drafter folder: it needs {CONFIG_FILE} and {WEIGHTS_FILE}, "
            "as written by +experiment=train"
        )
    try:
        raw = json.loads(file.read_text(encoding="utf-8"))
        kind, target = raw["kind"], raw["target"]
        fields = {**raw["dimensions"], **raw["switches"]}
        trained_for = {"name": target["name"], "fingerprint": target["fingerprint"]}
    except (ValueError, KeyError, TypeError) as error:
        reason = f"no key {error}" if isinstance(error, KeyError) else error
        raise UserError(f"{file} is not a drafter's config.json: {reason}") from error
    config_class = KINDS[choose(kind, KINDS, f"drafter kind in {file}")][0]
    known = {field.name for field in dataclasses.fields(config_class)}
    if set(fields) != known:
        odd = sorted(set(fields) ^ known)
        raise UserError(f"{file} does not describe an {kind} drafter: check {', '.join(odd)}")
    return {
        "kind": kind,
        "config": config_class(**fields),
        "target": trained_for,
        "training": raw.get("training", {}),
    }


def _describe(drafter: Eagle1, target: Any, training_summary: dict[str, Any]) -> dict[str, Any]:
    fields = dataclasses.asdict(drafter.config)
    kind = next(name for name, (_, network) in KINDS.items() if type(drafter) is network)
    return {
        "kind": kind,
        "format_version": FORMAT_VERSION,
        "dimensions": {name: value for name, value in fields.items() if name not in SWITCHES},
        "switches": {name: fields[name] for name in SWITCHES},
        "description": drafter.card_paragraph,
        "target": {"name": target.name, "fingerprint": target.fingerprint},
        "training": training_summary,
    }


def _load_strictly(drafter: Eagle1, file: Path) -> None:
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


SHIPPED_DRAFTERS = Path(__file__).resolve().parent.parent / "assets" / "drafters"


def drafter_folder(asked: str | Path | None, target: Target) -> Path:
    """The folder of the drafter that `asked` means, see the module's table.

    Raises:
        Missing: None is asked for, and no drafter comes with the package for this target.
        UserError: a name that is neither a folder nor a drafter of the package.
    """
    if asked is None:
        folder = shipped_for(target.fingerprint)
        if folder is None:
            raise Missing(
                f"no drafter comes with the package for target '{target.name}': name the folder "
                "of one (drafter.path=FOLDER); +experiment=capture and then +experiment=train "
                "make it"
            )
        return folder
    shipped = shipped_drafters()
    folder = shipped.get(str(asked), Path(asked).expanduser())
    if not folder.is_dir():
        raise UserError(
            f"no drafter folder at '{asked}'; drafters of the package: "
            f"{', '.join(shipped) or 'none'}"
        )
    return folder


def shipped_drafters() -> dict[str, Path]:
    """The drafters that come with the package: name -> folder."""
    return {path.parent.name: path.parent for path in sorted(SHIPPED_DRAFTERS.glob(_CONFIGS))}


def shipped_for(fingerprint: str) -> Path | None:
    """The folder of the package's drafter for the target of this fingerprint, or None."""
    for folder in shipped_drafters().values():
        if read_config(folder)["target"]["fingerprint"] == fingerprint:
            return folder
    return None


def shown_name(folder: Path) -> str:
    """How tables name a drafter: by its path as given; one of the package's by its name."""
    return folder.name if folder.parent == SHIPPED_DRAFTERS else str(folder)


_CONFIGS = f"*/{CONFIG_FILE}"

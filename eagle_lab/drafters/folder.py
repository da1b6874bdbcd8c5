"""The drafter folder as anybody can read it, without torch: its files, and which one is meant.

    config.json          kind, dimensions, switches, target (name, fingerprint), training summary;
                         of a kind from outside the package also its `class`
    model.safetensors    the drafter's own tensors
    README.md            its card

Which drafter is meant: the package's own for a target, one of its own by name, or a folder.

    None                     the drafter that comes with the package for exactly this target
    "smollm2_135m_eagle1"    one that comes with the package, by name
    anything else            a drafter folder; `./NAME` where a folder bears such a name

The same on the command line (`drafter.path`, `trainer.init_from`) and from Python.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eagle_lab.errors import Missing, UserError

if TYPE_CHECKING:
    from eagle_lab.targets.target import Target

CONFIG_FILE, WEIGHTS_FILE, CARD_FILE = "config.json", "model.safetensors", "README.md"
SHIPPED_DRAFTERS = Path(__file__).resolve().parent.parent / "assets" / "drafters"


def weights_digest(folder: str | Path) -> str:
    """Hash of the weights' file, 16 hexadecimal digits."""
    with (Path(folder) / WEIGHTS_FILE).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:16]


def read_config(path: str | Path) -> dict[str, Any]:
    """The contents of `config.json`, whose keys but `class` and `training` are all there.

    Raises:
        UserError: no drafter folder, or another file of that name.
    """
    file = Path(path) / CONFIG_FILE
    if not file.is_file() or not (Path(path) / WEIGHTS_FILE).is_file():
        raise UserError(
            f"{path} is not a drafter folder: it needs {CONFIG_FILE} and {WEIGHTS_FILE}, "
            "as written by +experiment=train"
        )
    try:
        described = json.loads(file.read_text(encoding="utf-8"))
        parts = [described[name] for name in ("kind", "dimensions", "switches")]
        parts += [described["target"][name] for name in ("name", "fingerprint")]
    except (ValueError, KeyError, TypeError) as error:
        reason = f"no key {error}" if isinstance(error, KeyError) else error
        raise UserError(f"{file} is not a drafter's config.json: {reason}") from error
    return {"training": {}, **described}


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
    found = sorted(SHIPPED_DRAFTERS.glob(f"*/{CONFIG_FILE}"))
    return {path.parent.name: path.parent for path in found}


def shipped_for(fingerprint: str) -> Path | None:
    """The folder of the package's drafter for the target of this fingerprint, or None."""
    for folder in shipped_drafters().values():
        if read_config(folder)["target"]["fingerprint"] == fingerprint:
            return folder
    return None


def shown_name(folder: Path) -> str:
    """How tables name a drafter, and `drafter_folder` finds it: by its path as given; one of the
    package's by its name.
    """
    shipped = shipped_drafters()
    if folder.name in shipped and folder.parent == SHIPPED_DRAFTERS:
        return folder.name
    return f"./{folder}" if str(folder) in shipped else str(folder)

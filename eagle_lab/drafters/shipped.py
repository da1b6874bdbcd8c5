"""Which drafter is meant: the package's own for a target, one of its own by name, or a folder.

    None                     the drafter that comes with the package for exactly this target
    "smollm2_135m_eagle1"    one that comes with the package, by name
    anything else            a drafter folder; `./NAME` where a folder bears such a name

The same on the command line (`drafter.path`, `trainer.init_from`) and from Python.
"""

from __future__ import annotations

from pathlib import Path

from eagle_lab.drafters.checkpoint import read_config
from eagle_lab.drafters.folder import CONFIG_FILE
from eagle_lab.errors import Missing, UserError
from eagle_lab.models.target import Target

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

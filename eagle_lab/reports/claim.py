"""A claim: a folder that says what is claimed, what is expected and what was measured.

    experiments/NAME/
      README.md         the claim as its title, the paper, the commands, deviations
      expected.csv      numbers of papers or of reasoning, and the settings to be measured
      measured.csv      numbers of real runs
      provenance.json   where each of these runs comes from
      tolerance.yaml    how far measured may lie from expected, where an expectation can be held

Reads only; `claim_measure` writes measured.csv, `claim_table` compares.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from eagle_lab.errors import UserError, choose
from eagle_lab.reports.claim_columns import quantities_of, read_expected, read_measured
from eagle_lab.reports.claim_tolerance import Tolerance, read_tolerances
from eagle_lab.reports.folders import read_json

CHECKOUT_CLAIMS = Path(__file__).resolve().parents[2] / "experiments"
_PAPER = re.compile(r"^\*\*Paper\.\*\*\s+(.+?)(?:\n\s*\n|\Z)", re.MULTILINE | re.DOTALL)
_COMMANDS = re.compile(r"^## Commands\n(.*?)(?=^## |\Z)", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Claim:
    """One folder of experiments/.

    Attributes:
        folder: where it lies; its name is the claim's.
        title: the claim in a sentence.
        paper: whose claim it is, and where it stands there.
        commands: how to measure it, one block.
        expected: lines of expected.csv.
        measured: lines of measured.csv, none if nothing was measured.
        held_target: the target whose expectations can be held; those of others stand beside.
        tolerances: of that target's expectations, by quantity.
        provenance: of each run that measured.csv names.
    """

    folder: Path
    title: str
    paper: str
    commands: str
    expected: pd.DataFrame
    measured: pd.DataFrame
    held_target: str | None
    tolerances: dict[str, Tolerance]
    provenance: dict[str, dict[str, Any]]

    @property
    def name(self) -> str:
        """The folder's name."""
        return self.folder.name

    def tolerance_of(self, quantity: str, target: Any) -> Tolerance | None:
        """The tolerance that an expectation for `target` is held with, if it is held."""
        return self.tolerances.get(quantity) if target == self.held_target else None

    @property
    def quantities(self) -> list[str]:
        """What the claim is about, in the order of expected.csv."""
        return quantities_of(self.expected)


def claims_folder(asked: str | Path | None = None) -> Path:
    """The folder of claims: `asked`, or experiments/ of the checkout the package runs from.

    Raises:
        UserError: there is no such folder, or no claim in it.
    """
    folder = CHECKOUT_CLAIMS if asked is None else Path(asked).expanduser()
    if not claim_names(folder):
        if asked is None:
            raise UserError(
                "there is no experiments/ beside the package, which was installed without its "
                "checkout: report.claims=PATH names the folder of claims"
            )
        raise UserError(f"report.claims={asked} holds no claim (a folder with an expected.csv)")
    return folder


def claim_names(folder: Path) -> list[str]:
    """Names of the claims in `folder`, sorted."""
    return sorted(path.parent.name for path in folder.glob("*/expected.csv"))


def load_claim(folder: Path, name: str) -> Claim:
    """The claim `name` of the folder of claims.

    Raises:
        UserError: there is no such claim (those there are are listed, with the nearest match), or
            a file of it is malformed; names file and line.
    """
    place = folder / choose(name, claim_names(folder), "claim")
    title, paper, commands = _read_readme(place / "README.md")
    held_target, tolerances = read_tolerances(place / "tolerance.yaml")
    claim = Claim(
        folder=place,
        title=title,
        paper=paper,
        commands=commands,
        expected=read_expected(place / "expected.csv"),
        measured=read_measured(place / "measured.csv"),
        held_target=held_target,
        tolerances=tolerances,
        provenance=read_json(place / "provenance.json"),
    )
    for quantity in claim.tolerances:
        choose(quantity, claim.quantities, f"quantity of {place / 'tolerance.yaml'}")
    _check_provenance(claim)
    return claim


def load_claims(folder: Path) -> list[Claim]:
    """All claims of the folder of claims, by name; raises like `load_claim`."""
    return [load_claim(folder, name) for name in claim_names(folder)]


def _read_readme(path: Path) -> tuple[str, str, str]:
    """Title, paper and commands of a claim's README.md."""
    if not path.is_file():
        raise UserError(f"{path} is missing")
    text = path.read_text(encoding="utf-8")
    title, paper, commands = text.partition("\n")[0], _PAPER.search(text), _COMMANDS.search(text)
    if not title.startswith("# "):
        raise UserError(f"{path}: its first line must be the claim, `# …`")
    if paper is None:
        raise UserError(f"{path}: a paragraph `**Paper.** …` must say whose claim it is")
    lines = commands.group(1).splitlines() if commands else []
    block = [line.removeprefix("    ") for line in lines if line.startswith("    ")]
    if not block:
        raise UserError(f"{path}: a section `## Commands` must hold the commands, indented")
    return title.removeprefix("# ").strip(), " ".join(paper.group(1).split()), "\n".join(block)


def _check_provenance(claim: Claim) -> None:
    for run in claim.measured["run"].unique():
        if not isinstance(claim.provenance.get(run), dict):
            known = ", ".join(claim.provenance) or "none"
            raise UserError(
                f"{claim.folder / 'measured.csv'} names run '{run}', which "
                f"{claim.folder / 'provenance.json'} does not know; there: {known}"
            )

"""Expected beside measured: lines, tables, status, and the page of all claims.

Every measured line stands with the first expected line whose settings, the target aside, it has.
Where that expects no number and the run itself predicts one, this is expected. Only expectations
for the target that claim.yaml names are held against it; a paper's number for another target stands
beside it, told apart by its target and source.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from jinja2 import Template

from eagle_lab.files import write_text
from eagle_lab.reports.claims.claim import (
    NOT_SHOWN,
    PREDICTED,
    QUANTITIES,
    SETTINGS,
    TEXT,
    YES,
    Claim,
)
from eagle_lab.reports.tables import Table, make_table

NUMBER = "%.8g"
"""How numbers are written."""
NOTHING = "–"
POOLED = QUANTITIES["tau_micro"]
LINE_COLUMNS = [
    *("quantity", "place", *SETTINGS, "expected", "measured", "measured_low", "measured_high"),
    *("tau_micro", "within_tolerance", "source", "run"),
]
OTHER_TARGETS = (
    "Numbers of papers are for other targets and other machines: they stand beside ours, and are "
    "not held against them."
)


def settings_match(rows: pd.DataFrame, wanted: pd.Series, *, any_target: bool = False) -> pd.Series:
    """Which of `rows` have every setting that `wanted` names; an empty setting names none."""
    found = pd.Series(True, index=rows.index)
    for name in SETTINGS:
        if pd.isna(wanted[name]) or (name == "target" and any_target):
            continue
        if name in TEXT:
            found &= rows[name] == wanted[name]
        else:
            found &= np.isclose(rows[name].astype(float), wanted[name], rtol=1e-9, atol=1e-9)
    return found


def places(claim: Claim, rows: pd.DataFrame) -> pd.Series:
    """For each of `rows` the first expected line whose settings, target aside, it has; or NaN."""
    found = pd.Series(np.nan, index=rows.index)
    for index, wanted in reversed(list(claim.expected.iterrows())):
        found = found.mask(settings_match(rows, wanted, any_target=True), index)
    return found


def compare(claim: Claim) -> pd.DataFrame:
    """One row per quantity and setting, in the order of expected.csv.

    Returns:
        Columns quantity, place (of the setting in expected.csv), the settings, expected, measured
        with its interval, tau_micro (beside a mean over turns), within_tolerance
        (`Tolerance.verdict`, or None where nothing can be held), source and run.
    """
    frames = [
        pd.DataFrame(_lines(claim, quantity), columns=LINE_COLUMNS).sort_values(
            "place", kind="stable"
        )
        for quantity in claim.quantities
    ]
    return pd.concat(frames, ignore_index=True)


def _lines(claim: Claim, quantity: str) -> Iterator[dict[str, Any]]:
    """The lines of one quantity: expected ones with what was measured there, then the others."""
    measured = claim.measured
    measured = measured[measured[quantity].notna()] if quantity in measured else measured.head(0)
    expected_places, measured_places = places(claim, claim.expected), places(claim, measured)
    left = pd.Series(True, index=measured.index)
    for index, wanted in claim.expected.iterrows():
        hits = measured[left & settings_match(measured, wanted)]
        left[hits.index] = False
        for _, found in hits.iterrows():
            yield _line(claim, quantity, expected_places[index], wanted, found)
        if hits.empty and pd.notna(wanted[quantity]):
            yield _line(claim, quantity, expected_places[index], wanted, None)
    for index, found in measured[left].iterrows():
        yield _line(claim, quantity, measured_places[index], None, found)


def _line(
    claim: Claim, quantity: str, place: float, wanted: pd.Series | None, found: pd.Series | None
) -> dict[str, Any]:
    line: dict[str, Any] = {"quantity": quantity, "place": place}
    for row in (wanted, found):
        if row is not None:
            line |= {name: row[name] for name in SETTINGS if pd.notna(row[name])}
    if wanted is not None and pd.notna(wanted[quantity]):
        line |= {"expected": wanted[quantity], "source": wanted["source"]}
    if found is not None:
        line |= {"measured": found[quantity], "run": found["run"]}
        for end in ("low", "high"):
            line[f"measured_{end}"] = found.get(f"{quantity}_{end}", np.nan)
        if quantity == "tau":
            line["tau_micro"] = found.get("tau_micro", np.nan)
        predicted = found.get(PREDICTED.get(quantity, ""), np.nan)
        if "expected" not in line and pd.notna(predicted):
            source = "the run itself" if wanted is None else wanted["source"]
            line |= {"expected": predicted, "source": source}
    tolerance = claim.tolerance_of(quantity, line.get("target"))
    if tolerance is not None and "expected" in line and "measured" in line:
        interval = line["measured_low"], line["measured_high"]
        line["within_tolerance"] = tolerance.verdict(line["expected"], line["measured"], interval)
    return line


def claim_tables(claim: Claim, lines: pd.DataFrame) -> list[Table]:
    """One table per quantity: settings, expected, measured, within tolerance, where from.

    The claim is the title of the first; further ones are named by their quantity alone.
    """
    shown = [name for name in claim.quantities if (lines["quantity"] == name).any()]
    titles = [QUANTITIES[name].title for name in shown]
    titles[:1] = [f"{claim.title}: {title}" for title in titles[:1]]
    return [
        _table(claim, quantity, title, lines[lines["quantity"] == quantity])
        for quantity, title in zip(shown, titles, strict=True)
    ]


def _table(claim: Claim, quantity: str, title: str, lines: pd.DataFrame) -> Table:
    columns = {column.title: lines[name].map(_setting) for name, column in SETTINGS.items()}
    columns["expected"] = lines.apply(lambda line: expected_text(claim, line), axis=1)
    measured = lines.apply(lambda line: _measured(line) or NOTHING, axis=1)
    if lines["tau_micro"].notna().any():
        columns["measured"] = lines.apply(lambda line: POOLED.text(line) or NOTHING, axis=1)
        columns["measured, mean over turns"] = measured
    else:
        columns["measured"] = measured
    columns["within tolerance"] = lines["within_tolerance"].astype(object).fillna(NOTHING)
    run = ("run " + lines["run"].astype(object)).where(lines["run"].notna(), "")
    columns["source"] = lines["source"].astype(object).fillna("").str.cat(run, "; ").str.strip("; ")
    ours = set(lines["target"][lines["measured"].notna()].dropna())
    others = set(lines["target"][lines["expected"].notna()].dropna()) - ours
    note = OTHER_TARGETS if ours and others else ""
    name = f"{claim.name}_{quantity}"
    return make_table(name, title, lines.dropna(axis=1, how="all"), columns, note)


def _measured(line: pd.Series) -> str:
    ends = ("measured_low", "measured_high")
    return replace(QUANTITIES[line["quantity"]], key="measured", ends=ends).text(line)


def _setting(value: Any) -> str:
    """Text as it is, numbers in full: `mt_bench`, `1,000,000`, `0.05`, or nothing."""
    if isinstance(value, str):
        return value
    return "" if pd.isna(value) else f"{value:,.12g}"


def expected_text(claim: Claim, line: pd.Series) -> str:
    """What a line expects as its tolerance reads it: `3.94`, or `≥ 3.30` for a lower bound."""
    tolerance = claim.tolerance_of(line["quantity"], line["target"])
    shown = replace(QUANTITIES[line["quantity"]], key="expected", ends=None).text(line)
    return f"≥ {shown}" if shown and tolerance and tolerance.is_bound else shown or NOTHING


def status(claim: Claim, lines: pd.DataFrame) -> str:
    """How far the claim is measured, from its files alone.

    `not measured yet`, `partly measured (3 of 8 settings)` or `measured`, then how many numbers
    are within tolerance, and how many are not shown to be.
    """
    if claim.measured.empty:
        return "not measured yet"
    settings = set(places(claim, claim.expected))
    done = set(places(claim, claim.measured).dropna())
    measured = "measured"
    if len(done) < len(settings):
        measured = f"partly measured ({len(done)} of {len(settings)} settings)"
    held = lines["within_tolerance"].dropna()
    if held.empty:
        return measured
    count = held.value_counts()
    not_shown = f", {count[NOT_SHOWN]} not shown" if NOT_SHOWN in count else ""
    return f"{measured}; {count.get(YES, 0)} of {len(held)} within tolerance{not_shown}"


def hardware(claim: Claim) -> str:
    """`AMD EPYC, 2 cores, float32; 12 min`, of the runs that measured.csv names."""
    runs = [claim.provenance[run] for run in claim.measured["run"].unique()]
    machines = dict.fromkeys(filter(None, map(_machine, runs)))
    minutes = sum(map(_minutes, runs))
    at_least = "over " if any(run.get("resumed") for run in runs) else ""
    return "; ".join([*machines, *([f"{at_least}{minutes:.0f} min"] if minutes else [])])


def _machine(run: dict[str, Any]) -> str:
    cores = (run.get("machine") or {}).get("num_cpus")
    where = (
        f"{cores} core{'' if cores == 1 else 's'}" if cores and run.get("device") == "cpu" else None
    )
    return ", ".join(filter(None, (run.get("device_name"), where, run.get("dtype"))))


def _minutes(run: dict[str, Any]) -> float:
    """From the last start to the end; when earlier parts of a resumed run ended is not recorded.

    0 where either is not recorded.
    """
    last = (run.get("resumed") or [run])[-1].get("start")
    if not (last and run.get("end")):
        return 0.0
    return (datetime.fromisoformat(run["end"]) - datetime.fromisoformat(last)).total_seconds() / 60


def claim_markdown(claim: Claim) -> str:
    """The claim, its status and its tables."""
    lines = compare(claim)
    state = f"**Status.** {status(claim, lines)}. {hardware(claim)}".strip()
    head = [f"# {claim.title}", "", f"**Paper.** {claim.paper}", "", state, ""]
    return "\n".join([*head, *(table.to_markdown() for table in claim_tables(claim, lines))])


def write_claim(claim: Claim, folder: Path) -> list[Path]:
    """Write NAME.md, NAME.csv and NAME.tex into `folder`; return their paths."""
    lines = compare(claim)
    numbers = lines.drop(columns="place").dropna(axis=1, how="all")
    latex = "\n".join(table.to_latex() for table in claim_tables(claim, lines))
    contents = {
        folder / f"{claim.name}.md": claim_markdown(claim),
        folder / f"{claim.name}.csv": numbers.to_csv(index=False, float_format=NUMBER),
        folder / f"{claim.name}.tex": latex,
    }
    for path, content in contents.items():
        write_text(path, content)
    return list(contents)


def index(claims: Sequence[Claim]) -> str:
    """The README of all claims: a table, then the commands of each."""
    makers = {run: claim.name for claim in claims for run in claim.commands}
    template = Template((Path(__file__).parent / "index.md.j2").read_text(encoding="utf-8"))
    return template.render(rows=[_row(claim, makers) for claim in claims]).rstrip() + "\n"


def _row(claim: Claim, makers: dict[str, str]) -> dict[str, Any]:
    """A claim's line, its runs whose commands are known, and which other claims make what."""
    lines = compare(claim)
    runs = [run for run in claim.runs if run in makers]
    named = re.findall(r"runs/(\w+)", "\n".join(claim.commands.values()))
    elsewhere: dict[str, list[str]] = {}
    for run in dict.fromkeys([*runs, *named]):
        if makers.get(run, claim.name) != claim.name:
            elsewhere.setdefault(makers[run], []).append(run)
    return {
        "claim": claim,
        "expected": _first_number(claim, lines, "expected"),
        "measured": _first_number(claim, lines, "measured"),
        "status": status(claim, lines),
        "hardware": hardware(claim) or NOTHING,
        "runs": runs,
        "elsewhere": elsewhere,
    }


def _first_number(claim: Claim, lines: pd.DataFrame, column: str) -> str:
    """`speedup 2.90× (vicuna-7b)`: `column` of the first quantity at the first setting."""
    keys = lines[["quantity", "place"]]
    found = lines[(keys == keys.iloc[0]).all(axis=1) & lines[column].notna()]
    if found.empty:
        return NOTHING
    line = found.iloc[0]
    means = ", mean over turns ".join(filter(None, (POOLED.text(line), _measured(line))))
    value = expected_text(claim, line) if column == "expected" else means
    target = f" ({line['target']})" if pd.notna(line["target"]) else ""
    return f"{QUANTITIES[line['quantity']].title} {value}{target}"


def write_index(folder: Path, claims: Sequence[Claim]) -> Path:
    """Write the README of the folder of claims."""
    write_text(folder / "README.md", index(claims))
    return folder / "README.md"

"""Expected beside measured: the lines of a claim, their tables, and the status that follows.

Every measured line stands with the first expected line whose settings, the target aside, it
holds. Where that expects no number and the run itself predicts one, this is expected.
Only expectations for the target that tolerance.yaml names are held against it; a paper's number for
another target stands beside it, told apart by its target and source.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd

from eagle_lab.reports.claim import Claim
from eagle_lab.reports.claim_columns import PREDICTED, QUANTITIES, SETTINGS, TEXT
from eagle_lab.reports.claim_tolerance import NOT_SHOWN, YES
from eagle_lab.reports.tables import Table, decimals, make_table, text, with_interval

NOTHING = "–"
LINE_COLUMNS = [
    *("quantity", "place", *SETTINGS),
    *("expected", "measured", "measured_low", "measured_high", "within_tolerance", "source", "run"),
]
OTHER_TARGETS = (
    "Numbers of papers are for other targets and other machines: they stand beside ours, and are "
    "not held against them."
)


def holds(rows: pd.DataFrame, wanted: pd.Series, *, any_target: bool = False) -> pd.Series:
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
    """For each of `rows` the first expected line whose settings, target aside, it holds; or NaN."""
    found = pd.Series(np.nan, index=rows.index)
    for index, wanted in reversed(list(claim.expected.iterrows())):
        found = found.mask(holds(rows, wanted, any_target=True), index)
    return found


def compare(claim: Claim) -> pd.DataFrame:
    """One row per quantity and setting, in the order of expected.csv.

    Returns:
        Columns quantity, place (of the setting in expected.csv), the settings, expected, measured
        with its interval, within_tolerance (`Tolerance.verdict`, or None where nothing can be
        held), source and run.
    """
    lines = [line for quantity in claim.quantities for line in _lines(claim, quantity)]
    frame = pd.DataFrame(lines, columns=LINE_COLUMNS)
    order = {quantity: rank for rank, quantity in enumerate(claim.quantities)}
    rank = frame["quantity"].map(order)
    return (
        frame.assign(rank=rank)
        .sort_values(["rank", "place"], kind="stable", ignore_index=True)
        .drop(columns="rank")
    )


def _lines(claim: Claim, quantity: str) -> Iterator[dict[str, Any]]:
    """The lines of one quantity: expected ones with what was measured there, then the others."""
    measured = claim.measured
    measured = measured[measured[quantity].notna()] if quantity in measured else measured.head(0)
    expected_places, measured_places = places(claim, claim.expected), places(claim, measured)
    left = pd.Series(True, index=measured.index)
    for index, wanted in claim.expected.iterrows():
        hits = measured[left & holds(measured, wanted)]
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
        line |= {
            f"measured_{end}": found.get(f"{quantity}_{end}", np.nan) for end in ("low", "high")
        }
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
    headings = [QUANTITIES[name].heading for name in shown]
    titles = [f"{claim.title}: {headings[0]}", *headings[1:]] if shown else []
    return [
        _table(claim, quantity, title, lines[lines["quantity"] == quantity])
        for quantity, title in zip(shown, titles, strict=True)
    ]


def _table(claim: Claim, quantity: str, title: str, lines: pd.DataFrame) -> Table:
    kind = QUANTITIES[quantity]
    columns = {heading: lines[name].map(_setting) for name, heading in SETTINGS.items()}
    columns |= {
        "expected": lines.apply(lambda line: expected_words(claim, line), axis=1),
        "measured": with_interval(lines, "measured", kind.places, kind.unit).replace("", NOTHING),
        "within tolerance": lines["within_tolerance"].astype(object).fillna(NOTHING),
        "source": lines.apply(lambda line: _source(claim, line), axis=1),
    }
    ours = set(lines["target"][lines["measured"].notna()].dropna())
    others = set(lines["target"][lines["expected"].notna()].dropna()) - ours
    return make_table(
        f"{claim.name}_{quantity}",
        title,
        lines.dropna(axis=1, how="all"),
        columns,
        OTHER_TARGETS if ours and others else "",
    )


def _setting(value: Any) -> str:
    """Text as it is, numbers in full: `mt_bench`, `1,000,000`, `0.05`, or nothing."""
    if isinstance(value, str) or pd.isna(value):
        return text(value)
    return f"{value:,.12g}"


def expected_words(claim: Claim, line: pd.Series) -> str:
    """What a line expects as its tolerance reads it: `3.94`, or `≥ 3.30` for a lower bound."""
    if pd.isna(line["expected"]):
        return NOTHING
    kind = QUANTITIES[line["quantity"]]
    tolerance = claim.tolerance_of(line["quantity"], line["target"])
    bound = "≥ " if tolerance is not None and tolerance.is_bound else ""
    return f"{bound}{decimals(kind.places, kind.unit)(line['expected'])}"


def _source(claim: Claim, line: pd.Series) -> str:
    parts = [str(line["source"])] if pd.notna(line["source"]) else []
    if pd.notna(line["run"]):
        parts.append(f"run {line['run']}{'' if _finished(claim, line['run']) else ' (unfinished)'}")
    return "; ".join(parts)


def _finished(claim: Claim, run: str) -> bool:
    return claim.provenance[run].get("status") == "finished"


def status(claim: Claim, lines: pd.DataFrame) -> str:
    """How far the claim is measured, from its files alone.

    `not measured yet`, `partly measured (3 of 8 settings)` or `measured`, then how many numbers
    are within tolerance, and how many are not shown to be. A claim that rests on an unfinished run
    is partly measured.
    """
    if claim.measured.empty:
        return "not measured yet"
    asked = set(places(claim, claim.expected))
    done = set(places(claim, claim.measured).dropna())
    reasons = [f"{len(done)} of {len(asked)} settings"] if len(done) < len(asked) else []
    if not all(_finished(claim, run) for run in claim.measured["run"].unique()):
        reasons.append("a run is unfinished")
    said = f"partly measured ({', '.join(reasons)})" if reasons else "measured"
    held = lines["within_tolerance"].dropna()
    if held.empty:
        return said
    count = held.value_counts()
    open_ones = f", {count[NOT_SHOWN]} not shown" if NOT_SHOWN in count else ""
    return f"{said}; {count.get(YES, 0)} of {len(held)} within tolerance{open_ones}"

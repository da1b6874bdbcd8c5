"""Claims as documents: one claim's Markdown, CSV and LaTeX, and the README of all of them.

experiments/README.md is what `index` makes of the folders; a test keeps it up to date.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

import pandas as pd

from eagle_lab.files import write_text
from eagle_lab.reports.claim import Claim, load_claims
from eagle_lab.reports.claim_columns import NUMBER, QUANTITIES
from eagle_lab.reports.claim_table import (
    NOTHING,
    claim_tables,
    compare,
    expected_words,
    status,
)
from eagle_lab.reports.tables import make_table, with_interval
from eagle_lab.reports.words import counted

INTRODUCTION = """\
# Experiments

One folder per claim: `README.md` (the claim, whose it is, the commands, deviations),
`expected.csv` (numbers of papers, which are for other targets, and expectations for ours),
`measured.csv` (numbers of real runs), `provenance.json` (where these runs come from) and, where an
expectation can be held, `tolerance.yaml`. No Python lives here.

This page is made from the folders; nothing in it is typed by hand:

    python -m eagle_lab.run +experiment=report report.claim=all

One claim as a table, as Markdown, CSV and LaTeX; and a finished run becomes a claim's measured.csv:

    python -m eagle_lab.run +experiment=report report.claim=NAME
    python -m eagle_lab.run +experiment=report report.claim=NAME report.run=PATH

The commands name question files by path. `mt_bench.jsonl` and `humaneval.jsonl` are the 80 rows
each of `eagle/data/mt_bench/question.jsonl` and `eagle/data/humaneval/question.jsonl` in EAGLE's
repository (github.com/SafeAILab/EAGLE); provenance.json has the SHA-256 of the file a run read.

Expected and measured show the first number of each claim; its folder has them all.
"""


def claim_markdown(claim: Claim) -> str:
    """The claim, its status and its tables."""
    lines = compare(claim)
    tables = [table.to_markdown() for table in claim_tables(claim, lines)]
    head = [f"# {claim.title}", "", f"**Paper.** {claim.paper}", ""]
    state = [f"**Status.** {status(claim, lines)}. {hardware(claim)}".strip(), ""]
    return "\n".join([*head, *state, *tables])


def write_claim(claim: Claim, folder: Path) -> list[Path]:
    """Write NAME.md, NAME.csv and NAME.tex into `folder`; return their paths."""
    lines = compare(claim)
    numbers = lines.drop(columns="place").dropna(axis=1, how="all")
    contents = {
        "md": claim_markdown(claim),
        "csv": numbers.to_csv(index=False, float_format=NUMBER),
        "tex": "\n".join(table.to_latex() for table in claim_tables(claim, lines)),
    }
    paths = [folder / f"{claim.name}.{suffix}" for suffix in contents]
    for path, content in zip(paths, contents.values(), strict=True):
        write_text(path, content)
    return paths


def index(claims: Sequence[Claim]) -> str:
    """The README of all claims: a table, then the commands of each."""
    compared = [compare(claim) for claim in claims]
    columns = {
        "claim": pd.Series([f"[{claim.title}]({claim.name}/README.md)" for claim in claims]),
        "paper": pd.Series([claim.paper for claim in claims]),
        "expected": pd.Series(map(_first_expected, claims, compared)),
        "measured": pd.Series(map(_first_measured, compared)),
        "status": pd.Series(map(status, claims, compared)),
        "hardware, time": pd.Series([hardware(claim) or NOTHING for claim in claims]),
    }
    raw = pd.DataFrame({"claim": [claim.name for claim in claims]})
    table = make_table("claims", "Claims", raw, columns)
    parts = [INTRODUCTION, table.to_markdown(), "## Commands"]
    for claim in claims:
        block = "\n".join(f"    {line}".rstrip() for line in claim.commands.splitlines())
        parts.append(f"### {claim.name}\n\n{block}")
    return "\n".join([*parts[:2], "\n\n".join(parts[2:]), ""])


def write_index(folder: Path) -> Path:
    """Write the README of the folder of claims; raises like `load_claims`."""
    path = folder / "README.md"
    write_text(path, index(load_claims(folder)))
    return path


def hardware(claim: Claim) -> str:
    """`AMD EPYC, 2 cores, float32; 12 min`, of the runs that measured.csv names."""
    runs = [claim.provenance[run] for run in claim.measured["run"].unique()]
    machines = dict.fromkeys(_machine(run) for run in runs)
    minutes = sum(_minutes(run) for run in runs)
    at_least = "over " if any(run.get("resumed") for run in runs) else ""
    time = [f"{at_least}{minutes:.0f} min"] if minutes else []
    return "; ".join([*(machine for machine in machines if machine), *time])


def _machine(run: dict) -> str:
    cores = (run.get("machine") or {}).get("num_cpus")
    where = counted(cores, "core") if cores and run.get("device") == "cpu" else None
    parts = (run.get("device_name"), where, run.get("dtype"))
    return ", ".join(str(part) for part in parts if part)


def _minutes(run: dict) -> float:
    """From the last start to the end; when earlier parts of a resumed run ended is not recorded.

    0 where either is not recorded.
    """
    last = (run.get("resumed") or [run])[-1].get("start")
    if not (last and run.get("end")):
        return 0.0
    return (datetime.fromisoformat(run["end"]) - datetime.fromisoformat(last)).total_seconds() / 60


def _first(lines: pd.DataFrame) -> pd.DataFrame:
    """The lines of the claim's first quantity at its first setting."""
    if lines.empty:
        return lines
    first = lines.iloc[0]
    same = (lines["quantity"] == first["quantity"]) & (lines["place"] == first["place"])
    return lines[same]


def _first_expected(claim: Claim, lines: pd.DataFrame) -> str:
    known = _first(lines).dropna(subset=["expected"])
    if known.empty:
        return NOTHING
    return _said(known.iloc[0], expected_words(claim, known.iloc[0]))


def _first_measured(lines: pd.DataFrame) -> str:
    known = _first(lines).dropna(subset=["measured"])
    if known.empty:
        return NOTHING
    kind = QUANTITIES[known.iloc[0]["quantity"]]
    value = with_interval(known.head(1), "measured", kind.places, kind.unit).iloc[0]
    return _said(known.iloc[0], value)


def _said(line: pd.Series, value: str) -> str:
    """`speedup 2.90× (vicuna-7b)`."""
    target = f" ({line['target']})" if pd.notna(line["target"]) else ""
    return f"{QUANTITIES[line['quantity']].heading} {value}{target}"

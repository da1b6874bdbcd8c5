"""Tables of a report: raw numbers as CSV, and what a reader wants as Markdown, LaTeX and HTML.

Headings, decimals, units and notes come from `eagle_lab.columns`. A column without any value is
left out of what is shown, so an untimed run has no timing columns.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pandas as pd

from eagle_lab.bench.statistics import MIN_QUESTIONS
from eagle_lab.columns import (
    CROSSOVER,
    CURVES,
    DIVERGENCES,
    OVERHEAD,
    PREDICTIONS,
    SUMMARY,
    WORK,
    Column,
    pick,
)
from eagle_lab.files import write_text
from eagle_lab.reports.frames import TREE, has_values, says_false
from eagle_lab.reports.load import TAU, acceptance_columns
from eagle_lab.reports.sweeps import Grid

_LATEX = str.maketrans({
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_",
    "{": r"\{", "}": r"\}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}",
    "τ": r"$\tau$", "α": r"$\alpha$", "γ": r"$\gamma$", "×": r"$\times$", "±": r"$\pm$",
    "≥": r"$\geq$", "≤": r"$\leq$", "→": r"$\to$", "−": "$-$", "–": "--", "\n": " ",
})  # fmt: skip
_LABEL = Column("label", "method")
_DRAFTED = (
    Column("drafted", "", "tokens drafted, accepted and emitted are means per cycle", 1),
    Column("accepted", decimals=2),
    Column("emitted", decimals=2),
)
_ACCEPTANCE = (
    _LABEL,
    Column("depth", decimals=0),
    Column("trials", "judged", "cycles whose draft was judged at this depth", 0),
    Column("accepted", decimals=0),
    Column(
        "conditional", "", "given that all before was accepted and the draft went on (n−1-α)", 3,
        ends=("conditional_low", "conditional_high"),
    ),
    Column(
        "cumulative", "", "of all cycles, those whose draft had ended included", 3,
        ends=("cumulative_low", "cumulative_high"),
    ),
)  # fmt: skip
_CALIBRATION = (
    _LABEL,
    Column("confidence_from", "confidence from", "the drafter's probability of a token"),
    Column("confidence_to", "to"),
    Column("num_trials", "judged", "", 0),
    Column("mean_confidence", "", "what acceptance is if the drafter is calibrated", 3),
    Column("acceptance", "", "", 3, ends=("acceptance_low", "acceptance_high")),
)
PLAIN = {
    "acceptance": ("Acceptance by depth", _ACCEPTANCE),
    "calibration": ("Acceptance by confidence", _CALIBRATION),
    "passes": ("Passes", (*CURVES, *WORK)),
    "overhead": ("Cycles", OVERHEAD),
    "predictions": ("Predicted speedup", PREDICTIONS),
    "crossover": ("Predicted speedup by batch size", CROSSOVER),
}
"""Titles and columns of the tables that show their rows as they are, by the names of the files."""
INTERVALS = (
    "In brackets: 95 % intervals, paired bootstrap over questions; too narrow for few questions, "
    f"none below {MIN_QUESTIONS}."
)


@dataclass(frozen=True)
class Table:
    """One table.

    Attributes:
        name: of its files.
        title: heading.
        raw: numbers as they were read.
        shown: the same as text, columns by their headings.
        note: what the reader has to know.
        numeric: headings whose cells are set flush right.
        best: positions of the rows that are marked.
    """

    name: str
    title: str
    raw: pd.DataFrame
    shown: pd.DataFrame
    note: str = ""
    numeric: frozenset[str] = field(default_factory=frozenset)
    best: frozenset[int] = field(default_factory=frozenset)

    def to_markdown(self) -> str:
        """Heading, note and pipe table; numbers to the right, the marked rows in bold."""
        rules = ["---:" if column in self.numeric else "---" for column in self.shown]
        rows = [list(self.shown), rules]
        for place, row in enumerate(self.shown.itertuples(index=False)):
            cells = [str(cell).replace("|", "\\|").replace("\n", " ") for cell in row]
            rows.append([f"**{cell}**" if cell and place in self.best else cell for cell in cells])
        note = [self.note, ""] if self.note else []
        lines = [f"| {' | '.join(cells)} |" for cells in rows]
        return "\n".join([f"## {self.title}", "", *note, *lines, ""])

    def to_latex(self) -> str:
        """What is shown with booktabs rules; title and note are its caption."""
        shown = self.shown.map(_latex).set_axis(list(map(_latex, self.shown)), axis=1)
        return str(
            shown.style.hide(axis="index").to_latex(
                column_format="".join("r" if name in self.numeric else "l" for name in self.shown),
                caption=_latex(f"{self.title}. {self.note}".strip()),
                label=f"tab:{self.name}",
                position_float="centering",
                hrules=True,
            )
        )

    def save(self, folder: Path) -> None:
        """Write NAME.csv, NAME.md and NAME.tex into `folder`."""
        write_text(folder / f"{self.name}.csv", self.raw.to_csv(index=False))
        write_text(folder / f"{self.name}.md", self.to_markdown())
        write_text(folder / f"{self.name}.tex", self.to_latex())

    def _repr_markdown_(self) -> str:
        """How a notebook shows it."""
        return self.to_markdown()


def _latex(text: Any) -> str:
    r"""Plain text escaped; braces keep a leading `[` from being read as an argument of `\\`."""
    escaped = str(text).translate(_LATEX)
    return f"{{{escaped}}}" if escaped.startswith("[") else escaped


def make_table(
    name: str,
    title: str,
    raw: pd.DataFrame,
    columns: Mapping[str, pd.Series],
    note: str = "",
    best: pd.Series | None = None,
) -> Table:
    """A table whose shown columns are `columns`, less those that are empty in every row."""
    shown = pd.DataFrame({head: list(values) for head, values in columns.items()}, dtype=str)
    kept = [str(head) for head in shown if (shown[head] != "").any()]
    numeric = frozenset(head for head in kept if shown[head].map(_looks_numeric).all())
    marked = [] if best is None else [place for place, mark in enumerate(best) if mark]
    raw = raw.reset_index(drop=True)
    return Table(name, title, raw, shown[kept], note, numeric, frozenset(marked))


def _looks_numeric(cell: str) -> bool:
    cell = cell.removeprefix("≥ ")
    return cell == "" or cell == "–" or cell[0].isdigit() or (cell[0] in "-−" and len(cell) > 1)


def column_table(
    name: str,
    title: str,
    rows: pd.DataFrame,
    columns: Sequence[Column],
    note: str = "",
    best: pd.Series | None = None,
) -> Table:
    """`columns` of `rows`; notes of those that hold a value follow `note`."""
    cells = {
        column.title: pd.Series([column.text(row) for row in rows.to_dict("records")], dtype=str)
        for column in columns
    }
    noted = [
        f"{column.title}: {column.note}"
        for column in columns
        if column.note and (cells[column.title] != "").any()
    ]
    ends = [end for column in columns for end in column.ends or () if end.endswith("_low")]
    intervals = INTERVALS if any(has_values(rows, end) for end in ends) else ""
    parts = (note, f"{'; '.join(noted)}." if noted else "", intervals)
    return make_table(name, title, rows, cells, " ".join(filter(None, parts)), best)


def plain_table(name: str, rows: pd.DataFrame) -> Table:
    """One of `PLAIN`; rows with a `best` are marked."""
    title, columns = PLAIN[name]
    best = rows["best"].notna() if "best" in rows else None
    return column_table(name, title, rows, columns, best=best)


def method_table(summary: pd.DataFrame) -> Table:
    """τ, speed and exactness, one row per method and setting, the fastest marked."""
    foreign = says_false(summary["drafter_matches_target"]).map({True: "drafter of another target"})
    remark = foreign.mask(says_false(summary["lossless"]), "lossy")
    rows = summary.assign(remark=remark.mask(summary["infeasible"], "infeasible"))
    keys = (
        *("tau_micro", "tau_macro", "speedup", "speedup_robust", "tokens_per_second"),
        *("decode_tokens_per_second", "greedy_match_rate", "exact_rate", "tie_rate"),
        *("distribution_z", "num_tokens", "num_cycles", "num_disturbed"),
    )
    columns = (_LABEL, *pick(SUMMARY, *keys), Column("remark"))
    best = rows["speedup"] == rows["speedup"].max() if has_values(rows, "speedup") else None
    return column_table("methods", "Methods", rows, columns, best=best)


def cost_table(summary: pd.DataFrame, per_cycle: pd.DataFrame) -> Table:
    """Where the time goes, one row per method: tokens and milliseconds per cycle, latencies."""
    keys = ("draft_ms", "verify_ms", "overhead_ms", "ttft_ms", "itl_p50_ms", "itl_p95_ms")
    columns = (_LABEL, *_DRAFTED, *pick(SUMMARY, *keys, "itl_p99_ms", "peak_memory_mb"))
    rows = summary.merge(per_cycle, on="label", how="left")
    return column_table("costs", "Cost of a cycle", rows, columns)


def category_table(by_category: pd.DataFrame) -> Table:
    """One row per method, one column per category: τ, and the speedup where timed."""
    shown = [replace(column, ends=None) for column in pick(SUMMARY, "tau_micro", "speedup")]
    rows = by_category.to_dict("records")
    texts = [" / ".join(filter(None, (column.text(row) for column in shown))) for row in rows]
    plane = by_category.assign(cell=texts).pivot_table(
        index="label", columns="category", values="cell", aggfunc="first", sort=False
    )
    plane = plane.fillna("")
    columns = {"method": plane.index.to_series(), **{str(name): plane[name] for name in plane}}
    note = "τ / speedup." if has_values(by_category, "speedup") else "τ."
    return make_table("categories", "Categories", by_category, columns, note)


def divergence_table(divergences: pd.DataFrame, noise: float | None = None) -> Table:
    """First differences from vanilla's greedy output; `noise` is that of the target's logits."""
    note = f"The target's logits vary by up to {noise:.1e} with a pass's size." if noise else ""
    return column_table("divergences", "Divergences from vanilla", divergences, DIVERGENCES, note)


def ranking_table(grid: Grid) -> Table:
    """Settings of one grid that could run, the fastest first (by τ where untimed)."""
    by = "speedup" if has_values(grid.feasible, "speedup") else "tau_micro"
    rows = grid.feasible.sort_values([by, "num_nodes", *TREE[:2]], ascending=[False, *[True] * 3])
    keys = ("speedup", "tau_micro", "tau_macro", "tokens_per_second", "draft_ms", "verify_ms")
    columns = pick(SUMMARY, *TREE, *keys, "overhead_ms")
    note = "The first is the best of many noisy measurements, so it is likely a little lower."
    best = pd.Series(range(len(rows))) == 0
    return column_table(f"ranking{grid.suffix}", grid.title, rows, columns, note, best)


def infeasible_table(grid: Grid) -> Table:
    """Settings of one grid that are infeasible, and why."""
    rows = grid.rows[grid.rows["infeasible"]].sort_values(["num_nodes", *TREE[:2]])
    columns = pick(SUMMARY, *TREE, "reason")
    return column_table(f"infeasible{grid.suffix}", f"{grid.title}: infeasible", rows, columns)


def training_table(training: pd.DataFrame) -> Table:
    """Held-out acceptance by depth and expected tokens per cycle at each validation."""
    depths = acceptance_columns(training)
    columns = [Column("step", decimals=0)]
    columns += [Column(name, f"depth {depth}", "", 3) for depth, name in enumerate(depths, 1)]
    columns.append(Column(TAU, "expected τ", "of a chain", 2))
    by = training[TAU if TAU in training else depths[0]]
    best = by == by.max()
    note = "Conditional acceptance on held-out conversations, teacher-forced."
    return column_table("training", "Training", training, columns, note, best)


def limits_table(limits: Mapping[str, float]) -> Table:
    """What the machine reached at most: memory reads and matrix products."""
    rows = pd.DataFrame({"limit": list(limits), "per_second": list(limits.values())})
    reads, giga = rows["limit"] == "read", rows["per_second"].astype(float) / 1e9
    names = (rows["limit"].astype(str) + " products").mask(reads, "memory reads")
    shown = rows.assign(limit=names, gigabytes=giga.where(reads), gigaflops=giga.mask(reads))
    columns = (Column("limit"), Column("gigabytes", "GB/s", "", 1), *pick(WORK, "gigaflops"))
    return column_table("limits", "Limits of the machine", shown, columns)


def provenance_table(provenance: dict[str, Any]) -> Table:
    """Where the numbers come from: command, commit, versions, machine, seeds, prompts, times."""
    flat = pd.json_normalize(provenance).to_dict("records")[0] if provenance else {}
    texts = {name: text for name, value in flat.items() if (text := _plain(value))}
    raw = pd.DataFrame({"item": list(texts), "value": list(texts.values())})
    return make_table("provenance", "Provenance", raw, {"item": raw["item"], "value": raw["value"]})


def _plain(value: Any) -> str:
    if isinstance(value, list):
        return "; ".join(map(_plain, value))
    if isinstance(value, dict):
        return ", ".join(f"{key} {item}" for key, item in value.items())
    if value is None or value != value:
        return ""
    return f"{value:g}" if isinstance(value, float) else str(value)

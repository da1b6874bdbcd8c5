"""The findings of a sweep in sentences: the best setting, and of how many it is the best."""

from __future__ import annotations

import pandas as pd

from eagle_lab.reports.load import Sweep
from eagle_lab.reports.sweeps import Grid, best_setting, grids, rivals
from eagle_lab.reports.words import known, replay_finding, setting_words, span, value_words


def sweep_sentences(sweep: Sweep) -> list[str]:
    """What a sweep found: size, best setting of each grid by speed and by τ, drift, gaps."""
    found = grids(sweep.table)
    said = [_sweep_size(sweep), replay_finding(sweep.config)]
    for grid in found:
        said += [best_words(grid, "speedup"), best_words(grid, "tau_macro")]
    said += [_drift(sweep.table), _gaps(sweep)]
    return [sentence for sentence in said if sentence]


def _sweep_size(sweep: Sweep) -> str:
    table = sweep.table
    where = setting_words(sweep.config, sweep.provenance)
    counts = span(table["num_questions"]) if known(table, "num_questions") else "no"
    asked = "1 question" if counts == "1" else f"{counts} questions"
    infeasible = int(table["infeasible"].sum())
    left_out = f", {infeasible} of them infeasible" if infeasible else ""
    rows = int((table["method"] != "vanilla").sum())
    tail = f"; {where}" if where else ""
    return f"Measured: {rows} settings{left_out}, {asked} each{tail}."


def best_words(grid: Grid, by: str) -> str:
    """The best setting of a grid by `speedup` or `tau_macro`, and how far it stands out."""
    rows = grid.feasible
    best = best_setting(rows, by)
    if best is None:
        return ""
    where = ", ".join(f"{name} {best[name]:g}" for name in ("depth", "width", "num_nodes"))
    unit, name = ("×", "speed") if by == "speedup" else ("", "acceptance")
    amount = f"{value_words(best, by, unit)}" if unit else f"τ = {value_words(best, by)}"
    other = "tau_macro" if by == "speedup" else "speedup"
    also = ""
    if pd.notna(best[other]):
        also = f" ({'τ = ' if other == 'tau_macro' else 'speedup '}{best[other]:.2f} there)"
    close = rivals(rows, best, by)
    count = int(rows[by].notna().sum())
    reach = (
        f"; the intervals of {len(close)} of the {count - 1} other settings reach into it"
        if pd.notna(best[f"{by}_low"]) and count > 1
        else ""
    )
    held = f", {grid.conditions}" if grid.conditions else ""
    return (
        f"Best {name} of {grid.method}{held}: {amount} at {where}{also}, "
        f"the best of {count} measured settings{reach}."
    )


def _drift(table: pd.DataFrame) -> str:
    conditions = table[["batch_size", "temperature"]].drop_duplicates()
    if "job" not in table or table["job"].nunique() < 2 or len(conditions) > 1:
        return ""
    vanilla = table[table["method"] == "vanilla"]
    speeds = vanilla["decode_tokens_per_second"].dropna().round(1)
    if speeds.empty:
        return ""
    return (
        f"Vanilla decoded at {span(speeds)} tokens/s in the jobs; each speedup is against the "
        "vanilla of its own job."
    )


def _gaps(sweep: Sweep) -> str:
    if not sweep.missing:
        return ""
    return f"Jobs without a summary, failed or unfinished: {', '.join(sweep.missing)}."

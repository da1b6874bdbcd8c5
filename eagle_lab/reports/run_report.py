"""The report of one run: a bench, a sweep done in one process, a training, or a profile.

Chooses among tables and figures; computes nothing itself. Sections without content are left out, so
a run that was not timed has no timing figures.
"""

from __future__ import annotations

import pandas as pd

from eagle_lab.reports import acceptance_plots, curves, heatmaps, method_tables, plots, tables
from eagle_lab.reports.acceptance import (
    acceptance_by_depth,
    accepted_histogram,
    cycles,
    tokens_per_cycle,
)
from eagle_lab.reports.content import UNFINISHED, Content, Section, drawn, filled
from eagle_lab.reports.frames import label_generations
from eagle_lab.reports.load import Run
from eagle_lab.reports.plot import styles_of
from eagle_lab.reports.profile_report import profile_sections
from eagle_lab.reports.sentences import run_sentences
from eagle_lab.reports.sweep_report import grid_section
from eagle_lab.reports.sweeps import headline_rows
from eagle_lab.reports.training import acceptance_columns, tau_column
from eagle_lab.reports.words import counted, known


def run_content(run: Run) -> Content:
    """The report of one run folder."""
    sections = _bench_sections(run) if not run.summary.empty else []
    sections += [grid_section(run.summary)] if not run.summary.empty else []
    sections.append(_training_section(run.training))
    sections += profile_sections(run.profile) if run.profile is not None else []
    return Content(
        title=f"{str(run.config.get('task') or 'run').capitalize()} report: {run.path.name}",
        warnings=_warnings(run),
        findings=run_sentences(run),
        sections=filled(sections),
        provenance=tables.provenance_table(run.provenance),
        config=tables.as_yaml(run.config),
    )


def _warnings(run: Run) -> list[str]:
    found = [] if run.finished else [UNFINISHED]
    resumed = len(run.provenance.get("resumed") or [])
    if resumed and not run.summary.empty and known(run.summary, "tokens_per_second"):
        found.append(
            f"This run was interrupted and went on {counted(resumed, 'time')}: its times come from "
            "several processes at several hours. Methods were still timed side by side."
        )
    return found


def _bench_sections(run: Run) -> list[Section]:
    rows = headline_rows(run.main)
    generations = label_generations(run.generations, rows)
    per_cycle = cycles(generations)
    styles = styles_of(rows)
    drafts = rows["drafted_per_cycle"].fillna(1) > 0  # unknown in early runs
    drafts &= rows["method"] != "vanilla"
    drafting = per_cycle[per_cycle["label"].isin(rows["label"][drafts])]
    by_depth = acceptance_by_depth(drafting, depths_of(rows), seed=run.seed)
    shares = accepted_histogram(drafting)
    overview = [plots.tau_by_method(rows), plots.speedup_by_method(rows)]
    detail = [
        acceptance_plots.acceptance_by_depth(by_depth, styles),
        acceptance_plots.accepted_histogram(shares, styles),
    ]
    time = [plots.time_split(rows), curves.throughput_by_batch(run.summary)]
    methods = method_tables.method_table(headline_rows(run.summary))
    acceptance = [] if by_depth.empty else [method_tables.acceptance_table(by_depth)]
    costs = method_tables.cost_table(rows, tokens_per_cycle(generations, per_cycle))
    return [
        Section("Methods", drawn(overview), [methods]),
        Section("Acceptance", drawn(detail), acceptance, folded=True),
        Section("Time", drawn(time), [costs]),
        _category_section(run),
        Section("Exactness", [], [method_tables.divergence_table(run.divergences, noise_of(run))]),
    ]


def depths_of(rows: pd.DataFrame) -> dict[str, int]:
    """Levels drafted per label, where the summary tells."""
    known = rows.dropna(subset=["depth"])
    return {str(row["label"]): int(row["depth"]) for _, row in known.iterrows()}


def noise_of(run: Run) -> float | None:
    """Largest difference of the target's logits between passes of different sizes."""
    return (run.totals.get("logit_noise") or {}).get("max_difference")


def _category_section(run: Run) -> Section:
    if run.by_category.empty:
        return Section("Categories")
    rows = label_rows_like(run.by_category, headline_rows(run.main))
    value = "tau_macro" if rows["tau_macro"].notna().any() else "tau_micro"
    heat = [heatmaps.category_heatmap(rows, name) for name in (value, "speedup")]
    return Section(
        "Categories", drawn(heat), [method_tables.category_table(rows, value)], folded=True
    )


def label_rows_like(by_category: pd.DataFrame, summary: pd.DataFrame) -> pd.DataFrame:
    """`by_category` with the labels of `summary`, in its order; rows of other settings drop out."""
    keys = ["method"] + [
        name
        for name in ("drafter", "batch_size", "temperature", "depth", "width", "num_nodes")
        if by_category[name].notna().any()
    ]
    return summary[[*keys, "label"]].merge(by_category, on=keys, how="inner")


def _training_section(training: pd.DataFrame) -> Section:
    if training.empty:
        return Section("Training")
    columns, tau = acceptance_columns(training), tau_column(training)
    table = method_tables.training_table(training, columns, tau)
    curve = curves.training_curve(training, columns, tau)
    return Section("Training", drawn([curve]), [table], folded=True)

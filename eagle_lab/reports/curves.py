"""Curves: throughput and speedup against batch size, and a drafter's acceptance as it learns."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, MaxNLocator, NullLocator

from eagle_lab.reports.frames import label_rows
from eagle_lab.reports.plot import Plot, conditions, styles_of
from eagle_lab.reports.style import FAINT, legend_below, light_grid, new_figure, paper_style


def throughput_by_batch(summary: pd.DataFrame) -> Plot | None:
    """Tokens per second and speedup of every method against batch size; None for one size."""
    rows = summary[~summary["infeasible"] & summary["tokens_per_second"].notna()]
    sizes = sorted(rows["batch_size"].dropna().unique())
    if len(sizes) < 2:
        return None
    named = label_rows(rows.assign(batch_size=np.nan, job=""))
    named["batch_size"] = rows["batch_size"]
    with paper_style():
        figure = new_figure(7.2, 3.2)
        left, right = figure.subplots(1, 2)
        for label, style in styles_of(named).items():
            line = named[named["label"] == label].sort_values("batch_size")
            look = {"color": style.color, "marker": style.marker, "ls": style.linestyle}
            left.plot(line["batch_size"], line["tokens_per_second"], label=label, **look)
            right.plot(line["batch_size"], line["speedup"], **look)
            low, high = (line[f"speedup_{end}"].to_numpy(float) for end in ("low", "high"))
            right.fill_between(line["batch_size"], low, high, color=style.color, alpha=0.14, lw=0)
        right.axhline(1, color=FAINT, lw=0.9, ls=(0, (4, 3)), zorder=1)
        left.set_ylabel("tokens/s, whole batch")
        left.set_ylim(bottom=0)
        right.set_ylabel("speedup over vanilla")
        for axes in (left, right):
            _batch_axis(axes, sizes)
        handles, labels = left.get_legend_handles_labels()
        legend_below(figure, handles, labels)
    caption = (
        f"End-to-end throughput and speedup against batch size ({conditions(rows)}). Bands: 95 % "
        "paired bootstrap intervals over questions; vanilla runs at the same batch size."
    )
    return Plot("throughput_by_batch", "Throughput against batch size", caption, figure)


def _batch_axis(axes: Axes, sizes: list[float]) -> None:
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_locator(FixedLocator(sizes))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xticks(sizes, [f"{size:g}" for size in sizes])
    axes.set_xlabel("batch size")
    light_grid(axes)


def training_curve(training: pd.DataFrame, depths: list[str], tau: str | None) -> Plot | None:
    """Acceptance of held-out drafts by depth, and the expected chain tau, against the step.

    Args:
        training: one row per validation, with `step`.
        depths: its columns of conditional acceptance, first depth first.
        tau: its column of expected tokens per cycle, if there is one.
    """
    if training.empty or not depths:
        return None
    with paper_style():
        figure = new_figure(7.2 if tau else 4.4, 3.3)
        panels = figure.subplots(1, 2 if tau else 1, squeeze=False)[0]
        shades = colormaps["viridis"](np.linspace(0.0, 0.85, len(depths)))
        for depth, (column, shade) in enumerate(zip(depths, shades, strict=True), start=1):
            rows = training.dropna(subset=[column])
            panels[0].plot(
                rows["step"], rows[column], marker="o", ms=3.5, color=shade, label=f"depth {depth}"
            )
        panels[0].set_ylabel("conditional acceptance, held out")
        panels[0].set_ylim(bottom=0)
        if tau:
            rows = training.dropna(subset=[tau])
            panels[1].plot(rows["step"], rows[tau], marker="o", ms=3.5, color="#0072B2")
            panels[1].set_ylabel("expected τ of a chain (tokens per cycle)")
        for axes in panels:
            axes.set_xlabel("optimiser step")
            axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=6, min_n_ticks=1))
            light_grid(axes)
        legend_below(figure, *panels[0].get_legend_handles_labels())
    caption = (
        f"The drafter on held-out conversations while it trains, {len(training)} validations: "
        "conditional acceptance by depth (teacher-forced)"
        + (", and the tokens per cycle that a chain of that depth would emit." if tau else ".")
    )
    return Plot("training", "Acceptance while training", caption, figure)

"""Figures of acceptance: by depth in the draft, and how long the accepted runs are."""

from __future__ import annotations

import textwrap

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator, PercentFormatter

from eagle_lab.reports.plot import Plot
from eagle_lab.reports.style import (
    FAINT,
    MethodStyle,
    legend_below,
    light_grid,
    new_figure,
    paper_style,
)
from eagle_lab.reports.words import known

FEW_TRIALS = 20
MIN_TRIALS = 5
MOST_BANDS = 6  # more methods than this are drawn without bands, which would hide each other


def acceptance_by_depth(by_depth: pd.DataFrame, styles: dict[str, MethodStyle]) -> Plot | None:
    """Conditional and cumulative acceptance of draft tokens, side by side."""
    if by_depth.empty:
        return None
    by_depth = by_depth[by_depth["trials"] >= MIN_TRIALS]
    if by_depth.empty:
        return None
    num_labels = by_depth["label"].nunique()
    intervals = known(by_depth, "conditional_low")  # five questions make one
    banded = intervals and num_labels <= MOST_BANDS
    with paper_style():
        figure = new_figure(7.2, 3.3 + 0.06 * max(num_labels - MOST_BANDS, 0))
        panels = figure.subplots(1, 2, sharey=True)
        for axes, name in zip(panels, ("conditional", "cumulative"), strict=True):
            for label, rows in by_depth.groupby("label", sort=False):
                _depth_line(axes, rows, name, styles[str(label)], banded)
            axes.set_title(name)
            axes.set_xlabel("depth in the draft (levels)")
            axes.set_ylim(-0.02, 1.03)
            axes.set_xlim(0.75, by_depth["depth"].max() + 0.25)
            axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
            axes.yaxis.set_major_formatter(PercentFormatter(1.0))
            light_grid(axes)
        panels[0].set_ylabel("share of drafts accepted")
        handles, labels = panels[0].get_legend_handles_labels()
        legend_below(figure, handles, labels)
    caption = (
        "Acceptance of the draft by depth. Left: given that every earlier level was accepted and "
        "the draft went on; right: up to and including this level, over all cycles. "
        + ("Bands: 95 % bootstrap intervals over questions. " if banded else "")
        + f"Open marks rest on {MIN_TRIALS} to {FEW_TRIALS - 1} cycles and have no band; what "
        "rests on fewer is left out. "
        + ("All 95 % intervals are in tables/acceptance.csv. " if intervals else "")
        + f"Cycles in which a draft was judged: {_cycle_counts(by_depth)}."
    )
    return Plot("acceptance_by_depth", "Acceptance by depth", caption, figure)


def _depth_line(
    axes: Axes, rows: pd.DataFrame, name: str, style: MethodStyle, banded: bool
) -> None:
    depth, value = rows["depth"].to_numpy(float), rows[name].to_numpy(float)
    low, high = rows[f"{name}_low"].to_numpy(float), rows[f"{name}_high"].to_numpy(float)
    few = rows["trials"].to_numpy() < FEW_TRIALS
    if banded:
        axes.fill_between(depth, low, high, where=~few, color=style.color, alpha=0.14, lw=0)
    axes.plot(depth, value, style.linestyle, color=style.color, lw=1.5)
    for chosen, face in ((few, "white"), (~few, style.color)):
        axes.plot(depth[chosen], value[chosen], style.marker, color=style.color, mfc=face, ms=5.5)
    label = str(rows["label"].iloc[0])
    axes.plot([], [], style.linestyle, color=style.color, marker=style.marker, label=label)


def _cycle_counts(by_depth: pd.DataFrame) -> str:
    first = by_depth[by_depth["depth"] == 1]
    return ", ".join(f"{row.label} {row.trials:,}" for row in first.itertuples())


def accepted_histogram(shares: pd.DataFrame, styles: dict[str, MethodStyle]) -> Plot | None:
    """Share of cycles by number of accepted draft tokens, one small panel per method."""
    labels = list(dict.fromkeys(shares["label"]))
    if not labels:
        return None
    num_columns = min(3, len(labels))
    num_rows = -(-len(labels) // num_columns)
    with paper_style():
        figure = new_figure(0.5 + 2.25 * num_columns, 0.5 + 1.85 * num_rows)
        panels = figure.subplots(num_rows, num_columns, sharex=True, sharey=True, squeeze=False)
        for index, axes in enumerate(panels.flat):
            if index >= len(labels):
                axes.set_visible(False)
                continue
            _length_bars(axes, shares[shares["label"] == labels[index]], styles[labels[index]])
            axes.xaxis.set_tick_params(labelbottom=index + num_columns >= len(labels))
        figure.supxlabel("accepted draft tokens per cycle", fontsize=9)
        figure.supylabel("share of cycles", fontsize=9)
    caption = (
        "How many draft tokens a cycle accepts and emits, as a share of all cycles of a method. "
        "The target's own token comes on top."
    )
    return Plot("accepted_length", "Accepted length per cycle", caption, figure)


def _length_bars(axes: Axes, rows: pd.DataFrame, style: MethodStyle) -> None:
    axes.bar(rows["accepted"], rows["share"], width=0.8, color=style.color)
    mean, count = (rows["accepted"] * rows["share"]).sum(), rows["cycles"].sum()
    axes.set_title(textwrap.fill(str(rows["label"].iloc[0]), 28), fontsize=9, pad=16)
    axes.text(
        0, 1.03, f"mean {mean:.2f}, {count:,} cycles", transform=axes.transAxes, fontsize=8,
        color=FAINT,
    )  # fmt: skip
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=6, min_n_ticks=1))
    axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    light_grid(axes, "y")

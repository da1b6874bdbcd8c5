"""Heat maps: categories by method, and a sweep's tau and speedup over depth and width.

The best cell of a sweep is outlined; settings that cannot be are hatched; settings without a
measurement stay empty. Knows frames and `Grid`; reads no files.
"""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import LogNorm, Normalize
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from eagle_lab.reports.plot import Plot, conditions, in_lines
from eagle_lab.reports.style import ink_on, new_figure, paper_style
from eagle_lab.reports.sweeps import Grid, best_setting
from eagle_lab.reports.words import known

OUTLINE = "#D55E00"
RATIOS = (0.1, 0.2, 0.3, 0.5, 0.6, 0.7, 0.8, 0.9, 1, 1.1, 1.25, 1.5, 1.75, 2, 2.5, 3, 4, 5, 7, 10)
VALUES = {
    "tau_macro": "τ (tokens per cycle)",
    "tau_micro": "τ (tokens per cycle)",
    "speedup": "speedup over vanilla",
}


def category_heatmap(by_category: pd.DataFrame, value: str) -> Plot | None:
    """`value` of each method (rows) in each category (columns); vanilla, always 1, is left out."""
    by_category = by_category[by_category["method"] != "vanilla"]
    if by_category.empty or not by_category[value].notna().any():
        return None
    plane = by_category.pivot_table(
        index="label", columns="category", values=value, aggfunc="mean", sort=False, observed=True
    )
    with paper_style():
        figure = new_figure(1.9 + 0.72 * plane.shape[1], 1.35 + 0.34 * plane.shape[0])
        axes = figure.add_subplot()
        scale = _scale(plane.to_numpy(float), value)
        _cells(axes, plane, scale)
        axes.set_xticks(
            range(plane.shape[1]), plane.columns, rotation=30, ha="right", rotation_mode="anchor"
        )
        axes.set_yticks(range(plane.shape[0]), [in_lines(label) for label in plane.index])
        if plane.shape[0] > 2:
            _color_bar(figure, scale, [axes], VALUES[value])
    kind = "speedup" if value == "speedup" else "tau"
    title = f"{'Speedup' if kind == 'speedup' else 'τ'} by category"
    per_category = by_category.groupby("category")["num_questions"].max().dropna()
    where = " Intervals are in tables/categories.csv." if known(by_category, f"{value}_low") else ""
    caption = f"{title} ({_per_category(per_category)}).{where}"
    return Plot(f"categories_{kind}", title, caption, figure)


def _per_category(counts: pd.Series) -> str:
    if counts.empty:
        return "means over questions"
    low, high = counts.min(), counts.max()
    said = f"{low:g}" if low == high else f"{low:g} to {high:g}"
    return f"n = {said} question{'' if high == 1 else 's'} per category"


def sweep_heatmap(grid: Grid, value: str) -> Plot | None:
    """`value` over depth and width, one panel per num_nodes, one colour scale for all."""
    measured = grid.feasible
    best = best_setting(measured, value)
    if best is None:
        return None
    counts = grid.node_counts
    num_columns = min(3, len(counts))
    num_rows = -(-len(counts) // num_columns)
    shape = grid.plane(value, counts[0]).shape
    with paper_style():
        width = 1.3 + num_columns * (0.45 + 0.56 * shape[1])
        height = 0.5 + num_rows * (0.85 + 0.36 * max(shape[0], 3))
        figure = new_figure(width, height)
        panels = figure.subplots(num_rows, num_columns, squeeze=False, sharex=True, sharey=True)
        scale = _scale(measured[value].to_numpy(float), value)
        for axes, count in zip(panels.flat, counts, strict=False):
            _sweep_panel(axes, grid, value, count, best, scale)
        for axes in list(panels.flat)[len(counts) :]:
            axes.set_visible(False)
        figure.supxlabel("width (children per node)", fontsize=9)
        figure.supylabel("depth (levels)", fontsize=9)
        shown = list(panels.flat)[: len(counts)]
        _color_bar(figure, scale, shown, VALUES[value])
    kind = "speedup" if value == "speedup" else "tau"
    title = f"{'Speedup' if kind == 'speedup' else 'τ'} over depth, width and number of nodes"
    return Plot(f"sweep_{kind}{grid.suffix}", title, _sweep_caption(grid, value, best), figure)


def _sweep_panel(
    axes: Axes, grid: Grid, value: str, count: float, best: pd.Series, scale: ScalarMappable
) -> None:
    plane = grid.plane(value, count)
    _cells(axes, plane, scale)
    for row, column in np.argwhere(grid.infeasible_plane(count).to_numpy()):
        corner = (column - 0.5, row - 0.5)
        axes.add_patch(
            Rectangle(corner, 1, 1, fc="#f4f4f4", ec="#b5b5b5", hatch="////", lw=0, zorder=1)
        )
    if best["num_nodes"] == count:
        row = list(plane.index).index(best["depth"])
        column = list(plane.columns).index(best["width"])
        axes.add_patch(
            Rectangle(
                (column - 0.46, row - 0.46), 0.92, 0.92, fill=False, ec=OUTLINE, lw=2.4, zorder=4
            )
        )
    axes.set_title(f"{count:g} nodes", fontsize=9)
    axes.set_xticks(range(plane.shape[1]), [f"{width:g}" for width in plane.columns])
    axes.set_yticks(range(plane.shape[0]), [f"{depth:g}" for depth in plane.index])


def _sweep_caption(grid: Grid, value: str, best: pd.Series) -> str:
    num_infeasible = int(grid.rows["infeasible"].sum())
    hatched = f" Hatched: cannot be ({num_infeasible} settings)." if num_infeasible else ""
    name = "Speedup over vanilla" if value == "speedup" else "τ, mean over turns,"
    where = ", ".join(f"{part} {best[part]:g}" for part in ("depth", "width", "num_nodes"))
    low, high = best.get(f"{value}_low"), best.get(f"{value}_high")
    reach = "" if pd.isna(low) or pd.isna(high) else f", 95 % interval {low:.2f} to {high:.2f}"
    return (
        f"{name} of {grid.method} ({conditions(grid.feasible)}). Outlined: the best, "
        f"{best[value]:.2f} at {where}{reach}.{hatched}"
    )


def _scale(values: np.ndarray, value: str) -> ScalarMappable:
    """Colours for `values`: sequential, or about 1 where speedups lie on both sides of it."""
    known = values[np.isfinite(values)]
    low, high = float(known.min()), float(known.max())
    if value == "speedup" and 0 < low < 1 < high:
        reach = max(1 / low, high)
        return ScalarMappable(LogNorm(1 / reach, reach), colormaps["PuOr"])
    if low == high:
        low, high = low - 0.5, high + 0.5
    return ScalarMappable(Normalize(low, high), colormaps["cividis"])


def _color_bar(figure: Figure, scale: ScalarMappable, panels: list[Axes], label: str) -> None:
    """The scale beside `panels`; a logarithmic one gets plain numbers."""
    bar = figure.colorbar(scale, ax=panels, label=label, pad=0.02, fraction=0.05)
    bar.outline.set_visible(False)
    if isinstance(scale.norm, LogNorm):
        low, high = scale.get_clim()
        ticks = _apart([tick for tick in RATIOS if (low or 0) <= tick <= (high or 0)])
        bar.set_ticks(ticks, labels=[f"{tick:g}" for tick in ticks])
        bar.minorticks_off()


def _apart(ratios: list[float]) -> list[float]:
    """1, and of the others what does not crowd it or each other on a logarithmic scale."""
    room = math.log(max(ratios) / min(ratios)) / 7
    kept: list[float] = []
    for ratio in sorted(ratios, key=lambda ratio: abs(math.log(ratio))):
        if all(abs(math.log(ratio / other)) >= room for other in kept):
            kept.append(ratio)
    return sorted(kept)


def _cells(axes: Axes, plane: pd.DataFrame, scale: ScalarMappable) -> None:
    """Coloured cells with their value written in; a missing one stays white."""
    numbers = plane.to_numpy(float)
    image = axes.imshow(np.ma.masked_invalid(numbers), cmap=scale.cmap, aspect="auto")
    image.set_norm(scale.norm)
    for (row, column), number in np.ndenumerate(numbers):
        if np.isfinite(number):
            color = ink_on([float(channel) for channel in scale.to_rgba(number)])
            axes.text(
                column,
                row,
                f"{number:.2f}",
                ha="center",
                va="center",
                fontsize=8,
                color=color,
                zorder=3,
            )
    axes.set_xticks(np.arange(plane.shape[1] + 1) - 0.5, minor=True)
    axes.set_yticks(np.arange(plane.shape[0] + 1) - 0.5, minor=True)
    axes.grid(visible=True, which="minor", color="white", linewidth=1.2)
    axes.tick_params(which="both", length=0)
    axes.spines[:].set_visible(False)

"""Figures that compare methods: tau, speedup and where the time goes.

Each function takes rows of `Run.main` and gives a `Plot`, or None where there is nothing to draw.
Captions state n and what the intervals are.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from eagle_lab.reports.plot import Plot, conditions, in_lines, styles_of
from eagle_lab.reports.style import FAINT, light_grid, new_figure, paper_style

WIDTH = 6.6
PARTS = {"draft": "#44AA99", "verify": "#332288", "overhead": "#C9C9C9"}


def tau_by_method(rows: pd.DataFrame) -> Plot | None:
    """Tau of every method: macro with its interval, micro as an open mark."""
    rows = rows[rows["tau_macro"].notna()]
    if rows.empty:
        return None
    with paper_style():
        figure, axes = _rows_figure(rows)
        _interval_rows(axes, rows, "tau_macro")
        for y, (_, row) in enumerate(rows.iterrows()):
            axes.plot(row["tau_micro"], y, "o", mfc="none", mec=FAINT, ms=9, mew=0.9, zorder=2)
        axes.axvline(1, color=FAINT, lw=0.8, ls=(0, (4, 3)), zorder=1)
        axes.set_xlabel("τ, tokens per cycle (mean over turns)")
        axes.set_xlim(left=min(0.9, axes.get_xlim()[0]))
    caption = (
        f"Mean tokens emitted per cycle, the target's own included ({conditions(rows)}). Marks: τ "
        f"macro, the mean over turns{_with_interval(rows, 'tau_macro')}; open circles: τ micro, "
        "pooled over cycles. Plain decoding is exactly 1."
    )
    return Plot("tau_by_method", "Acceptance length τ by method", caption, figure)


def speedup_by_method(rows: pd.DataFrame) -> Plot | None:
    """Wall-clock speedup of every method over vanilla, with its interval and a line at 1."""
    rows = rows[rows["speedup"].notna()]
    if rows.empty:
        return None
    with paper_style():
        figure, axes = _rows_figure(rows)
        _interval_rows(axes, rows, "speedup", "×")
        axes.axvline(1, color=FAINT, lw=0.9, ls=(0, (4, 3)), zorder=1)
        low, high = axes.get_xlim()
        axes.set_xlim(min(low, 0.9), max(high, 1.1))
        axes.set_xlabel("speedup over vanilla (ratio of wall time per emitted token)")
    caption = (
        f"Wall-clock speedup over vanilla in the same run, prefill included ({conditions(rows)})"
        f"{_with_interval(rows, 'speedup')}. Right of the dashed line is faster."
    )
    return Plot("speedup_by_method", "Speedup by method", caption, figure)


def _with_interval(rows: pd.DataFrame, name: str) -> str:
    """What a caption says of the intervals; nothing where there are none."""
    if rows[f"{name}_low"].isna().all():
        return ""
    return ", with 95 % intervals (paired bootstrap over questions)"


def _rows_figure(rows: pd.DataFrame) -> tuple[Figure, Axes]:
    """A figure with one line per row of `rows`, first on top, labels to the left."""
    figure = new_figure(WIDTH, 0.85 + 0.34 * len(rows))
    axes = figure.add_subplot()
    axes.set_yticks(range(len(rows)), [in_lines(label) for label in rows["label"]])
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.spines["left"].set_visible(False)
    light_grid(axes, "x")
    return figure, axes


def _interval_rows(axes: Axes, rows: pd.DataFrame, name: str, unit: str = "") -> None:
    """One mark with its interval per row, and the numbers at the right edge."""
    styles = styles_of(rows)
    for y, (_, row) in enumerate(rows.iterrows()):
        style = styles[row["label"]]
        value, low, high = (row[f"{name}{end}"] for end in ("", "_low", "_high"))
        said = f"{value:.2f}{unit}"
        if pd.notna(low) and pd.notna(high):
            axes.plot([low, high], [y, y], color=style.color, lw=2.2, solid_capstyle="butt")
            said += f"  [{low:.2f}, {high:.2f}]"
        marker = "o" if style.marker in "|123" else style.marker
        axes.plot(value, y, marker, color=style.color, ms=6.5, mec="white", mew=0.6, zorder=3)
        axes.annotate(
            said, (1, y), (6, 0), xycoords=("axes fraction", "data"), textcoords="offset points",
            va="center", fontsize=8.5,
        )  # fmt: skip


def time_split(rows: pd.DataFrame) -> Plot | None:
    """Mean draft, verify and overhead time of one cycle, stacked, with its cost per token."""
    rows = rows[rows[["draft_ms", "verify_ms"]].notna().any(axis=1)]
    if rows.empty:
        return None
    with paper_style():
        figure, axes = _rows_figure(rows)
        left = np.zeros(len(rows))
        for part, color in PARTS.items():
            width = rows[f"{part}_ms"].fillna(0.0).clip(lower=0).to_numpy(float)
            axes.barh(range(len(rows)), width, left=left, height=0.62, color=color, label=part)
            left += width
        per_token = left / rows["tau_micro"].to_numpy(float)
        for x, head, numbers in ((42, "ms per\ncycle", left), (88, "ms per\ntoken", per_token)):
            _side_column(axes, x, head, numbers)
        axes.set_xlabel("mean time of one cycle (ms)")
        axes.set_xlim(0, float(left.max()) * 1.02 or 1.0)
        figure.legend(loc="outside upper center", ncols=3)
    caption = (
        f"Mean cost of one cycle ({conditions(rows)}): drafting, the target's verification pass, "
        "and everything else. Milliseconds per token are the cycle's time over the tokens it emits "
        "(τ micro). Means carry no interval; the speedup's does."
    )
    return Plot("time_split", "Where a cycle's time goes", caption, figure)


def _side_column(axes: Axes, points: float, head: str, numbers: NDArray[np.float64]) -> None:
    """A right-aligned column of numbers that ends `points` to the right of the axes."""
    look: dict[str, Any] = {"textcoords": "offset points", "ha": "right", "fontsize": 8.5}
    axes.annotate(
        head, (1, 1), (points, 2), xycoords="axes fraction", va="bottom", color=FAINT, **look
    )
    for y, number in enumerate(numbers):
        if np.isfinite(number):
            axes.annotate(
                f"{number:.1f}", (1, y), (points, 0), xycoords=("axes fraction", "data"),
                va="center", **look,
            )  # fmt: skip

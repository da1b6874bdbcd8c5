"""The cost model of a sweep: what levels and nodes cost, and the speedup this predicts."""

from __future__ import annotations

from dataclasses import fields

import numpy as np
import pandas as pd
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from eagle_lab.reports.plot import Plot, conditions
from eagle_lab.reports.plots import PARTS
from eagle_lab.reports.style import FAINT, light_grid, method_style, new_figure, paper_style
from eagle_lab.reports.sweeps import Grid, StepCosts, fit_step_costs, with_cost_model


def step_costs(grid: Grid) -> Plot | None:
    """Draft time against depth and verify time against tokens in the pass, with fitted lines."""
    rows = grid.feasible.dropna(subset=["draft_ms", "verify_ms"])
    costs = fit_step_costs(grid.feasible)
    if costs is None:
        return None
    with paper_style():
        figure = new_figure(7.2, 3.0)
        left, right = figure.subplots(1, 2)
        tokens = rows["num_nodes"] + 1
        _points(
            left,
            rows["depth"],
            rows["draft_ms"],
            "draft",
            (costs.draft_base, costs.draft_per_level),
        )
        _points(
            right, tokens, rows["verify_ms"], "verify", (costs.verify_base, costs.verify_per_token)
        )
        left.set_xlabel("depth (levels drafted)")
        left.set_ylabel("draft time per cycle (ms)")
        right.set_xlabel("tokens in the verification pass (nodes + root)")
        right.set_ylabel("verify time per cycle (ms)")
    draft = _line_words(rows["depth"], costs.draft_base, f"{costs.draft_per_level:.2f}", "level")
    verify = _line_words(tokens, costs.verify_base, f"{costs.verify_per_token:.3f}", "token")
    caption = (
        f"Measured step costs of {grid.method} ({conditions(rows)}), one mark per setting, and "
        f"least-squares lines: draft {draft}; verify {verify}; overhead {costs.overhead:.1f} ms."
    )
    return Plot(f"step_costs{grid.suffix}", "What levels and nodes cost", caption, figure)


def _line_words(x: pd.Series, base: float, slope: str, unit: str) -> str:
    """`4.00 ms per level and 2.0 ms besides`; the mean alone where `x` is one value."""
    if x.nunique() < 2:
        return f"{base:.1f} ms, of {x.iloc[0]:g} {unit}s alone"
    return f"{slope} ms per {unit} and {base + 0.0:.1f} ms besides"


def _points(axes: Axes, x: pd.Series, y: pd.Series, part: str, line: tuple[float, float]) -> None:
    base, slope = line
    ends = np.array([x.min(), x.max()], dtype=float)
    axes.plot(ends, base + slope * ends, color=FAINT, lw=1.0, ls=(0, (4, 3)))
    axes.plot(x, y, "o", color=PARTS[part], ms=5, mec="white", mew=0.5)
    axes.set_ylim(0, float(y.max()) * 1.15)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=8, min_n_ticks=1))
    light_grid(axes)


def predicted_speedup(grid: Grid) -> Plot | None:
    """Measured speedup against what tau and the fitted step costs predict, coloured by depth.

    None for no more settings than the lines have numbers, which could then fit anything.
    """
    rows = with_cost_model(grid).dropna(subset=["speedup", "predicted_speedup"])
    if len(rows) <= len(fields(StepCosts)):
        return None
    with paper_style():
        figure = new_figure(4.4, 3.6)
        axes = figure.add_subplot()
        depths = sorted(rows["depth"].unique())
        shades = colormaps["viridis"](np.linspace(0.0, 0.85, len(depths)))
        marker = method_style(grid.method).marker
        for depth, shade in zip(depths, shades, strict=True):
            part = rows[rows["depth"] == depth]
            ends = part[["speedup_low", "speedup_high"]].sub(part["speedup"], axis=0).abs()
            axes.errorbar(
                part["predicted_speedup"], part["speedup"], ends.fillna(0.0).to_numpy().T,
                fmt=marker, color=shade, ms=5, mec="white", mew=0.5, elinewidth=0.9,
                ecolor=(*shade[:3], 0.5), label=f"depth {depth:g}",
            )  # fmt: skip
        both = rows[["speedup", "predicted_speedup"]]
        low, high = both.min().min() * 0.95, both.max().max() * 1.05
        axes.plot([low, high], [low, high], color=FAINT, lw=0.9, ls=(0, (4, 3)), zorder=1)
        axes.set_xlabel("speedup predicted from τ and the fitted costs")
        axes.set_ylabel("measured speedup over vanilla")
        light_grid(axes)
        figure.legend(loc="outside right upper")
    caption = (
        f"Measured speedup of {grid.method}, with 95 % intervals over questions "
        f"({conditions(rows)}), against τ micro times vanilla's mean cycle over the cycle that "
        f"least-squares lines through the draft and verify times of these {len(rows)} settings "
        "give. On the dashed line both agree. Outside the model are prefill, which pulls the "
        "measured value towards 1, and rows of a batch that end before the others."
    )
    return Plot(f"cost_model{grid.suffix}", "Speedup predicted from τ and costs", caption, figure)

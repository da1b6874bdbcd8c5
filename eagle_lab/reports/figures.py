"""Every figure of a report: its file name, title, caption, and how it is drawn from which rows.

`plot(name, rows, ...)` gives a `Plot`, or None where there is nothing to draw. The drawings are
those of `draw`; captions state n and what intervals are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from typing import Any

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from eagle_lab.columns import SUMMARY, Column, pick
from eagle_lab.reports import draw
from eagle_lab.reports.draw import Line, Panel, Plot, shades, styles_of
from eagle_lab.reports.frames import conditions, has_values, label_rows
from eagle_lab.reports.load import SIZES, TAU, Profile, acceptance_columns
from eagle_lab.reports.sweeps import Grid, StepCosts, best_setting, fit_step_costs, with_cost_model

FEW_TRIALS, MIN_TRIALS = 20, 5
MOST_BANDS = 6  # more methods than this are drawn without bands, which would hide each other
PARTS = {"draft": "#44AA99", "verify": "#332288", "overhead": "#C9C9C9"}
TAU_COLUMN, SPEEDUP = pick(SUMMARY, "tau_micro", "speedup")
PLAIN: dict[str, Any] = {"ls": (0, (4, 2)), "lw": 1.0, "alpha": 0.8}


@dataclass(frozen=True)
class Sketch:
    """A figure to be drawn: title, caption with `{conditions}`, and the drawing."""

    title: str
    caption: str
    make: Callable[[Any], Figure | None]


def plot(name: str, data: Any, rows: pd.DataFrame | None = None, suffix: str = "") -> Plot | None:
    """The figure `name` of `FIGURES` drawn from `data`; None where there is nothing to draw.

    Args:
        name: of its file.
        data: what its drawing takes.
        rows: rows of a summary that its caption states the conditions of.
        suffix: of the file's name.
    """
    sketch = FIGURES[name]
    with mpl.rc_context(draw.SETTINGS):
        figure = sketch.make(data)
    if figure is None:
        return None
    shared = "" if rows is None else conditions(rows)
    return Plot(name + suffix, sketch.title, sketch.caption.format(conditions=shared), figure)


def by_method(rows: pd.DataFrame, column: Column, xlabel: str) -> Figure | None:
    """`column` of every method with its interval."""
    rows = rows[rows[column.key].notna()]
    return None if rows.empty else draw.interval_rows(rows, column, styles_of(rows), xlabel)


def time_split(rows: pd.DataFrame) -> Figure | None:
    """Mean draft, verify and overhead time of a cycle, with its cost per token."""
    rows = rows[rows[["draft_ms", "verify_ms"]].notna().any(axis=1)].set_index("label")
    if rows.empty:
        return None
    parts = rows[[f"{part}_ms" for part in PARTS]].set_axis(list(PARTS), axis=1)
    total = parts.clip(lower=0).sum(axis=1)
    aside = {"ms per\ncycle": total, "ms per\ntoken": total / rows["tau_micro"]}
    return draw.stacked_rows(parts, list(PARTS.values()), aside, "mean time of one cycle (ms)")


def accepted_length(shares: pd.DataFrame) -> Figure | None:
    """Share of cycles by number of accepted draft tokens, a bar per method."""
    if shares.empty:
        return None
    plane = shares.pivot_table(index="label", columns="accepted", values="share", sort=False)
    plane = plane[sorted(plane)].fillna(0.0)
    mean = (plane * plane.columns.to_numpy(float)).sum(axis=1)
    if plane.shape[1] > 9:  # the longest together
        plane = plane.iloc[:, :8].assign(more=plane.iloc[:, 8:].sum(axis=1))
        plane.columns = [*map(str, plane.columns[:8]), f"{plane.columns[7] + 1} or more"]
    return draw.stacked_rows(
        plane, shades(plane.shape[1]), {"mean": mean}, "share of cycles, by accepted draft tokens"
    )


def acceptance_by_depth(data: tuple[pd.DataFrame, dict[str, draw.MethodStyle]]) -> Figure | None:
    """Conditional and cumulative acceptance of draft tokens, side by side."""
    by_depth, styles = data
    if by_depth.empty or (by_depth["trials"] < MIN_TRIALS).all():
        return None
    rows = by_depth[by_depth["trials"] >= MIN_TRIALS]
    groups = list(rows.groupby("label", sort=False))
    banded = has_values(rows, "conditional_low") and len(groups) <= MOST_BANDS
    shown = [
        Panel(
            "depth in the draft (levels)",
            "share of drafts accepted" if name == "conditional" else "",
            [
                Line(
                    part["depth"], part[name], str(label), _look(styles[str(label)]),
                    part[f"{name}_low"] if banded else None,
                    part[f"{name}_high"] if banded else None,
                    part["trials"] < FEW_TRIALS,
                )
                for label, part in groups
            ],
            title=name,
            percent=True,
        )
        for name in ("conditional", "cumulative")
    ]  # fmt: skip
    return draw.panels(shown, height=3.3 + 0.06 * max(len(groups) - MOST_BANDS, 0), same_y=True)


def _look(style: draw.MethodStyle) -> dict[str, Any]:
    return {"color": style.color, "marker": style.marker, "ls": style.linestyle}


def calibration(bins: pd.DataFrame) -> Figure | None:
    """Acceptance against the drafter's confidence."""
    groups = list(bins.groupby("label", sort=False))
    lines = [
        Line(
            part["mean_confidence"], part["acceptance"], str(label),
            {"color": color, "marker": "o"}, part["acceptance_low"], part["acceptance_high"],
        )
        for (label, part), color in zip(groups, shades(len(groups)), strict=True)
    ]  # fmt: skip
    words = "mean confidence of the drafter", "share accepted"
    return draw.panels([Panel(*words, lines, percent=True, diagonal=True)])


def throughput_by_batch(summary: pd.DataFrame) -> Figure | None:
    """Tokens per second and speedup of every method against batch size; None for one size."""
    rows = summary[~summary["infeasible"] & summary["tokens_per_second"].notna()]
    if rows["batch_size"].nunique() < 2:
        return None
    named = label_rows(rows.assign(batch_size=np.nan, job=""))
    styles, named["batch_size"] = styles_of(named), rows["batch_size"]
    parts = [(label, part.sort_values("batch_size")) for label, part in named.groupby("label")]
    speeds, ratios = (
        [
            Line(
                part["batch_size"], part[name], str(label), _look(styles[str(label)]),
                part.get(f"{name}_low"), part.get(f"{name}_high"),
            )
            for label, part in parts
        ]
        for name in ("tokens_per_second", "speedup")
    )  # fmt: skip
    return draw.panels(
        [
            Panel("batch size", "tokens/s, whole batch", speeds, log=True),
            Panel("batch size", "speedup over vanilla", ratios, log=True, level=1, zero=False),
        ]
    )


def categories(by_category: pd.DataFrame, value: str) -> Figure | None:
    """`value` of each method in each category; vanilla, always 1, is left out."""
    rows = by_category[by_category["method"] != "vanilla"]
    if not has_values(rows, value):
        return None
    index = {"index": "label", "columns": "category", "sort": False}
    plane = rows.pivot_table(values=value, aggfunc="mean", **index)
    return draw.heat({"": plane}, AXES[value], about_one=value == "speedup")


AXES = {"tau_micro": "τ (tokens per cycle)", "speedup": "speedup over vanilla"}


def sweep(grid: Grid, value: str) -> Figure | None:
    """`value` over depth and width, one panel per num_nodes, the best outlined."""
    best = best_setting(grid.feasible, value)
    if best is None:
        return None
    titles = {f"{count:g} nodes": count for count in grid.node_counts}
    return draw.heat(
        {title: grid.plane(value, count) for title, count in titles.items()},
        AXES[value],
        about_one=value == "speedup",
        xlabel="width (children per node)",
        ylabel="depth (levels)",
        infeasible={title: grid.infeasible_plane(count) for title, count in titles.items()},
        best=(f"{best['num_nodes']:g} nodes", best["depth"], best["width"]),
    )


def step_costs(grid: Grid) -> Figure | None:
    """Draft time against depth and verify time against tokens in the pass, with fitted lines."""
    costs = fit_step_costs(grid.feasible)
    if costs is None:
        return None
    rows = grid.feasible.dropna(subset=["draft_ms", "verify_ms"])
    fits = {
        "draft": (rows["depth"], costs.draft_base, costs.draft_per_level, "depth (levels)"),
        "verify": (
            rows["num_nodes"] + 1, costs.verify_base, costs.verify_per_token,
            "tokens in the pass (nodes + root)",
        ),
    }  # fmt: skip
    shown = []
    for part, (x, base, slope, xlabel) in fits.items():
        ends = pd.Series([x.min(), x.max()], dtype=float)
        marks = Line(x, rows[f"{part}_ms"], "", {"color": PARTS[part], "marker": "o", "ls": ""})
        title = f"{base:.1f} ms + {slope:.3g} ms × {'levels' if part == 'draft' else 'tokens'}"
        fit = Line(ends, base + slope * ends, "", draw.DASHED)
        shown.append(Panel(xlabel, f"{part} ms per cycle", [marks, fit], title))
    return draw.panels(shown, height=3.0)


def cost_model(grid: Grid) -> Figure | None:
    """Measured speedup against what tau and the fitted step costs predict, coloured by depth.

    None for no more settings than the lines have numbers, which could then fit anything.
    """
    rows = with_cost_model(grid).dropna(subset=["speedup", "predicted_speedup"])
    if len(rows) <= len(fields(StepCosts)):
        return None
    groups = list(rows.groupby("depth"))
    lines = [
        Line(
            part["predicted_speedup"], part["speedup"], f"depth {depth:g}",
            {"color": color, "marker": "o", "ls": ""}, part["speedup_low"], part["speedup_high"],
        )
        for (depth, part), color in zip(groups, shades(len(groups)), strict=True)
    ]  # fmt: skip
    words = "speedup predicted from τ and the fitted costs", "measured speedup"
    return draw.panels([Panel(*words, lines, diagonal=True, zero=False)], height=3.6)


def training(rows: pd.DataFrame) -> Figure | None:
    """Acceptance of held-out drafts by depth, and the expected chain tau, against the step."""
    depths = acceptance_columns(rows)
    if rows.empty or not depths:
        return None
    lines = [
        Line(rows["step"], rows[name], f"depth {depth}", {"color": color, "marker": "o", "ms": 3.5})
        for depth, (name, color) in enumerate(zip(depths, shades(len(depths)), strict=True), 1)
    ]
    shown = [Panel("optimizer step", "conditional acceptance, held out", lines)]
    if TAU in rows:
        line = Line(rows["step"], rows[TAU], "", {"color": "#0072B2", "marker": "o", "ms": 3.5})
        shown.append(Panel("optimizer step", "expected τ of a chain", [line], zero=False))
    return draw.panels(shown)


def cost_curves(profile: Profile) -> Figure | None:
    """Milliseconds of target and draft passes against their tokens, plain layers dashed."""
    axes = {"target": "target pass (ms)", "draft": "draft step (ms)"}
    return draw.panels(
        [
            Panel(_TOKENS, ylabel, list(_passes(profile.of(name), "median_ms")), log=True)
            for name, ylabel in axes.items()
            if not profile.of(name).empty
        ]
    )


_TOKENS = "tokens in the pass, per row"


def relative_cost(profile: Profile) -> Figure | None:
    """Target passes relative to one token, and their share of the machine's limits."""
    rows = profile.of("target")
    if not has_values(rows, "relative_cost"):
        return None
    first = profile.first("target")
    shares = {
        "read_share": ("memory reads", "#0072B2"),
        "arithmetic_share": ("products", "#D55E00"),
    }
    limits = [
        Line(first["num_tokens"], 100 * first[name], label, {"color": color, "marker": "o"})
        for name, (label, color) in shares.items()
    ]
    passes = list(_passes(rows, "relative_cost"))
    return draw.panels(
        [
            Panel(_TOKENS, "pass over n tokens / over 1", passes, log=True),
            Panel(_TOKENS, "share of the measured limit (%)", limits, log=True),
        ]
    )


def _passes(rows: pd.DataFrame, name: str) -> Iterator[Line]:
    """A line of `name` per batch size and context, and a dashed one with plain layers."""
    sizes, contexts = (sorted(rows[size].unique()) for size in SIZES)
    for (size, context), part in rows.groupby(list(SIZES)):
        color = shades(len(sizes))[sizes.index(size)]
        look = {"color": color, "marker": "os^Dv"[contexts.index(context) % 5]}
        ends = (part["low_ms"], part["high_ms"]) if name == "median_ms" else ()
        label = f"batch {size:g}, context {context:g}"
        yield Line(part["num_tokens"], part[name], label, look, *ends)
        if has_values(part, f"plain_{name}"):
            yield Line(part["num_tokens"], part[f"plain_{name}"], "", {"color": color, **PLAIN})


def crossover(rows: pd.DataFrame) -> Figure | None:
    """Predicted speedup against batch size, a panel per context, a line per assumption."""
    if rows.empty:
        return None
    parts = list(assumptions(rows))
    colors = dict(zip((name for name, _ in parts), shades(len(parts)), strict=True))
    shown: list[Panel] = []
    for context, here in rows.groupby("context"):
        lines = []
        for name, part in assumptions(here):
            look = {"color": colors[name], "marker": "o" if name.startswith("chain") else "s"}
            lines.append(Line(part["batch_size"], part["predicted_speedup"], name, look))
        ylabel = "" if shown else "predicted speedup"
        shown.append(Panel("batch size", ylabel, lines, f"context {context:g}", log=True, level=1))
    return draw.panels(shown, same_y=True)


def assumptions(rows: pd.DataFrame) -> Iterator[tuple[str, pd.DataFrame]]:
    """The rows of each assumption with its name, by batch size."""
    for kind, by, text in (
        ("chain", "acceptance", "chain, accepted {:g}"), ("tree", "tau", "tree, τ = {:g}")
    ):  # fmt: skip
        for value, part in rows[rows["drafting"] == kind].groupby(by):
            yield text.format(value), part.sort_values("batch_size")


_OVER = "95 % intervals: paired bootstrap over questions."
FIGURES = {
    "tau_by_method": Sketch(
        "Acceptance length τ by method",
        "Tokens emitted per cycle, bonus token included, over all cycles ({conditions}). Vanilla "
        f"is exactly 1. {_OVER}",
        lambda rows: by_method(rows, TAU_COLUMN, "τ, tokens per cycle"),
    ),
    "speedup_by_method": Sketch(
        "Speedup by method",
        "Wall time per token of vanilla over the method's, prefill included ({conditions}). "
        + _OVER,
        lambda rows: by_method(rows, SPEEDUP, "speedup over vanilla"),
    ),
    "acceptance_by_depth": Sketch(
        "Acceptance by depth",
        "Left: given that every earlier level was accepted and the draft went on. Right: up to and "
        f"including this level, over all cycles ({{conditions}}). Open marks: {MIN_TRIALS} to "
        f"{FEW_TRIALS - 1} cycles; fewer are left out. {_OVER}",
        acceptance_by_depth,
    ),
    "accepted_length": Sketch(
        "Accepted length per cycle",
        "Share of cycles by number of accepted draft tokens; the bonus token comes on top "
        "({conditions}).",
        accepted_length,
    ),
    "calibration": Sketch(
        "Calibration of the drafter",
        "Share of drafted tokens accepted against the probability the drafter gave them. On the "
        f"dashed line confidence is acceptance. {_OVER}",
        calibration,
    ),
    "time_split": Sketch(
        "Where a cycle's time goes",
        "Mean cost of a cycle: drafting, the target's pass, everything else; per token: over τ "
        "({conditions}).",
        time_split,
    ),
    "throughput_by_batch": Sketch(
        "Throughput against batch size",
        f"End to end; vanilla runs at the same batch size ({{conditions}}). {_OVER}",
        throughput_by_batch,
    ),
    "categories_tau": Sketch(
        "τ by category",
        "{conditions}.",
        lambda rows: categories(rows, "tau_micro"),
    ),
    "categories_speedup": Sketch(
        "Speedup by category",
        "{conditions}.",
        lambda rows: categories(rows, "speedup"),
    ),
    "sweep_tau": Sketch(
        "τ over depth, width and number of nodes",
        "Outlined: the best. Hatched: infeasible ({conditions}).",
        lambda grid: sweep(grid, "tau_micro"),
    ),
    "sweep_speedup": Sketch(
        "Speedup over depth, width and number of nodes",
        "Outlined: the best. Hatched: infeasible ({conditions}).",
        lambda grid: sweep(grid, "speedup"),
    ),
    "step_costs": Sketch(
        "What levels and nodes cost",
        "One mark per setting; least-squares lines ({conditions}).",
        step_costs,
    ),
    "cost_model": Sketch(
        "Speedup predicted from τ and costs",
        "Predicted: τ times vanilla's mean cycle over the cycle of the fitted lines "
        "({conditions}). Prefill, which pulls the measured value towards 1, is left out. " + _OVER,
        cost_model,
    ),
    "training": Sketch(
        "Acceptance while training",
        "On held-out conversations, teacher-forced; τ of a chain of that depth.",
        training,
    ),
    "cost_curves": Sketch(
        "What a pass costs",
        "Median time of a pass against its tokens, root included; bands: quartiles; dashed: "
        "unmodified Hugging Face layers. All passes were timed in turn, round by round.",
        cost_curves,
    ),
    "relative_cost": Sketch(
        "What further tokens cost",
        "Left: a target pass over n tokens over one of a single token; dashed: unmodified Hugging "
        "Face layers. Right: bytes and products that it needs at least, over its time, as a share "
        "of what the machine was measured to reach, at the smallest batch and context.",
        relative_cost,
    ),
    "crossover": Sketch(
        "Where speculation stops paying",
        "Predicted from the cost curves under assumed acceptance: a chain of the length that pays "
        "best (1: none pays), a tree that emits τ tokens per cycle. Time outside the passes of "
        "both models is not counted.",
        crossover,
    ),
}
"""What `plot` can draw, by the names of the files."""

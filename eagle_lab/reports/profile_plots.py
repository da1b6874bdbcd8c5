"""Figures of a profile: what a pass costs as it grows, and how near it comes to the machine."""

from __future__ import annotations

from typing import Any

import pandas as pd
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, NullLocator, StrMethodFormatter

from eagle_lab.reports.plot import Plot
from eagle_lab.reports.profile import SIZES, Profile
from eagle_lab.reports.style import FAINT, legend_below, light_grid, new_figure, paper_style

_MARKERS = "os^Dv"
_PLAIN: dict[str, Any] = {"ls": (0, (4, 2)), "lw": 1.0, "alpha": 0.8}
_SHARES = {"read_share": ("memory reads", "#0072B2"), "arithmetic_share": ("arithmetic", "#D55E00")}


def cost_curves(profile: Profile) -> Plot:
    """Milliseconds of target and draft passes against their tokens, plain layers dashed."""
    panels = {"target": "target pass (ms)", "draft": "draft step (ms)"}
    shown = {name: said for name, said in panels.items() if not profile.of(name).empty}
    with paper_style():
        figure = new_figure(7.2 if len(shown) > 1 else 4.6, 3.5)
        for axes, (name, said) in zip(
            figure.subplots(1, len(shown), squeeze=False)[0], shown.items(), strict=True
        ):
            rows = profile.of(name)
            _lines(axes, rows, "median_ms", "plain_median_ms")
            for (_, _), part in rows.groupby(list(SIZES)):
                low, high = part["low_ms"].to_numpy(float), part["high_ms"].to_numpy(float)
                axes.fill_between(part["num_tokens"], low, high, color=FAINT, alpha=0.15, lw=0)
            axes.set_ylabel(said)
            axes.set_ylim(bottom=0)
        legend_below(figure, *_legend(profile.of("target")))
    caption = (
        "Median time of one pass against its tokens per row, the root counted"
        + (
            "; dashed: the same pass with unmodified Hugging Face layers"
            if _has_plain(profile)
            else ""
        )
        + ". Bands: half of the measurements lie in them. All passes were timed in turn, "
        "round by round, in one run."
    )
    return Plot("cost_curves", "What a pass costs", caption, figure)


def relative_cost(profile: Profile) -> Plot | None:
    """Target passes relative to one token, and their share of the machine's limits."""
    rows = profile.of("target")
    if "relative_cost" not in rows or rows["relative_cost"].isna().all():
        return None
    with paper_style():
        figure = new_figure(7.2, 3.5)
        left, right = figure.subplots(1, 2)
        _lines(left, rows, "relative_cost", "plain_relative_cost")
        left.set_ylabel("target pass over n tokens / over 1")
        left.set_ylim(bottom=0)
        first = profile.first("target")
        for column, (said, color) in _SHARES.items():
            right.plot(first["num_tokens"], 100 * first[column], "o-", color=color, label=said)
        right.set_ylabel("share of the measured limit (%)")
        right.set_ylim(bottom=0)
        right.legend()
        _token_axis(right, first)
        legend_below(figure, *_legend(rows))
    sizes = first.iloc[0]
    caption = (
        "Left: a target pass over n tokens in units of one over a single token; a drafted token "
        "that adds nothing here is verified for nothing. Right: bytes and products that a pass "
        "needs at least, over its time, as a share of what the machine was measured to reach "
        f"(batch size {sizes['batch_size']:g}, context {sizes['context']:g})."
    )
    return Plot("relative_cost", "What further tokens cost", caption, figure)


def _has_plain(profile: Profile) -> bool:
    return bool(profile.passes["plain_median_ms"].notna().any())


def _looks(rows: pd.DataFrame) -> dict[tuple[int, int], dict[str, Any]]:
    """Colour by batch size, marker by context."""
    sizes, contexts = (sorted(rows[name].unique()) for name in SIZES)
    shades = colormaps["viridis"]
    return {
        (size, context): {
            "color": shades(0.85 * sizes.index(size) / max(len(sizes) - 1, 1)),
            "marker": _MARKERS[contexts.index(context) % len(_MARKERS)],
        }
        for size in sizes
        for context in contexts
    }


def _lines(axes: Axes, rows: pd.DataFrame, name: str, plain: str) -> None:
    """One line of `name` per batch size and context, and a dashed one of `plain`."""
    looks = _looks(rows)
    for place, part in rows.groupby(list(SIZES)):
        look = looks[place]
        axes.plot(part["num_tokens"], part[name], **look)
        if plain in part and part[plain].notna().any():
            axes.plot(part["num_tokens"], part[plain], color=look["color"], **_PLAIN)
    _token_axis(axes, rows)


def _token_axis(axes: Axes, rows: pd.DataFrame) -> None:
    """Tokens on a scale of powers of two."""
    counts = rows["num_tokens"]
    powers = [2**k for k in range(12) if counts.min() <= 2**k <= counts.max()]
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_locator(FixedLocator(powers))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(StrMethodFormatter("{x:.0f}"))
    axes.set_xlabel("tokens in the pass, per row")
    light_grid(axes)


def _legend(rows: pd.DataFrame) -> tuple[list[Line2D], list[str]]:
    """One handle per batch size and context, and one for plain layers where they were timed."""
    looks = _looks(rows)
    handles = [Line2D([], [], **look) for look in looks.values()]
    labels = [f"batch {size:g}, context {context:g}" for size, context in looks]
    if rows["plain_median_ms"].notna().any():
        handles.append(Line2D([], [], color=FAINT, **_PLAIN))
        labels.append("plain Hugging Face layers")
    return handles, labels

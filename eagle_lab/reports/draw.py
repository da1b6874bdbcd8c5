"""How figures look, and the four drawings that all of them are made of.

    interval_rows   a mark with its interval and its number per row
    panels          lines or points with bands or error bars, in panels side by side
    stacked_rows    parts of a whole per row
    heat            coloured cells, a panel per plane

One colour and marker per method in every figure. The colours are Okabe and Ito's eight, completed
by Tol's muted set: both stay apart under the common kinds of colour blindness, and markers tell
methods apart in grey print as well. Figures are built from `matplotlib.figure.Figure` and an Agg
canvas, never through pyplot: no display, no global state, no figure left open.
"""

from __future__ import annotations

import base64
import html
import io
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.cm import ScalarMappable
from matplotlib.colors import LogNorm, Normalize, to_hex, to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import FixedLocator, MaxNLocator, NullLocator, PercentFormatter

from eagle_lab.columns import Column
from eagle_lab.files import whole

INK = "#222222"
FAINT = "#6b6b6b"
GRID = "#e3e3e3"
OUTLINE = "#D55E00"
LIGHTEST = 0.7  # of the way to white
RATIOS = (0.1, 0.2, 0.3, 0.5, 0.6, 0.7, 0.8, 0.9, 1, 1.1, 1.25, 1.5, 1.75, 2, 2.5, 3, 4, 5, 7, 10)
DASHED: dict[str, Any] = {"color": FAINT, "lw": 0.9, "ls": (0, (4, 3)), "zorder": 1}
WIDTH = 7.2

SETTINGS: Any = {
    "font.family": "DejaVu Sans",
    "font.size": 9.0,
    "axes.titlesize": 10.0,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.labelsize": 9.0,
    "axes.edgecolor": "#8a8a8a",
    "axes.linewidth": 0.7,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.labelcolor": INK,
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "xtick.labelsize": 8.5,
    "ytick.labelsize": 8.5,
    "grid.color": GRID,
    "grid.linewidth": 0.7,
    "legend.frameon": False,
    "legend.fontsize": 8.5,
    "lines.linewidth": 1.6,
    "lines.markersize": 5.5,
    "hatch.linewidth": 0.6,
    "savefig.dpi": 200,
    "figure.dpi": 110,
}


@dataclass(frozen=True)
class MethodStyle:
    """Colour (hex), marker and line style of one method."""

    color: str
    marker: str = "o"
    linestyle: str = "-"


METHODS = {
    "vanilla": MethodStyle("#595959", "|", ":"),
    "self_speculation": MethodStyle("#9c9c9c", "X", ":"),
    "prompt_lookup": MethodStyle("#E69F00", "D", "--"),
    "suffix": MethodStyle("#7A5C00", "d", "--"),
    "lookahead": MethodStyle("#882255", "v", "--"),
    "hybrid": MethodStyle("#44AA99", "P", "-"),
    "speculative": MethodStyle("#332288", "<", "-"),
    "universal": MethodStyle("#AA4499", ">", "-"),
    "medusa1": MethodStyle("#117733", "s", "-."),
    "medusa1_lossy": MethodStyle("#999933", "s", ":"),
    "medusa2": MethodStyle("#CC6677", "s", "--"),
    "eagle_chain": MethodStyle("#56B4E9", "^"),
    "eagle_static": MethodStyle("#009E73", "s"),
    "eagle_dynamic": MethodStyle("#0072B2", "o"),
    "eagle3_chain": MethodStyle("#CC79A7", "^"),
    "eagle3_dynamic": MethodStyle("#D55E00", "o"),
    "hf_generate": MethodStyle("#000000", "1", ":"),
    "hf_assisted": MethodStyle("#000000", "2", "--"),
    "hf_prompt_lookup": MethodStyle("#000000", "3", "-."),
    "llama_cpp": MethodStyle("#000000", "4", "-"),
}
_OTHERS = [
    MethodStyle("#661100", "h", "--"),
    MethodStyle("#6699CC", "p", "--"),
    MethodStyle("#DDCC77", "8", "--"),
    MethodStyle("#888888", "*", "--"),
]


def method_style(method: str) -> MethodStyle:
    """The style of `method`; an unknown name takes its longest known beginning, or a spare."""
    known = max(filter(method.startswith, METHODS), key=len, default=None)
    return METHODS[known] if known else _OTHERS[sum(method.encode()) % len(_OTHERS)]


def styles_of(rows: pd.DataFrame) -> dict[str, MethodStyle]:
    """A style per `label` of `rows`; several settings of one `method` share its hue, ever lighter.

    So do methods that share a style, such as a method and its namesake with another drafter.
    """
    bases = dict(zip(rows["label"], rows["method"].map(method_style), strict=True))
    shades = {base: _shades(base, list(bases.values()).count(base)) for base in bases.values()}
    return {label: next(shades[base]) for label, base in bases.items()}


def _shades(base: MethodStyle, count: int) -> Iterator[MethodStyle]:
    """`count` styles from `base` towards white, the last no paler than one can see."""
    for rank in range(count):
        paler = LIGHTEST * rank / max(count - 1, 2)
        red, green, blue = (1 - (1 - channel) * (1 - paler) for channel in to_rgb(base.color))
        yield MethodStyle(to_hex((red, green, blue)), base.marker, base.linestyle)


def shades(count: int) -> list[str]:
    """`count` colours of an ordered scale."""
    return [to_hex(shade) for shade in colormaps["viridis"](np.linspace(0.0, 0.85, max(count, 1)))]


def new_figure(width: float, height: float) -> Figure:
    """An empty figure of `width` x `height` inches, laid out without overlaps."""
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def light_grid(axes: Axes, axis: str = "both") -> None:
    """Faint grid lines behind the data along `axis` ('x', 'y' or 'both')."""
    axes.grid(visible=True, axis=axis)  # type: ignore[arg-type]
    axes.tick_params(length=0)


def ink_on(color: Sequence[float]) -> str:
    """Black or white, whichever reads better on an RGB(A) colour (relative luminance)."""
    red, green, blue = (
        channel / 12.92 if channel <= 0.04045 else ((channel + 0.055) / 1.055) ** 2.4
        for channel in color[:3]
    )
    luminance = 0.2126 * red + 0.7152 * green + 0.0722 * blue
    return "#ffffff" if luminance < 0.22 else INK


@dataclass(frozen=True)
class Plot:
    """One figure: name of its file, title, caption, and the figure itself."""

    name: str
    title: str
    caption: str
    figure: Figure

    def save(self, folder: Path) -> Path:
        """Write `folder/NAME.png`, whole or not at all; the caption goes into its metadata."""
        path = folder / f"{self.name}.png"
        with whole(path) as partial, mpl.rc_context(SETTINGS):
            self.figure.savefig(partial, format="png", metadata={"Description": self.caption})
        return path

    def _repr_html_(self) -> str:
        """How a notebook shows it: figure and caption."""
        image = io.BytesIO()
        with mpl.rc_context(SETTINGS):
            self.figure.savefig(image, format="png", dpi=120)
        data = base64.b64encode(image.getvalue()).decode("ascii")
        return (
            f'<figure><img alt="{html.escape(self.title)}" src="data:image/png;base64,{data}">'
            f"<figcaption>{html.escape(self.caption)}</figcaption></figure>"
        )


def _rows_figure(labels: Sequence[str]) -> tuple[Figure, Axes]:
    """A figure with one line per label, first on top; long labels are set in two lines."""
    figure = new_figure(6.6, 0.85 + 0.34 * len(labels))
    axes = figure.add_subplot()
    axes.set_yticks(range(len(labels)), [_in_lines(label) for label in labels])
    axes.set_ylim(len(labels) - 0.4, -0.6)
    axes.spines["left"].set_visible(False)
    light_grid(axes, "x")
    return figure, axes


def _in_lines(label: str) -> str:
    return label.replace(", ", "\n", 1) if len(label) > 24 else label


def interval_rows(
    rows: pd.DataFrame, column: Column, styles: Mapping[str, MethodStyle], xlabel: str
) -> Figure:
    """One mark with its interval per row, the numbers at the right edge, a line at 1."""
    figure, axes = _rows_figure(list(rows["label"]))
    for y, row in enumerate(rows.to_dict("records")):
        style = styles[row["label"]]
        low, high = (row[end] for end in column.ends or (column.key, column.key))
        axes.plot([low, high], [y, y], color=style.color, lw=2.2, solid_capstyle="butt")
        marker = "o" if style.marker in "|123" else style.marker
        axes.plot(row[column.key], y, marker, color=style.color, ms=6.5, mec="white", mew=0.6)
        axes.annotate(
            column.text(row), (1, y), (6, 0), xycoords=("axes fraction", "data"),
            textcoords="offset points", va="center", fontsize=8.5,
        )  # fmt: skip
    axes.axvline(1, **DASHED)
    axes.set_xlim(min(axes.get_xlim()[0], 0.9), max(axes.get_xlim()[1], 1.1))
    axes.set_xlabel(xlabel)
    return figure


def stacked_rows(
    parts: pd.DataFrame, colors: Sequence[str], aside: Mapping[str, pd.Series], xlabel: str
) -> Figure:
    """Bars of the columns of `parts`, one row per label, numbers of `aside` to the right."""
    figure, axes = _rows_figure(list(parts.index))
    left = np.zeros(len(parts))
    for (name, values), color in zip(parts.items(), colors, strict=True):
        width = values.fillna(0.0).clip(lower=0).to_numpy(float)
        axes.barh(range(len(parts)), width, left=left, height=0.62, color=color, label=str(name))
        left += width
    look: dict[str, Any] = {"textcoords": "offset points", "ha": "right", "fontsize": 8.5}
    for place, (head, numbers) in enumerate(aside.items()):
        shift = 46 + 48 * place
        axes.annotate(
            head, (1, 1), (shift, 2), xycoords="axes fraction", va="bottom", color=FAINT, **look
        )
        for y, number in enumerate(numbers):
            if np.isfinite(number):
                axes.annotate(
                    f"{number:,.4g}" if number >= 1000 else f"{number:.1f}", (1, y), (shift, 0),
                    xycoords=("axes fraction", "data"), va="center", **look,
                )  # fmt: skip
    axes.set_xlabel(xlabel)
    axes.set_xlim(0, float(left.max()) * 1.02 or 1.0)
    figure.legend(loc="outside upper center", ncols=min(len(colors), 9))
    return figure


@dataclass(frozen=True)
class Line:
    """Points and what they look like: `look` goes to matplotlib; `ls=""` leaves marks alone.

    Attributes:
        low, high: a band around a line, error bars at marks alone.
        few: points with an open mark and no band.
    """

    x: pd.Series
    y: pd.Series
    label: str = ""
    look: dict[str, Any] = field(default_factory=dict)
    low: pd.Series | None = None
    high: pd.Series | None = None
    few: pd.Series | None = None


@dataclass(frozen=True)
class Panel:
    """Axes with lines.

    Attributes:
        log: x on a scale of powers of two.
        percent: y as shares.
        level: y of a dashed line.
        diagonal: a dashed line where x = y.
        zero: whether y begins at 0.
    """

    x: str
    y: str
    lines: Sequence[Line]
    title: str = ""
    log: bool = False
    percent: bool = False
    level: float | None = None
    diagonal: bool = False
    zero: bool = True


def panels(shown: Sequence[Panel], *, height: float = 3.4, same_y: bool = False) -> Figure:
    """Panels side by side with one legend below."""
    figure = new_figure(WIDTH if len(shown) > 1 else 4.6, height)
    found: dict[str, Any] = {}
    axes_row = figure.subplots(1, len(shown), squeeze=False, sharey=same_y)[0]
    for axes, panel in zip(axes_row, shown, strict=True):
        for line in panel.lines:
            _draw_line(axes, line)
        _dress(axes, panel)
        handles, labels = axes.get_legend_handles_labels()
        found |= dict(zip(labels, handles, strict=True))
    if found:
        room = 14.6 * figure.get_figwidth()  # characters in a line
        sizes = [len(label) + 8 for label in found]
        columns = len(found) if sum(sizes) <= room else max(1, int(room / max(sizes)))
        figure.legend(found.values(), found.keys(), loc="outside lower center", ncols=columns)
    return figure


def _draw_line(axes: Axes, line: Line) -> None:
    look = {"ms": 4.5, **line.look}
    few = np.zeros(len(line.x), bool) if line.few is None else line.few.to_numpy(bool)
    if line.low is not None and line.high is not None:
        x, y, low, high = (part.to_numpy(float) for part in (line.x, line.y, line.low, line.high))
        if look.get("ls") == "":
            ends = np.nan_to_num(np.abs([y - low, high - y]))
            axes.errorbar(x, y, ends, fmt="none", ecolor=look.get("color"), alpha=0.5, lw=0.9)
        else:
            axes.fill_between(x, low, high, where=~few, color=look.get("color"), alpha=0.14, lw=0)
    axes.plot(line.x, line.y, label=line.label or None, **look)
    if few.any():
        axes.plot(line.x[few], line.y[few], **look | {"ls": "", "mfc": "white", "zorder": 3})


def _dress(axes: Axes, panel: Panel) -> None:
    """Titles, scales and grid."""
    axes.set_title(panel.title)
    axes.set_xlabel(panel.x)
    axes.set_ylabel(panel.y)
    light_grid(axes)
    if panel.log:
        values = pd.concat([line.x for line in panel.lines])
        powers = [2**k for k in range(12) if values.min() <= 2**k <= values.max()]
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_locator(FixedLocator(powers))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.set_xticks(powers, [f"{power:g}" for power in powers])
    elif not panel.diagonal:
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=7, min_n_ticks=1))
    if panel.percent:
        axes.set_ylim(-0.02, 1.03)
        axes.yaxis.set_major_formatter(PercentFormatter(1.0))
    elif panel.zero:
        axes.set_ylim(0, axes.get_ylim()[1] * 1.03)
    if panel.level is not None:
        axes.axhline(panel.level, **DASHED)
    if panel.diagonal:
        limits = {"xlim": axes.get_xlim(), "ylim": axes.get_ylim()}
        axes.axline((1, 1), slope=1, **DASHED)
        axes.set(**limits)


def heat(
    planes: Mapping[str, pd.DataFrame],
    label: str,
    *,
    about_one: bool,
    xlabel: str = "",
    ylabel: str = "",
    infeasible: Mapping[str, pd.DataFrame] | None = None,
    best: tuple[str, Any, Any] | None = None,
) -> Figure:
    """Cells with their value written in, a panel per plane, one colour scale for all.

    Args:
        planes: values by panel title; rows and columns by their labels; NaN stays white.
        label: of the scale.
        about_one: whether the colours part at 1, where values lie on both sides of it.
        xlabel, ylabel: of all panels.
        infeasible: planes of booleans; True is hatched.
        best: title, row and column of the cell that is outlined.
    """
    num_columns = min(3, len(planes))
    num_rows = -(-len(planes) // num_columns)
    rows, columns = next(iter(planes.values())).shape
    names = _names(next(iter(planes.values())).index)
    named = max(len(line) for name in names for line in name.split("\n"))
    figure = new_figure(
        max(1.3 + 0.07 * named + num_columns * (0.45 + 0.6 * columns), 3.4),
        0.6 + num_rows * (0.85 + 0.36 * max(rows, 3 if len(planes) > 1 else 1)),
    )
    grid = figure.subplots(num_rows, num_columns, squeeze=False, sharex=True, sharey=True)
    scale = _scale(pd.concat(map(pd.DataFrame.stack, planes.values())).to_numpy(float), about_one)
    for axes, (title, plane) in zip(grid.flat, planes.items(), strict=False):
        _cells(axes, plane, scale)
        axes.set_title(title, fontsize=9)
        if infeasible is not None:
            for row, column in np.argwhere(infeasible[title].to_numpy()):
                _frame(axes, row, column, 0.5, fc="#f4f4f4", ec="#b5b5b5", hatch="////", lw=0)
        if best is not None and best[0] == title:
            row, column = plane.index.get_loc(best[1]), plane.columns.get_loc(best[2])
            _frame(axes, row, column, 0.46, fill=False, ec=OUTLINE, lw=2.4, zorder=4)
    for axes in list(grid.flat)[len(planes) :]:
        axes.set_visible(False)
    figure.supxlabel(xlabel, fontsize=9)
    figure.supylabel(ylabel, fontsize=9)
    if rows > 2 or len(planes) > 1:
        _color_bar(figure, scale, list(grid.flat)[: len(planes)], label)
    return figure


def _frame(axes: Axes, row: int, column: int, half: float, **look: Any) -> None:
    """A rectangle around a cell."""
    axes.add_patch(Rectangle((column - half, row - half), 2 * half, 2 * half, **look))


def _scale(values: np.ndarray, about_one: bool) -> ScalarMappable:
    """Colours for `values`: sequential, or about 1 where they lie on both sides of it."""
    finite = values[np.isfinite(values)]
    low, high = float(finite.min()), float(finite.max())
    if about_one and 0 < low < 1 < high:
        reach = max(1 / low, high)
        return ScalarMappable(LogNorm(1 / reach, reach), colormaps["PuOr"])
    if low == high:
        low, high = low - 0.5, high + 0.5
    return ScalarMappable(Normalize(low, high), colormaps["cividis"])


def _color_bar(figure: Figure, scale: ScalarMappable, beside: list[Axes], label: str) -> None:
    """The scale beside panels; a logarithmic one gets plain numbers that do not crowd."""
    bar = figure.colorbar(scale, ax=beside, label=label, pad=0.02, fraction=0.05)
    bar.outline.set_visible(False)
    if isinstance(scale.norm, LogNorm):
        low, high = scale.get_clim()
        ticks = [tick for tick in RATIOS if (low or 0) <= tick <= (high or 0)]
        room = math.log(max(ticks) / min(ticks)) / 7
        kept: list[float] = []
        for tick in sorted(ticks, key=lambda tick: abs(math.log(tick))):
            if all(abs(math.log(tick / other)) >= room for other in kept):
                kept.append(tick)
        bar.set_ticks(kept, labels=[f"{tick:g}" for tick in kept])
        bar.minorticks_off()


def _cells(axes: Axes, plane: pd.DataFrame, scale: ScalarMappable) -> None:
    """Coloured cells with their value written in; a missing one stays white."""
    numbers = plane.to_numpy(float)
    image = axes.imshow(np.ma.masked_invalid(numbers), cmap=scale.cmap, aspect="auto")
    image.set_norm(scale.norm)
    for (row, column), number in np.ndenumerate(numbers):
        if np.isfinite(number):
            color = ink_on([float(channel) for channel in scale.to_rgba(number)])
            place: dict[str, Any] = {"ha": "center", "va": "center", "fontsize": 8, "zorder": 3}
            axes.text(column, row, f"{number:.2f}", color=color, **place)
    columns, rows = map(_names, (plane.columns, plane.index))
    axes.set_xticks(range(len(columns)), columns)
    if isinstance(plane.columns[0], str):
        axes.tick_params("x", rotation=30)
        for tick in axes.get_xticklabels():
            tick.set(ha="right", rotation_mode="anchor")
    axes.set_yticks(range(len(rows)), rows)
    axes.set_xticks(np.arange(len(columns) + 1) - 0.5, minor=True)
    axes.set_yticks(np.arange(len(rows) + 1) - 0.5, minor=True)
    axes.grid(visible=True, which="minor", color="white", linewidth=1.2)
    axes.tick_params(which="both", length=0)
    axes.spines[:].set_visible(False)


def _names(index: pd.Index) -> list[str]:
    return [_in_lines(name) if isinstance(name, str) else f"{name:g}" for name in index]

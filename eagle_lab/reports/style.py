"""How figures look: one colour and marker per method in every figure, and paper-ready defaults.

The colours are Okabe and Ito's eight, completed by Tol's muted set: both stay apart under the
common kinds of colour blindness, and markers tell methods apart in grey print as well. Figures are
built from `matplotlib.figure.Figure` and an Agg canvas, never through pyplot: no display, no
global state, no figure left open.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import matplotlib as mpl
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_hex, to_rgb
from matplotlib.figure import Figure

INK = "#222222"
FAINT = "#6b6b6b"
GRID = "#e3e3e3"
LIGHTEST = 0.7  # of the way to white

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
_OTHERS = tuple(
    MethodStyle(color, marker, "--")
    for color, marker in zip(
        ("#661100", "#6699CC", "#DDCC77", "#888888"), ("h", "p", "8", "*"), strict=True
    )
)


def method_style(method: str) -> MethodStyle:
    """The style of `method`; an unknown name takes its longest known beginning, or a spare."""
    if method in METHODS:
        return METHODS[method]
    beginnings = [name for name in METHODS if method.startswith(name)]
    if beginnings:
        return METHODS[max(beginnings, key=len)]
    return _OTHERS[sum(method.encode()) % len(_OTHERS)]


def label_styles(labels: Sequence[str], methods: Sequence[str]) -> dict[str, MethodStyle]:
    """A style per row label; several settings of one method share its hue, ever lighter.

    So do methods that share a style, such as a method and its namesake with another drafter.
    """
    bases = {label: method_style(method) for label, method in zip(labels, methods, strict=True)}
    shades = {base: _shades(base, list(bases.values()).count(base)) for base in bases.values()}
    return {label: next(shades[base]) for label, base in bases.items()}


def _shades(base: MethodStyle, count: int) -> Iterator[MethodStyle]:
    """`count` styles from `base` towards white, the last no paler than one can see."""
    for rank in range(count):
        paler = LIGHTEST * rank / max(count - 1, 2)
        red, green, blue = (1 - (1 - channel) * (1 - paler) for channel in to_rgb(base.color))
        yield MethodStyle(to_hex((red, green, blue)), base.marker, base.linestyle)


@contextmanager
def paper_style() -> Iterator[None]:
    """Matplotlib settings of this module, for the time of a `with` block."""
    with mpl.rc_context(SETTINGS):
        yield


def new_figure(width: float, height: float) -> Figure:
    """An empty figure of `width` x `height` inches, laid out without overlaps."""
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def light_grid(axes: Axes, axis: str = "both") -> None:
    """Faint grid lines behind the data along `axis` ('x', 'y' or 'both')."""
    axes.grid(visible=True, axis=axis)  # type: ignore[arg-type]
    axes.tick_params(length=0)


def legend_below(figure: Figure, handles: Sequence[Artist], labels: Sequence[str]) -> None:
    """One legend under all panels, with as many columns as the figure's width holds."""
    room = 14.6 * figure.get_figwidth()  # characters in a line
    sizes = [len(label) + 8 for label in labels]
    columns = len(labels) if sum(sizes) <= room else max(1, int(room / max(sizes)))
    figure.legend(list(handles), list(labels), loc="outside lower center", ncols=columns)


def ink_on(color: Sequence[float]) -> str:
    """Black or white, whichever reads better on an RGB(A) colour (relative luminance)."""
    red, green, blue = (
        channel / 12.92 if channel <= 0.04045 else ((channel + 0.055) / 1.055) ** 2.4
        for channel in color[:3]
    )
    luminance = 0.2126 * red + 0.7152 * green + 0.0722 * blue
    return "#ffffff" if luminance < 0.22 else INK

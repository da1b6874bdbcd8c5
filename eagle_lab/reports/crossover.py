"""Where speculation stops paying: figure, table and sentences from crossover.csv of a profile."""

from __future__ import annotations

import pandas as pd
from matplotlib import colormaps
from matplotlib.ticker import FixedLocator, NullLocator, StrMethodFormatter

from eagle_lab.reports.content import Section
from eagle_lab.reports.plot import Plot
from eagle_lab.reports.style import FAINT, legend_below, light_grid, new_figure, paper_style
from eagle_lab.reports.tables import Table, decimals, make_table, text


def crossover_section(rows: pd.DataFrame) -> Section:
    """Figure and table; an empty section without rows."""
    if rows.empty:
        return Section("Where speculation pays")
    return Section("Where speculation pays", [crossover_plot(rows)], [crossover_table(rows)])


def crossover_plot(rows: pd.DataFrame) -> Plot:
    """Predicted speedup against batch size, a panel per context, a line per assumption."""
    contexts = sorted(rows["context"].unique())
    shades = colormaps["viridis"]
    named = list(_named(rows))
    with paper_style():
        figure = new_figure(max(4.6, 3.6 * len(contexts)), 3.5)
        panels = figure.subplots(1, len(contexts), squeeze=False, sharey=True)[0]
        lines = []
        for axes, context in zip(panels, contexts, strict=True):
            here = rows[rows["context"] == context]
            for index, (_, part) in enumerate(_named(here)):
                look = {"marker": "o" if part["drafting"].iloc[0] == "chain" else "s"}
                color = shades(0.85 * index / max(len(named) - 1, 1))
                [line] = axes.plot(part["batch_size"], part["predicted_speedup"], c=color, **look)
                lines.append(line)
            axes.axhline(1.0, color=FAINT, lw=0.8, ls=":")
            sizes = sorted(here["batch_size"].unique())
            axes.set_xscale("log", base=2)
            axes.xaxis.set_major_locator(FixedLocator(sizes))
            axes.xaxis.set_minor_locator(NullLocator())
            axes.xaxis.set_major_formatter(StrMethodFormatter("{x:.0f}"))
            axes.set_xlabel("batch size")
            axes.set_title(f"context {context:g}")
            light_grid(axes)
        panels[0].set_ylabel("predicted speedup over plain decoding")
        panels[0].set_ylim(bottom=0)
        legend_below(figure, lines[: len(named)], [words for words, _ in named])
    caption = (
        "Speedup that the cost curves predict under assumed acceptance. Circles: the chain length "
        "that pays best at each batch size, where every token is accepted with the same chance "
        "(speedup 1: none pays). Squares: a tree that emits so many tokens per cycle. Time outside "
        "the passes of both models is not counted."
    )
    return Plot("crossover", "Where speculation stops paying", caption, figure)


def crossover_table(rows: pd.DataFrame) -> Table:
    """Every prediction."""
    columns = {
        "drafting": rows["drafting"],
        "batch": rows["batch_size"].map(text),
        "context": rows["context"].map(text),
        "accepted": rows["acceptance"].map(text),
        "depth": rows["depth"].map(text),
        "nodes": rows["num_nodes"].map(text),
        "τ assumed": rows["tau"].map(decimals(2)),
        "predicted": rows["predicted_speedup"].map(decimals(2, "×")),
    }
    note = (
        "Acceptance is assumed, costs are measured. A chain has its best length; length 0 is plain "
        "decoding. Time outside the passes of both models is not counted."
    )
    return make_table("crossover", "Predicted speedup by batch size", rows, columns, note)


def crossover_sentences(rows: pd.DataFrame) -> list[str]:
    """For each assumption, up to which batch size it pays at the smallest context."""
    if rows.empty:
        return []
    context = rows["context"].min()
    return [
        f"{words[0].upper()}{words[1:]}: {_until(part)} (context {context:g}, assumed acceptance)."
        for words, part in _named(rows[rows["context"] == context])
    ]


def _until(part: pd.DataFrame) -> str:
    paying = part[part["predicted_speedup"] > 1.0]
    if paying.empty:
        return "does not pay at any batch size measured"
    best = paying.loc[paying["predicted_speedup"].idxmax()]
    end = paying["batch_size"].max()
    end_words = "at every batch size" if len(paying) == len(part) else f"up to batch {end:g}"
    return (
        f"pays {end_words}, at most {best['predicted_speedup']:.2f}× at batch "
        f"{best['batch_size']:g}"
    )


def _named(rows: pd.DataFrame) -> list[tuple[str, pd.DataFrame]]:
    """The rows of each assumption with its words, by batch size."""
    chains = rows[rows["drafting"] == "chain"]
    trees = rows[rows["drafting"] == "tree"]
    parts = [(f"chain, accepted {rate:g}", part) for rate, part in chains.groupby("acceptance")] + [
        (f"tree, {tau:g} tokens per cycle", part) for tau, part in trees.groupby("tau")
    ]
    return [(words, part.sort_values("batch_size")) for words, part in parts]

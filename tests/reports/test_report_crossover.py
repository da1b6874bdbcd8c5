"""Where speculation pays: sentences, table and figure against rows made by hand."""

from __future__ import annotations

import pandas as pd
import pytest

from eagle_lab.reports.crossover import crossover_section, crossover_sentences


@pytest.fixture(scope="module")
def rows() -> pd.DataFrame:
    speedups = {
        ("chain", 0.6): [1.8, 1.4, 1.0],
        ("chain", 0.8): [2.5, 2.0, 1.2],
        ("tree", 4.0): [2.9, 0.9, 0.3],
        ("tree", 2.0): [0.9, 0.8, 0.2],
    }
    return pd.DataFrame(
        {
            "drafting": drafting,
            "batch_size": size,
            "context": context,
            "acceptance": value if drafting == "chain" else None,
            "depth": 3,
            "width": 1,
            "num_nodes": 3,
            "tau": 2.0 if drafting == "chain" else value,
            "predicted_speedup": speedup,
        }
        for context in (512, 2048)
        for (drafting, value), line in speedups.items()
        for size, speedup in zip((1, 8, 64), line, strict=True)
    )


def test_sentences_say_up_to_which_batch_size_it_pays(rows: pd.DataFrame):
    assert crossover_sentences(rows) == [
        "Chain, accepted 0.6: pays up to batch 8, at most 1.80× at batch 1 (context 512, assumed "
        "acceptance).",
        "Chain, accepted 0.8: pays at every batch size, at most 2.50× at batch 1 (context 512, "
        "assumed acceptance).",
        "Tree, 2 tokens per cycle: does not pay at any batch size measured (context 512, assumed "
        "acceptance).",
        "Tree, 4 tokens per cycle: pays up to batch 1, at most 2.90× at batch 1 (context 512, "
        "assumed acceptance).",
    ]


def test_the_figure_has_a_panel_per_context_and_a_line_per_assumption(rows: pd.DataFrame):
    section = crossover_section(rows)
    [plot], [table] = section.plots, section.tables
    panels = plot.figure.axes
    assert [axes.get_title(loc="left") for axes in panels] == ["context 512", "context 2048"]
    for axes in panels:
        drawn = [list(line.get_ydata()) for line in axes.lines]
        assert [1.8, 1.4, 1.0] in drawn and len(drawn) == 5  # four assumptions, and the line at 1
    assert len(table.shown) == 24


def test_without_predictions_there_is_nothing():
    assert crossover_section(pd.DataFrame()).plots == []
    assert crossover_sentences(pd.DataFrame()) == []

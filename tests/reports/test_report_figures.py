"""Figures: every one is drawn, none is blank, no text runs into another or off the canvas."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import matplotlib.image
import numpy as np
import pandas as pd
import pytest
from matplotlib.text import Text
from matplotlib.transforms import Bbox

from eagle_lab.reports import describe, load_run, load_sweep
from eagle_lab.reports.draw import METHODS, Plot, ink_on, method_style, styles_of
from eagle_lab.reports.figures import FIGURES, plot
from eagle_lab.reports.sweeps import grids
from tests.reports.fake_run import BENCH, FakeMethod, write_bench, write_config, write_profile


@pytest.fixture(scope="module")
def bench_plots(bench_run: Path) -> dict[str, Plot]:
    return describe(load_run(bench_run)).plots


@pytest.fixture(scope="module")
def sweep_plots(sweep_root: Path) -> dict[str, Plot]:
    return describe(load_sweep(sweep_root)).plots


@pytest.fixture(scope="module")
def training_rows() -> pd.DataFrame:
    steps = np.arange(1, 9) * 250
    first = 0.5 - 0.4 * np.exp(-steps / 600)
    return pd.DataFrame(
        {
            "step": steps, "val_tau": 1 + first + first**2,
            **{f"val_acceptance_{depth}": first * 0.95 ** (depth - 1) for depth in range(1, 6)},
        }
    )  # fmt: skip


@pytest.fixture(scope="module")
def all_plots(
    bench_plots: dict[str, Plot],
    sweep_plots: dict[str, Plot],
    one_process_sweep: Path,
    batch_root: Path,
    crowded_run: Path,
    training_rows: pd.DataFrame,
    tmp_path_factory: pytest.TempPathFactory,
) -> list[Plot]:
    confident = pd.DataFrame(
        {"label": "a", "mean_confidence": [0.1, 0.5], "acceptance": [0.2, 0.5]}
    )
    confident = confident.assign(acceptance_low=[0.1, 0.4], acceptance_high=[0.3, 0.6])
    alone = [
        plot("training", training_rows),
        plot("calibration", confident),
        plot("crossover", crossover_rows()),
    ]
    one = describe(load_run(one_process_sweep)).plots
    batches = describe(load_sweep(batch_root)).plots
    crowded = describe(load_run(crowded_run)).plots
    profiles = tmp_path_factory.mktemp("profiles")
    profile = describe(load_run(write_profile(profiles / "both"))).plots
    target = describe(load_run(write_profile(profiles / "target", drafter=False))).plots
    several = (bench_plots, sweep_plots, one, batches, crowded, profile, target)
    return [*(shown for plots in several for shown in plots.values()), *filter(None, alone)]


def crossover_rows() -> pd.DataFrame:
    speedups = {
        ("chain", 0.6): [1.8, 1.4, 1.0],
        ("chain", 0.8): [2.5, 2.0, 1.2],
        ("tree", 4.0): [2.9, 0.9, 0.3],
        ("tree", 2.0): [0.9, 0.8, 0.2],
    }
    return pd.DataFrame(
        {
            "drafting": drafting, "batch_size": size, "context": context, "depth": 3,
            "acceptance": value if drafting == "chain" else None, "width": 1, "num_nodes": 3,
            "tau": 2.0 if drafting == "chain" else value, "predicted_speedup": speedup,
        }
        for context in (512, 2048)
        for (drafting, value), line in speedups.items()
        for size, speedup in zip((1, 8, 64), line, strict=True)
    )  # fmt: skip


@pytest.fixture(scope="module")
def crowded_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every method of the project side by side."""
    others = [
        FakeMethod(name, 0.3 + 0.03 * place, 4 + place % 4, None, 8 + place)
        for place, name in enumerate(METHODS)
        if name != "vanilla"
    ]
    return write_bench(tmp_path_factory.mktemp("crowded") / "run", [BENCH[0], *others])


@pytest.fixture(scope="module")
def batch_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("batches") / "root"
    root.mkdir()
    write_config(root, "multirun", finished=True)
    for number, batch_size in enumerate((1, 2, 4)):
        write_bench(root / str(number), batch_size=batch_size, num_questions=8)
    return root


def test_a_bench_has_its_figures(bench_plots: dict[str, Plot]):
    assert set(bench_plots) == {
        "tau_by_method", "speedup_by_method", "acceptance_by_depth", "accepted_length",
        "time_split", "categories_tau", "categories_speedup",
    }  # fmt: skip


def test_a_sweep_has_its_figures(sweep_plots: dict[str, Plot]):
    assert set(sweep_plots) == {"sweep_tau", "sweep_speedup", "step_costs", "cost_model"}


def test_batch_sizes_have_their_figure(batch_root: Path):
    plots = describe(load_sweep(batch_root)).plots
    assert set(plots) == {"tau_by_method", "speedup_by_method", "throughput_by_batch"}


def test_without_timing_there_is_no_timing_figure(tmp_path: Path):
    run = load_run(write_bench(tmp_path / "run", timing=False))
    assert not run.timed
    assert set(describe(run).plots) == {
        "tau_by_method", "acceptance_by_depth", "accepted_length", "categories_tau",
    }  # fmt: skip


def test_one_question_and_one_method_draw(tmp_path: Path):
    run = load_run(write_bench(tmp_path / "run", BENCH[:2], num_questions=1, turns=1))
    assert "acceptance_by_depth" in describe(run).plots


def test_every_file_shows_something_and_no_text_collides(
    all_plots: list[Plot], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Texts stay on the canvas; no two upright ones share more than a pixel or so."""
    for number, shown in enumerate(all_plots):
        folder = tmp_path / str(number)
        folder.mkdir()
        with recorded_texts(monkeypatch) as drawn:
            pixels = matplotlib.image.imread(shown.save(folder))
        height, width = pixels.shape[:2]
        assert width >= 500
        assert pixels[..., :3].std() > 0.02, shown.name
        assert [path.name for path in folder.iterdir()] == [f"{shown.name}.png"]
        for text, box in drawn.values():
            inside = box.x0 >= -2 and box.y0 >= -2 and box.x1 <= width + 2 and box.y1 <= height + 2
            assert inside, f"{shown.name}: '{text.get_text()}' leaves the canvas"
        upright = [(text, box) for text, box in drawn.values() if text.get_rotation() % 90 == 0]
        for (one, box), (other, place) in itertools.combinations(upright, 2):
            assert overlap(box, place) < 3, (
                f"{shown.name}: '{one.get_text()}' overlaps '{other.get_text()}'"
            )


@contextmanager
def recorded_texts(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[int, tuple[Text, Bbox]]]:
    """The texts that a drawing really draws, with their boxes in pixels."""
    drawn: dict[int, tuple[Text, Bbox]] = {}
    original = Text.draw

    def draw(self: Text, renderer: Any) -> None:
        original(self, renderer)
        if self.get_visible() and self.get_text().strip():
            drawn[id(self)] = (self, Text.get_window_extent(self, renderer))

    with monkeypatch.context() as patch:
        patch.setattr(Text, "draw", draw)
        yield drawn


def overlap(one: Bbox, other: Bbox) -> float:
    """The smaller side of what two boxes share, pixels."""
    shared = Bbox.intersection(one, other)
    return 0.0 if shared is None else min(shared.width, shared.height)


def test_every_figure_was_drawn(all_plots: list[Plot]):
    assert {shown.name for shown in all_plots} == set(FIGURES)


def test_captions_state_their_conditions(bench_plots: dict[str, Plot]):
    for name in ("tau_by_method", "speedup_by_method", "time_split"):
        assert "n = 16 questions, T = 0, batch 1" in bench_plots[name].caption
    assert "n = 2 questions" in bench_plots["categories_tau"].caption


def test_crossover_has_a_panel_per_context_and_a_line_per_assumption():
    made = plot("crossover", crossover_rows())
    assert made is not None
    panels = made.figure.axes
    assert [axes.get_title(loc="left") for axes in panels] == ["context 512", "context 2048"]
    for axes in panels:
        lines = [list(line.get_ydata()) for line in axes.lines]
        assert [1.8, 1.4, 1.0] in lines and len(lines) == 5  # four assumptions, and the line at 1
    assert plot("crossover", pd.DataFrame()) is None


def test_the_best_cell_is_outlined_once_and_the_infeasible_are_hatched(sweep_root: Path):
    (grid,) = grids(load_sweep(sweep_root).table)
    made = plot("sweep_speedup", grid)
    assert made is not None
    patches = [patch for axes in made.figure.axes for patch in axes.patches]
    assert sum(patch.get_hatch() is not None for patch in patches) == 7
    assert sum(not patch.get_fill() for patch in patches) == 1


def test_a_grid_without_any_measurement_draws_nothing(sweep_root: Path):
    table = load_sweep(sweep_root).table
    table["infeasible"] = table["method"] != "vanilla"
    assert plot("sweep_speedup", grids(table)[0]) is None


def test_a_method_has_one_colour_everywhere():
    assert method_style("eagle_dynamic") is METHODS["eagle_dynamic"]
    assert method_style("eagle_dynamic_mine") is METHODS["eagle_dynamic"]
    assert method_style("something new") == method_style("something new")
    rows = pd.DataFrame({"label": ["a, T = 0", "a, T = 1"], "method": "vanilla"})
    styles = styles_of(rows)
    assert styles["a, T = 0"].color == METHODS["vanilla"].color
    assert styles["a, T = 1"].color != METHODS["vanilla"].color
    namesakes = styles_of(rows.assign(method=["eagle_chain", "eagle_chain_shipped"]))
    assert len({style.color for style in namesakes.values()}) == 2
    looks = [(style.color, style.marker) for style in METHODS.values()]
    assert len(set(looks)) == len(looks)


def test_ink_contrasts():
    assert ink_on([0, 0, 0.2]) == "#ffffff"
    assert ink_on([1, 1, 0.6]) != "#ffffff"

"""Speedups equal sums made by hand, and the textbook's where costs are the textbook's."""

from __future__ import annotations

from typing import Any

import pytest

from eagle_lab.bench.profile.cost_model import (
    Assumed,
    BenchFacts,
    CostCurve,
    CostModel,
    Tree,
    crossover,
    predict,
    read_curves,
)
from eagle_lab.bench.statistics import expected_speedup
from eagle_lab.columns import CROSSOVER, PREDICTIONS, csv_names
from eagle_lab.errors import UserError


def rows(target, draft, batch_size=1, context=256):
    """Rows of cost_curves.csv, as the file gives them: text."""
    return [
        {"model_pass": name, "batch_size": str(batch_size), "context": str(context),
         "num_tokens": str(num_tokens), "median_ms": str(cost)}
        for name, curve in (("target", target), ("draft", draft))
        for num_tokens, cost in curve.items()
    ]  # fmt: skip


def test_a_cycle_is_the_sum_of_its_passes():
    measured = rows({1: 60, 33: 124, 65: 200}, {1: 4, 9: 8})
    model = CostModel.from_rows(
        measured, batch_size=1, context=256, overhead_ms=3, plain_overhead_ms=1
    )
    # one draft pass over 3 pairs (5 ms), five over 5 nodes (6 ms), a target pass over 33, overhead
    assert model.cycle_ms(3.0, 6, 5, 32) == pytest.approx(5 + 5 * 6 + 124 + 3)
    assert model.speedup(3.0, 6, 5, 32) == pytest.approx(3 * 61 / 162)


def test_no_draft_is_plain_decoding():
    model = CostModel.from_rows(rows({1: 60, 9: 70}, {1: 4}), batch_size=1, context=256)
    assert model.speedup(1.0, 0, 1, 0) == 1.0


def test_costs_between_measurements_lie_on_a_line():
    curve = CostCurve((1, 5, 9), (10.0, 30.0, 40.0))
    assert [curve(n) for n in (1, 3, 7, 9)] == [10, 20, 35, 40]


@pytest.mark.parametrize("num_tokens", [0, 10])
def test_costs_beyond_the_measurements_are_unknown(num_tokens):
    with pytest.raises(UserError, match="1 to 9"):
        CostCurve((1, 5, 9), (10.0, 30.0, 40.0))(num_tokens)


@pytest.mark.parametrize(("price", "best"), [(0.0, 8), (0.08, 5), (0.2, 3), (1.0, 0)])
def test_equal_n_alphas_and_flat_drafts_give_the_textbooks_speedup(price, best):
    """alpha 0.8, a draft step costs 0.05 and n tokens cost 1 + price (n - 1) target steps."""

    def verify_cost(num_tokens: int) -> float:
        return 1 + price * (num_tokens - 1)

    target = {n: 100 * verify_cost(n) for n in range(1, 14)}
    model = CostModel.from_rows(rows(target, {1: 5, 20: 5}), batch_size=1, context=256)
    textbook = [expected_speedup(0.8, length, 0.05, verify_cost) for length in range(13)]
    assert model.chain_speedups([0.8] * 12) == pytest.approx(textbook)
    length, speedup = model.best_chain([0.8] * 12)
    assert (length, speedup) == (best, pytest.approx(max(textbook)))


def test_other_batch_sizes_are_not_mixed_in():
    measured = rows({1: 60, 5: 70}, {1: 4}) + rows({1: 90, 5: 300}, {1: 9}, batch_size=8)
    model = CostModel.from_rows(measured, batch_size=8, context=256)
    assert (model.target(5), model.draft(1)) == (300, 9)
    with pytest.raises(UserError, match="batch_size=4"):
        CostModel.from_rows(measured, batch_size=4, context=256)


def test_curves_are_read_from_the_file_of_a_profile(tmp_path):
    path = tmp_path / "cost_curves.csv"
    columns = "model_pass,batch_size,context,num_tokens,median_ms,low_ms,high_ms,plain_median_ms"
    lines = [columns, "target,1,64,1,50.0,49,51,90", "target,1,64,5,60.0,59,61,95"]
    lines += ["draft,1,64,1,2.5,2,3,"]
    path.write_text("\n".join(lines) + "\n", "utf-8")
    model = CostModel.from_rows(read_curves(path), batch_size=1, context=64)
    assert (model.target(1), model.target(3), model.draft(1)) == (50, 55, 2.5)


def test_files_that_hold_no_curves_are_named(tmp_path):
    with pytest.raises(UserError, match=r"none\.csv"):
        read_curves(tmp_path / "none.csv")
    (tmp_path / "other.csv").write_text("model_pass,batch_size\n", "utf-8")
    with pytest.raises(UserError, match=r"other\.csv.*context.*median_ms.*num_tokens"):
        read_curves(tmp_path / "other.csv")


def dear(batch_size: int, per_token: float) -> list[dict[str, str]]:
    """A target of 10 ms and `per_token` for each further one; drafting costs 1 ms."""
    counts = (1, 4, 8)
    target = {count: 10 + per_token * (count - 1) for count in counts}
    return rows(target, dict.fromkeys(counts, 1), batch_size, context=64)


def test_speculation_stops_paying_where_tokens_are_dear():
    rows = crossover(
        [*dear(1, 0.0), *dear(64, 10.0)],
        Assumed(Tree(3, 2, 7), acceptance=(0.5,), longest=2, tree_taus=(3.0, 5.0)),
    )
    assert [tuple(row) for row in rows] == [csv_names(CROSSOVER)] * 4
    chain, tree, dear_chain, dear_tree = rows
    # two tokens: 1 + 0.5 + 0.25 tokens in 10 + 2 ms against one in 10; one token: 1.5 in 11
    assert (chain["depth"], chain["tau"]) == (2, 1.75)
    assert chain["predicted_speedup"] == pytest.approx(1.75 * 10 / 12)
    assert tree["predicted_speedup"] == pytest.approx(3 * 10 / 13)
    assert (dear_chain["depth"], dear_chain["predicted_speedup"]) == (0, 1.0)
    assert dear_tree["predicted_speedup"] == pytest.approx(3 * 10 / 83)


def test_a_tree_beyond_the_curves_is_left_out():
    rows = crossover(dear(1, 0.0), Assumed(Tree(6, 10, 59), acceptance=(0.5,)))
    assert [row["drafting"] for row in rows] == ["chain"]


OVERHEAD = {"vanilla": 1.0, "eagle_chain": 2.0, "eagle_dynamic": 4.0}


CURVES = [
    *rows({1: 50, 33: 114}, {1: 3, 11: 13}, context=128),
    *rows({1: 500, 33: 600}, {1: 30, 11: 130}, context=512),
]


def method(name: str, tau: float, depth: Any, width: Any, num_nodes: Any, **more: Any) -> dict:
    return {
        "method": name, "drafter_matches_target": True, "depth": depth, "width": width,
        "num_nodes": num_nodes, "tau_micro": tau, "decode_tokens_per_second": 30.0,
        "speedup": 1.4, "speedup_low": 1.3, "speedup_high": 1.5, **more,
    }  # fmt: skip


VANILLA = method(
    "vanilla", 1.0, None, None, None, drafter_matches_target=None, decode_tokens_per_second=20.0
)
CHAIN = method("eagle_chain", 2.0, 3, None, 3)
TREE = method("eagle_dynamic", 3.0, 4, 5, 32)


def facts(*methods: dict, conditional: tuple = (0.6, 0.1, 0.1), context: float = 200.0):
    acceptance = [{"method": "eagle_chain", "depth": 3, "conditional": list(conditional)}]
    return BenchFacts([VANILLA, *methods], acceptance, batch_size=1, mean_context=context)


def test_a_prediction_is_tau_plain_steps_over_a_cycle():
    chain, tree, best = predict(facts(CHAIN, TREE), CURVES, OVERHEAD)
    # plain 50 + 1; chain: drafts 4 + 2 x 3, target over 4 tokens 56, overhead 2
    assert chain["predicted_speedup"] == pytest.approx(2.0 * 51 / (4 + 6 + 56 + 2))
    # tree: drafts 5 + 3 x 7, target over 33 tokens 114, overhead 4
    assert tree["predicted_speedup"] == pytest.approx(3.0 * 51 / (5 + 21 + 114 + 4))
    assert tree["best"] == "tree"
    assert chain["decode_speedup"] == pytest.approx(1.5)
    assert (chain["speedup"], chain["speedup_low"], chain["speedup_high"]) == (1.4, 1.3, 1.5)
    # n-alphas .6 .1 .1 favour one token: 1.6 tokens for a draft of 1.6 pairs, 52 ms and 2
    assert (best["method"], best["depth"], best["tau_micro"]) == ("eagle_chain", 1, 1.6)
    assert best["predicted_speedup"] == pytest.approx(1.6 * 51 / (3.6 + 52 + 2))
    assert best["decode_speedup"] is None
    assert set(best) == set(csv_names(PREDICTIONS))


def test_of_two_chains_the_better_one_is_marked():
    rows = predict(facts(CHAIN, conditional=(0.9, 0.9, 0.9)), CURVES, OVERHEAD)
    assert [(row["depth"], row["best"]) for row in rows] == [(3, "chain")]


def test_a_chain_that_never_pays_has_length_zero():
    rows = predict(
        facts(CHAIN | {"tau_micro": 1.0}, conditional=(0.0, None, None)), CURVES, OVERHEAD
    )
    assert [(row["depth"], row["best"]) for row in rows] == [(3, None), (0, "chain")]
    assert rows[1]["predicted_speedup"] == 1.0


def test_the_nearest_context_counts():
    (row, *_) = predict(facts(TREE, context=400.0), CURVES, OVERHEAD)
    assert row["predicted_speedup"] == pytest.approx(3 * 501 / (50 + 3 * 70 + 600 + 4))


def test_a_fixed_tree_has_levels_of_its_mean_width():
    static = method("eagle_static", 2.0, 4, None, 12)
    (row,) = predict(facts(static), CURVES, OVERHEAD)
    # its own overhead is not known: the largest; 3 levels of 3 nodes
    assert row["predicted_speedup"] == pytest.approx(2 * 51 / (4 + 3 * 5 + 74 + 4))


def test_methods_without_a_drafter_and_impossible_ones_are_left_out():
    lookup = method("prompt_lookup", 1.5, 10, None, 10, drafter_matches_target=None)
    infeasible = method("eagle_dynamic", None, 1, 2, 99)
    rows = predict(facts(CHAIN, lookup, infeasible), CURVES, OVERHEAD)
    assert {row["method"] for row in rows} == {"eagle_chain"}


def test_a_method_whose_cycles_have_no_one_size_is_not_predicted():
    """A hybrid verifies up to 75 nodes, in few of its cycles: no cost of 76 tokens is needed."""
    hybrid = method("hybrid", 2.5, 6, 10, 75)
    bench = facts(CHAIN, hybrid)
    bench.check([1], [1, 33])
    assert {row["method"] for row in predict(bench, CURVES, OVERHEAD)} == {"eagle_chain"}


@pytest.mark.parametrize(
    ("methods", "batch_sizes", "num_tokens", "words"),
    [
        ((), [1], [1, 64], "no method with a drafter"),
        ((CHAIN,), [2, 4], [1, 64], "batch size 1"),
        ((TREE,), [1], [1, 32], "33 tokens"),
    ],
)
def test_costs_that_do_not_cover_the_bench_are_refused(methods, batch_sizes, num_tokens, words):
    with pytest.raises(UserError, match=words):
        facts(*methods).check(batch_sizes, num_tokens)
    facts(CHAIN, TREE).check([1, 4], [1, 64])

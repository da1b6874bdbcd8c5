"""Predictions are sums made by hand, from the nearest context and each method's overhead."""

from __future__ import annotations

from typing import Any

import pytest

from eagle_lab.bench.profile.cost_model import BenchFacts, predict
from eagle_lab.columns import PREDICTIONS, csv_names
from eagle_lab.errors import UserError

OVERHEAD = {"vanilla": 1.0, "eagle_chain": 2.0, "eagle_dynamic": 4.0}


def curve(model: str, context: int, costs: dict[int, float]) -> list[dict[str, str]]:
    """Rows of cost_curves.csv, as the file gives them: text."""
    return [
        {"model_pass": model, "batch_size": "1", "context": str(context),
         "num_tokens": str(count), "median_ms": str(cost)}
        for count, cost in costs.items()
    ]  # fmt: skip


CURVES = [
    *curve("target", 128, {1: 50, 33: 114}), *curve("draft", 128, {1: 3, 11: 13}),
    *curve("target", 512, {1: 500, 33: 600}), *curve("draft", 512, {1: 30, 11: 130}),
]  # fmt: skip


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

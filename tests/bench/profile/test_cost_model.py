"""Predicted speedups equal sums made by hand, and the textbook's where costs are the textbook's."""

from __future__ import annotations

import pytest

from eagle_lab.bench.profile.cost_model import CostCurve, CostModel, read_curves
from eagle_lab.bench.statistics import expected_speedup
from eagle_lab.errors import UserError


def rows(target, draft, batch_size=1, context=256):
    """Rows of cost_curves.csv, as the file gives them: text."""
    named = [("target", point) for point in target.items()]
    named += [("draft", point) for point in draft.items()]
    return [
        {
            "model_pass": name,
            "batch_size": str(batch_size),
            "context": str(context),
            "num_tokens": str(num_tokens),
            "median_ms": str(cost),
        }
        for name, (num_tokens, cost) in named
    ]


def test_a_cycle_is_the_sum_of_its_passes():
    measured = rows({1: 60, 33: 124, 65: 200}, {1: 4, 9: 8})
    model = CostModel.from_rows(measured, batch_size=1, context=256, overhead_ms=3)
    # one draft pass over 3 pairs (5 ms), five over 5 nodes (6 ms), a target pass over 33, overhead
    assert model.cycle_ms(3.0, 6, 5, 32) == pytest.approx(5 + 5 * 6 + 124 + 3)
    assert model.speedup(3.0, 6, 5, 32) == pytest.approx(3 * 63 / 162)


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


def test_plain_decoding_may_have_an_overhead_of_its_own():
    measured = rows({1: 60, 9: 70}, {1: 4, 9: 4})
    model = CostModel.from_rows(
        measured, batch_size=1, context=256, overhead_ms=6, plain_overhead_ms=1
    )
    assert model.speedup(2.0, 1, 1, 8) == pytest.approx(2 * 61 / (4 + 70 + 6))


def test_curves_are_read_from_the_file_of_a_profile(tmp_path):
    path = tmp_path / "cost_curves.csv"
    columns = "model_pass,batch_size,context,num_tokens,median_ms,low_ms,high_ms,plain_median_ms"
    lines = [columns, "target,1,64,1,50.0,49,51,90", "target,1,64,5,60.0,59,61,95"]
    lines += ["draft,1,64,1,2.5,2,3,"]
    path.write_text("\n".join(lines) + "\n", "utf-8")
    model = CostModel.from_rows(read_curves(path), batch_size=1, context=64)
    assert (model.target(1), model.target(3), model.draft(1)) == (50, 55, 2.5)


def test_files_that_hold_no_curves_are_named(tmp_path):
    with pytest.raises(UserError, match=r"none\.csv.*experiment=profile"):
        read_curves(tmp_path / "none.csv")
    (tmp_path / "other.csv").write_text("model_pass,batch_size\n", "utf-8")
    with pytest.raises(UserError, match=r"other\.csv.*context, median_ms, num_tokens"):
        read_curves(tmp_path / "other.csv")

"""Counts, rates and intervals of hand-made rows."""

from __future__ import annotations

import numpy as np
import pytest

from eagle_lab.bench.results import (
    CATEGORY_COLUMNS,
    COLUMNS,
    Conditions,
    acceptance,
    measures,
    summarize,
    summarize_categories,
)
from eagle_lab.bench.statistics import batch_shares, check_counts, tau_of
from eagle_lab.methods.build import Method
from tests.bench.fakes import row

CONDITIONS = Conditions(batch_size=1, temperature=0.0, seed=0)
CONTRACT_COLUMNS = {
    *("method", "drafter", "drafter_matches_target", "batch_size", "temperature"),
    *("depth", "width", "num_nodes", "num_questions", "num_tokens", "num_cycles"),
    *("tau_micro", "tau_macro", "tau_macro_low", "tau_macro_high"),
    *("tokens_per_second", "decode_tokens_per_second", "speedup", "speedup_low", "speedup_high"),
    *("draft_ms", "verify_ms", "overhead_ms", "ttft_ms", "itl_p50_ms", "itl_p95_ms"),
    *("peak_memory_mb", "greedy_match_rate", "exact_rate", "tie_rate"),
    *("settings", "tau_micro_low", "tau_micro_high", "speedup_robust", "num_disturbed"),
}


def plain(question_id, num_tokens, **changes):
    """A vanilla row that emitted so many tokens."""
    return row(question_id, [0] * (num_tokens - 1), method="vanilla", **changes)


def test_three_cycles_that_accept_2_0_4_emit_nine_tokens():
    answer = row(1, [2, 0, 4])
    assert len(answer["tokens"]) == 1 + 9
    assert tau_of(answer) == 3.0
    summary = measures([answer], [plain(1, 10)], seed=0)
    assert (summary["num_tokens"], summary["num_cycles"]) == (10, 3)
    assert summary["tau_micro"] == summary["tau_macro"] == 3.0


def test_vanilla_has_a_tau_of_one_and_a_speedup_of_one_exactly():
    rows = [plain(1, 7), plain(2, 12, seconds=(0.1, 3.0)), plain(3, 2), plain(4, 5), plain(5, 9)]
    summary = measures(rows, rows, seed=0)
    for name in ("tau_micro", "tau_macro", "tau_macro_low", "tau_macro_high"):
        assert summary[name] == 1.0
    for name in ("speedup", "speedup_low", "speedup_high"):
        assert summary[name] == 1.0


def test_the_last_cycle_counts_with_what_it_emitted():
    """Four accepted, but the limit leaves room for three: no bonus token."""
    cut = row(1, [4, 3], [5, 3])
    check_counts(cut)
    assert tau_of(cut) == 4.0


@pytest.mark.parametrize(
    ("accepted", "emitted"),
    [([2, 0], [3, 2]), ([2, 1], [3]), ([2, 3], [3, 2]), ([2, 0], [3, 0])],
)
def test_tokens_that_no_cycle_emitted_are_an_error(accepted, emitted):
    with pytest.raises(ValueError, match="question 1, turn 1"):
        check_counts(row(1, accepted, emitted))


def test_a_token_past_the_end_is_an_error():
    answer = row(1, [2, 0])
    answer["tokens"].append(5)
    with pytest.raises(ValueError, match="6 tokens"):
        check_counts(answer)


def test_micro_pools_cycles_and_macro_averages_turns():
    rows = [row(1, [1]), row(2, [3, 3, 3])]
    summary = measures(rows, [plain(1, 3), plain(2, 13)], seed=0)
    assert summary["tau_micro"] == pytest.approx(14 / 4)
    assert summary["tau_macro"] == pytest.approx((2 + 4) / 2)


def test_a_turn_that_the_first_token_ended_has_no_tau():
    ended = row(1, [])
    assert tau_of(ended) is None
    summary = measures([ended, row(2, [1])], [plain(1, 1), plain(2, 3)], seed=0)
    assert summary["tau_macro"] == 2.0
    assert summary["num_tokens"] == 4


def test_rates_include_or_leave_out_the_prefill():
    rows = [row(1, [1, 1], seconds=(0.5, 2.0))]  # 5 tokens, 4 of them from cycles
    summary = summarize(Method("some"), rows, [plain(1, 5)], CONDITIONS)
    assert summary["tokens_per_second"] == pytest.approx(5 / 2.5)
    assert summary["decode_tokens_per_second"] == pytest.approx(4 / 2.0)
    assert summary["ttft_ms"] == pytest.approx(500)


def test_the_parts_of_a_cycle_add_up_to_its_time():
    rows = [row(1, [1, 1], seconds=(0.5, 2.0)), row(2, [0, 2], seconds=(0.5, 4.0))]
    summary = summarize(Method("some"), rows, [plain(1, 5), plain(2, 5)], CONDITIONS)
    parts = summary["draft_ms"] + summary["verify_ms"] + summary["overhead_ms"]
    assert parts == pytest.approx(1e3 * 6.0 / 4)
    assert summary["draft_ms"] == pytest.approx(0.25 * 1500)


def test_latency_is_a_cycles_time_shared_by_its_tokens():
    """Cycles of 1 s with 1, 2 and 4 tokens: waits 1, .5, .5, .25 x 4."""
    rows = [row(1, [0, 1, 3], seconds=(0.1, 3.0))]
    summary = summarize(Method("some"), rows, [plain(1, 8)], CONDITIONS)
    waits = [1000, 500, 500, 250, 250, 250, 250]
    assert summary["itl_p50_ms"] == pytest.approx(np.percentile(waits, 50))
    assert summary["itl_p95_ms"] == pytest.approx(np.percentile(waits, 95))


def test_speedup_is_the_ratio_of_wall_times_for_the_same_tokens():
    ours = [row(1, [1, 1], seconds=(0.5, 1.5)), row(2, [3], seconds=(0.5, 0.5))]
    base = [plain(1, 5, seconds=(0.5, 4.5)), plain(2, 5, seconds=(0.5, 2.5))]
    summary = measures(ours, base, seed=0)
    assert summary["speedup"] == pytest.approx(8 / 3)
    assert summary["speedup_low"] is summary["speedup_high"] is None  # of two questions


def test_speedup_of_different_texts_is_a_ratio_of_tokens_per_second():
    ours = [row(1, [1, 1], seconds=(0.0, 2.0))]  # 5 tokens in 2 s
    summary = measures(ours, [plain(1, 11, seconds=(0.0, 11.0))], seed=0)
    assert summary["speedup"] == pytest.approx(2.5)


@pytest.mark.parametrize("batch", [None, 0])
def test_one_stall_moves_the_plain_speedup_and_not_the_robust_one(batch):
    """Cycles of 20 ms that emit two tokens against ones of 30 ms: 3 times as fast, but for one of
    30 s. Rows of one batch waited for it together."""
    sizes = {"batch": batch, "seconds": (0.0, 0.4)}
    ours, base = ([row(name, [1] * 20, **sizes) for name in (1, 2)], [])
    for name in (1, 2):
        base.append(plain(name, 41, batch=batch, seconds=(0.0, 1.2)))
    even = summarize(Method("some"), ours, base, CONDITIONS)
    assert even["num_disturbed"] == 0
    assert even["speedup"] == pytest.approx(even["speedup_robust"]) == pytest.approx(3.0)
    for one in ours if batch == 0 else ours[:1]:
        one["cycle_s"][7], one["decode_s"] = 30.0, one["decode_s"] + 30.0
    stalled = summarize(Method("some"), ours, base, CONDITIONS)
    assert stalled["num_disturbed"] == 1
    assert stalled["speedup"] < 0.1
    assert stalled["speedup_robust"] == pytest.approx(3.0)
    ours[0]["num_replaced"] = ours[1]["num_replaced"] = 2
    both = summarize(Method("some"), ours, base, CONDITIONS)
    assert both["num_disturbed"] == (3 if batch == 0 else 5)


def test_rows_of_a_batch_share_its_time_once():
    """Four rows decoded together in 3 s are 3 s of work, not 12; the first two ended early."""
    rows = [
        row(name, [1] * cycles, batch=0, seconds=(1.0, float(cycles)))
        for name, cycles in (("a", 1), ("b", 1), ("c", 2), ("d", 2))
    ]
    wall, decode = batch_shares(rows)
    assert wall.sum() == pytest.approx(1 + 2)
    assert decode.sum() == pytest.approx(2)
    np.testing.assert_allclose(wall / wall.sum(), np.array([3, 3, 5, 5]) / 16)
    base = [plain(name, len(made["tokens"])) for name, made in zip("abcd", rows, strict=True)]
    summary = summarize(Method("some"), rows, base, CONDITIONS)
    assert summary["tokens_per_second"] == pytest.approx(16 / 3)
    assert summary["num_cycles"] == 6
    assert summary["draft_ms"] == pytest.approx(1e3 * 0.25 * 2 / 2)


def test_intervals_draw_questions_with_all_their_turns():
    """Turns of 1 and 3 in every question: each question's mean is 2, so is every resample's."""
    rows, base = [], []
    for name in range(6):
        rows += [row(name, [0], turn=1), row(name, [2], turn=2)]
        base += [plain(name, 2, turn=1), plain(name, 4, turn=2)]
    summary = measures(rows, base, seed=0)
    assert summary["tau_macro_low"] == summary["tau_macro_high"] == 2.0


def test_answers_to_other_turns_are_not_compared():
    for rows, base in (
        ([row(1, [1])], [plain(1, 3), plain(2, 3)]),
        ([row(1, [1]), row(1, [1])], [plain(1, 3)]),
    ):
        with pytest.raises(ValueError, match="^some "):
            measures(rows, base, seed=0)


def test_a_summary_has_the_promised_columns():
    summary = summarize(Method("some"), [row(1, [1])], [plain(1, 3)], CONDITIONS)
    assert tuple(summary) == COLUMNS
    assert set(COLUMNS) >= CONTRACT_COLUMNS


def test_a_peak_that_nobody_counted_is_none():
    rows = [plain(number, 3) | {"peak_memory_mb": None} for number in (1, 2)]
    assert summarize(Method("vanilla"), rows, rows, CONDITIONS)["peak_memory_mb"] is None


def test_an_untimed_run_has_no_times_but_all_counts():
    rows = [row(1, [1], seconds=None)]
    summary = summarize(Method("some"), rows, [plain(1, 3, seconds=None)], CONDITIONS)
    assert summary["tau_micro"] == 2.0
    timed = (
        "tokens_per_second",
        "speedup",
        "speedup_robust",
        "num_disturbed",
        "draft_ms",
        "ttft_ms",
        "itl_p50_ms",
    )
    assert all(summary[name] is None for name in timed)


def test_an_infeasible_setting_is_a_row_that_says_so():
    method = Method("some", depth=1, width=2, num_nodes=9, infeasible="pool of 2")
    summary = summarize(method, [], [plain(1, 3)], CONDITIONS)
    assert (summary["status"], summary["num_nodes"]) == ("infeasible", 9)
    assert summary["tau_micro"] is None
    assert summarize_categories(method, [], [plain(1, 3)], CONDITIONS) == []


def test_categories_are_measured_apart():
    rows = [row(1, [1]), row(2, [3], category="writing")]
    base = [plain(1, 3), plain(2, 5, category="writing")]
    table = summarize_categories(Method("some"), rows, base, CONDITIONS)
    assert [(line["category"], line["tau_micro"]) for line in table] == [
        ("math", 2.0),
        ("writing", 4.0),
    ]
    assert set(table[0]) == set(CATEGORY_COLUMNS)


def test_acceptance_by_depth_leaves_cut_cycles_out_of_the_rejections():
    found = acceptance([row(1, [2, 0, 4, 1], [3, 1, 5, 1])], depth=4)
    assert found["histogram"] == [1, 1, 1, 0, 1]
    assert found["cumulative"] == [3 / 4, 3 / 4, 3 / 8, 3 / 8]
    assert found["conditional"] == [3 / 4, 2 / 2, 1 / 2, 1.0]


def test_copies_longer_than_the_tree_is_deep_are_counted():
    found = acceptance([row(1, [3, 0], [4, 1])], depth=2)
    assert found["cumulative"] == [1 / 2, 1 / 2, 1 / 2]

"""Acceptance by depth, against counts made by hand."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from eagle_lab.bench.statistics import conditional_from_lengths, cumulative_from_lengths
from eagle_lab.reports.acceptance import (
    acceptance_by_depth,
    accepted_histogram,
    cycles,
    tokens_per_cycle,
)
from eagle_lab.reports.frames import summarize_generations


def generation(accepted: list[int], emitted: list[int], question: int = 1, **more: object):
    row = {
        "label": "chain", "method": "chain", "question_id": question, "turn": 1, "repeat": 1,
        "tokens": [0] * (1 + sum(emitted)),
        "accepted_lengths": accepted, "emitted_lengths": emitted,
    }  # fmt: skip
    return row | more


def table(rows: list[dict]) -> pd.DataFrame:
    return acceptance_by_depth(cycles(pd.DataFrame(rows)))


def test_whole_cycles_of_the_module_example():
    found = table([generation([2, 0, 4], [3, 1, 5])])
    assert found["depth"].tolist() == [1, 2, 3, 4]
    assert found["trials"].tolist() == [3, 2, 2, 1]
    assert found["accepted"].tolist() == [2, 2, 1, 1]
    np.testing.assert_allclose(found["conditional"], [2 / 3, 1, 1 / 2, 1])
    np.testing.assert_allclose(found["cumulative"], [2 / 3, 2 / 3, 1 / 3, 1 / 3])


def test_a_cut_cycle_is_no_trial_beyond_what_it_emitted():
    """The last cycle emits its two drafts and no token of the target's: depth 3 stays unknown."""
    found = table([generation([3, 2], [4, 2])])
    assert found["trials"].tolist() == [2, 2, 1]
    assert found["accepted"].tolist() == [2, 2, 1]


def test_agrees_with_the_bench():
    random = np.random.default_rng(3)
    accepted = random.integers(0, 5, 200).tolist()
    cut = (random.random(200) < 0.1).tolist()
    emitted = [n + (not c) for n, c in zip(accepted, cut, strict=True)]
    rows = [
        generation([n], [e], question=index)
        for index, (n, e) in enumerate(zip(accepted, emitted, strict=True))
        if e
    ]
    kept = [index for index, e in enumerate(emitted) if e]
    accepted, cut = [accepted[i] for i in kept], [cut[i] for i in kept]
    judged = [n + (not c) for n, c in zip(accepted, cut, strict=True)]
    found = table(rows)
    np.testing.assert_allclose(found["conditional"], conditional_from_lengths(accepted, judged))
    np.testing.assert_allclose(found["cumulative"], cumulative_from_lengths(accepted, cut))


def test_a_draft_that_ended_is_no_rejection():
    """Two cycles drafted nothing, one had its two tokens accepted; half the rows are older."""
    found = table([generation([0, 2, 0], [1, 3, 1], judged_lengths=[0, 2, 0])])
    assert found["trials"].tolist() == [1, 1]
    assert found["conditional"].tolist() == [1.0, 1.0]
    np.testing.assert_allclose(found["cumulative"], [1 / 3, 1 / 3])
    older = table([generation([0, 2, 0], [1, 3, 1])])
    np.testing.assert_allclose(older["conditional"], [1 / 3, 1.0])
    mixed = [generation([0, 2], [1, 3], 1, judged_lengths=[0, 2]), generation([0], [1], 2)]
    assert table(mixed)["trials"].tolist() == [2, 1]


def test_a_depth_that_was_drafted_but_never_accepted_is_zero():
    found = acceptance_by_depth(cycles(pd.DataFrame([generation([1, 0], [2, 1])])), {"chain": 3})
    assert found["depth"].tolist() == [1, 2]
    assert found["conditional"].tolist() == [0.5, 0.0]


def test_copies_longer_than_the_tree_is_deep_are_shown():
    found = acceptance_by_depth(cycles(pd.DataFrame([generation([3, 0], [4, 1])])), {"chain": 2})
    assert found["depth"].tolist() == [1, 2, 3]


def test_intervals_resample_questions():
    """Six questions, three always accepted, three never: 1 of 64 resamples is 0, 6 are 1/6."""
    rows = [generation([1] * 10, [2] * 10, question) for question in range(3)]
    rows += [generation([0] * 10, [1] * 10, question) for question in range(3, 6)]
    found = table(rows).iloc[0]
    for name in ("conditional", "cumulative"):
        assert found[f"{name}_low"] == pytest.approx(1 / 6)
        assert found[f"{name}_high"] == pytest.approx(5 / 6)


def test_few_questions_have_no_interval():
    rows = [generation([1, 0], [2, 1], question) for question in range(4)]
    assert table(rows)[["conditional_low", "cumulative_high"]].isna().all(axis=None)


def test_a_depth_that_few_questions_reach_has_no_interval():
    """Five of six questions reach depth 2, four depth 3; what a cycle accepts rests on all six."""
    accepted = [0, 1, 2, 2, 3, 3]
    found = table([generation([n, 0], [n + 1, 1], place) for place, n in enumerate(accepted)])
    assert found["trials"].tolist() == [12, 5, 4]
    for end in ("low", "high"):
        assert found[f"conditional_{end}"].isna().tolist() == [False, False, True]
        assert found[f"cumulative_{end}"].notna().all()


def test_histogram_and_means_per_cycle():
    rows = pd.DataFrame([generation([2, 0, 0, 4], [3, 1, 1, 4], num_drafted=20)])
    per_cycle = cycles(rows)
    shares = accepted_histogram(per_cycle)
    assert dict(zip(shares["accepted"], shares["share"], strict=True)) == {0: 0.5, 2: 0.25, 4: 0.25}
    means = tokens_per_cycle(rows, per_cycle).iloc[0]
    assert (means["drafted"], means["accepted"], means["emitted"]) == (5.0, 1.5, 2.25)


def test_summary_of_unfinished_work():
    """Three cycles that accept 2, 0, 4: 9 tokens after the first, tau 3 (micro); macro by turn."""
    rows = pd.DataFrame(
        [
            generation([2, 0, 4], [3, 1, 5], 1, prefill_s=1.0, decode_s=2.0),
            generation([0], [1], 2, prefill_s=1.0, decode_s=1.0),
        ]
    )
    row = summarize_generations(rows).iloc[0]
    assert row["tau_micro"] == 10 / 4
    assert row["tau_macro"] == (3 + 1) / 2
    assert (row["num_questions"], row["num_cycles"], row["num_tokens"]) == (2, 4, 12)
    assert row["tokens_per_second"] == pytest.approx(12 / 5)

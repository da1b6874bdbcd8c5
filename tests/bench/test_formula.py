"""Leviathan's formula of a bench's own acceptance, beside what the bench measured."""

from __future__ import annotations

import numpy as np
import pytest

from eagle_lab.bench.formula import formula_rows
from eagle_lab.bench.results import Conditions, summarize
from eagle_lab.methods.build import Method
from tests.bench.fakes import row

CONDITIONS = Conditions(batch_size=1, temperature=0.0, seed=0)


def chain(length, accepted, emitted=None, question_id=1, **changes):
    """A row of the method `speculative` with drafts of one length."""
    made = row(question_id, accepted, emitted, method="speculative")
    sizes = {"depth": length, "num_nodes": length, "num_drafted": length * len(accepted)}
    return made | sizes | {"settings": {"num_draft_tokens": length}} | changes


def plain(num_tokens, question_id=1, **changes):
    return row(question_id, [0] * (num_tokens - 1), method="vanilla") | changes


def formula_of(vanilla, *chains):
    """`formula_rows` of vanilla's rows and of those of each length."""
    summary = [summarize(Method("vanilla"), vanilla, vanilla, CONDITIONS)]
    for rows in chains:
        length = rows[0]["depth"]
        settings = {"num_draft_tokens": length}
        method = Method("speculative", settings=settings, depth=length, num_nodes=length)
        summary.append(summarize(method, rows, vanilla, CONDITIONS))
    return formula_rows(summary, vanilla + [one for rows in chains for one in rows], seed=0)


def test_one_rate_of_all_lengths_predicts_each():
    """1: four drafts, three accepted; 2: accepted 2, 0, 1 of five judged; alpha 6/9."""
    one, two = formula_of([plain(8)], [chain(1, [1, 0, 1, 1])], [chain(2, [2, 0, 1])])
    assert (one["num_draft_tokens"], two["num_draft_tokens"]) == (1, 2)
    assert (one["acceptance"], two["acceptance"]) == (3 / 4, 3 / 5)
    assert one["alpha"] == two["alpha"] == pytest.approx(2 / 3)
    assert one["predicted_tau_micro"] == pytest.approx(1 + 2 / 3)
    assert two["predicted_tau_micro"] == pytest.approx(1 + 2 / 3 + 4 / 9)
    assert (one["tau_micro"], two["tau_micro"]) == (7 / 4, 6 / 3)


def test_a_cycle_cut_by_the_end_of_the_text_rejected_nothing():
    (line,) = formula_of([plain(5)], [chain(4, [0, 3], [1, 3])])
    assert line["acceptance"] == 3 / 4  # 0 of 1, and 3 of 3


def test_what_a_row_recorded_as_judged_counts():
    """One token accepted, none judged after it: no rejection."""
    (line,) = formula_of([plain(3)], [chain(4, [1], judged_lengths=[1])])
    assert line["acceptance"] == 1.0


def test_speedups_leave_prefill_out_and_take_the_passes_own_costs():
    """Cycles of 30 ms drafting and 60 ms verifying, plain steps of 40 ms: c 3/8, v(3) 3/2."""
    times = {"draft_s": 0.06, "verify_s": 0.12, "decode_s": 0.2, "prefill_s": 9.0}
    drafted = chain(2, [2, 2]) | times
    vanilla = plain(7) | {"draft_s": 0.0, "verify_s": 6 * 0.04, "decode_s": 6 * 0.05}
    (line,) = formula_of([vanilla], [drafted])
    assert line["predicted_decode_speedup"] == pytest.approx(3 / (2 * 3 / 8 + 3 / 2))
    assert line["decode_speedup"] == pytest.approx(0.3 / 0.2)


def test_untimed_runs_predict_tokens_alone():
    untimed = dict.fromkeys(("prefill_s", "decode_s", "draft_s", "verify_s", "cycle_s"))
    (line,) = formula_of([plain(4) | untimed], [chain(2, [2]) | untimed])
    assert line["predicted_tau_micro"] == 3.0
    assert line["predicted_decode_speedup"] is None and line["decode_speedup"] is None


def test_drafts_of_varying_length_have_no_formula():
    assert formula_of([plain(4)], [chain(3, [2], num_drafted=2)]) == []
    vanilla = [plain(4)]
    assert (
        formula_rows([summarize(Method("vanilla"), vanilla, vanilla, CONDITIONS)], vanilla, 0) == []
    )


@pytest.mark.parametrize(("chances", "held"), [([0.7] * 8, True), ([0.9, *[0.3] * 7], False)])
def test_the_formula_holds_for_equal_chances_and_misses_others(chances, held):
    """8 lengths of 4000 cycles: tau's standard errors are below 1.3 %, alpha's adds less than
    0.5 %, so 6 % is over 4 of them, a false alarm in less than 1 of 1000 runs. Falling chances
    miss by more."""
    random = np.random.default_rng(0)
    lines = []
    for length in range(1, 9):
        right = random.random((4000, length)) < chances[:length]
        accepted = np.cumprod(right, axis=1).sum(axis=1)
        lines.append(
            [
                chain(length, part.tolist(), question_id=i)
                for i, part in enumerate(accepted.reshape(8, -1))
            ]
        )
    vanilla = [plain(len(lines[0][i]["tokens"]), question_id=i) for i in range(8)]
    found = formula_of(vanilla, *lines)
    off = [abs(line["predicted_tau_micro"] / line["tau_micro"] - 1) for line in found]
    assert (max(off) < 0.06) is held
    assert all(line["tau_micro_low"] < line["tau_micro"] < line["tau_micro_high"] for line in found)

"""Tables of a bench and of a training: methods, costs, acceptance, categories, divergences."""

from __future__ import annotations

import pandas as pd

from eagle_lab.bench.statistics import MIN_QUESTIONS
from eagle_lab.reports.tables import Table, decimals, make_table, text, with_interval
from eagle_lab.reports.words import notes_on

_METHOD_NOTES = {
    "tau_micro": "τ is the number of tokens emitted per cycle, the target's own included: macro is "
    "the mean over turns, micro is pooled over cycles.",
    "speedup": "Speedup is vanilla's wall time per emitted token over the method's.",
    "num_tokens": "In brackets: 95 % intervals, paired bootstrap over questions. Those of few "
    "questions are too narrow (of means of normal values, 83 % hold the truth at 5 questions, 92 % "
    f"at 16); there are none below {MIN_QUESTIONS}.",
    "tokens_per_second": "Tokens/s are end to end; decode leaves prefill and the first token out.",
    "greedy_match_rate": "Greedy match is the share of turns equal to vanilla's token for token, "
    "ties counted as equal.",
}
_COST_NOTES = {
    "emitted": "Drafted, accepted and emitted tokens are means per cycle; the target verifies the "
    "drafted tokens and the root in one pass.",
    "verify_ms": "Draft, verify and overhead times are means per cycle, too.",
    "itl_p50_ms": "ITL is the inter-token latency: cycle time over the tokens that the cycle "
    "emitted.",
    "peak_memory_mb": "Peak memory is each method's on a GPU; on a CPU it is the process's so far "
    "and tells no methods apart.",
}


def method_table(summary: pd.DataFrame) -> Table:
    """τ, speed and exactness, one row per method and setting; infeasible settings say so."""
    rows = summary
    columns = {
        "method": rows["label"],
        "τ macro": with_interval(rows, "tau_macro"),
        "τ micro": rows["tau_micro"].map(decimals(2)),
        "speedup": with_interval(rows, "speedup", unit="×"),
        "tokens/s": rows["tokens_per_second"].map(decimals(1)),
        "decode tokens/s": rows["decode_tokens_per_second"].map(decimals(1)),
        "greedy match": rows["greedy_match_rate"].map(decimals(3)),
        "tokens": rows["num_tokens"].map(decimals(0)),
        "cycles": rows["num_cycles"].map(decimals(0)),
        "remark": rows.apply(_remark, axis=1),
    }
    return make_table("methods", "Methods", rows, columns, notes_on(rows, _METHOD_NOTES))


def _remark(row: pd.Series) -> str:
    if row["infeasible"]:
        return "infeasible"
    matches = str(row.get("drafter_matches_target")).lower()
    return "drafter trained for another target" if matches in {"false", "0", "0.0"} else ""


def cost_table(summary: pd.DataFrame, per_cycle: pd.DataFrame) -> Table:
    """Where the time goes, one row per method: tokens and milliseconds per cycle, latencies."""
    rows = summary.merge(per_cycle, on="label", how="left")
    columns = {
        "method": rows["label"],
        "drafted": rows["drafted"].map(decimals(1)),
        "accepted": rows["accepted"].map(decimals(2)),
        "emitted": rows["emitted"].map(decimals(2)),
        "draft ms": rows["draft_ms"].map(decimals(1)),
        "verify ms": rows["verify_ms"].map(decimals(1)),
        "overhead ms": rows["overhead_ms"].map(decimals(1)),
        "first token ms": rows["ttft_ms"].map(decimals(0)),
        "ITL p50 ms": rows["itl_p50_ms"].map(decimals(1)),
        "ITL p95 ms": rows["itl_p95_ms"].map(decimals(1)),
        "ITL p99 ms": rows["itl_p99_ms"].map(decimals(1)),
        "peak memory MB": rows["peak_memory_mb"].map(decimals(0)),
    }
    return make_table("costs", "Cost of a cycle", rows, columns, notes_on(rows, _COST_NOTES))


def acceptance_table(by_depth: pd.DataFrame) -> Table:
    """Conditional and cumulative acceptance per method and depth."""
    columns = {
        "method": by_depth["label"],
        "depth": by_depth["depth"].map(decimals(0)),
        "reached by cycles": by_depth["trials"].map(decimals(0)),
        "accepted": by_depth["accepted"].map(decimals(0)),
        "conditional [95 %]": with_interval(by_depth, "conditional", 3),
        "cumulative [95 %]": with_interval(by_depth, "cumulative", 3),
    }
    note = (
        "Conditional: accepted at this depth, given that everything before it was (at depth n of a "
        "chain, the field's (n−1)-α), where the draft went on; a draft that ended is no "
        "rejection. Cumulative: accepted at least so deep, drafts that ended before included. A "
        "cycle cut by the end of the text or the length limit counts only as far as it went."
    )
    return make_table("acceptance", "Acceptance by depth", by_depth, columns, note)


def category_table(by_category: pd.DataFrame, value: str) -> Table:
    """One row per method, one column per category and a speedup column for each where timed."""
    columns: dict[str, pd.Series] = {}
    order = list(dict.fromkeys(by_category["label"]))
    categories = list(dict.fromkeys(by_category["category"]))
    columns["method"] = pd.Series(order)
    for category in categories:
        rows = by_category[by_category["category"] == category].drop_duplicates("label")
        rows = rows.set_index("label").reindex(order)
        speed = rows["speedup"].map(decimals(2, "×"))
        tau = rows[value].map(decimals(2))
        columns[category] = tau.where(speed == "", tau + " / " + speed)
    timed = by_category["speedup"].notna().any()
    note = "τ / speedup in each category." if timed else "τ in each category."
    return make_table("categories", "Categories", by_category, columns, note)


def divergence_table(divergences: pd.DataFrame, noise: float | None = None) -> Table:
    """First differences from vanilla's greedy output, ties included, as the bench judged them.

    Args:
        divergences: `Run.divergences`.
        noise: how much the target's logits vary with the size of a pass, if measured.
    """
    columns = {
        str(column).replace("_", " "): divergences[column].map(text) for column in divergences
    }
    note = (
        "Each row is the first position at which a turn leaves vanilla's greedy output. A tie "
        "counts as equal, since the target cannot tell the tokens apart: in float32 both tokens' "
        "logits lie less than 0.001 below the best one there; in half precision the logits of all "
        "tokens of the turn from there on lie within 4 units in the last place of the best one."
    )
    if noise is not None:
        note += f" In this run the target's logits varied by up to {noise:.1e} with a pass's size."
    return make_table("divergences", "Divergences from vanilla", divergences, columns, note)


def training_table(training: pd.DataFrame, acceptance: list[str], tau: str | None) -> Table:
    """Held-out acceptance by depth and expected tokens per cycle at each validation."""
    columns = {"step": training["step"].map(decimals(0))}
    for depth, name in enumerate(acceptance, start=1):
        columns[f"depth {depth}"] = training[name].map(decimals(3))
    if tau:
        columns["expected τ"] = training[tau].map(decimals(2))
    note = "Conditional acceptance of a chain on held-out conversations, teacher-forced."
    return make_table("training", "Training", training, columns, note)

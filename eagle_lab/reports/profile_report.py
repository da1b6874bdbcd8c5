"""The report of a profile: its sections, tables and findings."""

from __future__ import annotations

from typing import Any

import pandas as pd

from eagle_lab.reports import profile_plots
from eagle_lab.reports.content import Section, drawn
from eagle_lab.reports.crossover import crossover_section, crossover_sentences
from eagle_lab.reports.profile import Profile
from eagle_lab.reports.tables import Table, decimals, make_table, text, with_interval
from eagle_lab.reports.words import setting_words

_NAMED_COUNTS = (4, 8, 16)


def profile_sections(profile: Profile) -> list[Section]:
    """Costs of a pass, costs of a cycle, predicted speedups."""
    figures = [profile_plots.cost_curves(profile), profile_plots.relative_cost(profile)]
    return [
        Section("Cost of a pass", drawn(figures), [limits_table(profile), pass_table(profile)]),
        Section("Cost of a cycle", [], [overhead_table(profile.overhead)]),
        Section("Predicted speedup", [], [prediction_table(profile.predictions)]),
        crossover_section(profile.crossover),
    ]


def pass_table(profile: Profile) -> Table:
    """Every pass: its time, relative cost and share of the machine's limits."""
    rows = pd.concat([profile.of("target"), profile.of("draft")], ignore_index=True)
    between = rows["low_ms"].map(decimals(2)) + " to " + rows["high_ms"].map(decimals(2))
    columns = {
        "pass": rows["model_pass"],
        "batch": rows["batch_size"].map(text),
        "context": rows["context"].map(text),
        "tokens": rows["num_tokens"].map(text),
        "median ms": rows["median_ms"].map(decimals(2)),
        "half lie in": between,
        "plain ms": rows["plain_median_ms"].map(decimals(2)),
    }
    if "relative_cost" in rows:
        columns |= {
            "to one token": rows["relative_cost"].map(decimals(2, "×")),
            "plain, to one token": rows["plain_relative_cost"].map(decimals(2, "×")),
            "GB/s": rows["gigabytes_per_second"].map(decimals(1)),
            "of reads": (100 * rows["read_share"]).map(decimals(0, " %")),
            "GFLOP/s": rows["gigaflops"].map(decimals(1)),
            "of arithmetic": (100 * rows["arithmetic_share"]).map(decimals(0, " %")),
        }
    note = (
        "Plain: the same pass with unmodified Hugging Face layers, timed in the same rounds. GB/s "
        "count weights, keys and values once per pass; GFLOP/s the matrix products. Shares are of "
        "the machine's measured limits."
    )
    return make_table("passes", "Passes", rows, columns, note)


def limits_table(profile: Profile) -> Table:
    """What the machine reached at most: memory reads and matrix products."""
    limits = pd.Series(profile.totals.get("ceilings") or {}, dtype=float)
    if limits.empty:
        return make_table("limits", "Limits of the machine", pd.DataFrame(), {})
    rows = pd.DataFrame({"limit": limits.index, "per_second": limits.to_numpy()})
    reads = rows["limit"] == "read"
    columns = {
        "limit": (rows["limit"] + " products").mask(reads, "memory reads"),
        "GB/s": (rows["per_second"] / 1e9).where(reads).map(decimals(1)),
        "GFLOP/s": (rows["per_second"] / 1e9).mask(reads).map(decimals(1)),
    }
    note = "The fastest of all rounds: a block read once, and a square matrix product."
    return make_table("limits", "Limits of the machine", rows, columns, note)


def overhead_table(rows: pd.DataFrame) -> Table:
    """Medians per cycle of a short decode, and what is neither target nor drafter."""
    if rows.empty:
        return make_table("overhead", "Cycles", rows, {})
    columns = {
        "method": rows["method"],
        "batch": rows["batch_size"].map(text),
        "cycles": rows["num_cycles"].map(text),
        "cycle ms": rows["cycle_ms"].map(decimals(1)),
        "models ms": rows["models_ms"].map(decimals(1)),
        "overhead ms": rows["overhead_ms"].map(decimals(2)),
        "half lie in": rows["overhead_low_ms"].map(decimals(2))
        + " to "
        + rows["overhead_high_ms"].map(decimals(2)),
        "of a cycle": (100 * rows["overhead_ms"] / rows["cycle_ms"]).map(decimals(1, " %")),
    }
    note = "Medians per cycle. Overhead is everything outside the passes of target and drafter."
    return make_table("overhead", "Cycles", rows, columns, note)


def prediction_table(rows: pd.DataFrame) -> Table:
    """Speedups predicted from costs and acceptance, beside those of the bench."""
    if rows.empty:
        return make_table("predictions", "Predicted and measured speedup", rows, {})
    columns = {
        "method": rows["method"],
        "depth": rows["depth"].map(text),
        "width": rows["width"].map(text),
        "nodes": rows["num_nodes"].map(text),
        "τ micro": rows["tau_micro"].map(decimals(2)),
        "predicted": rows["predicted_speedup"].map(decimals(2, "×")),
        "measured, decode": rows["decode_speedup"].map(decimals(2, "×")),
        "measured, with prefill": with_interval(rows, "speedup", unit="×"),
        "remark": rows["best"].map(lambda kind: "" if pd.isna(kind) else f"best {kind}"),
    }
    note = (
        "Predicted from the acceptance of a bench and the costs above: tokens per cycle times a "
        "plain step, over the cycle's passes and overhead. Length 0 of a chain is plain decoding. "
        "A row without measurement was not in the bench."
    )
    return make_table("predictions", "Predicted and measured speedup", rows, columns, note)


def profile_sentences(profile: Profile, config: dict[str, Any], provenance: dict[str, Any]) -> list:
    """Where it was measured, what tokens cost, how near the limits, overhead, best settings."""
    said = [
        f"Measured: {setting_words(config, provenance)}.",
        _costs(profile),
        _limits(profile),
        _draft(profile),
        _overhead(profile.overhead),
        *_best(profile.predictions),
        *crossover_sentences(profile.crossover),
    ]
    return [sentence for sentence in said if sentence]


def _place(rows: pd.DataFrame) -> str:
    first = rows.iloc[0]
    return f"batch size {first['batch_size']:g}, context {first['context']:g}"


def _costs(profile: Profile) -> str:
    rows = profile.first("target").set_index("num_tokens")
    one = rows.loc[1]
    said = f"A target pass over one token takes {one['median_ms']:.1f} ms"
    if pd.notna(one["plain_median_ms"]):
        ratio = one["plain_median_ms"] / one["median_ms"]
        said += f" ({one['plain_median_ms']:.1f} ms with plain layers, {ratio:.2f} times as long)"
    dearer = [
        f"{count} tokens {rows.loc[count, 'median_ms'] / one['median_ms']:.2f}"
        for count in _NAMED_COUNTS
        if count in rows.index
    ]
    more = f"; {', '.join(dearer)} times that" if dearer else ""
    return f"{said}{more} ({_place(profile.first('target'))})."


def _limits(profile: Profile) -> str:
    rows = profile.first("target")
    if "read_share" not in rows:
        return ""
    one, most = rows.iloc[0], rows.iloc[-1]
    return (
        f"The pass over one token reads {one['gigabytes_per_second']:.1f} GB/s, "
        f"{one['read_share']:.0%} of what the machine can; the one over {most['num_tokens']:g} "
        f"computes {most['gigaflops']:,.0f} GFLOP/s, {most['arithmetic_share']:.0%}."
    )


def _draft(profile: Profile) -> str:
    if profile.of("draft").empty:
        return ""
    rows, target = profile.first("draft"), profile.first("target")["median_ms"].iloc[0]
    nearest = rows.loc[(rows["num_tokens"] - 10).abs().idxmin()]
    return (
        f"A draft step over {nearest['num_tokens']:g} nodes takes {nearest['median_ms']:.1f} ms, "
        f"{nearest['median_ms'] / target:.1%} of a target pass over one token."
    )


def _overhead(rows: pd.DataFrame) -> str:
    if rows.empty:
        return ""
    first = rows[rows["batch_size"] == rows["batch_size"].min()]
    shares = first["overhead_ms"] / first["cycle_ms"]
    worst = first.loc[shares.idxmax()]
    most = f"{worst['overhead_ms']:.1f} of {worst['cycle_ms']:.1f} ms"
    return (
        f"Outside the two models a cycle spends {shares.min():.1%} to {shares.max():.1%} of its "
        f"time (most in {worst['method']}: {most})."
    )


def _best(rows: pd.DataFrame) -> list[str]:
    if rows.empty:
        return []
    said = []
    for _, row in rows.dropna(subset=["best"]).iterrows():
        sizes = f"depth {row['depth']:g}, {row['num_nodes']:g} nodes"
        if row["predicted_speedup"] <= 1:
            said.append(f"No {row['best']} is predicted to beat plain decoding.")
            continue
        measured = row["decode_speedup"]
        beside = "not in the bench" if pd.isna(measured) else f"measured {measured:.2f}×"
        said.append(
            f"Best {row['best']} by the cost model: {row['method']} ({sizes}), "
            f"{row['predicted_speedup']:.2f}× predicted, {beside}."
        )
    return said

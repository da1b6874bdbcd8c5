"""The columns of every result file, written once: name, heading, decimals, unit, meaning.

The order of the CSV files, the tables of reports and terminal, LaTeX and docs/files.md follow from
the tables below. Needs neither torch nor pandas.

    python -m eagle_lab.columns      # the section of docs/files.md
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any


@dataclass(frozen=True)
class Column:
    """One column of a result file.

    Attributes:
        key: its name in the file.
        heading: its name in tables; empty for the key in words.
        note: what it means.
        decimals: places shown; None for text and for numbers that are shown as they are.
        unit: written after the number.
        scale: the number is shown times this, 100 for shares in percent.
        ends: columns of its interval, lower and upper end.
    """

    key: str
    heading: str = ""
    note: str = ""
    decimals: int | None = None
    unit: str = ""
    scale: float = 1.0
    ends: tuple[str, str] | None = None

    @property
    def title(self) -> str:
        """The heading, or the key in words."""
        return self.heading or self.key.replace("_", " ")

    def text(self, row: Mapping[str, Any]) -> str:
        """The cell of `row` as a reader sees it: `2.41 [2.20, 2.63]`; empty where unknown."""
        value = row.get(self.key)
        if _unknown(value):
            return ""
        low, high = (row.get(end) for end in self.ends or ("", ""))
        shown = self.number(value) + self.unit
        if _unknown(low) or _unknown(high):
            return shown
        return f"{shown} [{self.number(low)}, {self.number(high)}]"

    def number(self, value: Any) -> str:
        """A value without its unit; numbers with thousands grouped."""
        if self.decimals is not None:
            return f"{self.scale * value:,.{self.decimals}f}"
        return f"{value:g}" if isinstance(value, float) else str(value)


def _unknown(value: Any) -> bool:
    return value is None or value != value or value == ""


def csv_names(columns: Iterable[Column]) -> tuple[str, ...]:
    """Names in a file's order: every column and, after it, the ends of its interval."""
    return tuple(name for column in columns for name in (column.key, *(column.ends or ())))


def pick(columns: Iterable[Column], *keys: str) -> tuple[Column, ...]:
    """The columns of these keys, in the keys' order."""
    by_key = {column.key: column for column in columns}
    return tuple(by_key[key] for key in keys)


def _measure(key: str, heading: str, note: str, decimals: int = 2, unit: str = "") -> Column:
    """A number with a 95 % interval."""
    return Column(key, heading, note, decimals, unit, ends=(f"{key}_low", f"{key}_high"))


SUMMARY = (
    Column("method", note="name in conf/method/"),
    Column("drafter", note="folder of the drafter"),
    Column("drafter_matches_target", "", "false: the drafter was trained for another target"),
    Column("batch_size", "batch", "questions decoded side by side", 0),
    Column("temperature", "T", "sampling temperature; 0 is greedy"),
    Column("depth", note="levels drafted", decimals=0),
    Column("width", note="children per node, and nodes per level", decimals=0),
    Column("num_nodes", "nodes", "drafted tokens verified in one pass, the root not counted", 0),
    Column("settings", note="all settings of the method, as JSON"),
    Column("status", note="ok or infeasible"),
    Column("reason", note="why a setting is infeasible"),
    Column("lossless", note="false: output may differ from the target's by design"),
    Column("num_questions", "questions", "", 0),
    Column("num_turns", "turns", "", 0),
    Column("num_tokens", "tokens", "tokens emitted", 0),
    Column("num_cycles", "cycles", "passes that verify a draft", 0),
    Column(
        "num_disturbed", "disturbed", "cycles over ten times their median, remeasured or not", 0
    ),
    _measure("tau_micro", "τ", "tokens emitted per cycle, bonus token included, over all cycles"),
    _measure("tau_macro", "τ, mean over turns", "mean over turns of a turn's tokens per cycle"),
    Column("drafted_per_cycle", "drafted", "drafted tokens verified per cycle", 1),
    Column("tokens_per_second", "tokens/s", "end to end, prefill included", 1),
    Column("decode_tokens_per_second", "decode tokens/s", "without prefill and first token", 1),
    _measure("speedup", "speedup", "vanilla's wall time per token over the method's", unit="×"),
    Column("speedup_robust", "robust speedup", "from median times of prefill and cycle", 2, "×"),
    Column("draft_ms", "draft ms", "drafting, mean per cycle", 1),
    Column("verify_ms", "verify ms", "the target's pass, mean per cycle", 1),
    Column("overhead_ms", "overhead ms", "everything else, mean per cycle", 1),
    Column("ttft_ms", "first token ms", "time to the first token", 0),
    Column("itl_p50_ms", "ITL p50 ms", "inter-token latency, a cycle's time over its tokens", 1),
    Column("itl_p95_ms", "ITL p95 ms", "", 1),
    Column("itl_p99_ms", "ITL p99 ms", "", 1),
    Column("peak_memory_mb", "memory MB", "peak of the GPU; on a CPU of the process so far", 0),
    Column("greedy_match_rate", "greedy match", "share of turns equal to vanilla's or a tie", 3),
    Column("exact_rate", "exact", "share of turns equal to vanilla's token for token", 3),
    Column("tie_rate", "ties", "share of turns that differ first where the target has a tie", 3),
    Column("distribution_z", "z", "sampled tokens against the target's distribution", 2),
)
"""summary.csv: one row per method and setting; cells that do not apply are empty."""

CATEGORIES = (
    *pick(SUMMARY, "method"),
    Column("category", note="of the questions"),
    *pick(SUMMARY, "depth", "width", "num_nodes", "settings"),
    *pick(SUMMARY, "num_questions", "num_tokens", "num_cycles"),
    *pick(SUMMARY, "tau_micro", "tau_macro", "speedup"),
)
"""summary_by_category.csv: one row per method, setting and category."""

DIVERGENCES = (
    *pick(SUMMARY, "method", "depth", "width", "num_nodes", "settings"),
    Column("question_id", "question"),
    Column("turn"),
    Column("repeat"),
    Column("position", note="index of the first token that differs from vanilla's"),
    Column("vanilla_token", note="empty where the text has ended"),
    Column("token", note="the method's; empty where its text has ended"),
    Column("logit_gap", "", "how far the worse of the two lies below the target's best logit"),
    Column("verdict", note="tie: the target cannot tell the two apart; or mismatch"),
)
"""divergences.csv: one row per turn that leaves vanilla's greedy output."""

CURVES = (
    Column("model_pass", "pass", "target or draft"),
    *pick(SUMMARY, "batch_size"),
    Column("context", note="tokens in the cache", decimals=0),
    Column("num_tokens", "tokens", "in the pass, per row, the root included", 0),
    Column("median_ms", "median ms", "and its quartiles", 2, ends=("low_ms", "high_ms")),
    Column("plain_median_ms", "plain ms", "with unmodified Hugging Face layers", 2),
)
"""cost_curves.csv of a profile: one row per pass that was timed."""

WORK = (
    Column("relative_cost", "to one token", "over a pass of one token", 2, "×"),
    Column("plain_relative_cost", "plain, to one token", "", 2, "×"),
    Column("gigabytes_per_second", "GB/s", "weights, keys and values, read once per pass", 1),
    Column("gigaflops", "GFLOP/s", "matrix products", 1),
    Column("read_share", "of reads", "of what the machine was measured to read", 0, " %", 100),
    Column("arithmetic_share", "of arithmetic", "of what it was measured to do", 0, " %", 100),
)
"""summary.csv of a profile: the columns of cost_curves.csv, then these."""

OVERHEAD = (
    *pick(SUMMARY, "method", "depth", "width", "num_nodes", "batch_size", "num_cycles"),
    Column("cycle_ms", "cycle ms", "median", 1),
    Column("models_ms", "models ms", "passes of target and drafter, median", 1),
    Column(
        "overhead_ms", "overhead ms", "everything else, median and quartiles", 2,
        ends=("overhead_low_ms", "overhead_high_ms"),
    ),
)  # fmt: skip
"""overhead.csv of a profile: cycles of a short decode, one row per method and batch size."""

PREDICTIONS = (
    *pick(SUMMARY, "method", "depth", "width", "num_nodes"),
    Column("tau_micro", "τ", "of the bench, or predicted from its acceptance by depth", 2),
    Column("predicted_speedup", "predicted", "from τ and the cost curves; 1: none pays", 2, "×"),
    Column("decode_speedup", "measured, decode", "of the bench, prefill left out", 2, "×"),
    replace(*pick(SUMMARY, "speedup"), heading="measured"),
    Column("best", note="best predicted chain, best predicted tree"),
)
"""predictions.csv of a profile: predicted speedups beside a bench's."""

CROSSOVER = (
    Column("drafting", note="chain or tree"),
    *pick(CURVES, "batch_size", "context"),
    Column("acceptance", "accepted", "assumed chance of every token of a chain"),
    *pick(SUMMARY, "depth", "width", "num_nodes"),
    Column("tau", "τ", "assumed of a tree, follows for a chain", 2),
    Column("predicted_speedup", "predicted", "from τ and the cost curves", 2, "×"),
)
"""crossover.csv: predicted speedup by batch size; of chains, of the length that pays best."""

FILES = {
    "summary.csv": SUMMARY,
    "summary_by_category.csv": CATEGORIES,
    "divergences.csv": DIVERGENCES,
    "cost_curves.csv": CURVES,
    "summary.csv of a profile": (*CURVES, *WORK),
    "overhead.csv": OVERHEAD,
    "predictions.csv": PREDICTIONS,
    "crossover.csv": CROSSOVER,
}


def as_markdown() -> str:
    """A table per file: the columns in order, and what they mean."""
    parts = []
    for name, columns in FILES.items():
        parts += [f"### {name}\n", "| column | shown as | meaning |", "|---|---|---|"]
        for column in columns:
            ends = f", {' and '.join(f'`{end}`' for end in column.ends)}" if column.ends else ""
            parts.append(f"| `{column.key}`{ends} | {column.title} | {column.note} |")
        parts.append("")
    return "\n".join(parts)


if __name__ == "__main__":
    print(as_markdown())

"""Is a method's greedy output the target's own? Comparison with vanilla, token for token.

A divergence is a *tie*, not a mismatch, where the target itself cannot tell the tokens apart:

    float32         at the first divergence both tokens' logits lie less than 1e-3 (`TIE_GAP`) below
                    the best one there (rounding differs with the number of tokens in a pass;
                    `measure_noise` says how much in this run). After it the texts rightly differ.
    half precision  rounding is coarser, so the rest of the method's output is teacher-forced
                    through the target: from the first divergence on, every token's logit lies
                    within 4 (`HALF_PRECISION_UNITS`) units in the last place of the best one there.

A text that ends where the other goes on is a mismatch. Every divergence is listed, ties included.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor

from eagle_lab.bench.statistics import Row, turn_key
from eagle_lab.columns import DIVERGENCES, csv_names
from eagle_lab.engine.draft_tree import DraftTree
from eagle_lab.methods.build import identity
from eagle_lab.targets.target import Target

TIE_GAP = 1e-3
HALF_PRECISION_UNITS = 4
Teacher = Callable[[list[int], list[int]], Tensor]
"""(prompt, tokens) -> logits [len(tokens) + 1, V]: row i is the distribution of the i-th token."""

DIVERGENCE_COLUMNS = csv_names(DIVERGENCES)


@dataclass(frozen=True)
class Divergence:
    """First place where a turn leaves vanilla's.

    Attributes:
        position: index into the emitted tokens.
        vanilla_token, token: what stands there; None where a text has ended.
        logit_gap: how far the worse of the two lies below the target's best logit there; in half
            precision the largest such shortfall of the rest of the text. None if one has ended.
        verdict: `tie` or `mismatch`.
    """

    position: int
    vanilla_token: int | None
    token: int | None
    logit_gap: float | None
    verdict: str


@dataclass
class MatchReport:
    """Outcome for one method.

    Attributes:
        num_turns: turns compared.
        divergences: rows of divergences.csv, one for each turn that is not vanilla's.
    """

    num_turns: int
    divergences: list[dict[str, Any]] = field(default_factory=list)

    def rates(self) -> dict[str, float]:
        """Shares of turns: equal to vanilla's, different at a tie, and both together."""
        num_ties = sum(found["verdict"] == "tie" for found in self.divergences)
        num_equal = self.num_turns - len(self.divergences)
        return {
            "greedy_match_rate": (num_equal + num_ties) / self.num_turns,
            "exact_rate": num_equal / self.num_turns,
            "tie_rate": num_ties / self.num_turns,
        }


def match_rows(rows: Sequence[Row], vanilla: Sequence[Row], teacher: Teacher) -> MatchReport:
    """Compare a method's greedy rows with vanilla's.

    Raises:
        ValueError: if the two cover different turns, or were asked different prompts.
    """
    expected = {turn_key(row): row for row in vanilla}
    if len(rows) != len(vanilla) or {turn_key(row) for row in rows} != set(expected):
        raise ValueError("a method and vanilla answered other turns")
    divergences = []
    for row in rows:
        base = expected[turn_key(row)]
        if row["prompt_tokens"] != base["prompt_tokens"]:
            raise ValueError(f"{row['method']} and vanilla had other prompts at {turn_key(row)}")
        found = judge(row["prompt_tokens"], base["tokens"], row["tokens"], teacher)
        if found is not None:
            place = {name: row[name] for name in DIVERGENCE_COLUMNS if name in row}
            divergences.append(place | {"settings": identity(row["settings"])} | asdict(found))
    return MatchReport(len(rows), divergences)


def judge(
    prompt: list[int], vanilla: list[int], tokens: list[int], teacher: Teacher
) -> Divergence | None:
    """The first divergence of `tokens` from `vanilla`, judged by the target; None if equal."""
    position = first_divergence(vanilla, tokens)
    if position is None:
        return None
    if position == min(len(vanilla), len(tokens)):
        places = [text[position] if position < len(text) else None for text in (vanilla, tokens)]
        return Divergence(position, places[0], places[1], None, "mismatch")
    pair = (vanilla[position], tokens[position])
    logits = teacher(prompt, tokens)[position:]
    if logits.dtype == torch.float32:
        gap = float(logits[0].max() - logits[0, list(pair)].min())
        return Divergence(position, *pair, gap, "tie" if gap < TIE_GAP else "mismatch")
    shortfall, allowed = _shortfalls(logits, tokens[position:])
    verdict = "tie" if bool((shortfall <= allowed).all()) else "mismatch"
    return Divergence(position, *pair, float(shortfall.max()), verdict)


def first_divergence(one: Sequence[int], other: Sequence[int]) -> int | None:
    """Index of the first token that differs; a shorter text differs where it ends."""
    for position, (left, right) in enumerate(zip(one, other, strict=False)):
        if left != right:
            return position
    return None if len(one) == len(other) else min(len(one), len(other))


def _shortfalls(logits: Tensor, tokens: list[int]) -> tuple[Tensor, Tensor]:
    """How far each token lies below the best logit, and how far it may, both `[len(tokens)]`."""
    logits = logits[: len(tokens)]
    best = logits.max(dim=-1).values
    taken = logits.gather(1, torch.tensor(tokens, device=logits.device)[:, None])[:, 0]
    exponent = best.float().abs().clamp(min=torch.finfo(logits.dtype).tiny).log2().floor()
    unit = torch.finfo(logits.dtype).eps * 2.0**exponent
    return (best.float() - taken.float()), HALF_PRECISION_UNITS * unit


def teacher_of(target: Target) -> Teacher:
    """Distributions of `target` along a given text: the prompt, then all tokens in one pass."""

    def teacher(prompt: list[int], tokens: list[int]) -> Tensor:
        cache = target.new_cache(1)
        first = target.prefill([prompt], cache).logits[0]
        text = torch.tensor([tokens], device=target.device)
        chain = DraftTree.chain(text[:, 0], text[:, 1:])
        return torch.cat([first, target.score(chain, cache).logits[0]])

    return teacher


def measure_noise(
    target: Target, rows: Sequence[Row], *, num_turns: int = 3, num_tokens: int = 16
) -> dict[str, float | int]:
    """How much the target's logits change with the number of tokens in a pass.

    The first `num_tokens` tokens of `num_turns` rows, spread over `rows`, are scored in one pass
    and one at a time.

    Returns:
        `max_difference` of any logit, and over how many tokens that is.
    """
    teacher, largest, count = teacher_of(target), 0.0, 0
    for row in rows[:: max(1, len(rows) // num_turns)][:num_turns]:
        prompt, tokens = row["prompt_tokens"], row["tokens"][:num_tokens]
        together = teacher(prompt, tokens)[1:]
        cache = target.new_cache(1)
        target.prefill([prompt], cache)
        one = torch.ones(1, dtype=torch.long, device=target.device)
        for token, expected in zip(tokens, together, strict=True):
            logits = target.extend(one[:, None] * token, one, cache).logits[0, 0]
            largest = max(largest, float((logits - expected).abs().max()))
            count += 1
    return {"max_difference": largest, "num_tokens": count}

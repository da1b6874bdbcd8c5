"""`+experiment=chat`: talk to the target in the terminal, and see the tokens come in bursts."""

from __future__ import annotations

import sys
from itertools import cycle

from omegaconf import DictConfig
from rich.console import Console

from eagle_lab.api import generate
from eagle_lab.drafters.folder import shipped_for
from eagle_lab.engine.proposer import Proposer
from eagle_lab.errors import UserError
from eagle_lab.methods.build import VANILLA, MethodBuilder
from eagle_lab.runs.job import entries_from, sampling_from, target_from
from eagle_lab.targets.target import Target

_BURST_STYLES = ("bold", "none")  # alternate, so that one cycle's tokens can be told from the next
_HELP = "Empty line or Ctrl-D ends, /new starts over."


def run(config: DictConfig) -> None:
    """Answer what is typed (or piped) with the one method of `config.method`."""
    console = Console(highlight=False)
    sampling_from(config, "eval")  # a mistake is said before anything is loaded
    target = target_from(config)
    name, proposer = _proposer(config, target)
    console.print(f"[dim]{target.name}, {name}. {_HELP}[/dim]")
    messages: list[dict[str, str]] = []
    counts = [0, 0]  # tokens and cycles so far
    while question := _ask(console):
        if question == "/new":
            messages = []
            continue
        messages.append({"role": "user", "content": question})
        messages.append({"role": "assistant", "content": _answer(
            console, target, proposer, messages, config, counts)})  # fmt: skip


def _proposer(config: DictConfig, target: Target) -> tuple[str, Proposer]:
    """The chosen method; vanilla where none is chosen and there is no drafter."""
    entries = entries_from(config)
    if len(entries) > 1:
        raise UserError(f"chat takes one method, not {len(entries)}: method=[{', '.join(entries)}]")
    has_drafter = config.drafter.path or shipped_for(target.fingerprint)
    if not entries or (list(entries) == ["eagle_dynamic"] and not has_drafter):
        entries = {VANILLA: {"_target_": "eagle_lab.methods.vanilla.Vanilla"}}
    name, settings = next(iter(entries.items()))
    builder = MethodBuilder(target, config.drafter.path, round_weights=config.drafter.round_weights)
    method = builder.build(name, settings)
    if method.infeasible:
        raise UserError(method.infeasible)
    if method.proposer is None:
        raise UserError(f"chat shows methods of our own engine; {name} is another one's")
    return name, method.proposer


def _ask(console: Console) -> str:
    try:
        question = console.input("[bold cyan]you: [/bold cyan]")
    except EOFError:
        return ""
    if not sys.stdin.isatty():
        console.print(question)
    return question.strip()


def _answer(
    console: Console,
    target: Target,
    proposer: Proposer,
    messages: list[dict[str, str]],
    config: DictConfig,
    counts: list[int],
) -> str:
    """Print one answer as it arrives, and what it cost; returns its text."""
    styles = cycle(_BURST_STYLES)
    console.print("[bold green]model: [/bold green]", end="")
    answer = generate(
        target,
        None,
        messages,
        proposer=proposer,
        max_new_tokens=config.eval.max_new_tokens,
        temperature=config.eval.temperature,
        top_p=config.eval.top_p,
        top_k=config.eval.top_k,
        seed=config.seed + len(messages),
        on_text=lambda _, text: console.print(text, end="", style=next(styles), markup=False),
    )[0]
    generation = answer.generation
    counts[0] += sum(generation.emitted_lengths)
    counts[1] += len(generation.emitted_lengths)
    speed = len(generation.tokens) / (generation.prefill_s + generation.decode_s)
    console.print(
        f"\n[dim]τ {answer.tau:.2f} (so far {counts[0] / max(counts[1], 1):.2f}), "
        f"{speed:.1f} tokens/s[/dim]"
    )
    return answer.text

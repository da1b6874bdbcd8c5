"""What a drafter was trained on, how, and what it came to: sections of its model card.

A drafter that went on from a trained one has several stages; each tells of itself, oldest first.
What an older folder does not record is left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from eagle_lab.reports.tables import make_table, text

Training = Mapping[str, Any]
"""`training` of a drafter's config.json."""

_SHOWN = (
    *("prompts", "answers", "num_conversations", "num_tokens", "num_supervised", "sampled_share"),
    *("temperature", "top_k", "top_p", "max_new_tokens", "computed_in"),
)

# Settings that `started as` tells, or that do not reach the weights
_LEFT_OUT = ("init_from", "least_squares_start", "log_every_steps", "checkpoint_minutes")


def stages_of(training: Training) -> list[Training]:
    """The runs that made the weights, oldest first, the last one being `training` itself."""
    return [*training.get("earlier_stages", []), training] if training else []


def data_section(training: Training) -> str:
    """Where the conversations of each stage came from, one line a source."""
    stages = stages_of(training)
    rows = [
        {"stage": number, **{name: source.get(name) for name in _SHOWN}}
        for number, stage in enumerate(stages, start=1)
        for source in (stage.get("data") or {}).get("sources") or []
    ]
    if not rows:
        return ""
    note = (
        "Text that the target wrote itself in answer to prompts, and its features along the way. "
        "`training` are eagle_lab's own prompts made from templates, `self_written` ones that the "
        "target wrote; num_supervised counts the answers' tokens, sampled_share the share of "
        f"answers that were sampled instead of greedy.{_used(stages)}"
    )
    if not stages[1:]:
        rows = [{name: value for name, value in row.items() if name != "stage"} for row in rows]
    return _markdown("data", "Training data", rows, note)


def _used(stages: Sequence[Training]) -> str:
    counts = stages[-1].get("data") or {}
    if "num_train" not in counts:
        return ""
    said = (
        f" Of {counts['num_conversations']:,} conversations {counts['num_train']:,} were trained "
        f"on ({counts['num_train_tokens']:,} tokens, {counts['num_train_labels']:,} of them labels)"
        f" and {counts['num_val']:,} held out"
    )
    return f"{said}{' in the last stage' if stages[1:] else ''}."


def recipe_section(training: Training) -> str:
    """Time, hardware and every setting, a column a stage; settings that say nothing left out."""
    stages = stages_of(training)
    columns = [_recipe(stage) for stage in stages]
    names = list(dict.fromkeys(name for column in columns for name in column))
    rows = [
        {
            "setting": name,
            **{
                "value" if not stages[1:] else f"stage {number}": column.get(name)
                for number, column in enumerate(columns, start=1)
            },
        }
        for name in names
    ]
    if not rows:
        return ""
    minutes = sum(stage.get("minutes") or 0.0 for stage in stages)
    note = f"{minutes:.1f} minutes of training in all."
    if stages[1:]:
        note += " Each stage goes on from the weights of the one before."
    return _markdown("recipe", "Recipe", rows, note)


def _recipe(stage: Training) -> dict[str, Any]:
    """Setting -> value of one stage."""
    origin = stage.get("provenance") or {}
    machine = origin.get("machine") or {}
    processors = f", {machine['num_cpus']} CPUs" if machine.get("num_cpus") else ""
    vocabulary = stage.get("draft_vocabulary") or {}
    last = stage.get("validation") or {}
    coverage = vocabulary.get("coverage")
    facts = {
        "started as": stage.get("start"),
        "minutes": _rounded(stage.get("minutes")),
        "steps": stage.get("num_steps"),
        "tokens seen": last.get("num_tokens"),
        "hardware": f"{origin['device_name']}{processors}" if origin.get("device_name") else None,
        "date": str(origin.get("start") or "")[:10],
        "commit": str(origin.get("git_commit") or "")[:12],
        "answers' tokens in the draft vocabulary": f"{coverage:.1%}" if coverage else None,
    }
    asked = dict(stage.get("recipe") or {})
    known = {**facts, **asked, "seed": stage.get("seed"), "torch": stage.get("torch")}
    return {
        name: value
        for name, value in known.items()
        if value not in (None, "") and name not in _LEFT_OUT
    }


def acceptance_section(training: Training) -> str:
    """Conditional acceptance by depth and expected τ on held-out answers, a column a stage."""
    stages = [stage for stage in stages_of(training) if stage.get("validation")]
    if not stages:
        return ""
    found = [_acceptance(stage["validation"]) for stage in stages]
    names = list(dict.fromkeys(name for column in found for name in column))
    rows = [
        {
            "on held-out answers": name,
            **{
                "share" if not stages[1:] else f"stage {number}": column.get(name, "")
                for number, column in enumerate(found, start=1)
            },
        }
        for name in names
    ]
    depth = sum(name.startswith("val_acceptance_") for name in stages[-1]["validation"])
    note = (
        f"Greedy chains of {depth} tokens against the target's answers in conversations it was not "
        "trained on: of the drafts right so far, the share that is right at the next token."
    )
    if _split_may_differ(stages):
        note += (
            " The stages had different data or splits: conversations held out in the last one may "
            "have been trained on before, which flatters its numbers."
        )
    return _markdown("acceptance", "Held-out acceptance", rows, note)


def _acceptance(validation: Mapping[str, Any]) -> dict[str, str]:
    shares = {
        f"draft {name.removeprefix('val_acceptance_')}": f"{value:.3f}"
        for name, value in validation.items()
        if name.startswith("val_acceptance_")
    }
    return {
        **shares,
        "expected tokens per cycle (τ)": f"{validation['val_tau']:.3f}",
        "chains": f"{validation['val_num_chains']:,}",
    }


def _split_may_differ(stages: Sequence[Training]) -> bool:
    splits = {
        (
            (stage.get("data") or {}).get("store_digest"),
            stage.get("seed"),
            (stage.get("recipe") or {}).get("val_fraction"),
        )
        for stage in stages
    }
    return len(splits) > 1


def _markdown(name: str, title: str, rows: Sequence[Mapping[str, Any]], note: str) -> str:
    frame = pd.DataFrame(rows, dtype=object)
    columns = {str(head): frame[head].map(_cell) for head in frame}
    return make_table(name, title, frame, columns, note).to_markdown().strip()


def _cell(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else text(value)


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 1)

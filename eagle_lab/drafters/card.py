"""The model card of a drafter: README.md in its folder, made of what the folder holds.

Everything in it comes from config.json (kind, target, training, evaluation) and the header of the
weights, so it can be written anew at any time, for a drafter of any kind and without torch. Its
head is Hugging Face's; its text is card.md.j2.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from huggingface_hub import EvalResult, ModelCardData
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from safetensors import safe_open

from eagle_lab.columns import SUMMARY, pick
from eagle_lab.drafters.folder import CARD_FILE, CONFIG_FILE, WEIGHTS_FILE
from eagle_lab.errors import UserError
from eagle_lab.files import write_text

Described = Mapping[str, Any]
"""A drafter's config.json, or a part of it, as plain values."""

_BUILTIN = {
    "SmolLM2-135M-Instruct": ("smollm2_135m", ""),
    "tiny_random": ("tiny_random", " target=tiny_random"),
}
"""By a target's label: the name it is loaded by, and the option of commands that chooses it."""
_SOURCE = (
    *("prompts", "num_conversations", "num_tokens", "num_supervised", "sampled_share"),
    *("temperature", "top_k", "top_p", "max_new_tokens", "computed_in"),
)
_MEASURED = pick(
    SUMMARY,
    *("depth", "width", "num_nodes", "tau_micro", "tau_macro", "speedup", "greedy_match_rate"),
    *("num_questions", "num_tokens"),
)
# Settings that `started as` tells, or that do not reach the weights
_LEFT_OUT = ("init_from", "least_squares_start", "log_every_steps", "checkpoint_minutes")


def write_card(folder: str | Path) -> Path:
    """Write the card of the drafter in `folder`; returns its path.

    Raises:
        UserError: no drafter folder.
    """
    folder = Path(folder)
    write_text(folder / CARD_FILE, _card(_read(folder), _num_weights(folder / WEIGHTS_FILE)))
    return folder / CARD_FILE


def add_evaluation(folder: str | Path, evaluation: Described) -> None:
    """Put what a bench measured of the drafter into its config.json.

    Args:
        evaluation: benchmark, temperature, batch_size, turns, max_new_tokens, replay; `rows` of the
            summary, one per method and setting; `provenance` of the run. Rows of the same
            benchmark, temperature, batch size, method and settings give way to it, others stay.

    Raises:
        UserError: no drafter folder.
    """
    described, title, kept = _read(Path(folder)), _title(evaluation), {}
    for key, older in described.get("evaluation", {}).items():
        measured_anew = evaluation["rows"] if _title(older) == title else []
        rows = [
            row
            for row in older["rows"]
            if not any(_same_setting(row, new) for new in measured_anew)
        ]
        if rows:
            kept[key] = {**older, "rows": rows}
    key = f"{title}, {evaluation['provenance']['start']}"
    described["evaluation"] = {**kept, key: evaluation}
    text = json.dumps(described, indent=2, ensure_ascii=False) + "\n"
    write_text(Path(folder) / CONFIG_FILE, text)


def _same_setting(one: Described, other: Described) -> bool:
    """Whether two rows are of one method and setting; a row without `settings` goes by sizes."""
    names = ("settings",) if "settings" in one and "settings" in other else ()
    names = ("method", *(names or ("depth", "width", "num_nodes")))
    return all(one.get(name) == other.get(name) for name in names)


def _title(evaluation: Described) -> str:
    """`mt_bench, T = 0, batch 16`."""
    temperature, batch = evaluation["temperature"], evaluation["batch_size"]
    return f"{evaluation['benchmark']}, T = {temperature:g}, batch {batch:g}"


def _read(folder: Path) -> dict[str, Any]:
    if not (folder / WEIGHTS_FILE).is_file() or not (folder / CONFIG_FILE).is_file():
        raise UserError(f"{folder} is no drafter folder: it needs {CONFIG_FILE}, {WEIGHTS_FILE}")
    return dict(json.loads((folder / CONFIG_FILE).read_text(encoding="utf-8")))


def _num_weights(path: Path) -> int:
    """Trained numbers in a file, counted without reading them; ids of a vocabulary are none."""
    with safe_open(path, framework="numpy") as file:
        slices = [file.get_slice(name) for name in file.keys()]  # noqa: SIM118
        return sum(math.prod(one.get_shape()) for one in slices if "F" in one.get_dtype())


def _card(described: Described, num_weights: int) -> str:
    training = described.get("training") or {}
    stages = [*training.get("earlier_stages", []), training] if training else []
    label = described["target"]["name"]
    hub_id = training.get("base_model") or label
    loaded_as, option = _BUILTIN.get(label, (hub_id, f" target=hf target.name={hub_id}"))
    validations = [stage["validation"] for stage in stages if stage.get("validation")]
    environment = Environment(  # Markdown, not HTML
        loader=FileSystemLoader(Path(__file__).parent), undefined=StrictUndefined, autoescape=False,
        keep_trailing_newline=True,
    )  # fmt: skip
    environment.filters["table"] = _table
    return environment.get_template("card.md.j2").render(
        front=_front(described).to_yaml(),
        kind=described["kind"],
        target=described["target"],
        size=f"{num_weights / 1e6:.1f} million" if num_weights >= 1e6 else f"{num_weights:,}",
        description=described.get("description", ""),
        loaded_as=loaded_as,
        option=option,
        sources=[
            {"stage": number if stages[1:] else None, **{name: one.get(name) for name in _SOURCE}}
            for number, stage in enumerate(stages, start=1)
            for one in (stage.get("data") or {}).get("sources") or []
        ],
        minutes=sum(stage.get("minutes") or 0.0 for stage in stages),
        recipe=_by_stage("setting", [_recipe(stage) for stage in stages]),
        acceptance=_by_stage("on held-out answers", [*map(_acceptance, validations)]),
        splits_differ=len({_split(stage) for stage in stages if stage.get("validation")}) > 1,
        evaluations=list(_benchmarks(described.get("evaluation") or {})),
        license=training.get("licence"),
    )


def _front(described: Described) -> ModelCardData:
    """What the hub reads; what is not known is left out."""
    training, kind = described.get("training") or {}, described["kind"]
    sources = (training.get("data") or {}).get("sources") or []
    prompts = [str(one.get("prompts", "")) for one in sources]
    results = [
        EvalResult(
            task_type="text-generation",
            dataset_type=evaluation["benchmark"],
            dataset_name=evaluation["benchmark"],
            metric_type="tau",
            metric_name=f"τ, {row['label']}; T = {evaluation['temperature']:g}, "
            f"{evaluation['max_new_tokens']} new tokens a turn, {row['num_questions']} questions",
            metric_value=round(row["tau_micro"], 3),
        )
        for evaluation in (described.get("evaluation") or {}).values()
        for row in evaluation["rows"]
    ]
    return ModelCardData(
        license=training.get("licence"),
        base_model=training.get("base_model"),
        library_name="eagle_lab",
        pipeline_tag="text-generation",
        tags=["speculative-decoding", "draft-model", *{kind: 0, kind.rstrip("0123456789"): 0}],
        datasets=[n.removeprefix("dataset:") for n in prompts if n.startswith("dataset:")] or None,
        metrics=["tokens per target pass (τ)", "acceptance rate"],
        model_name=f"{kind}-{described['target']['name']}",
        eval_results=results or None,
    )


def _recipe(stage: Described) -> dict[str, Any]:
    """Time, hardware and every setting of one stage; those that say nothing left out."""
    origin, data = stage.get("provenance") or {}, stage.get("data") or {}
    cpus = (origin.get("machine") or {}).get("num_cpus")
    hardware = [origin.get("device_name"), f"CPU cores: {cpus}" if cpus else None]
    coverage = (stage.get("draft_vocabulary") or {}).get("coverage")
    facts = {
        "started as": stage.get("start"),
        "minutes": round(stage.get("minutes") or 0.0, 1),
        "steps": stage.get("num_steps"),
        "conversations": data.get("num_train"),
        "tokens in them": data.get("num_train_tokens"),
        "labels in them": data.get("num_train_labels"),
        "conversations held out": data.get("num_val"),
        "tokens seen": (stage.get("validation") or {}).get("num_tokens"),
        "hardware": ", ".join(filter(None, hardware)),
        "date": str(origin.get("start") or "")[:10],
        "commit": str(origin.get("git_commit") or "")[:12],
        "answers' tokens in the draft vocabulary": f"{coverage:.1%}" if coverage else None,
        **(stage.get("recipe") or {}),
        "seed": stage.get("seed"),
        "torch": stage.get("torch"),
    }
    return {name: value for name, value in facts.items() if name not in _LEFT_OUT}


def _acceptance(validation: Described) -> dict[str, Any]:
    """Conditional acceptance by depth and expected τ of one stage."""
    prefix = "val_acceptance_"
    return {
        **{
            f"draft {name.removeprefix(prefix)}": f"{value:.3f}"
            for name, value in validation.items()
            if name.startswith(prefix)
        },
        "expected tokens per cycle (τ)": f"{validation['val_tau']:.3f}",
        "chains": validation["val_num_chains"],
    }


def _split(stage: Described) -> tuple[Any, ...]:
    """What decides which conversations a stage held out."""
    data, recipe = stage.get("data") or {}, stage.get("recipe") or {}
    return data.get("store_digest"), stage.get("seed"), recipe.get("val_fraction")


def _benchmarks(evaluations: Mapping[str, Described]) -> Iterator[dict[str, Any]]:
    """Evaluations of one benchmark, temperature, batch size and length as one table."""
    groups: dict[tuple[str, int], list[Described]] = {}
    for one in evaluations.values():
        groups.setdefault((_title(one), one["max_new_tokens"]), []).append(one)
    for (title, max_new_tokens), group in groups.items():
        rows = [
            {"method": row["label"], **{column.title: column.text(row) for column in _MEASURED}}
            for one in group
            for row in one["rows"]
        ]
        runs = [{**one["provenance"], "replay": one.get("replay")} for one in group]
        yield {"title": title, "max_new_tokens": max_new_tokens, "rows": rows, "runs": runs}


def _by_stage(heading: str, stages: Sequence[Described]) -> list[dict[str, Any]]:
    """One row per name and one column per stage; names that nothing is known of left out."""
    names = dict.fromkeys(name for stage in stages for name in stage)
    rows = [{heading: name, **_columns([stage.get(name) for stage in stages])} for name in names]
    return [row for row in rows if any(_cell(value) for value in list(row.values())[1:])]


def _columns(values: Sequence[Any]) -> dict[str, Any]:
    if len(values) == 1:
        return {"value": values[0]}
    return {f"stage {number}": value for number, value in enumerate(values, start=1)}


def _table(rows: Sequence[Described]) -> str:
    """Rows as a pipe table; columns without any value are left out."""
    names = dict.fromkeys(name for row in rows for name in row)
    shown = [name for name in names if any(_cell(row.get(name)) for row in rows)]
    cells = [[_cell(row.get(name)) for name in shown] for row in rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in [shown, ["---"] * len(shown), *cells])


def _cell(value: Any) -> str:
    if value is None or value == "":
        return ""
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return f"{value:g}" if isinstance(value, float) else str(value)

"""The model card of a drafter: README.md in its folder, written from what the folder holds.

Everything in it comes from config.json (dimensions, target, training, evaluation) and the header
of the weights, so it can be written anew at any time: `write_card(folder)`. Its form is Hugging
Face's: YAML, then Markdown.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from safetensors import safe_open

from eagle_lab.drafters.folder import CARD_FILE, CONFIG_FILE, WEIGHTS_FILE, weights_digest
from eagle_lab.errors import UserError
from eagle_lab.files import write_text
from eagle_lab.reports.card_evaluation import evaluation_of, evaluation_table
from eagle_lab.reports.card_training import acceptance_section, data_section, recipe_section
from eagle_lab.reports.words import count_words

Described = Mapping[str, Any]
"""A drafter's config.json as plain values."""

_BUILTIN = {
    "SmolLM2-135M-Instruct": ("smollm2_135m", ""),
    "tiny_random": ("tiny_random", " target=tiny_random"),
}
"""By a target's label: the name it is loaded by, and the option of commands that chooses it."""


def write_card(folder: str | Path) -> Path:
    """Write the card of the drafter in `folder`; returns its path.

    Raises:
        UserError: no drafter folder.
    """
    folder = Path(folder)
    write_text(folder / CARD_FILE, model_card(_described(folder), num_weights(folder)))
    return folder / CARD_FILE


def add_evaluation(folder: str | Path, run: str | Path) -> Path:
    """Put what a bench measured of this drafter into its config.json and card.

    An evaluation of the same questions, temperature and batch size is replaced.

    Raises:
        UserError: no drafter folder, or a run that did not draft with its weights.
    """
    folder = Path(folder)
    described = _described(folder)
    name, evaluation = evaluation_of(run, weights_digest(folder))
    described["evaluation"] = {**described.get("evaluation", {}), name: evaluation}
    text = json.dumps(described, indent=2, ensure_ascii=False)
    write_text(folder / CONFIG_FILE, text + "\n")
    return write_card(folder)


def _described(folder: Path) -> dict[str, Any]:
    if not (folder / WEIGHTS_FILE).is_file() or not (folder / CONFIG_FILE).is_file():
        raise UserError(f"{folder} is no drafter folder: it needs {CONFIG_FILE}, {WEIGHTS_FILE}")
    return dict(json.loads((folder / CONFIG_FILE).read_text(encoding="utf-8")))


def num_weights(folder: Path) -> int:
    """Trained numbers in the folder, counted without reading them; the vocabulary's ids aside."""
    with safe_open(folder / WEIGHTS_FILE, framework="numpy") as file:
        names = [name for name in file.keys() if name != "d2t"]  # noqa: SIM118
        return sum(math.prod(file.get_slice(name).get_shape()) for name in names)


def model_card(described: Described, num_weights: int) -> str:
    """The card's text.

    Args:
        described: contents of config.json.
        num_weights: trained numbers.
    """
    training = described.get("training") or {}
    front = yaml.safe_dump(front_matter(described), sort_keys=False, allow_unicode=True)
    kind = described["kind"].replace("eagle", "EAGLE-")
    sections = [
        f"# {kind} drafter for {described['target']['name']}",
        _what_it_is(described, num_weights),
        _use(described),
        data_section(training),
        recipe_section(training),
        acceptance_section(training),
        _evaluation(described),
        _limits(described),
        _licence(training),
    ]
    return f"---\n{front}---\n\n" + "\n\n".join(text for text in sections if text) + "\n"


def front_matter(described: Described) -> dict[str, Any]:
    """What the hub reads; what is not known is left out."""
    training = described.get("training") or {}
    sources = (training.get("data") or {}).get("sources") or []
    datasets = [str(one.get("prompts", "")) for one in sources]
    found = {
        "license": training.get("licence"),
        "base_model": training.get("base_model"),
        "library_name": "eagle_lab",
        "pipeline_tag": "text-generation",
        "tags": ["speculative-decoding", "eagle", described["kind"], "draft-model"],
        "datasets": [n.removeprefix("dataset:") for n in datasets if n.startswith("dataset:")],
        "metrics": ["tokens per target pass (τ)", "acceptance rate"],
        "model-index": _model_index(described),
    }
    return {name: value for name, value in found.items() if value}


def _model_index(described: Described) -> list[dict[str, Any]]:
    """Each evaluation as the hub's result entries."""
    results = [
        {
            "task": {"type": "text-generation"},
            "dataset": {"name": one["benchmark"], "type": one["benchmark"]},
            "metrics": [
                {"type": "tau", "name": _tau_name(one, row), "value": round(row["tau_macro"], 3)}
                for row in one["rows"]
            ],
        }
        for one in (described.get("evaluation") or {}).values()
    ]
    name = f"{described['kind']}-{described['target']['name']}"
    return [{"name": name, "results": results}] if results else []


def _tau_name(evaluation: Mapping[str, Any], row: Mapping[str, Any]) -> str:
    """What tells one result from another of the same benchmark."""
    asked = f"T = {evaluation['temperature']:g}, {evaluation['max_new_tokens']} new tokens a turn"
    return f"τ, {row['label']}; {asked}, {row['num_questions']:g} questions"


def _what_it_is(described: Described, num_weights: int) -> str:
    target, switches = described["target"], described["switches"]
    kept, whole = switches["draft_vocab_size"], described["dimensions"]["vocab_size"]
    vocabulary = f"{kept:,} of the target's {whole:,}" if kept else f"all {whole:,} of the target's"
    return (
        f"A draft network of {count_words(num_weights)} weights for speculative decoding "
        f"(EAGLE, arXiv 2401.15077; trees by EAGLE-2, arXiv 2406.16858). It proposes tokens, "
        f"{target['name']} verifies them: greedy text is the target's own token for token, sampled "
        "text follows its law. It cannot speak without its target, whose embedding and output head "
        "it borrows.\n\n"
        f"- Target: {target['name']}, fingerprint `{target['fingerprint']}`. For other weights of "
        "the same shapes it loads with a warning and drafts worse.\n"
        f"- Network: one decoder layer of width {described['dimensions']['hidden_size']} over "
        "features and next tokens, "
        f"{'with' if switches['inner_norm'] else 'without'} a norm before attention.\n"
        f"- It can propose {vocabulary} tokens."
    )


def _use(described: Described) -> str:
    """How to load it; commands name the target unless it is the default one."""
    label = described["target"]["name"]
    hub_id = (described.get("training") or {}).get("base_model") or label
    name, option = _BUILTIN.get(label, (hub_id, f" target=hf target.name={hub_id}"))
    return f"""\
## Use

`FOLDER` is where this card lies. A drafter that comes with eagle_lab is found by the folder's name,
and by its target alone: then leave `drafter.path` out, or give `None`.

```python
import eagle_lab

target = eagle_lab.load_target("{name}")
for answer in eagle_lab.generate(target, "FOLDER", ["Why is the sky blue?"]):
    print(answer.text, answer.tau)
```

    python -m eagle_lab.run +experiment=bench{option} drafter.path=FOLDER
    python -m eagle_lab.run +experiment=chat{option} drafter.path=FOLDER"""


def _evaluation(described: Described) -> str:
    """A table for each bench that was added to the folder."""
    tables = [
        evaluation_table(name, one).to_markdown().strip()
        for name, one in (described.get("evaluation") or {}).items()
    ]
    return "\n\n".join(tables)


def _limits(described: Described) -> str:
    return f"""\
## Intended use and limits

For research on speculative decoding, and for faster text of {described["target"]["name"]}. What is
said, its errors and its biases are the target's: verification lets nothing else through, at
temperature 0 and above. The drafter only decides how many tokens a pass of the target brings; on
text unlike its training data it brings fewer. Whether that is faster depends on the machine, the
size of the tree and the batch."""


def _licence(training: Mapping[str, Any]) -> str:
    licence = training.get("licence")
    under = f"The weights fall under {licence}. They" if licence else "The weights"
    learned = "were learned from text that the target wrote: look at the target's licence, too."
    return f"## Licence\n\n{under} {learned}"

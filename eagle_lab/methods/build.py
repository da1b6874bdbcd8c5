"""Methods of a bench, and how `method.NAME` entries of the configuration become them.

An entry names a class (`_target_`) and arguments of its constructor; target and drafter are added
where the class takes them. A `Method` is a name, all its settings, and what runs it: a proposer in
our loop, or, of a peer, a `Decoder`, another library's own loop.
"""

from __future__ import annotations

import importlib
import inspect
import itertools
import json
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from eagle_lab.catalog import method_not_chosen, options
from eagle_lab.drafters.checkpoint import load_drafter
from eagle_lab.drafters.folder import drafter_folder, shown_name, weights_digest
from eagle_lab.engine.proposer import Proposer
from eagle_lab.engine.record import Generation
from eagle_lab.engine.sampling import Sampling
from eagle_lab.errors import Infeasible, Missing, UserError, choose
from eagle_lab.methods.draft_model import open_draft_model
from eagle_lab.targets.target import Target

VANILLA = "vanilla"


class Decoder(ABC):
    """Another engine's loop, from prompts to generations counted as our own are.

    Attributes:
        max_batch_size: most prompts it decodes side by side; None for any number.
        max_nodes: most tokens drafted per pass.
        context_length: most tokens of a prompt, its answer and a draft.
        lossless: see `Proposer.lossless`.
    """

    max_batch_size: int | None = None
    max_nodes: int = 0
    context_length: int
    lossless: bool = True

    @abstractmethod
    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        *,
        sampling: Sampling | None = None,
        max_new_tokens: int = 128,
        row_keys: Sequence[int] | None = None,
    ) -> list[Generation]:
        """Decode a batch; arguments and result are those of `engine.loop.decode`."""


@dataclass(frozen=True)
class Method:
    """One row of a bench's summary.

    Attributes:
        name: its name in conf/method/; several settings of one method share it.
        settings: every argument of its class, defaults included; with the name its identity.
        proposer: what drafts; None for a peer, or if the setting is infeasible.
        decoder: what decodes in its own way: a peer; None for the methods of our loop.
        drafter: name of the drafter's folder, if there is one.
        drafter_matches_target: whether the drafter was trained for this target.
        depth, width, num_nodes: size of the draft tree, None where they do not apply; the nodes are
            the candidates that a pass verifies.
        context_length: most tokens of a text that what drafts or decodes can read; None where only
            the target's own context counts.
        infeasible: why the setting is infeasible, None if it is not.
    """

    name: str
    proposer: Proposer | None = None
    decoder: Decoder | None = None
    drafter: str | None = None
    drafter_matches_target: bool | None = None
    depth: int | None = None
    width: int | None = None
    num_nodes: int | None = None
    context_length: int | None = None
    infeasible: str | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)

    def at_batch_size(self, batch_size: int) -> Method:
        """This method, infeasible if its decoder takes fewer prompts at a time."""
        most = None if self.decoder is None else self.decoder.max_batch_size
        if most is None or batch_size <= most:
            return self
        reason = f"{self.name} decodes at most {most} prompts side by side, not {batch_size}"
        return replace(self, decoder=None, infeasible=reason)

    def at_length(self, num_tokens: int) -> Method:
        """This method, infeasible if what drafts or decodes cannot read texts of `num_tokens`."""
        needed = num_tokens + self.max_nodes
        if self.context_length is None or needed <= self.context_length:
            return self
        reason = (
            f"{self.name} reads at most {self.context_length} tokens; the longest prompt, its "
            f"answer and a draft may have {needed}"
        )
        return replace(self, proposer=None, decoder=None, infeasible=reason)

    @property
    def max_nodes(self) -> int:
        """Most slots that a draft takes beside the root's, those of no candidates included."""
        built = self.proposer or self.decoder
        return 0 if built is None else built.max_nodes

    @property
    def sizes(self) -> dict[str, int | None]:
        """Size of the draft as the columns of every result file."""
        return {"depth": self.depth, "width": self.width, "num_nodes": self.num_nodes}

    @property
    def key(self) -> Key:
        """Identity within a bench; see `key_of`."""
        return self.name, identity(self.settings)

    def replayable(self, sampling: Sampling) -> bool:
        """Whether all it asks of the target lies along the text that plain decoding emits."""
        if self.proposer is None:
            return False
        draws = self.proposer.draws_children and not sampling.greedy
        return not draws and not self.proposer.reads_all_scores

    @property
    def lossless(self) -> bool:
        """Whether its output must follow the target's distribution; see `Proposer.lossless`."""
        built = self.proposer or self.decoder
        return built is None or built.lossless


Key = tuple[str, str]
"""A method's name and its `identity`."""


def identity(settings: Mapping[str, Any]) -> str:
    """All settings of a method as JSON, the column `settings` of summary.csv."""
    return json.dumps(settings, sort_keys=True, ensure_ascii=False)


def key_of(row: Mapping[str, Any]) -> Key:
    """The `Method.key` that a row of generations.jsonl belongs to.

    Raises:
        UserError: a row of an earlier version, which has no settings.
    """
    if "settings" not in row:
        raise UserError("rows without settings cannot be gone on from; overwrite=true begins anew")
    return row["method"], identity(row["settings"])


def place_of(row: Mapping[str, Any]) -> tuple[Any, ...]:
    """What no two rows of a bench share: method, settings, question, turn and repeat."""
    return (*key_of(row), row["question_id"], row["turn"], row["repeat"])


def label_methods(methods: Iterable[Method]) -> dict[Key, str]:
    """A label for each method: its name, and the settings in which it differs from its namesakes.

    Two of eagle_dynamic become `eagle_dynamic num_nodes=8` and `eagle_dynamic num_nodes=59`.
    """
    by_name: defaultdict[str, list[Method]] = defaultdict(list)
    for method in methods:
        by_name[method.name].append(method)
    labels = {}
    for name, namesakes in by_name.items():
        first = namesakes[0].settings
        differing = [
            key
            for key in first
            if any(other.settings.get(key) != first[key] for other in namesakes)
        ]
        for method in namesakes:
            labels[method.key] = " ".join(
                [name, *(f"{key}={method.settings[key]}" for key in differing)]
            )
    return labels


_VANILLA_SETTINGS = {"_target_": "eagle_lab.methods.vanilla.Vanilla"}
# Plain types of settings: what a value may be, and how that is said
_PLAIN: dict[Any, tuple[Any, str]] = {
    bool: (bool, "true or false"),
    int: (int, "a whole number"),
    float: ((int, float), "a number"),
}


Entries = Mapping[str, Mapping[str, Any]]
"""`config.method` as plain values: name of a method -> its settings."""


class MethodBuilder:
    """Builds methods for one target; what several methods draft with is loaded once.

    Args:
        target: the model.
        drafter_path: the drafter for methods that name none of their own, see `drafter_folder`.
        round_weights: of drafters, see `load_drafter`; None where the target has fast layers.
    """

    def __init__(
        self,
        target: Target,
        drafter_path: str | Path | None = None,
        *,
        round_weights: bool | None = None,
    ):
        self.target = target
        self.drafter_path = drafter_path
        self.round_weights = target.fast_layers if round_weights is None else round_weights
        self._loaded: dict[str, tuple[Any, bool]] = {}
        self._draft_models: dict[str, Target] = {}

    def build_all(
        self, entries: Entries, leave_out: Callable[[str], None] | None = None
    ) -> list[Method]:
        """A method for each entry, vanilla first and always there.

        A method that lacks something, such as a draft model, is an error, or, with `leave_out`,
        not among them: that is called with a line that says why. A number that is given as a list,
        `method.eagle_chain.num_draft_tokens=[2,4]`, gives a method for each of its values.
        """
        methods: list[Method] = []
        for name, settings in ({VANILLA: _VANILLA_SETTINGS} | dict(entries)).items():
            try:
                methods += [self.build(name, one) for one in _each_value(settings)]
            except Missing as reason:
                if leave_out is None:
                    raise
                leave_out(f"{name} is left out: {reason}")
        return methods

    def build(self, name: str, settings: Mapping[str, Any]) -> Method:
        """One method; an infeasible setting gives a method with `infeasible` set.

        Raises:
            UserError: unknown method, unknown or missing setting, or a value of a wrong type.
            Missing: a drafter, draft model or package that is not there.
        """
        if "_target_" not in settings:
            choose(name, options("method"), "method")
            raise UserError(method_not_chosen(name))
        method_class = _class_at(settings["_target_"])
        arguments = {
            key: value
            for key, value in settings.items()
            if not key.startswith("_") and key != "drafter"
        }
        parameters = inspect.signature(method_class, eval_str=True).parameters
        own = [
            key
            for key, parameter in parameters.items()
            if key not in ("target", "drafter") and not parameter.kind.name.startswith("VAR_")
        ]
        for key, value in arguments.items():
            choose(key, own, f"setting of method.{name}")
            _check_type(f"method.{name}.{key}", value, parameters[key].annotation)
        for key in own:
            if key not in arguments and parameters[key].default is inspect.Parameter.empty:
                raise UserError(f"method.{name}.{key} must be given: method.{name}.{key}=VALUE")
        if "target" in parameters:
            arguments["target"] = self.target
        path, matches = None, None
        if "drafter" in parameters:
            path = self._drafter_folder(name, settings.get("drafter"))
            arguments["drafter"], matches = self.load(path)
        if isinstance(arguments.get("draft_model"), str):
            arguments["draft_model"] = self.draft_model(arguments["draft_model"])
        facts: dict[str, Any] = {
            "name": name,
            "settings": {key: settings.get(key, parameters[key].default) for key in own},
            "drafter": settings.get("draft_model") if path is None else shown_name(path),
            "drafter_matches_target": matches,
        }
        try:
            built = method_class(**arguments)
        except Infeasible as reason:
            return Method(**facts, **_asked(settings), infeasible=str(reason))
        if not isinstance(built, Proposer | Decoder):
            target = settings["_target_"]
            raise UserError(f"method.{name}._target_={target} is neither a Proposer nor a Decoder")
        facts |= {"context_length": built.context_length, **_sizes(built, settings)}
        if isinstance(built, Decoder):
            return Method(**facts, decoder=built)
        return Method(**facts, proposer=built)

    def _drafter_folder(self, name: str, own: str | None) -> Path:
        try:
            return drafter_folder(own or self.drafter_path, self.target)
        except Missing as reason:
            raise Missing(f"method {name} needs a drafter, but {reason}") from None

    def load(self, path: str | Path) -> tuple[Any, bool]:
        """The drafter in a folder, and whether it was trained for this target; read once."""
        if str(path) not in self._loaded:
            self._loaded[str(path)] = load_drafter(path, self.target, rounded=self.round_weights)
        return self._loaded[str(path)]

    def draft_model(self, path: str) -> Target:
        """The draft model in `path`, a folder or hub id; read once."""
        if path not in self._draft_models:
            self._draft_models[path] = open_draft_model(path, self.target)
        return self._draft_models[path]


def drafter_digests(methods: Iterable[Method], target: Target) -> dict[str, str]:
    """Digest of the weights of each drafter that the methods draft with, by its shown name."""
    names = {m.drafter for m in methods if m.drafter and m.drafter_matches_target is not None}
    return {name: weights_digest(drafter_folder(name, target)) for name in sorted(names)}


def _each_value(settings: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """`settings` with one number wherever the method takes one and a list is given."""
    target = settings.get("_target_")
    known = inspect.signature(_class_at(target), eval_str=True).parameters if target else {}
    lists = {
        key: value
        for key, value in settings.items()
        if key in known and known[key].annotation in _PLAIN and isinstance(value, list) and value
    }
    for values in itertools.product(*lists.values()):
        yield {**settings, **dict(zip(lists, values, strict=True))}


def _check_type(key: str, value: Any, wanted: Any) -> None:
    """UserError unless `value` is what a plain type asks for; `off` and `no` are texts."""
    allowed, words = _PLAIN.get(wanted, (object, ""))
    if not isinstance(value, allowed) or (isinstance(value, bool) and wanted in (int, float)):
        raise UserError(f"{key}={value}; it must be {words}")


def _asked(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Sizes as an infeasible setting asks for them."""
    return {name: settings.get(name) for name in ("depth", "width", "num_nodes")}


def _sizes(built: Proposer | Decoder, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Depth, width and node count of what is drafted, None where they do not apply."""
    if isinstance(built, Proposer) and built.sizes is not None:
        return dict(built.sizes)
    return {
        "depth": settings.get("depth") or settings.get("num_draft_tokens"),
        "width": settings.get("width"),
        "num_nodes": built.max_nodes or None,
    }


def _class_at(path: str) -> type[Any]:
    """The class that a dotted path names."""
    module, _, name = path.rpartition(".")
    try:
        return getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise UserError(f"_target_={path} names no class: {error}") from error

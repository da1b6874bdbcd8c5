"""Where conf/ is, what may stand in it, and how to read it from Python.

`Config` is the schema: a key that is not in it is an error in any file and on the command line. A
section that a part of the library takes is that part's own dataclass, from a module that needs no
torch: it names keys and types and checks the values, when `settings_of` makes it. The schema of
`drafter` belongs to the kind that is chosen. Defaults and the words for each key stand in
conf/*.yaml.

    from eagle_lab.config import compose
    config = compose(["+experiment=bench", "tree.depth=4"])
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, fields, is_dataclass
from typing import TYPE_CHECKING, Any, get_type_hints

import hydra
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from omegaconf import MISSING, DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from eagle_lab.bench.profile.settings import ProfileSettings
from eagle_lab.catalog import CONF_DIR
from eagle_lab.data.settings import CaptureSettings
from eagle_lab.errors import UserError
from eagle_lab.failures import explain, unknown
from eagle_lab.training.settings import TrainerSettings

if TYPE_CHECKING:
    from eagle_lab.drafters.base import Drafter


@dataclass
class TargetConfig:
    """The model whose text is made faster; read by `targets.load`."""

    name: str = MISSING
    feature_layers: list[int] | None = None
    trust_remote_code: bool = False
    architecture: str = "llama"
    tied_head: bool = False


@dataclass
class DrafterConfig:
    """Keys of every drafter; a kind's own are its `Settings`."""

    kind: str | None = None
    _target_: str | None = None
    path: str | None = None
    round_weights: bool | None = None


@dataclass
class DraftModelConfig:
    """The small model that methods draft with, and the target's layers a new one starts from."""

    path: str | None = None
    num_layers: int = MISSING
    layers: list[int] | None = None


@dataclass
class TreeConfig:
    """Sizes of EAGLE's drafts: numbers, or `auto`, which `runs.job.settle_sizes` replaces."""

    depth: Any = MISSING
    width: Any = MISSING
    num_nodes: Any = MISSING
    paths: Any = MISSING


@dataclass
class EvalConfig:
    """Questions, sampling and batching of a bench."""

    prompts: str = MISSING
    num_questions: int | None = None
    turns: int = MISSING
    max_new_tokens: int = MISSING
    temperature: float = MISSING
    top_p: float = MISSING
    top_k: int = MISSING
    batch_size: int = MISSING
    repeats: int = MISSING
    timing: bool = MISSING
    record_confidence: bool = MISSING
    replay: bool = MISSING
    warmup: int = MISSING
    leave_out_missing: bool = MISSING


@dataclass
class GridConfig:
    """Tree sizes that the sweep task goes through, for one of the chosen methods."""

    method: str = MISSING
    depth: list[int] = MISSING
    width: list[int] = MISSING
    num_nodes: list[int] = MISSING


@dataclass
class ReportConfig:
    """What the report task reads."""

    run: str | None = None
    claim: str | None = None
    claims: str | None = None
    card: str | None = None


@dataclass
class Config:
    """The whole configuration; `method` holds one entry per chosen file of conf/method/."""

    task: str | None = None
    output_dir: str = MISSING
    overwrite: bool = False
    seed: int = 0
    device: str = MISSING
    dtype: str = MISSING
    threads: int | None = None
    fast_layers: str = MISSING
    attention: str = MISSING
    graphs: str = MISSING
    target: TargetConfig = field(default_factory=TargetConfig)
    drafter: dict[str, Any] = field(default_factory=lambda: {"path": None, "round_weights": None})
    draft_model: DraftModelConfig = field(default_factory=DraftModelConfig)
    data: CaptureSettings = MISSING
    tree: TreeConfig = field(default_factory=TreeConfig)
    method: dict[str, Any] = field(default_factory=dict)
    eval: EvalConfig = field(default_factory=EvalConfig)
    grid: GridConfig = field(default_factory=GridConfig)
    trainer: TrainerSettings = MISSING
    profile: ProfileSettings = MISSING
    logger: dict[str, Any] = field(default_factory=dict)  # a Lightning logger's, by `_target_`
    report: ReportConfig = field(default_factory=ReportConfig)


ConfigStore.instance().store(name="schema", node=Config)


def compose(overrides: Sequence[str] = ()) -> DictConfig:
    """The configuration that the command line `overrides` would give.

    `${hydra:…}` does not resolve here, so no value of the library depends on it.

    Raises:
        UserError: an override names something that does not exist, or a value of a wrong type.
    """
    try:
        with _hydra():
            config = hydra.compose("config", list(overrides))
    except Exception as error:
        message = explain(error)
        if message is None:
            raise
        raise UserError(message) from error
    check(config)
    return config


def _hydra() -> AbstractContextManager[Any]:
    """Hydra over CONF_DIR; inside a job, where it is at work already, nothing is to be done."""
    if GlobalHydra.instance().is_initialized():
        return nullcontext()
    return hydra.initialize_config_dir(str(CONF_DIR), version_base="1.3")


def check(config: DictConfig) -> None:
    """Refuse what composition lets through: keys added with `+`, missing values, dead references.

    Raises:
        UserError: naming the key.
    """
    _check_keys(config, Config, "")
    try:
        missing = sorted(OmegaConf.missing_keys(config))
        OmegaConf.to_container(config, resolve=True)
    except OmegaConfBaseException as error:
        raise UserError(explain(error) or str(error)) from error
    if missing:
        raise UserError(f"{missing[0]} must be given: {missing[0]}=VALUE")
    for name in ("depth", "width", "num_nodes"):
        size = config.tree[name]
        if size != "auto" and (not isinstance(size, int) or isinstance(size, bool)):
            shown = "null" if size is None else size
            raise UserError(f"tree.{name}={shown} is neither a whole number nor auto")
    if config.task != "report":  # which opens without torch
        drafter_kind(config)


def drafter_kind(config: DictConfig) -> tuple[type[Drafter], Any]:
    """The kind of drafter that `config.drafter` names, and its `Settings` for a new one.

    Raises:
        UserError: no such kind, a key that it does not have, or a value of a wrong type.
    """
    from eagle_lab.drafters.checkpoint import class_of

    asked = config.drafter
    path = asked.get("_target_")
    kind = class_of(str(path or asked.get("kind")), "drafter._target_" if path else "drafter.kind")
    own, common = ([one.name for one in fields(part)] for part in (kind.Settings, DrafterConfig))
    for key in map(str, asked):
        if key not in own + common:
            names = [f"drafter.{name}" for name in own + common]
            raise UserError(unknown(f"drafter.{key}", names, "key"))
    try:
        OmegaConf.merge(OmegaConf.structured(DrafterConfig), OmegaConf.masked_copy(asked, common))
        mine = OmegaConf.masked_copy(asked, own)
        return kind, OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(kind.Settings), mine))
    except OmegaConfBaseException as error:
        raise UserError(f"drafter.{explain(error) or error}") from error


def settings_of(section: DictConfig) -> Any:
    """A section of the configuration as the dataclass that is its schema.

    Raises:
        UserError: a value that the dataclass refuses.
    """
    return OmegaConf.to_object(section)


def _check_keys(config: DictConfig, schema: type, prefix: str) -> None:
    types = get_type_hints(schema)
    for key in map(str, config):
        if key not in types:
            names = [f"{prefix}{name}" for name in types]
            raise UserError(unknown(f"{prefix}{key}", names, "key"))
        if is_dataclass(types[key]):
            _check_keys(config[key], types[key], f"{prefix}{key}.")

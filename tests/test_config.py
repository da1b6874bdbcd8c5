"""The configuration: every file composes, every key is explained, nothing unknown passes."""

from __future__ import annotations

from pathlib import Path

import pytest
from omegaconf import OmegaConf

from eagle_lab import catalog
from eagle_lab.config import CONF_DIR, compose
from eagle_lab.errors import UserError
from eagle_lab.run import TASKS

FILES = sorted(CONF_DIR.rglob("*.yaml"))
# Groups whose files say what differs from the defaults, where each key is explained already
OVERRIDING = ("experiment", "sweep", "launcher")
OPTIONS = [
    f"{group}={name}"
    for group in catalog.groups()
    if group not in (*OVERRIDING, "method")
    for name in catalog.options(group)
]


def test_the_defaults_compose() -> None:
    config = compose()
    assert config.task is None
    assert {*config.tree.values()} == {"auto"}
    assert config.method == {}


@pytest.mark.parametrize("option", OPTIONS)
def test_every_option_of_a_group_composes(option: str) -> None:
    compose([option, "target.name=anything"] if option == "target=hf" else [option])


@pytest.mark.parametrize("name", catalog.options("method"))
def test_every_method_has_settings_under_its_name(name: str) -> None:
    config = compose([f"method=[{name}]"])
    assert list(config.method) == [name]
    rooms = ("eagle_lab.methods.", "eagle_lab.bench.peers.")  # ours, and other engines'
    assert config.method[name]._target_.startswith(rooms)


@pytest.mark.parametrize("name", catalog.options("experiment"))
def test_every_experiment_names_a_task(name: str) -> None:
    assert compose([f"+experiment={name}", "target.name=tiny_random"]).task in TASKS


@pytest.mark.parametrize("task", TASKS)
def test_every_task_is_an_experiment_of_its_name(task: str) -> None:
    assert compose([f"+experiment={task}"]).task == task


@pytest.mark.parametrize("name", catalog.options("sweep"))
def test_every_sweep_composes_and_its_keys_exist(name: str) -> None:
    compose(["+experiment=bench", f"+sweep={name}"])
    grid = OmegaConf.load(CONF_DIR / f"sweep/{name}.yaml").hydra.sweeper.params
    for key, values in grid.items():
        for value in str(values).split(","):
            compose(["+experiment=bench", f"{key}={value}"])


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(CONF_DIR)))
def test_every_file_opens_with_the_line_that_help_shows(path: Path) -> None:
    line = catalog.first_comment(path)
    assert line, f"{path} does not say what it is"
    assert len(line) <= 100


@pytest.mark.parametrize(
    "path",
    [path for path in FILES if path.parent.name not in OVERRIDING],
    ids=lambda path: str(path.relative_to(CONF_DIR)),
)
def test_every_key_has_a_comment(path: Path) -> None:
    """A comment explains the keys right below it, three at most; once, where the key begins."""
    machinery = ("defaults:", "- ", "_target_:")
    num_left = 0
    bare = []
    for line in path.read_text().partition("\nhydra:")[0].splitlines():
        key = line.strip()
        if key.startswith("#"):
            num_left = 3
        elif not key:
            num_left = 0
        elif not key.startswith(machinery):
            if num_left == 0 and "#" not in line:
                bare.append(key)
            num_left = max(num_left - 1, 0)
    if "\n  - _self_" in path.read_text() and path.name != "config.yaml":
        inherited = OmegaConf.load(path.with_name(f"{inherited_from(path)[0]}.yaml"))
        bare = [key for key in bare if key.partition(":")[0] not in inherited]
    assert bare == []


def inherited_from(path: Path) -> list[str]:
    """The files beside it that a file takes its other keys from."""
    return [entry for entry in OmegaConf.load(path).defaults if entry != "_self_"]


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["tree.dpeth=3"], "tree.dpeth.*Did you mean 'tree.depth'"),
        (["+tree.dpeth=3"], "tree.dpeth.*Did you mean 'tree.depth'"),
        (["+experiment=bnech"], "bnech.*Did you mean 'bench'"),
        (["target=hf"], "target.name"),
        (["tree.depth=six"], "six.*whole number"),
        (["grid.depth=6"], r"grid.depth is one value; a list is needed"),
    ],
)
def test_notebooks_get_the_same_one_line_errors(overrides: list[str], words: str) -> None:
    with pytest.raises(UserError, match=words):
        compose(overrides)


def test_a_method_takes_the_tree_of_the_run_unless_it_says_otherwise() -> None:
    config = compose(["method=[eagle_dynamic]", "tree.depth=4", "method.eagle_dynamic.width=3"])
    assert config.method.eagle_dynamic.depth == 4
    assert config.method.eagle_dynamic.width == 3

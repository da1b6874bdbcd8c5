"""What lies in conf/: the choices of each group, with the line that describes each.

Reads file names and first comments only; knows nothing of Hydra, so that `--help` is instant.
"""

from __future__ import annotations

from pathlib import Path

from eagle_lab.errors import UserError

_PACKAGE = Path(__file__).resolve().parent
CONF_DIR: Path = next(
    folder
    for folder in (_PACKAGE / "conf", _PACKAGE.parent / "conf")
    if (folder / "config.yaml").is_file()
)


OWN_FOLDERS: list[Path] = []
"""Folders of `--config-dir`, whose files stand beside the package's own."""


def groups() -> list[str]:
    """Names of the folders of conf/."""
    return sorted(entry.name for entry in CONF_DIR.iterdir() if entry.is_dir())


def options(group: str) -> dict[str, str]:
    """The files of a group, each with its first comment ('' if it has none), sorted by name."""
    files = [
        path
        for folder in (CONF_DIR, *OWN_FOLDERS)
        for path in sorted((folder / group).glob("*.yaml"))
    ]
    return {path.stem: first_comment(path) for path in sorted(files, key=lambda path: path.stem)}


def first_comment(path: Path) -> str:
    """The first comment line of a YAML file that is not a `@package` directive."""
    for line in path.read_text(encoding="utf-8").splitlines():
        text = line.lstrip("# ").strip()
        if line.startswith("#") and text and not text.startswith("@package"):
            return text
        if line.strip() and not line.startswith("#"):
            break
    return ""


def describe(group: str) -> str:
    """One indented line per option of a group, names aligned."""
    lines = options(group)
    width = max(map(len, lines), default=0)
    return "\n".join(f"  {name:<{width}}  {line}".rstrip() for name, line in lines.items())


def method_not_chosen(name: str) -> str:
    """The line for a setting of a method that is not among the chosen ones."""
    return f"method.{name} is not chosen; add it to method=[…]"


def require_task(task: str | None) -> None:
    """Refuse a command line without an experiment.

    Raises:
        UserError: lists the experiments.
    """
    if task is None:
        raise UserError(f"+experiment=NAME says what to do; experiments:\n{describe('experiment')}")


def help_text() -> str:
    """What `--help` prints: how to call the bench, and every experiment, sweep, method, target."""
    parts = [
        "eagle-lab +experiment=NAME [group=option] [key=value] …    or: python -m eagle_lab.run …",
        "eagle-lab +experiment=NAME +sweep=NAME …    a grid of runs",
        "",
        "experiments (+experiment=NAME)",
        describe("experiment"),
        "",
        "sweeps (+sweep=NAME)",
        describe("sweep"),
        "",
        "methods (method=[NAME,NAME]; method.NAME.key=value changes one)",
        describe("method"),
        "",
        "targets (target=NAME)",
        describe("target"),
        "",
        "keys of every run: output_dir, overwrite, seed, device, dtype, threads",
        "--cfg job prints the whole configuration; each key is explained in conf/GROUP/*.yaml",
        "--config-dir FOLDER adds a folder of your own experiments",
    ]
    return "\n".join(parts)

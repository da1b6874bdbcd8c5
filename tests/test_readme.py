"""The README's map names every file, and nothing that is not there."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
# A line of the map: a path, at least two spaces, what it is for
MAP_LINE = re.compile(r"^ *([\w./-]+)  +\S", re.MULTILINE)


def files() -> Iterator[str]:
    for pattern in ("eagle_lab/**/*.py", "conf/**/*.yaml", "notebooks/*.ipynb", "tests/**/*.py"):
        for path in sorted(ROOT.glob(pattern)):
            relative = path.relative_to(ROOT)
            if path.name != "__init__.py" or len(relative.parts) == 2:
                yield str(relative)


def mapped() -> list[str]:
    """Paths of the map; a file belongs to the folder above it."""
    paths = []
    folder = ""
    for name in MAP_LINE.findall(README.partition("## Map")[2].partition("\n## ")[0]):
        if name.endswith("/"):
            folder = name
        else:
            paths.append(f"{folder}{name}")
    return paths


def test_every_file_is_named_in_the_map() -> None:
    assert sorted(set(files()) - set(mapped())) == []


def test_everything_in_the_map_exists() -> None:
    assert [name for name in mapped() if not (ROOT / name).exists()] == []


def test_nothing_is_named_twice() -> None:
    names = mapped()
    assert sorted(names) == sorted(set(names))


def test_the_two_commands_are_there() -> None:
    assert "pip install -e . && python -m eagle_lab.run +experiment=quickstart" in README
    assert 'pip install -e ".[test]" && pytest' in README

"""The two commands of the README are those that CI runs."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_two_commands_are_there() -> None:
    assert "pip install -e . && python -m eagle_lab.run +experiment=quickstart" in README
    assert 'pip install -e ".[test]" && pytest' in README

"""The README is short and holds the two commands of CI; links in the documents lead somewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
README = ROOT / "README.md"
PAGES = [
    README,
    *ROOT.glob("C*.md"),
    ROOT / "experiments/README.md",
    *sorted((ROOT / "docs").glob("*.md")),
]


def test_the_two_commands_are_there() -> None:
    text = README.read_text(encoding="utf-8")
    assert "pip install -e . && python -m eagle_lab.run +experiment=quickstart" in text
    assert 'pip install -e ".[test]" && pytest' in text
    assert len(text.encode()) <= 10_000


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_leads_somewhere(page: Path) -> None:
    links = re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8"))
    files = [link.partition("#")[0] for link in links if "://" not in link]
    assert [link for link in files if link and not (page.parent / link).exists()] == []

"""Columns: cells as a reader sees them, and the documented table."""

from __future__ import annotations

from pathlib import Path

import pytest

from eagle_lab.columns import FILES, SUMMARY, Column, as_markdown, csv_names, pick

ROOT = Path(__file__).parents[1]


def test_the_documented_columns_are_those_of_the_files():
    text = (ROOT / "docs" / "files.md").read_text("utf-8")
    documented = text.partition("<!-- columns -->")[2].partition("<!-- end of columns -->")[0]
    assert documented.strip() == as_markdown().strip(), "python -m eagle_lab.columns prints it"


def test_every_file_names_a_column_once():
    for columns in FILES.values():
        assert len(set(csv_names(columns))) == len(csv_names(columns))


def test_an_interval_follows_its_column():
    names = csv_names(pick(SUMMARY, "method", "speedup"))
    assert names == ("method", "speedup", "speedup_low", "speedup_high")


@pytest.mark.parametrize(
    ("column", "row", "text"),
    [
        (Column("x", decimals=2), {"x": 2.346}, "2.35"),
        (Column("x", decimals=2, unit="×"), {"x": 1234.5}, "1,234.50×"),
        (Column("x", decimals=0, unit=" %", scale=100), {"x": 0.361}, "36 %"),
        (Column("x"), {"x": 4.0}, "4"),
        (Column("x"), {"x": "a"}, "a"),
        (Column("x", decimals=2), {"x": None}, ""),
        (Column("x", decimals=2), {"x": float("nan")}, ""),
        (Column("x", decimals=2), {}, ""),
        (
            Column("x", decimals=1, unit="×", ends=("low", "high")),
            {"x": 2, "low": 1.5, "high": 2.5},
            "2.0× [1.5, 2.5]",
        ),
        (Column("x", decimals=1, ends=("low", "high")), {"x": 2, "low": None, "high": 3}, "2.0"),
    ],
)
def test_a_cell(column: Column, row: dict, text: str):
    assert column.text(row) == text

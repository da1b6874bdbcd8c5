"""Phrases that findings are made of: values with their intervals, ranges, the machine."""

from __future__ import annotations

from typing import Any

import pandas as pd


def setting_words(config: dict[str, Any], provenance: dict[str, Any]) -> str:
    """`target smollm2_135m, float32 on cpu (processor)`, as far as it is recorded."""
    target = config.get("target") or {}
    name = target.get("name") or target.get("kind") if isinstance(target, dict) else target
    device = provenance.get("device") or config.get("device")
    processor = provenance.get("device_name")
    place = f"{provenance.get('dtype') or config.get('dtype') or ''} on {device}" if device else ""
    return ", ".join(
        part
        for part in (
            f"target {name}" if name else "",
            f"{place.strip()}{f' ({processor})' if processor and place else ''}",
        )
        if part
    )


def replay_finding(config: dict[str, Any]) -> str:
    """`replay_words` for a run with this configuration; nothing if it decoded everything."""
    asked = config.get("eval") or {}
    return replay_words(asked.get("temperature") or 0.0) if asked.get("replay") else ""


def replay_words(temperature: float) -> str:
    """What a replayed bench measured and what not."""
    drawn = "methods that draw their drafts, " if temperature > 0 else ""
    return (
        "Replayed from recorded answers: acceptance only; equality was not checked "
        f"({drawn}Lookahead and peers, if any, were decoded)."
    )


def notes_on(rows: pd.DataFrame, notes: dict[str, str]) -> str:
    """The notes on those columns of `rows` that hold a value, as one text."""
    return " ".join(said for column, said in notes.items() if known(rows, column))


def value_words(row: pd.Series, name: str, unit: str = "") -> str:
    """`1.42× (95 % interval 1.31 to 1.55)`; without the bracket where there is no interval."""
    return f"{row[name]:.2f}{unit}{interval_words(row, name)}"


def interval_words(row: pd.Series, name: str) -> str:
    """` (95 % interval 1.31 to 1.55)`, or nothing where there is no interval."""
    low, high = row.get(f"{name}_low"), row.get(f"{name}_high")
    return "" if pd.isna(low) or pd.isna(high) else f" (95 % interval {low:.2f} to {high:.2f})"


def known(rows: pd.DataFrame, column: str) -> bool:
    """True if any row holds a value of `column`."""
    return bool(rows[column].notna().any())


def span(values: pd.Series) -> str:
    """`4`, or `2 to 8` where values differ."""
    measured = values.dropna()
    low, high = measured.min(), measured.max()
    return f"{low:g}" if low == high else f"{low:g} to {high:g}"


def counted(number: float, noun: str) -> str:
    """`1 question`, `80 questions`."""
    return f"{number:,.0f} {noun}{'' if number == 1 else 's'}"


def count_words(number: int) -> str:
    """`1.2 million`, `28 thousand` or `312`."""
    if number >= 1_000_000:
        return f"{number / 1e6:.1f} million"
    return f"{number / 1e3:.0f} thousand" if number >= 1000 else str(number)

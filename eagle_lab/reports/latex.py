"""Tables as LaTeX with booktabs rules: text escaped, the field's signs as mathematics."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

_CHARACTERS = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_",
    "{": r"\{", "}": r"\}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}",
    "τ": r"$\tau$", "α": r"$\alpha$", "γ": r"$\gamma$", "×": r"$\times$", "±": r"$\pm$",
    "≥": r"$\geq$", "≤": r"$\leq$", "→": r"$\to$", "−": "$-$", "–": "--", "\n": " ",
}  # fmt: skip
_TRANSLATION = str.maketrans(_CHARACTERS)


def escape(text: str) -> str:
    """`text` as LaTeX sets it verbatim in a paragraph."""
    return text.translate(_TRANSLATION)


def booktabs(
    name: str,
    caption: str,
    columns: Sequence[str],
    rows: Iterable[Sequence[str]],
    numeric: Collection[str],
) -> str:
    """A `table` with a caption, a label `tab:NAME` and a `tabular`; needs `booktabs`.

    Args:
        name: of the label.
        caption: plain text.
        columns: headings.
        rows: cells as plain text.
        numeric: headings whose columns are set flush right.
    """
    alignment = "".join("r" if column in numeric else "l" for column in columns)
    lines = [
        r"\begin{table}",
        r"\centering",
        rf"\caption{{{escape(caption)}}}",
        rf"\label{{tab:{name}}}",
        rf"\begin{{tabular}}{{{alignment}}}",
        r"\toprule",
        _line(columns),
        r"\midrule",
        *(_line(row) for row in rows),
        r"\bottomrule",
        r"\end{tabular}",
        r"\end{table}",
    ]
    return "\n".join(lines) + "\n"


def _line(cells: Iterable[str]) -> str:
    r"""Cells of one row; braces keep a leading `[` from being read as an argument of `\\`."""
    texts = [escape(str(cell)) for cell in cells]
    return " & ".join(f"{{{text}}}" if text.startswith("[") else text for text in texts) + r" \\"

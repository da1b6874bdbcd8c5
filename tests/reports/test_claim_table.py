"""Expected beside measured, the status that follows, and the documents made of both."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest

from eagle_lab.reports.claim import load_claim
from eagle_lab.reports.claim_index import claim_markdown, index, write_claim, write_index
from eagle_lab.reports.claim_table import OTHER_TARGETS, claim_tables, compare, status
from eagle_lab.reports.latex import escape
from eagle_lab.reports.tables import make_table
from tests.reports import claim_folder
from tests.reports.claim_folder import EXPECTED, MEASURED, PROVENANCE, write_unmeasured


def test_measured_stands_with_its_expectation_and_papers_stand_beside(tmp_path: Path):
    claim = load_claim(claim_folder.write_claim(tmp_path), "trees")
    tau, speedup = claim_tables(claim, compare(claim))
    assert tau.shown[["target", "T", "nodes", "expected", "measured", "within tolerance"]].to_numpy(
    ).tolist() == [
        ["vicuna-7b", "0", "", "3.94", "–", "–"],
        ["ours", "0", "25", "≥ 2.00", "2.50 [2.25, 2.75]", "yes"],
        ["vicuna-7b", "1", "", "3.17", "–", "–"],
        ["ours", "0", "32", "≥ 3.30", "3.10 [3.00, 3.20]", "no"],
    ]  # fmt: skip
    assert tau.shown["source"].tolist() == ["EAGLE", "aim; run trees", "EAGLE", "aim; run trees"]
    assert tau.note == OTHER_TARGETS
    assert speedup.shown["expected"].tolist() == ["2.90×"]


def test_a_measured_line_without_an_expectation_stands_at_its_setting(tmp_path: Path):
    measured = MEASURED + "more,theirs,bench80,0,eagle_static,1,5,,25,1.5,,\n"
    measured += "more,theirs,other,0,vanilla,1,,,,1,,\n"
    provenance = json.dumps({**PROVENANCE, "more": {"status": "stopped"}})
    root = claim_folder.write_claim(tmp_path, measured=measured, provenance=provenance)
    claim = load_claim(root, "trees")
    lines = compare(claim)
    tau = lines[lines["quantity"] == "tau"]
    assert tau["target"].tolist() == ["vicuna-7b", "ours", "theirs", "vicuna-7b", "ours", "theirs"]
    assert tau["place"].tolist()[:5] == [0, 0, 0, 2, 3]
    assert tau["expected"].isna().tolist() == [False, False, True, False, False, True]
    assert "run more (unfinished)" in claim_tables(claim, lines)[0].shown["source"].tolist()
    assert status(claim, lines) == (
        "partly measured (2 of 3 settings, a run is unfinished); 1 of 2 within tolerance"
    )


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"measured": None, "provenance": None}, "not measured yet"),
        ({}, "partly measured (2 of 3 settings); 1 of 2 within tolerance"),
        ({"tolerance": None}, "partly measured (2 of 3 settings)"),
        (
            {"expected": "\n".join(EXPECTED.splitlines()[:3]), "tolerance": None},
            "measured",
        ),
        ({"expected": "\n".join(EXPECTED.splitlines()[:3])}, "measured; 1 of 1 within tolerance"),
    ],
)
def test_the_status_follows_from_the_files(
    tmp_path: Path, changes: dict[str, str | None], words: str
):
    claim = load_claim(claim_folder.write_claim(tmp_path, **changes), "trees")
    assert status(claim, compare(claim)) == words


def test_an_expectation_without_target_is_held_against_the_held_target(tmp_path: Path):
    expected = "source,method,tau\nreasoning,eagle_static,2.8\n"
    claim = load_claim(claim_folder.write_claim(tmp_path, expected=expected), "trees")
    line = compare(claim).iloc[0]
    assert (line["expected"], line["measured"]) == (2.8, 2.5)
    assert line["within_tolerance"] == "no"


def test_what_an_interval_leaves_open_is_not_shown(tmp_path: Path):
    """At least 3 is expected: 2.5 [2.25, 2.75] misses it, 3.1 [2.9, 3.2] may or may not."""
    expected = "source,target,method,tau\naim,ours,,3\n"
    measured = MEASURED.replace("3.1,3,3.2", "3.1,2.9,3.2")
    root = claim_folder.write_claim(tmp_path, expected=expected, measured=measured)
    claim = load_claim(root, "trees")
    lines = compare(claim)
    assert lines.set_index("measured")["within_tolerance"].to_dict() == {
        2.5: "no", 3.1: "not shown"
    }  # fmt: skip
    assert status(claim, lines) == "measured; 0 of 2 within tolerance, 1 not shown"


def test_large_and_small_settings_are_written_in_full(tmp_path: Path):
    expected = (
        "source,num_training_tokens,confidence_from,training_minutes,tau\nx,1000000,0.05,0.87,1\n"
    )
    claim = load_claim(write_unmeasured(tmp_path, expected=expected), "trees")
    shown = claim_tables(claim, compare(claim))[0].shown
    assert shown["training tokens"].tolist() == ["1,000,000"]
    assert shown["confidence from"].tolist() == ["0.05"]
    assert shown["training minutes"].tolist() == ["0.87"]


def test_one_claim_as_markdown_csv_and_latex(tmp_path: Path):
    claim = load_claim(claim_folder.write_claim(tmp_path), "trees")
    paths = write_claim(claim, tmp_path / "out")
    assert [path.name for path in paths] == ["trees.md", "trees.csv", "trees.tex"]
    text, csv, latex = (path.read_text("utf-8") for path in paths)
    assert text == claim_markdown(claim)
    assert text.startswith("# Trees accept more\n\n**Paper.** EAGLE (2401.15077), ablation")
    assert "2 of 3 settings); 1 of 2 within tolerance. AMD EPYC, 2 cores, float32; 21 min" in text
    assert "| expected | measured | within tolerance | source |" in text
    numbers = pd.read_csv(paths[1])
    assert numbers["measured"].dropna().tolist() == [2.5, 3.1]
    assert csv.splitlines()[0].startswith("quantity,target,benchmark,temperature,method")
    assert (
        r"ours & bench80 & 0 & eagle\_static & 16 & 5 &  & 25 & $\geq$ 2.00 & 2.50 [2.25" in latex
    )
    assert latex.count(r"\toprule") == latex.count(r"\end{tabular}") == 2


def test_a_table_as_latex():
    raw = pd.DataFrame({"x": [1.5]})
    shown = {"m_1": pd.Series(["[a] & b"]), "τ": pd.Series(["≥ 1.50"])}
    assert make_table("t", "50 %", raw, shown, "Note.").to_latex() == (
        "\\begin{table}\n\\centering\n\\caption{50 \\%. Note.}\n\\label{tab:t}\n"
        "\\begin{tabular}{lr}\n\\toprule\nm\\_1 & $\\tau$ \\\\\n\\midrule\n"
        "{[a] \\& b} & $\\geq$ 1.50 \\\\\n\\bottomrule\n\\end{tabular}\n\\end{table}\n"
    )
    assert escape("a~b^c{d}#\\$") == (
        r"a\textasciitilde{}b\textasciicircum{}c\{d\}\#\textbackslash{}\$"
    )


def test_a_table_is_saved_three_times(tmp_path: Path):
    table = make_table("t", "T", pd.DataFrame({"x": [1]}), {"x": pd.Series(["1"])})
    table.save(tmp_path)
    assert {path.name: path.read_text("utf-8") for path in tmp_path.iterdir()} == {
        "t.csv": table.to_csv(), "t.md": table.to_markdown(), "t.tex": table.to_latex(),
    }  # fmt: skip


def test_the_index_names_claim_paper_command_hardware_numbers_and_status(tmp_path: Path):
    root = claim_folder.write_claim(tmp_path)
    write_unmeasured(tmp_path, name="later")
    text = write_index(root).read_text("utf-8")
    assert text == index([load_claim(root, name) for name in ("later", "trees")])
    later, trees = (line for line in text.splitlines() if line.startswith("| [Trees"))
    assert trees == (
        "| [Trees accept more](trees/README.md) | EAGLE (2401.15077), ablation of the tree. "
        "| τ 3.94 (vicuna-7b) | τ 2.50 [2.25, 2.75] (ours) "
        "| partly measured (2 of 3 settings); 1 of 2 within tolerance "
        "| AMD EPYC, 2 cores, float32; 21 min |"
    )
    assert later.endswith("| τ 3.94 (vicuna-7b) | – | not measured yet | – |")
    block = "    python -m eagle_lab.run +experiment=bench \\\n        output_dir=runs/tree\n"
    assert f"### trees\n\n{block}" in text

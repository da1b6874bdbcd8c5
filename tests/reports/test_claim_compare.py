"""Expected beside measured, the status that follows, and the documents made of both."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest

from eagle_lab.reports.claims.claim import load_claim
from eagle_lab.reports.claims.compare import (
    claim_markdown,
    claim_tables,
    compare,
    index,
    status,
    write_claim,
    write_index,
)
from tests.reports import claim_folder
from tests.reports.claim_folder import CLAIM, EXPECTED, MEASURED, PROVENANCE, write_unmeasured


def test_measured_stands_with_its_expectation_and_papers_stand_beside(tmp_path: Path):
    """τ pooled over cycles first; what is held is the mean over turns, which has an interval."""
    claim = load_claim(claim_folder.write_claim(tmp_path), "trees")
    tau, speedup = claim_tables(claim, compare(claim))
    shown = tau.shown.rename(columns={"measured, mean over turns": "mean"})
    columns = ["target", "T", "nodes", "expected", "measured", "mean", "within tolerance"]
    assert shown[columns].to_numpy().tolist() == [
        ["vicuna-7b", "0", "", "3.94", "–", "–", "–"],
        ["ours", "0", "25", "≥ 2.00", "2.40", "2.50 [2.25, 2.75]", "yes"],
        ["vicuna-7b", "1", "", "3.17", "–", "–", "–"],
        ["ours", "0", "32", "≥ 3.30", "2.90", "3.10 [3.00, 3.20]", "no"],
    ]
    assert shown["source"].tolist() == ["EAGLE", "aim; run trees", "EAGLE", "aim; run trees"]
    assert speedup.shown["expected"].tolist() == ["2.90×"]


def test_a_measured_line_without_an_expectation_stands_at_its_setting(tmp_path: Path):
    measured = MEASURED + "more,theirs,bench80,0,eagle_static,1,5,,25,1.5,,,\n"
    measured += "more,theirs,other,0,vanilla,1,,,,1,,,\n"
    provenance = json.dumps({**PROVENANCE, "more": {}})
    root = claim_folder.write_claim(tmp_path, measured=measured, provenance=provenance)
    claim = load_claim(root, "trees")
    lines = compare(claim)
    tau = lines[lines["quantity"] == "tau"]
    assert tau["target"].tolist() == ["vicuna-7b", "ours", "theirs", "vicuna-7b", "ours", "theirs"]
    assert tau["place"].tolist()[:5] == [0, 0, 0, 2, 3]
    assert tau["expected"].isna().tolist() == [False, False, True, False, False, True]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"measured": None, "provenance": None}, "not measured yet"),
        ({}, "partly measured (2 of 3 settings); 1 of 2 within tolerance"),
        ({"claim": CLAIM}, "partly measured (2 of 3 settings)"),
        ({"expected": "\n".join(EXPECTED.splitlines()[:3]), "claim": CLAIM}, "measured"),
        ({"expected": "\n".join(EXPECTED.splitlines()[:3])}, "measured; 1 of 1 within tolerance"),
    ],
)
def test_the_status_follows_from_the_files(
    tmp_path: Path, changes: dict[str, str | None], expected: str
):
    claim = load_claim(claim_folder.write_claim(tmp_path, **changes), "trees")
    assert status(claim, compare(claim)) == expected


def test_what_an_interval_leaves_open_is_not_shown(tmp_path: Path):
    """At least 3 is expected of every tree: 2.5 [2.25, 2.75] misses it, 3.1 [2.9, 3.2] may not."""
    expected = "source,method,tau\nreasoning,,3\n"
    measured = MEASURED.replace("3.1,3,3.2", "3.1,2.9,3.2")
    root = claim_folder.write_claim(tmp_path, expected=expected, measured=measured)
    lines = compare(load_claim(root, "trees"))
    assert dict(zip(lines["measured"], lines["within_tolerance"], strict=True)) == {
        3.1: "not shown", 2.5: "no"
    }  # fmt: skip


def test_a_drafter_is_held_to_its_own_mean_confidence(tmp_path: Path):
    """Expected is the mean confidence of the line, in a bin that fills unevenly not the middle."""
    expected = (
        "source,target,confidence_from,confidence_to,acceptance\n"
        "a paper,vicuna-7b,0,0.05,0.04\ncalibrated,ours,0,0.05,\ncalibrated,ours,0.5,0.55,\n"
    )
    measured = (
        "run,target,confidence_from,confidence_to,acceptance,mean_confidence\n"
        "trees,ours,0,0.05,0.025,0.012\ntrees,ours,0.5,0.55,0.54,0.53\n"
    )
    held = "target: ours\ntolerance: {acceptance: {absolute: 0.03, relative: 0.25}}\n"
    files = {"expected": expected, "measured": measured, "claim": CLAIM + held}
    lines = compare(load_claim(claim_folder.write_claim(tmp_path, **files), "trees"))
    assert lines["expected"].tolist() == [0.04, 0.012, 0.53]
    assert lines["within_tolerance"].tolist()[1:] == ["no", "yes"]
    assert lines["source"].tolist() == ["a paper", "calibrated", "calibrated"]


def test_large_and_small_settings_are_written_in_full(tmp_path: Path):
    expected = (
        "source,num_training_tokens,confidence_from,training_minutes,tau\nx,1000000,0.05,0.87,1\n"
    )
    claim = load_claim(write_unmeasured(tmp_path, expected=expected), "trees")
    (row,) = claim_tables(claim, compare(claim))[0].shown.to_numpy().tolist()
    assert {"1,000,000", "0.05", "0.87"} < set(row)


def test_one_claim_as_markdown_csv_and_latex(tmp_path: Path):
    claim = load_claim(claim_folder.write_claim(tmp_path), "trees")
    paths = write_claim(claim, tmp_path / "out")
    assert [path.name for path in paths] == ["trees.md", "trees.csv", "trees.tex"]
    markdown, _, latex = (path.read_text("utf-8") for path in paths)
    assert markdown == claim_markdown(claim)
    assert claim.title in markdown and claim.paper in markdown
    numbers = pd.read_csv(paths[1])
    assert numbers["measured"].dropna().tolist() == [2.5, 3.1]
    assert numbers["tau_micro"].dropna().tolist() == [2.4, 2.9]
    assert r"$\geq$ 2.00 & 2.40 & 2.50 [2.25, 2.75]" in latex
    assert latex.count(r"\toprule") == latex.count(r"\end{tabular}") == 2


def test_the_index_has_a_row_and_the_commands_of_each_claim(tmp_path: Path):
    later = CLAIM.split("commands:")[0].replace("Trees", "Later trees")
    write_unmeasured(tmp_path, name="later", claim=later)
    root = claim_folder.write_claim(tmp_path)
    claims = [load_claim(root, name) for name in ("later", "trees")]
    text = write_index(root, claims).read_text("utf-8")
    assert text == index(claims)
    rows = {line.split("](")[1].split("/")[0]: line.split(" | ") for line in text.splitlines()
            if line.startswith("| [")}  # fmt: skip
    assert rows["trees"][1:] == [
        claims[1].paper,
        "τ 3.94 (vicuna-7b)",
        "τ 2.40, mean over turns 2.50 [2.25, 2.75] (ours)",
        "partly measured (2 of 3 settings); 1 of 2 within tolerance",
        "AMD EPYC, 2 cores, float32; 21 min |",
    ]
    assert rows["later"][2:] == ["τ 3.94 (vicuna-7b)", "–", "not measured yet", "– |"]
    of_later, of_trees = text.split("### later")[1].split("### trees")
    assert "(#trees)" in of_later and "`trees`" in of_later and "`other`" not in of_later
    assert "report.claim=later report.run=runs/trees" in of_later
    assert "        output_dir=runs/trees\n" in of_trees
    assert "report.claim=trees report.run=runs/trees" in of_trees

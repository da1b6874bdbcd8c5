"""Claims are read as they are written; what is malformed is named by file and line."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from eagle_lab.errors import UserError
from eagle_lab.reports import claim as claims
from eagle_lab.reports.claim import claims_folder, load_claim, load_claims
from eagle_lab.reports.claim_tolerance import Tolerance
from tests.reports.claim_folder import EXPECTED, MEASURED, README, write_claim, write_unmeasured


def test_a_claim_is_read(tmp_path: Path):
    claim = load_claim(write_claim(tmp_path), "trees")
    assert (claim.name, claim.title) == ("trees", "Trees accept more")
    assert claim.paper == "EAGLE (2401.15077), ablation of the tree."
    assert claim.commands == (
        "python -m eagle_lab.run +experiment=bench \\\n    output_dir=runs/tree"
    )
    assert claim.quantities == ["tau", "speedup"]
    assert claim.expected["tau"].tolist() == [3.94, 2.0, 3.17, 3.3]
    assert claim.expected["depth"].isna().tolist() == [True, False, True, False]
    assert claim.measured["run"].unique().tolist() == ["trees"]
    assert claim.tolerance_of("tau", "ours") == Tolerance({"at_least": 0.0})
    assert claim.tolerance_of("tau", "vicuna-7b") is None


def test_a_claim_before_it_is_measured(tmp_path: Path):
    claim = load_claim(write_unmeasured(tmp_path, tolerance=None), "trees")
    assert claim.measured.empty
    assert (claim.provenance, claim.tolerances) == ({}, {})


@pytest.mark.parametrize(
    ("measured", "distance", "at_least"),
    [(2.2, "yes", "yes"), (2.3, "no", "yes"), (1.8, "yes", "yes"), (1.7, "no", "no")],
)
def test_tolerances(measured: float, distance: str, at_least: str):
    assert Tolerance({"absolute": 0.2}).verdict(2.0, measured) == distance
    assert Tolerance({"relative": 0.1}).verdict(2.0, measured) == distance
    assert Tolerance({"at_least": 0.2}).verdict(2.0, measured) == at_least


@pytest.mark.parametrize(
    ("expected", "measured", "verdict"),
    [(0.02, 0.024, "yes"), (0.02, 0.026, "no"), (0.5, 0.52, "yes"), (0.5, 0.54, "no")],
)
def test_of_two_distances_the_narrower_holds(expected: float, measured: float, verdict: str):
    """A quarter of 0.02 is 0.005; of 0.5 it is more than 0.03."""
    both = Tolerance({"absolute": 0.03, "relative": 0.25})
    assert both.verdict(expected, measured) == verdict


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [
        (2.0, 2.4, "yes"),
        (1.9, 2.4, "not shown"),
        (1.9, 2.0, "not shown"),
        (1.7, 1.99, "no"),
        (float("nan"), float("nan"), "yes"),
    ],
)
def test_a_bound_is_met_or_missed_by_the_whole_interval(low: float, high: float, verdict: str):
    """2.2 is measured where at least 2 is expected; without an interval it alone decides."""
    assert Tolerance({"at_least": 0.0}).verdict(2.0, 2.2, (low, high)) == verdict


def test_an_unknown_claim_lists_what_there_is_and_the_nearest(tmp_path: Path):
    write_claim(tmp_path, "tree_surface")
    write_claim(tmp_path)
    message = "unknown claim 'tree_surfaces'; allowed: tree_surface, trees. Did you mean 'tree_sur"
    with pytest.raises(UserError, match=re.escape(message)):
        load_claim(tmp_path, "tree_surfaces")
    assert [claim.name for claim in load_claims(tmp_path)] == ["tree_surface", "trees"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"README": None}, "README.md is missing"),
        ({"README": README.replace("# Trees", "Trees")}, "its first line must be the claim"),
        ({"README": README.replace("**Paper.**", "Paper:")}, "a paragraph `**Paper.** …`"),
        ({"README": README.replace("    ", "")}, "`## Commands` must hold the commands"),
        ({"expected": ""}, "expected.csv is no CSV table"),
        ({"expected": EXPECTED.splitlines()[0]}, "expected.csv has no line"),
        ({"expected": "source,method\nx,vanilla\n"}, "expected.csv has no quantity"),
        ({"expected": "method,tau\nvanilla,1\n"}, "expected.csv has no column 'source'"),
        ({"expected": EXPECTED.replace("speedup", "sped")}, "unknown column of "),
        ({"expected": EXPECTED.replace("speedup", "sped")}, "Did you mean 'speedup'?"),
        ({"expected": EXPECTED.replace("3.17", "3,17")}, "expected.csv is no CSV table"),
        (
            {"expected": EXPECTED.replace("3.17", "about 3")},
            "expected.csv, line 4: tau is 'about 3', not a number",
        ),
        (
            {"measured": MEASURED.replace("2.75", "?")},
            "measured.csv, line 3: tau_high is '?', not a number",
        ),
        ({"measured": MEASURED.replace("run,", "source,")}, "measured.csv has no column 'run'"),
        ({"provenance": None}, "names run 'trees', which"),
        ({"provenance": '{"tree": {}}'}, "does not know; there: tree"),
        ({"provenance": "{"}, "is not valid JSON"),
        ({"tolerance": "tau: {absolute: 1}"}, "must name the target whose expectations are held"),
        ({"tolerance": "{"}, "tolerance.yaml is no YAML"),
        ({"tolerance": "target: ours\ntau: 0.1"}, "tau is 0.1; give its kind and size"),
        ({"tolerance": "target: ours\ntau: {}"}, "tau is {}; give its kind and size"),
        (
            {"tolerance": "target: ours\ntau: {at_least: 0, absolute: 1}"},
            "as {absolute: 0.05}, and at_least alone",
        ),
        ({"tolerance": "target: ours\ntau: {about: 1}"}, "unknown tolerance of tau"),
        ({"tolerance": "target: ours\ntau: {absolute: -1}"}, "tau.absolute is -1; it must be"),
        ({"tolerance": "target: ours\ntau: {absolute: .nan}"}, "tau.absolute is nan; it must be"),
        ({"tolerance": "target: ours\nitl: {absolute: 1}"}, "unknown quantity of"),
    ],
)
def test_a_malformed_claim_says_where(tmp_path: Path, changes: dict[str, str | None], message: str):
    with pytest.raises(UserError, match=re.escape(message)):
        load_claim(write_claim(tmp_path, **changes), "trees")


def test_a_wheel_has_no_claims_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    assert claims_folder() == Path(claims.__file__).parents[2] / "experiments"
    monkeypatch.setattr(claims, "CHECKOUT_CLAIMS", tmp_path / "site-packages" / "experiments")
    with pytest.raises(UserError, match=r"report.claims=PATH names the folder of claims"):
        claims_folder()
    assert claims_folder(write_claim(tmp_path / "mine")) == tmp_path / "mine"
    with pytest.raises(UserError, match=r"report.claims=.*empty holds no claim"):
        claims_folder(tmp_path / "empty")

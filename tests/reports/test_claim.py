"""Claims are read as they are written; what is malformed is refused, naming file and value."""

from __future__ import annotations

from pathlib import Path

import pytest

from eagle_lab.errors import UserError
from eagle_lab.reports.claims import claim as claims
from eagle_lab.reports.claims.claim import Tolerance, claims_folder, load_claim, load_claims
from tests.reports.claim_folder import CLAIM, EXPECTED, MEASURED, write_claim, write_unmeasured


def test_a_claim_is_read(tmp_path: Path):
    claim = load_claim(write_claim(tmp_path), "trees")
    assert (claim.name, claim.title, claim.table) == ("trees", "Trees accept more", "summary")
    assert claim.paper == "EAGLE (2401.15077), ablation of the tree."
    assert claim.runs == {"trees": {}, "other": {"num_training_tokens": 1000}}
    assert claim.commands == {
        "trees": "python -m eagle_lab.run +experiment=bench \\\n    output_dir=runs/trees"
    }
    assert claim.quantities == ["tau", "speedup"]
    assert claim.expected["tau"].tolist() == [3.94, 2.0, 3.17, 3.3]
    assert claim.expected["depth"].isna().tolist() == [True, False, True, False]
    assert claim.measured["run"].unique().tolist() == ["trees"]
    assert claim.tolerance_of("tau", "ours") == Tolerance({"at_least": 0.0})
    assert claim.tolerance_of("tau", "vicuna-7b") is None


def test_a_claim_before_it_is_measured(tmp_path: Path):
    claim = load_claim(write_unmeasured(tmp_path, claim=CLAIM), "trees")
    assert claim.measured.empty
    assert (claim.provenance, claim.tolerance, claim.target) == ({}, {}, None)


NAN = float("nan")


@pytest.mark.parametrize(
    ("sizes", "expected", "measured", "interval", "verdict"),
    [
        ({"absolute": 0.2}, 2.0, 2.2, (NAN, NAN), "yes"),
        ({"absolute": 0.2}, 2.0, 2.3, (NAN, NAN), "no"),
        ({"relative": 0.1}, 2.0, 1.8, (NAN, NAN), "yes"),
        ({"relative": 0.1}, 2.0, 1.7, (NAN, NAN), "no"),
        # Of two distances the narrower: a quarter of 0.02 is 0.005, of 0.5 more than 0.03
        ({"absolute": 0.03, "relative": 0.25}, 0.02, 0.024, (NAN, NAN), "yes"),
        ({"absolute": 0.03, "relative": 0.25}, 0.02, 0.026, (NAN, NAN), "no"),
        ({"absolute": 0.03, "relative": 0.25}, 0.5, 0.52, (NAN, NAN), "yes"),
        ({"absolute": 0.03, "relative": 0.25}, 0.5, 0.54, (NAN, NAN), "no"),
        ({"at_least": 0.2}, 2.0, 1.8, (NAN, NAN), "yes"),
        ({"at_least": 0.2}, 2.0, 1.7, (NAN, NAN), "no"),
        # A bound is met or missed by the whole interval
        ({"at_least": 0}, 2.0, 2.2, (2.0, 2.4), "yes"),
        ({"at_least": 0}, 2.0, 2.2, (1.9, 2.4), "not shown"),
        ({"at_least": 0}, 2.0, 1.95, (1.9, 2.0), "not shown"),
        ({"at_least": 0}, 2.0, 1.8, (1.7, 1.99), "no"),
    ],
)
def test_tolerances(
    sizes: dict[str, float],
    expected: float,
    measured: float,
    interval: tuple[float, float],
    verdict: str,
):
    assert Tolerance(sizes).verdict(expected, measured, interval) == verdict


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"claim": "{"}, "claim.yaml"),
        ({"claim": CLAIM.replace("title", "titel")}, "titel"),
        ({"claim": CLAIM.replace("paper: >-", "# ")}, "claim.yaml"),
        ({"claim": "title: x\npaper: x\n"}, "runs"),
        ({"claim": CLAIM + "table: means\n"}, "means"),
        ({"claim": CLAIM.replace("1000", "many")}, "many"),
        ({"claim": CLAIM.replace("num_training_tokens", "num_tokens")}, "num_tokens"),
        ({"claim": CLAIM + "tolerance: 3\n"}, "tolerance"),
        ({"claim": CLAIM + "tolerance: {tau: 0.1}\n"}, "0.1"),
        ({"claim": CLAIM + "tolerance: {tau: {}}\n"}, "tau"),
        ({"claim": CLAIM + "tolerance: {tau: {at_least: 0, absolute: 1}}\n"}, "at_least"),
        ({"claim": CLAIM + "tolerance: {tau: {about: 1}}\n"}, "about"),
        ({"claim": CLAIM + "tolerance: {tau: {absolute: -1}}\n"}, "-1"),
        ({"claim": CLAIM + "tolerance: {tau: {absolute: .nan}}\n"}, "nan"),
        ({"claim": CLAIM + "tolerance: {itl: {absolute: 1}}\n"}, "itl"),
        ({"expected": None}, "expected.csv"),
        ({"expected": ""}, "expected.csv"),
        ({"expected": EXPECTED.splitlines()[0]}, "expected.csv"),
        ({"expected": "source,method\nx,vanilla\n"}, "expected.csv"),
        ({"expected": "method,tau\nvanilla,1\n"}, "source"),
        ({"expected": EXPECTED.replace("speedup", "sped")}, "sped"),
        ({"expected": EXPECTED.replace("3.17", "3,17")}, "expected.csv"),
        ({"expected": EXPECTED.replace("3.17", "about 3")}, "about 3"),
        ({"measured": MEASURED.replace("2.75", "?")}, "tau_high"),
        ({"measured": MEASURED.replace("run,", "source,")}, "measured.csv"),
        ({"provenance": None}, "trees"),
        ({"provenance": "{"}, "provenance.json"),
    ],
)
def test_a_malformed_claim_names_file_or_value(
    tmp_path: Path, changes: dict[str, str | None], named: str
):
    with pytest.raises(UserError) as caught:
        load_claim(write_claim(tmp_path, **changes), "trees")
    assert named in str(caught.value)


def test_claims_are_found_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    root = write_claim(write_claim(tmp_path / "mine"), "tree_surface")
    assert [claim.name for claim in load_claims(root)] == ["tree_surface", "trees"]
    with pytest.raises(UserError, match="tree_surface"):
        load_claim(root, "tree_surfaces")
    assert claims_folder(root) == root
    assert claims_folder() == Path(claims.__file__).parents[3] / "experiments"
    for missing in (None, tmp_path / "empty"):
        monkeypatch.setattr(claims, "CHECKOUT_CLAIMS", tmp_path / "site-packages" / "experiments")
        with pytest.raises(UserError, match="report.claims"):
            claims_folder(missing)

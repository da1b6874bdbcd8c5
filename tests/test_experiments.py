"""The claims of this repository: well formed, honest about their origin, their page up to date."""

from __future__ import annotations

import json
import re

import pytest

from eagle_lab.config import compose
from eagle_lab.reports.claims.claim import Claim, claims_folder, load_claims
from eagle_lab.reports.claims.compare import compare, index, places

FOLDER = claims_folder()
CLAIMS = load_claims(FOLDER)
OURS = "SmolLM2-135M-Instruct"
COMMANDS = {run: text for claim in CLAIMS for run, text in claim.commands.items()}
every_claim = pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: claim.name)


def test_the_page_of_all_claims_is_up_to_date():
    """`python -m eagle_lab.run +experiment=report report.claim=all` writes it anew."""
    assert (FOLDER / "README.md").read_text("utf-8") == index(CLAIMS)


def test_every_folder_is_a_claim():
    folders = {path.name for path in FOLDER.iterdir() if path.is_dir()}
    assert folders == {claim.name for claim in CLAIMS}


@every_claim
def test_numbers_of_papers_are_for_their_own_targets(claim: Claim):
    papers = claim.expected["source"].str.contains(r"\(\d{4}\.\d{5}\)")
    assert claim.expected.loc[papers, "target"].notna().all()
    assert not (claim.expected.loc[papers, "target"] == OURS).any()


@every_claim
def test_every_measured_line_belongs_to_its_claim_and_to_one_of_its_runs(claim: Claim):
    assert places(claim, claim.measured).notna().all()
    assert compare(claim)["expected"].notna().any()
    assert set(claim.measured["run"]) <= set(claim.runs)


@every_claim
def test_provenance_names_commit_and_command_and_nothing_private(claim: Claim):
    for run in claim.provenance.values():
        assert re.fullmatch(r"[0-9a-f]{40}", run["git_commit"])
        assert run["command"].startswith("python -m eagle_lab.run ")
        assert {"device_name", "dtype", "seed", "versions", "start"} <= set(run)
        assert not set(run["machine"]) - {"cpu", "num_cpus"}
    assert not re.search(r'[\s="\[](/|~|\.\./)', json.dumps(claim.provenance))


def test_a_run_is_made_by_one_command_from_runs_that_are_made():
    """But for the run of an earlier drafter, which had uncommitted changes."""
    assert len(COMMANDS) == sum(len(claim.commands) for claim in CLAIMS)
    used = {run for text in COMMANDS.values() for run in re.findall(r"runs/(\w+)", text)}
    assert {run for claim in CLAIMS for run in claim.runs} | used == {*COMMANDS, "train1"}


@pytest.mark.parametrize("run", COMMANDS)
def test_every_command_composes_and_makes_its_run(run: str):
    command = COMMANDS[run].replace("\\\n", "").split()
    assert command[:3] == ["python", "-m", "eagle_lab.run"]
    config = compose(command[3:])
    assert config.task and config.output_dir == f"runs/{run}"

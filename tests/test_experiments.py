"""The claims of this repository: well formed, honest about their origin, their page up to date."""

from __future__ import annotations

import json
import re

import pytest

from eagle_lab.config import compose
from eagle_lab.reports.claim import Claim, claim_names, claims_folder, load_claims
from eagle_lab.reports.claim_index import index
from eagle_lab.reports.claim_table import compare, places

FOLDER = claims_folder()
CLAIMS = load_claims(FOLDER)
OURS = "SmolLM2-135M-Instruct"


def test_the_page_of_all_claims_is_up_to_date():
    """`python -m eagle_lab.run +experiment=report report.claim=all` writes it anew."""
    assert (FOLDER / "README.md").read_text("utf-8") == index(CLAIMS)


def test_every_folder_is_a_claim():
    folders = {path.name for path in FOLDER.iterdir() if path.is_dir()}
    assert folders == set(claim_names(FOLDER))


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: claim.name)
def test_numbers_of_papers_are_for_their_own_targets(claim: Claim):
    papers = claim.expected["source"].str.contains(r"\(\d{4}\.\d{5}\)")
    assert claim.expected.loc[papers, "target"].notna().all()
    assert not (claim.expected.loc[papers, "target"] == OURS).any()


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: claim.name)
def test_every_measured_line_belongs_to_its_claim(claim: Claim):
    assert places(claim, claim.measured).notna().all()
    assert compare(claim)["expected"].notna().any()


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: claim.name)
def test_provenance_names_commit_and_command_and_nothing_private(claim: Claim):
    for run in claim.provenance.values():
        assert re.fullmatch(r"[0-9a-f]{40}", run["git_commit"])
        assert run["command"].startswith("python -m eagle_lab.run ")
        assert {"device_name", "dtype", "seed", "versions", "start"} <= set(run)
        assert not set(run["machine"]) - {"cpu", "num_cpus"}
    assert not re.search(r'[\s="\[](/|~|\.\./)', json.dumps(claim.provenance))


def commands() -> list[list[str]]:
    """Arguments of the commands, one command of those that differ only in folders and claims."""
    joined = "\n".join(claim.commands for claim in CLAIMS).replace("\\\n", "")
    lines = [line.split() for line in joined.splitlines()]
    named = ("output_dir=", "report.run=", "report.claim=", "drafter.path=")
    kinds = {" ".join(item for item in line if not item.startswith(named)): line for line in lines}
    return list(kinds.values())


@pytest.mark.parametrize("command", commands(), ids=" ".join)
def test_every_command_composes(command: list[str]):
    assert command[:3] == ["python", "-m", "eagle_lab.run"]
    assert compose(command[3:]).task


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: claim.name)
def test_commands_fill_the_claim_they_stand_in(claim: Claim):
    assert set(re.findall(r"report\.claim=(\S+)", claim.commands)) == {claim.name}
    linked = re.findall(r"\]\(\.\./(\w+)/README\.md\)", (claim.folder / "README.md").read_text())
    makers = [claim, *(other for other in CLAIMS if other.name in linked)]
    made = {run for maker in makers for run in re.findall(r"output_dir=(\S+)", maker.commands)}
    assert set(re.findall(r"report\.run=(\S+)", claim.commands)) <= made

"""`+experiment=report`: the report of a run or sweep, or of a claim of experiments/.

    report.run=PATH                      figures, tables and a page, written into the run's folder
    report.claim=NAME                    expected beside measured: printed as Markdown, and written
                                         as Markdown, CSV and LaTeX into output_dir
    report.claim=all                     the same for all claims, and experiments/README.md anew
    report.claim=NAME report.run=PATH    first, the run's numbers become the claim's measured.csv
    report.card=FOLDER report.run=PATH   what the bench measured of the drafter in FOLDER enters its
                                         model card; without a run the card is written anew

Opens results only; loads neither torch nor a model.
"""

from __future__ import annotations

from pathlib import Path

from omegaconf import DictConfig

from eagle_lab.drafters.card import add_evaluation, write_card
from eagle_lab.drafters.folder import weights_digest
from eagle_lab.errors import UserError, choose
from eagle_lab.reports import make_report
from eagle_lab.reports.claims.claim import claim_names, claims_folder, load_claim, load_claims
from eagle_lab.reports.claims.compare import claim_markdown, write_claim, write_index
from eagle_lab.reports.claims.measure import add_run, evaluation_of

ALL = "all"


def run(config: DictConfig) -> None:
    """Make what `config.report` asks for and say where it is.

    Raises:
        UserError: if nothing is named, or what is named does not exist, is malformed, or holds no
            results yet.
    """
    asked = config.report
    if asked.card:
        if asked.run:
            add_evaluation(asked.card, evaluation_of(asked.run, weights_digest(asked.card)))
        print(f"model card: {write_card(asked.card)}")
    elif asked.claim:
        report_claim(asked, Path(config.output_dir))
    elif asked.run:
        print(f"report: {make_report(asked.run)}")
    else:
        raise UserError(
            "nothing to report on: report.run=PATH names the output_dir of a run, or the root of "
            "a sweep; report.claim=NAME a claim of experiments/; report.card=FOLDER a "
            "drafter's folder"
        )


def report_claim(asked: DictConfig, output_dir: Path) -> None:
    """Measure a claim by a run if one is named, then show the claim, or all of them."""
    folder = claims_folder(asked.claims)
    names = claim_names(folder)
    choose(asked.claim, [*names, ALL], "claim")
    if asked.run:
        if asked.claim == ALL:
            raise UserError("report.run measures one claim: report.claim=NAME instead of all")
        num_lines = add_run(load_claim(folder, asked.claim), asked.run)
        print(f"{num_lines} lines: {folder / asked.claim / 'measured.csv'}")
    claims = [load_claim(folder, name) for name in names if asked.claim in (name, ALL)]
    for claim in claims:
        print(f"\n{claim_markdown(claim)}")
        print("written:", *write_claim(claim, output_dir))
    if asked.run or asked.claim == ALL:
        print(f"all claims: {write_index(folder, load_claims(folder))}")

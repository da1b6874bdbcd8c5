"""Calibration of a drafter: how often drafted tokens are accepted, by the drafter's confidence.

Confidence is the probability that the drafter gave a token behind its parent. A bench with
`eval.record_confidence=true` notes it for every drafted token the target judged: those whose
parent was accepted. EAGLE-2 (2406.16858) builds its trees on confidence being close to acceptance.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from eagle_lab.bench.statistics import ratio
from eagle_lab.errors import UserError
from eagle_lab.reports.acceptance import intervals

NUM_BINS = 20


def calibration(
    generations: pd.DataFrame, *, num_bins: int = NUM_BINS, seed: int = 0
) -> pd.DataFrame:
    """Acceptance by confidence, one row per label and bin that holds a judged token.

    Args:
        generations: rows with `label`, `draft_confidences` and `draft_accepted`.
        num_bins: bins of equal width over [0, 1]; a bin holds its lower edge, the last one 1 too.
        seed: of the bootstrap, which resamples questions.

    Returns:
        Columns label, confidence_from, confidence_to, num_trials, mean_confidence, acceptance,
        acceptance_low and acceptance_high (95 %). A calibrated drafter's acceptance is the mean
        confidence of the bin, which a bin that fills unevenly has away from its middle.

    Raises:
        UserError: no row has confidences.
    """
    known = has_confidences(generations)
    if not known.any():
        raise UserError(
            "the run noted no confidences; run it with eval.record_confidence=true "
            "eval.timing=false and a method that has them, such as eagle_dynamic"
        )
    frames = [
        _label_calibration(str(label), rows, num_bins, seed)
        for label, rows in generations[known].groupby("label", sort=False)
    ]
    return pd.concat(frames, ignore_index=True)


def has_confidences(generations: pd.DataFrame) -> pd.Series:
    """Which rows noted their drafter's confidences."""
    noted = generations.get("draft_confidences", pd.Series(None, generations.index, dtype=object))
    return noted.notna()


def expected_calibration_error(bins: pd.DataFrame) -> float:
    """Mean distance of acceptance from confidence over the judged tokens, by bins of `calibration`.

    Expected calibration error (Guo et al. 1706.04599, equation 3), of one label's bins.
    """
    distance = (bins["acceptance"] - bins["mean_confidence"]).abs()
    return float(np.average(distance, weights=bins["num_trials"]))


def _label_calibration(label: str, rows: pd.DataFrame, num_bins: int, seed: int) -> pd.DataFrame:
    question = pd.factorize(rows["question_id"].astype(str))[0]
    trials, accepted, confidence = np.zeros((3, int(question.max()) + 1, num_bins))
    columns = (question, rows["draft_confidences"], rows["draft_accepted"])
    for place, confidences, outcomes in zip(*columns, strict=True):
        given = np.asarray(confidences, dtype=np.float64)
        # 0.15 / 0.05 is 2.999…: the edge belongs to the bin above it
        bins = np.minimum(np.floor(given * num_bins + 1e-9).astype(int), num_bins - 1)
        np.add.at(trials[place], bins, 1)
        np.add.at(confidence[place], bins, given)
        np.add.at(accepted[place], bins, np.asarray(outcomes, dtype=np.float64))
    low, high = intervals(accepted, trials, seed)
    edges = np.round(np.linspace(0, 1, num_bins + 1), 6)
    frame = pd.DataFrame(
        {
            "label": label,
            "confidence_from": edges[:-1],
            "confidence_to": edges[1:],
            "num_trials": trials.sum(axis=0).astype(int),
            "mean_confidence": ratio(confidence.sum(axis=0), trials.sum(axis=0)),
            "acceptance": ratio(accepted.sum(axis=0), trials.sum(axis=0)),
            "acceptance_low": low,
            "acceptance_high": high,
        }
    )
    return frame[frame["num_trials"] > 0]

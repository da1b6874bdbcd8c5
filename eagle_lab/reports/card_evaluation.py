"""What a bench measured of one drafter, as its model card tells it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from eagle_lab.errors import UserError
from eagle_lab.reports.claim_provenance import publishable
from eagle_lab.reports.load import Run, load_run
from eagle_lab.reports.tables import Table, decimals, make_table, with_interval
from eagle_lab.reports.words import replay_words

ROW = (
    *("label", "method", "depth", "width", "num_nodes", "num_questions", "num_tokens"),
    *("num_cycles", "tau_micro", "tau_macro", "tau_macro_low", "tau_macro_high"),
    *("speedup", "speedup_low", "speedup_high", "greedy_match_rate"),
)
_ASKED = ("temperature", "turns", "max_new_tokens", "batch_size", "replay")


def evaluation_of(path: str | Path, digest: str) -> tuple[str, dict[str, Any]]:
    """Name and contents of an evaluation: the rows of a bench that drafted with certain weights.

    Args:
        path: folder of a finished bench.
        digest: of the weights.

    Raises:
        UserError: an unfinished run, or one that did not draft with these weights.
    """
    run = load_run(path)
    if not run.finished:
        raise UserError(
            f"{path} is unfinished; start its command again, it goes on where it stopped"
        )
    drafters: Mapping[str, str] = run.provenance.get("drafters") or {}
    own = [name for name, found in drafters.items() if found == digest]
    rows = run.main[run.main["drafter"].isin(own)] if "drafter" in run.main else run.main.head(0)
    if rows.empty:
        used = ", ".join(drafters) or "none"
        raise UserError(
            f"{path} measured nothing of this drafter: none of the drafters it used ({used}) has "
            "its weights"
        )
    first = rows.iloc[0]
    asked = run.config.get("eval") or {}
    benchmark = Path(str(run.provenance.get("prompts"))).stem
    name = f"{benchmark}, T = {first['temperature']:g}, batch {first['batch_size']:g}"
    return name, {
        "benchmark": benchmark,
        **{key: asked.get(key) for key in _ASKED},
        "rows": _plain(rows),
        "provenance": _told(run),
    }


def _told(run: Run) -> dict[str, Any]:
    kept = publishable(run.provenance)
    names = ("command", "git_commit", "device_name", "torch_threads", "dtype", "start")
    return {name: kept.get(name) for name in names}


def _plain(rows: pd.DataFrame) -> list[dict[str, Any]]:
    """Rows as JSON holds them, without what is empty."""
    kept = rows[[name for name in ROW if name in rows]].astype(object)
    return [
        {str(name): getattr(value, "item", lambda v=value: v)() for name, value in row.items()
         if pd.notna(value)}
        for row in kept.to_dict("records")
    ]  # fmt: skip


def evaluation_table(name: str, evaluation: Mapping[str, Any]) -> Table:
    """One evaluation, one row per method and setting."""
    rows = pd.DataFrame(evaluation["rows"]).reindex(columns=list(ROW))
    origin = evaluation["provenance"]
    columns = {
        "method": rows["label"],
        "depth": rows["depth"].map(decimals(0)),
        "width": rows["width"].map(decimals(0)),
        "nodes": rows["num_nodes"].map(decimals(0)),
        "τ": with_interval(rows, "tau_macro"),
        "speedup": with_interval(rows, "speedup", unit="×"),
        "greedy match": rows["greedy_match_rate"].map(decimals(3)),
        "questions": rows["num_questions"].map(decimals(0)),
        "tokens": rows["num_tokens"].map(decimals(0)),
    }
    note = (
        f"At most {evaluation['max_new_tokens']} new tokens a turn; {origin['dtype']} on "
        f"{origin['device_name']}, {str(origin['start'])[:10]}, commit "
        f"{str(origin['git_commit'])[:12]}. τ: tokens per target pass, mean over turns, with a "
        f"95 % bootstrap interval over questions.{_of_match(rows)}{_of_replay(evaluation)}"
        f"\n\n    {origin['command']}"
    )
    return make_table("evaluation", f"Measured: {name}", rows, columns, note)


def _of_match(rows: pd.DataFrame) -> str:
    if rows["greedy_match_rate"].isna().all():
        return ""
    return " Greedy match: share of turns equal to plain decoding token for token."


def _of_replay(evaluation: Mapping[str, Any]) -> str:
    if not evaluation.get("replay"):
        return ""
    return " " + replay_words(evaluation["temperature"])

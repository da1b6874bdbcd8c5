"""Reports: results folders as data frames, tables, figures and one self-contained HTML page.

Reads what a bench, a sweep, a training or a profile wrote; never imports torch, so results open
anywhere.

    from eagle_lab.reports import describe, load_run, load_sweep, make_report

    run = load_run("runs/bench/2026-11-30_10-00-00")   # frames: run.summary, run.generations, …
    sweep = load_sweep("runs/sweep/…")                 # one row per setting: sweep.table
    make_report(run.path)                              # figures/, tables/, report.md, report.html
    describe(run).plot("speedup_by_method")            # one figure, shown in a notebook

From the command line: `python -m eagle_lab.run +experiment=report report.run=PATH`.
"""

from eagle_lab.reports.load import Run, Sweep, load_run, load_sweep
from eagle_lab.reports.page import join_reports, make_report
from eagle_lab.reports.sections import Content, describe

__all__ = [
    "Content",
    "Run",
    "Sweep",
    "describe",
    "join_reports",
    "load_run",
    "load_sweep",
    "make_report",
]

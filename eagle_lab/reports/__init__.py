"""Reports: results folders as data frames, tables, figures and one self-contained HTML page.

Reads what a bench, a sweep or a training wrote; never imports torch, so results open anywhere.

    from eagle_lab.reports import describe, load_run, load_sweep, make_report

    run = load_run("runs/bench/2026-11-30_10-00-00")   # frames: run.summary, run.generations, …
    sweep = load_sweep("runs/sweep/…")                 # one row per setting: sweep.table
    make_report(run.path)                              # figures/, tables/, report.md, report.html
    describe(run).plot("speedup_by_method")            # one figure, shown in a notebook

From the command line: `python -m eagle_lab.run +experiment=report report.run=PATH`.
"""

from eagle_lab.reports.build import describe, make_report
from eagle_lab.reports.content import Content
from eagle_lab.reports.load import Run, Sweep, load_run, load_sweep

__all__ = ["Content", "Run", "Sweep", "describe", "load_run", "load_sweep", "make_report"]

"""Test processes run side by side, so each takes one thread of its own."""

import os

for library in ("OMP", "NUMBA"):
    os.environ.setdefault(f"{library}_NUM_THREADS", "1")

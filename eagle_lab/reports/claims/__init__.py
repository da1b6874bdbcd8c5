"""The claims of experiments/: what is expected, what was measured, and how far they agree."""

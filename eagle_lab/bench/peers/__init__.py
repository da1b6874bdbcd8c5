"""Other engines in the same bench, as external baselines."""

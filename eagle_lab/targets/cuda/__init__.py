"""Flash attention for the committed prefix, and CUDA graphs."""

"""The target: any Hugging Face causal language model over a cache that keeps a path of a tree."""

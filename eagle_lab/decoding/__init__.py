"""Decoding: one loop, and one file per proposer."""

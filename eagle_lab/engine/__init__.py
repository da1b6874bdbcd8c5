"""Speculative decoding itself: draft trees, their verification, one loop for every method."""

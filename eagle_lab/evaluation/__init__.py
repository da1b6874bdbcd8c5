"""Measuring: the benchmark runner, its statistics, and the arithmetic of speculative decoding."""

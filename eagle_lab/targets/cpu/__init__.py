"""CPU kernels for passes over few tokens, in float32: `patch` puts them into a model."""

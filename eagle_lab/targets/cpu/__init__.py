"""CPU kernels for passes over few tokens, in float32."""

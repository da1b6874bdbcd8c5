"""Draft trees as plain tensors: what they are, fixed shapes, and growth from a drafter's scores."""

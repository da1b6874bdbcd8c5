"""Training of drafters: alignment, losses, acceptance metrics, Lightning module."""

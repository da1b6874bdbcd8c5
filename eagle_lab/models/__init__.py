"""The target model and what it needs to score trees: attention, a cache that keeps a path."""

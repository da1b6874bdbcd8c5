"""Running, counting, intervals: methods side by side on the same questions."""

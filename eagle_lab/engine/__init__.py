"""The idea: trees of draft tokens, one verification, one loop for every method."""

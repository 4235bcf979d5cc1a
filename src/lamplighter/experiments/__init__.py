"""Experiments: train, prune, measure, again."""

"""Pruning inside other people's training loops; each is imported only by who uses it."""

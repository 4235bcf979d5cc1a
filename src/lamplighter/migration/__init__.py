"""Masks and sparse weights of other tools, read without losing a bit."""

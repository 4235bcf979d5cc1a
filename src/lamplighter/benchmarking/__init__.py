"""Measurements of this machine: ours beside the alternatives, in one run."""

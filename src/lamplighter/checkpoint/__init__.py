"""Checkpoints of any size: lazy reading, streamed pruning, atomic writing."""

"""The command `lamp`."""

from lamplighter.cli.app import main

__all__ = ["main"]

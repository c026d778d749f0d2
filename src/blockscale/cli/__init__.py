"""The command line: one module per verb. NumPy and rich are imported when a verb runs, not before."""

from .app import main

__all__ = ["main"]

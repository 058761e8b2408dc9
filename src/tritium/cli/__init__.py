"""The command line: one file for each group of commands.

The only place that prints and sets exit codes.
"""

from tritium.cli.root import main

__all__ = ["main"]

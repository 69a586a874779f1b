"""The command line: ``ragblend index``, ``ask``, ``info`` and the rest, one module for each group.

Results go to stdout, everything else to stderr. Heavy modules are imported inside the commands, so
that ``--help`` and mistyped options answer at once.
"""

from ragblend.cli.app import main

__all__ = ["main"]

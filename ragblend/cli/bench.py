"""``ragblend bench``: measurements on the user's own model and data."""

from __future__ import annotations

import typer

app = typer.Typer(help="Measure on this machine, with your model and your data.")

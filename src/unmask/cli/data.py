"""The verbs of text: stats, prepare."""

from __future__ import annotations

import typer

from unmask.cli.output import app

data_app = typer.Typer(help="Look at text, and prepare it for training.", no_args_is_help=True)
app.add_typer(data_app, name="data")

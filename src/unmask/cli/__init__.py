"""The command line: each verb is a thin shell over one public function.

Results go to stdout (one JSON value a line with --json), everything else to stderr. Bad input is one clear
sentence and exit code 2; Ctrl-C is 130, with a checkpoint written.
"""

from __future__ import annotations

import sys

import typer

from unmask.cli import bench, compare, convert, data, inspect, lab, models, prepare, scale, show, tokenizer, world
from unmask.cli.output import app
from unmask.errors import UserError
from unmask.process import patient_threads

__all__ = [
    "app",
    "bench",
    "compare",
    "convert",
    "data",
    "inspect",
    "lab",
    "main",
    "models",
    "prepare",
    "scale",
    "show",
    "tokenizer",
    "world",
]


def main() -> None:
    """Run the command line and exit: 0, 2 for bad input, 130 after Ctrl-C."""
    patient_threads()
    try:
        code = app(standalone_mode=False)  # typer turns Ctrl-C into the exit code 130
        sys.exit(code if isinstance(code, int) else 0)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    except (KeyboardInterrupt, typer.Abort):
        print("interrupted", file=sys.stderr)
        sys.exit(130)
    except typer.TyperException as error:
        print(f"error: {error.format_message()}" if str(error) else "see unmask --help", file=sys.stderr)
        sys.exit(2)
    except BrokenPipeError:
        sys.exit(1)
    except OSError as error:
        print(
            f"error: {error.filename or 'a file'}: {error.strerror or error}: check the path and the disk",
            file=sys.stderr,
        )
        sys.exit(2)

"""The command line: each verb is a thin shell over one public function.

Results go to stdout (one JSON value a line with --json), everything else to stderr. Bad input is one clear
sentence and exit code 2; Ctrl-C is 130, with a checkpoint written.
"""

from __future__ import annotations

import os
import sys
from typing import NoReturn

import typer

from unmask.cli import bench, compare, convert, data, inspect, lab, models, prepare, runs, scale, show, tokenizer, world
from unmask.cli.output import app
from unmask.errors import RankError, UserError
from unmask.process import patient_threads, processes, rank

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
    "runs",
    "scale",
    "show",
    "tokenizer",
    "world",
]


def main() -> None:
    """Run the command line and exit: 0, 2 for bad input, 130 after Ctrl-C.

    Under torchrun every rank runs it and rank 0 alone prints, but for errors that are one rank's own.
    """
    patient_threads()
    if rank():
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 (as long as the process)
    try:
        code = app(standalone_mode=False)  # typer turns Ctrl-C into the exit code 130
        sys.exit(code if isinstance(code, int) else 0)
    except UserError as error:
        _leave(2, f"error: {error}", isinstance(error, RankError))
    except (KeyboardInterrupt, typer.Abort):
        _leave(130, "interrupted")
    except typer.TyperException as error:
        _leave(2, f"error: {error.format_message()}" if str(error) else "see unmask --help")
    except BrokenPipeError:
        sys.exit(1)
    except OSError as error:
        _leave(2, f"error: {error.filename or 'a file'}: {error.strerror or error}: check the path and the disk")


def _leave(code: int, sentence: str, own: bool = False) -> NoReturn:
    """Exit, with a sentence of rank 0 or of this rank's own."""
    if own or not rank():
        print(sentence, file=sys.stderr)
    if processes() > 1:
        # The group's threads still run: the interpreter's end beneath them turned the exit code into an abort at times.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)

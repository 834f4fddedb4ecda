"""A measure of one's own: a function that `suites` names as package.module:function.

    def count(lm: LM, limit: int) -> list[tuple[Measure, float | None, dict[str, Any]]]: …

It is called with the model at each milestone and gives values of measures (`results.Measure`), each with details that
are ready for JSON (`items`: an outcome an item, kept of the last milestone; see `items`). UserError says that this
model cannot be asked, and why.
"""

from __future__ import annotations

import importlib
import os
import re
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from unmask.compare.results import Measure
from unmask.errors import UserError, nearest
from unmask.evaluation.suites import SUITES

if TYPE_CHECKING:
    from unmask.lm import LM

Own = Callable[["LM", int], list[tuple[Measure, float | None, dict[str, Any]]]]
NAME = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")


def is_function(suite: str) -> bool:
    """
    >>> is_function("my.measures:count"), is_function("cloze:gaps"), is_function("cloze")
    (True, False, False)
    """
    return NAME.fullmatch(suite) is not None and suite.partition(":")[0] not in SUITES


def meant(name: str, pairs: str = "minimal-pairs:PATH") -> str:
    """How a suite is written that is called by its benchmark's name, else the nearest name; it ends a sentence.

    pairs: as minimal pairs are written there.

    >>> meant("BLiMP").removeprefix("; ").split(", ")[0], meant("clozes"), meant("squad")
    ("BLiMP's pairs are suite minimal-pairs: write minimal-pairs:PATH", "; did you mean 'cloze'?", '')
    """
    if "blimp" in name.lower():
        return f"; BLiMP's pairs are suite minimal-pairs: write {pairs}, with the folder of its .jsonl files"
    return nearest(name, SUITES)


def function(suite: str) -> Own:
    """The function of that name; modules are also looked for where the process was started."""
    module, _, name = suite.partition(":")
    here = os.getcwd()
    sys.path.append(here)
    try:
        found = getattr(importlib.import_module(module), name, None)
    except ImportError as error:
        raise UserError(
            f"suites={suite} is neither a suite (known: {', '.join(SUITES)}) nor a function package.module:function "
            f"({error}){meant(module)}"
        ) from error
    finally:
        sys.path.remove(here)
    if not callable(found):
        raise UserError(f"suites={suite}: {module} has no function {name}")
    return found  # type: ignore[no-any-return]

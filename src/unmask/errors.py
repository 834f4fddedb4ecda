"""The one exception a user may see: one clear sentence that says what, where and how to mend."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from pathlib import Path


class UserError(Exception):
    """Bad input. The command line prints the message and exits with code 2."""


class RankError(UserError):
    """Of several processes that train one run, what this one alone ran into: it says so itself, not rank 0."""


class Unread(UserError):
    """A run's next text cannot be read: what is trained so far is kept, and the run goes on once it can be."""


class Stopped(Exception):
    """A wait for a run's next text has ended, since the run is to stop: nothing of the update has happened yet."""


class Diverged(UserError):
    """A run that ends because an update cannot be used (`train.faults`): a study's trial may, its runs may not."""


def one_line(error: BaseException) -> str:
    """What an error says, for the inside of a sentence; its name where it says nothing."""
    return " ".join(str(error).split()) or type(error).__name__


def nearest(name: str, known: Iterable[str]) -> str:
    """Return "; did you mean 'x'?" for the closest known name, or "" where none is close: it ends a sentence."""
    close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    return f"; did you mean '{close[0]}'?" if close else ""


def near_file(path: Path) -> str:
    """The same for a file that does not exist, among those beside it: names must be nearly alike without their
    endings, since "o.txt" and "my.txt" share an ending and nothing else. Folders are meant only by a name without one.
    """
    if not path.parent.is_dir():
        return ""
    beside: dict[str, list[str]] = {}  # name without its ending, in small letters → names
    for one in sorted(path.parent.iterdir()):
        if not one.name.startswith(".") and (one.is_file() or not path.suffix):
            beside.setdefault(_stem(one.name), []).append(one.name)
    close = difflib.get_close_matches(_stem(path.name), list(beside), n=1, cutoff=0.75)
    if not close:
        return ""
    best = max(beside[close[0]], key=lambda name: Path(name).suffix == path.suffix)
    return f"; did you mean '{best}'?"


def _stem(name: str) -> str:
    return Path(name.lower().removesuffix(".gz")).stem

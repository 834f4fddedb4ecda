"""A laboratory: a name, statements, and a function that measures.

`perform` runs one into a folder: results.json (the record), report.html (the page), and a picture where it has one.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, Literal, TypeVar

from unmask.compare.report import write_report
from unmask.compare.results import Claim, Results
from unmask.errors import UserError, nearest

Found = TypeVar("Found")
Verdict = tuple[bool | None, str]
"""Whether a statement holds (None = it could not be decided), and the numbers that say so."""
Resume = Literal["never", "auto"]

MODULES = {
    "tokens": "unmask.labs.tokens.lab",
    "inside": "unmask.labs.inside.lab",
    "objectives": "unmask.labs.objectives.lab",
    "architectures": "unmask.labs.architectures.lab",
    "electra": "unmask.labs.electra.lab",
    "beyond": "unmask.labs.beyond.lab",
    "real-text": "unmask.labs.real_text.lab",
    "ladders": "unmask.labs.ladders.lab",
}
"""Name → the module whose `LAB` it is, in the lecture's order."""
PICTURE = "picture.svg"
DATA = "UNMASK_DATA"
"""The environment variable that names the folder of real corpora, where data= does not."""
ABOUT = 0.2
"""How far from a figure of the notes, relative to it, is still "about" it: a fifth, in every laboratory."""


@dataclass(frozen=True)
class Asked:
    """What a run is asked for."""

    out: Path
    """The folder it may write to; it is there."""
    seeds: tuple[int, ...] = (0,)
    resume: Resume = "never"
    """auto: what an earlier run finished there is not run again."""
    say: Callable[[str], None] = lambda _: None
    data: Path | None = None
    """The folder of real corpora, with all in it that the laboratory reads; None where it reads none."""


@dataclass(frozen=True)
class Lab:
    """A laboratory; what its `run` returns needs no command, seeds and environment: `perform` adds them."""

    name: str
    title: str
    about: str
    """One sentence: what it shows."""
    run: Callable[[Asked], Results]
    picture: Callable[[Results], str] | None = None
    """An SVG, drawn from the record alone."""
    reads: tuple[str, ...] = ()
    """Files and folders of the data folder that it needs."""


@dataclass(frozen=True)
class Statement(Generic[Found]):
    """What is claimed, before anything is measured; `judge` reads what one seed found."""

    text: str
    source: str
    """Where in the lecture notes; empty for a statement of our own."""
    judge: Callable[[Found], Verdict]


@dataclass(frozen=True)
class OverSeeds(Generic[Found]):
    """What is claimed of all seeds together; `judge` reads what each found."""

    text: str
    source: str
    judge: Callable[[Sequence[Found]], Verdict]


def about(value: float, notes: float) -> bool:
    """Whether a value is about what the notes say.

    >>> about(2.6, 3.1), about(2.4, 3.1)
    (True, False)
    """
    return abs(value - notes) <= ABOUT * abs(notes)


def claims(statements: Sequence[Statement[Found] | OverSeeds[Found]], found: Sequence[Found]) -> list[Claim]:
    """A statement holds where it holds under every seed. One over seeds is judged once.

    >>> even = Statement[int]("n is even", "nowhere", lambda n: (n % 2 == 0, f"n = {n}"))
    >>> [(c.holds, c.verdict, c.evidence) for c in claims([even], [2, 3])]
    [(False, '1 of 2 seeds', 'Under the 2nd seed: n = 3; under the 1st, where it holds: n = 2')]
    >>> most = OverSeeds[int]("half are even", "", lambda each: (sum(n % 2 == 0 for n in each) >= len(each) / 2, ""))
    >>> claims([most], [2, 3])[0].holds
    True
    """
    out = []
    for statement in statements:
        each = [] if isinstance(statement, OverSeeds) else [statement.judge(one) for one in found]
        verdicts = [statement.judge(found)] if isinstance(statement, OverSeeds) else each
        held = [holds for holds, _ in verdicts]
        out.append(
            Claim(
                statement=statement.text,
                holds=False if False in held else None if None in held else True,
                evidence=_told(verdicts),
                source=statement.source,
                seeds=tuple(holds for holds, _ in each),
            )
        )
    return out


def _told(verdicts: Sequence[Verdict]) -> str:
    """The numbers: of the first seed where all agree, else of each that it does not hold under and of one that it does.

    >>> _told([(True, "a"), (True, "b")])
    'a (the 1st of 2 seeds)'
    """
    first = verdicts[0][1]
    if all(said == first for _, said in verdicts):
        return first
    if all(holds is verdicts[0][0] for holds, _ in verdicts):
        return f"{first} (the 1st of {len(verdicts)} seeds)"
    against = [f"the {_ordinal(k + 1)}: {said}" for k, (holds, said) in enumerate(verdicts) if not holds]
    against[0] = against[0].replace(":", " seed:", 1)
    some = [f"the {_ordinal(k + 1)}, where it holds: {said}" for k, (holds, said) in enumerate(verdicts) if holds][:1]
    return "Under " + "; under ".join(against + some)


def _ordinal(n: int) -> str:
    """
    >>> [_ordinal(n) for n in (1, 2, 3, 4, 11, 22)]
    ['1st', '2nd', '3rd', '4th', '11th', '22nd']
    """
    ending = "th" if n % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(n % 10, "th")
    return f"{n}{ending}"


def require(name: str) -> None:
    """Raise where no laboratory has this name."""
    if name not in MODULES:
        raise UserError(f"there is no laboratory '{name}': choose {', '.join(MODULES)}{nearest(name, MODULES)}")


def laboratory(name: str) -> Lab:
    """The laboratory of a name.

    >>> laboratory("tokens").name
    'tokens'
    """
    require(name)
    lab: Lab = importlib.import_module(MODULES[name]).LAB
    return lab


def laboratories() -> list[Lab]:
    """All of them, in the lecture's order."""
    return [laboratory(name) for name in MODULES]


def perform(
    name: str,
    out: str | Path,
    seeds: int = 1,
    resume: Resume = "never",
    say: Callable[[str], None] = lambda _: None,
    data: str | Path | None = None,
) -> Results:
    """Run a laboratory under the seeds 0 … seeds − 1, and write what it found to `out`.

    data: the folder of real corpora, for a laboratory that reads any; None = $UNMASK_DATA.
    """
    lab, folder = laboratory(name), Path(out)
    if not 1 <= seeds <= 1000:
        raise UserError(f"seeds={seeds} is how many seeds to run under, the first of them 0: give 1 to 1000")
    real = _data(lab, data)
    _room(folder, resume)
    found = lab.run(Asked(folder, tuple(range(seeds)), resume, say, real))
    from unmask.directory import environment  # which loads torch, that only a laboratory with models needs

    command = f"unmask lab {name} out={out} seeds={seeds}" + ("" if data is None else f" data={data}")
    found = found.model_copy(
        update={"command": command, "seeds": list(range(seeds)), "environment": environment() | found.environment}
    )
    found.write(folder)
    write_report(found, folder)
    if lab.picture is not None:
        (folder / PICTURE).write_text(lab.picture(found), encoding="utf-8")
    return found


def _data(lab: Lab, given: str | Path | None) -> Path | None:
    """The folder of real corpora of a laboratory that reads some."""
    if not lab.reads:
        if given is not None:
            raise UserError(f"data={given}: laboratory {lab.name} reads no real text, so leave it out")
        return None
    named = given or os.environ.get(DATA)
    if not named:
        raise UserError(
            f"laboratory {lab.name} reads real text: give data=DIR, or set {DATA}, to a folder that holds "
            f"{', '.join(lab.reads)}"
        )
    for part in lab.reads:
        if not (Path(named) / part).exists():
            raise UserError(f"the data folder {named} lacks {part}, which laboratory {lab.name} reads: give data=DIR")
    return Path(named)


def _room(folder: Path, resume: Resume) -> None:
    """A folder to write to, in which nobody else's files lie."""
    if folder.is_file():
        raise UserError(f"out={folder} is a file: give a folder")
    if resume == "never" and folder.is_dir() and any(folder.iterdir()):
        raise UserError(f"{folder} is not empty: give another out=, or resume=auto to go on with what lies there")
    folder.mkdir(parents=True, exist_ok=True)

"""Copies of a run's metrics for those who watch runs elsewhere: TensorBoard, Weights & Biases, trackio.

`metrics.jsonl` is the record; a logger gets the same lines as they are written and is never read again. Which ones a
run has is no part of its recipe: `log=` stands beside `out=`, is kept in logs.json, and may change when the run is
resumed. A package is imported when its logger is asked for and at no other time.

After a resume no step stands twice, and where the log allows it none is missing:

    tensorboard   events from the resumed step on are marked as superseded (`purge_step`), then written again;
                  they are flushed to the disk before every checkpoint, as metrics.jsonl is
    wandb         the run goes on under its old id; steps that it holds already are not sent again
    trackio       likewise, under its old name

A resumed update has the values it had before, so what is not sent again is nothing new.
"""

from __future__ import annotations

import importlib.util
import json
import os
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from unmask.config.base import flat
from unmask.errors import UserError, nearest, one_line
from unmask.train.checkpoint import write_json

FORMAT = 1
FILE = "logs.json"
PROJECT = "unmask"
"""Of wandb and trackio, unless $WANDB_PROJECT or $TRACKIO_PROJECT says otherwise."""


@dataclass(frozen=True)
class Beginning:
    """What a logger starts from.

    out        the run's directory
    identity   letters and digits, the same in every life of the run and in no other run
    step       updates that are kept: the next line is of update `step` + 1
    seen       the last update whose line was written in an earlier life; steps up to it may be logged already
    settings   the recipe, for those who show it
    """

    out: Path
    identity: str
    step: int
    seen: int
    settings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """As it is shown, unique too."""
        return f"{self.out.resolve().name}-{self.identity}"


class Logger(Protocol):
    """One place that values go to."""

    def log(self, step: int, values: Mapping[str, float]) -> None: ...

    def flush(self) -> None: ...

    def close(self) -> None: ...


class TensorBoard:
    """Event files in OUT/tensorboard."""

    def __init__(self, start: Beginning) -> None:
        from torch.utils.tensorboard import SummaryWriter

        place = start.out / "tensorboard"
        purge = start.step + 1 if place.exists() else None
        self.writer = SummaryWriter(str(place), purge_step=purge)  # type: ignore[no-untyped-call]

    def log(self, step: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self.writer.add_scalar(name, value, step)  # type: ignore[no-untyped-call]

    def flush(self) -> None:
        self.writer.flush()  # type: ignore[no-untyped-call]

    def close(self) -> None:
        self.writer.close()  # type: ignore[no-untyped-call]


class WandB:
    """A run of Weights & Biases, its files in OUT/wandb."""

    def __init__(self, start: Beginning) -> None:
        import wandb

        project = os.environ.get("WANDB_PROJECT", PROJECT)
        self.run = wandb.init(
            project=project,
            id=start.identity,
            name=start.name,
            dir=str(start.out),
            resume="allow",
            config=dict(start.settings),
        )
        self.seen = start.seen

    def log(self, step: int, values: Mapping[str, float]) -> None:
        if step > self.seen:
            self.run.log(dict(values), step=step)

    def flush(self) -> None:
        """It sends by itself."""

    def close(self) -> None:
        self.run.finish()


class Trackio:
    """A run of trackio, kept where trackio keeps its runs."""

    def __init__(self, start: Beginning) -> None:
        import trackio

        self.module, self.seen = trackio, start.seen
        project = os.environ.get("TRACKIO_PROJECT", PROJECT)
        trackio.init(project=project, name=start.name, resume="allow", config=dict(start.settings))

    def log(self, step: int, values: Mapping[str, float]) -> None:
        if step > self.seen:
            self.module.log(dict(values), step=step)

    def flush(self) -> None:
        """It sends by itself."""

    def close(self) -> None:
        self.module.finish()


KINDS: dict[str, Callable[[Beginning], Logger]] = {"tensorboard": TensorBoard, "wandb": WandB, "trackio": Trackio}
"""Each under the name of the package that it needs."""


# ---------------------------------------------------------------- which ones


def chosen(asked: str | Sequence[str]) -> tuple[str, ...]:
    """The loggers that `log=` names; "none" or "" asks for none. Unknown and missing ones are errors.

    >>> chosen("none"), chosen([])
    ((), ())
    """
    words = asked.strip("[] ").split(",") if isinstance(asked, str) else asked
    names = tuple(dict.fromkeys(w.strip().strip("'\"") for w in words))
    names = tuple(n for n in names if n not in ("", "none"))
    for name in names:
        if name not in KINDS:
            raise UserError(f"log={name} is no logger: give {', '.join(KINDS)} or none{nearest(name, KINDS)}")
        if importlib.util.find_spec(name) is None:
            raise UserError(f"log={name} needs the package {name}: pip install {name}, or give log=none")
    return names


class Loggers:
    """The loggers of one run. Opened right before its first update: what fails earlier leaves nothing elsewhere.

    One that fails while the run goes on is dropped with a warning: hours of training do not depend on it.
    """

    def __init__(
        self, out: Path, names: Sequence[str], settings: Mapping[str, Any], say: Callable[[str], None]
    ) -> None:
        self.out, self.names, self.settings, self.say = out, tuple(names), settings, say
        self.open: dict[str, Logger] = {}

    def start(self, step: int, seen: int) -> None:
        """Open them for the updates after `step`; `seen`: see `Beginning`."""
        if not self.names:
            if kept(self.out):  # asked for none: the next life has none, too
                _identity(self.out, ())
            return
        begin = Beginning(self.out, _identity(self.out, self.names), step, max(step, seen), self.settings)
        for kind in self.names:
            try:
                self.open[kind] = KINDS[kind](begin)
            except Exception as error:
                self.close()
                raise UserError(
                    f"log={kind} cannot start ({one_line(error)}): mend this, or leave log={kind} out"
                ) from error

    def write(self, line: Mapping[str, Any]) -> None:
        """A line of metrics.jsonl."""
        if self.open:
            values = scalars(line)
            self._each(lambda logger: logger.log(line["step"], values))

    def flush(self) -> None:
        """Before a checkpoint: what it follows from is in the log."""
        self._each(lambda logger: logger.flush())

    def close(self) -> None:
        self._each(lambda logger: logger.close())
        self.open = {}

    def _each(self, do: Callable[[Logger], None]) -> None:
        for kind, logger in list(self.open.items()):
            try:
                do(logger)
            except Exception as error:  # whatever a service raises
                del self.open[kind]
                self.say(
                    f"WARNING: log={kind} failed ({one_line(error)}): the run goes on without it, and metrics.jsonl "
                    "holds every line"
                )


def kept(out: Path) -> tuple[str, ...]:
    """The loggers that a run had when it was last trained."""
    return tuple(_read(out).get("log", ()))


def _identity(out: Path, names: Sequence[str]) -> str:
    """What tells the run from others, the same in every life; noted in the run's directory beside the loggers."""
    identity = str(_read(out).get("id") or secrets.token_hex(4))
    write_json(out / FILE, {"format": FORMAT, "id": identity, "log": list(names)})
    return identity


def _read(out: Path) -> dict[str, Any]:
    try:
        values = json.loads((out / FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return values if isinstance(values, dict) and values.get("format") == FORMAT else {}


# ---------------------------------------------------------------- what of a line


def scalars(line: Mapping[str, Any]) -> dict[str, float]:
    """The numbers of a line of metrics.jsonl by names that group well; what is null is left out.

    >>> scalars({"step": 3, "lr": 0.1, "loss": 2.5, "terms": {"bert/lm": 2.0, "bert/nsp": None}})
    {'train/lr': 0.1, 'train/loss': 2.5, 'train/terms/bert/lm': 2.0}
    >>> scalars({"step": 3, "evaluation": {"loss": 2.4}})
    {'held_out/loss': 2.4}
    """
    values = {f"held_out/{k}": v for k, v in line.get("evaluation", {}).items()}
    values |= flat({k: v for k, v in line.items() if k not in ("step", "evaluation")}, "train/", "/")
    return {k: float(v) for k, v in values.items() if v is not None}

"""Which control tokens an objective asks a vocabulary for, known before any text is read.

The objective is tried on made-up texts under a vocabulary that has an answer to every question and keeps them
(`Listening`): runs, `init`, conversions and `unmask show` all hear of what is missing from here, all of it at once.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from unmask import keyed
from unmask.batch import Rows
from unmask.config import TokenizerConfig
from unmask.errors import UserError
from unmask.objectives.base import Objective
from unmask.objectives.mixture import parts_of
from unmask.tokens.grow import missing
from unmask.tokens.special import ROLES, Vocabulary, sentinel
from unmask.tokens.tokenizer import Tokenizer

TEXTS, LENGTH = 64, 16
"""Of the made-up text: so many that every denoiser of a mixture such as UL2's gets some."""
_SENTINELS = 1024


@dataclass(frozen=True, eq=False)
class Listening(Vocabulary):
    """Answers every question for a control token, and keeps those that it was asked, in their order."""

    heard: dict[str, None] = field(default_factory=dict)

    @staticmethod
    def made() -> Listening:
        names = [*ROLES.values(), *(f"w{k}" for k in range(LENGTH)), *map(sentinel, range(_SENTINELS))]
        return Listening(**vars(Vocabulary.of({name: k for k, name in enumerate(names)})))

    def find(self, role: str) -> int | None:
        self.heard[role] = None
        return super().find(role) if role in ROLES else self.unk


def controls_of(objective: Objective) -> tuple[str, ...]:
    """The control tokens that an objective asks for: roles (mask, eos, …), and others by their spelling.

    >>> from unmask.objectives import UL2, Masked
    >>> controls_of(Masked()), sorted(controls_of(UL2.ul2()))
    (('cls', 'sep', 'mask'), ['[NLG]', '[NLU]', '[S2S]', 'bos', 'eos'])
    """
    heard: dict[str, None] = {}
    for part in parts_of(objective).values():
        asked = Listening.made()
        with contextlib.suppress(UserError):  # of something else, which the run says when it comes there
            part(_made_up(part.objective.needs, asked.ordinary), asked)
        heard |= asked.heard
    return tuple(heard)


def spelt_controls(objective: Objective) -> tuple[str, ...]:
    """Of these, the ones without a role, such as mode tokens: a vocabulary has them only where it was told to."""
    return tuple(name for name in controls_of(objective) if name not in ROLES)


def _made_up(needs: frozenset[str], ids: np.ndarray) -> Rows:
    """Texts with all that an objective reads beside tokens."""
    key = keyed.row_keys(0, 0, np.arange(TEXTS), "noise")
    first = np.arange(TEXTS) * LENGTH
    inside: dict[str, Any] = {
        "word": np.ones(TEXTS * LENGTH, bool),
        "sentence": np.tile(np.arange(LENGTH) % 8 == 0, TEXTS),
        "spans": np.stack([first + 2, first + 4], 1),
    }
    given = {name: value for name, value in inside.items() if name in needs}
    if needs & {"partner", "target"}:
        other = _made_up(needs - {"partner", "target", "spans"}, ids)
        given["partner"] = replace(other, key=keyed.absorb(key, keyed.purpose("partner")))
    return Rows.of([ids] * TEXTS, key, **given)


# ---------------------------------------------------------------- what a tokenizer lacks


def lacking(objective: Objective, words: Vocabulary) -> tuple[str, ...]:
    """The control tokens that an objective asks for and a vocabulary has not."""
    return tuple(role for role in controls_of(objective) if words.find(role) is None)


def require_controls(
    objective: Objective, words: Vocabulary, tokenizer: Tokenizer, where: str, model: str = ""
) -> None:
    """Refuse a tokenizer that is given and lacks control tokens, all of them in one sentence.

    model: the model that it belongs to, which can be given them.
    """
    if not (roles := lacking(objective, words)):
        return
    spelt = [missing(tokenizer, role) for role in roles]
    if model:
        adding = " ".join(f"--add-token '{token}'" for token in spelt)
        how = f"add {'it' if len(roles) == 1 else 'them'} with unmask convert {model} NEW {adding}, and take NEW"
    else:
        extra = [role for role in roles if role not in ROLES]
        trained = f" with tokenizer.extra={_listed(extra)}" if extra else ""
        how = f"take one that unmask trains{trained}, or add {', '.join(spelt)} to its file"
    raise UserError(
        f"the tokenizer of {where} has no {' and no '.join(roles)} token, which objective {objective.type} needs: {how}"
    )


def require_extra(objective: Objective, config: TokenizerConfig) -> None:
    """Refuse a tokenizer that will be trained without control tokens that the objective needs."""
    lacks = [name for name in spelt_controls(objective) if name not in config.extra]
    if lacks:
        which = "a control token" if len(lacks) == 1 else "control tokens"
        raise UserError(
            f"objective {objective.type} needs {which} that the tokenizer will not have ({', '.join(lacks)}): set "
            f"tokenizer.extra={_listed([*config.extra, *lacks])}"
        )


def _listed(names: Sequence[str]) -> str:
    """As a YAML list, which a command line takes in double quotes."""
    return "[" + ",".join(f"'{name}'" for name in names) + "]"

"""What a model of each objective can be asked: plans of scoring, filling gaps, continuing a text, and by which mode.

A question is served where training put (something like) it to the model, under the frame and the order of attention of
training; elsewhere one sentence says why not. Objectives that are not named here go by their own `plan`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

from unmask.batch import Head
from unmask.errors import UserError, nearest
from unmask.objectives.bart import Bart
from unmask.objectives.base import Objective, Plan
from unmask.objectives.dials import Dials
from unmask.objectives.glm import GLM
from unmask.objectives.infilling import CausallyMasked, FillInTheMiddle
from unmask.objectives.mass import Mass
from unmask.objectives.mixture import Mixture
from unmask.objectives.permutation import Permutation
from unmask.objectives.shifted import ShiftedMasked
from unmask.objectives.study import DroppedTokens, Restoration
from unmask.objectives.ul2 import UL2
from unmask.objectives.unilm import UniLM

PSEUDO: tuple[Plan, ...] = ("pseudo", "pseudo_words", "bound")
_MORE: dict[Plan, tuple[Plan, ...]] = {
    "pseudo": PSEUDO[1:],
    "bound": PSEUDO[:2],
    "infill": ("decoder",),
}


@dataclass(frozen=True)
class Abilities:
    """plans: how its texts are scored, its default first; score, fill, generate: why it cannot, empty where it can;
    unmasks: it writes by filling [MASK]s (`evaluation.unmasking`), always ("only") or where it is asked to ("too")."""

    plans: tuple[Plan, ...]
    fill: str = ""
    generate: str = ""
    score: str = ""
    unmasks: Literal["", "too", "only"] = ""


NO_GAPS = "fills no gaps: it can continue a text (generate) or score one (score)"


def abilities(objective: Objective) -> Abilities:
    """What a model of this objective can be asked; of a mixture, what its first part can."""
    if isinstance(objective, Mixture):
        return abilities(objective.first)
    if token_head_of(objective) is None:
        why = "predicts no tokens, so it can neither be scored nor write: lm.embed and lm.hidden read its vectors"
        return Abilities((), why, why, why)
    found = _special(objective)
    if found is not None:
        return found
    plan = objective.plan
    if plan in PSEUDO and not objective.masks:
        why = "was trained without [MASK], by which its tokens would be asked (plan pseudo), so it can neither be "
        why += "scored nor fill nor write: lm.embed and lm.hidden read its vectors"
        return Abilities((), why, why, why)
    return Abilities(
        (plan, *_MORE.get(plan, ())),
        NO_GAPS if plan in ("left_to_right", "decoder") else "",
        unmasks="only" if plan in PSEUDO else "",
    )


def _special(objective: Objective) -> Abilities | None:
    """Of objectives whose `plan` does not say it all."""
    match objective:
        case Permutation():
            return Abilities(("pseudo", "pseudo_words", "left_to_right"), unmasks="only")
        case ShiftedMasked():
            return _shifted(objective)
        case Dials():
            return _dials(objective)
        case UniLM():
            return _unilm(objective)
        case GLM():
            return Abilities(("infill", "decoder"))
        case FillInTheMiddle() if objective.rate == 1:
            why = "saw every text cut in three, never from left to right: it can fill one gap (fill)"
            return Abilities((), "", why, why)
        case FillInTheMiddle():
            return Abilities(("left_to_right",), "" if objective.rate else NO_GAPS)
        case CausallyMasked():
            return Abilities(("left_to_right",))
        case Bart() | Restoration() | DroppedTokens() | Mass():
            return _rewriting(objective)
    return None


def _shifted(objective: ShiftedMasked) -> Abilities:
    if not objective.causal_share:
        return Abilities(PSEUDO, unmasks="only")
    if objective.causal_share == 1:
        return Abilities(("left_to_right",), NO_GAPS)
    return Abilities(("left_to_right", *PSEUDO), unmasks="too")


def _dials(objective: Dials) -> Abilities:
    """As its corner: what is masked can be asked with the rest seen, what follows from left to right."""
    if objective.prefix == "all":
        return Abilities(PSEUDO, unmasks="only")
    forward: tuple[Plan, ...] = () if objective.predict == "masked" else ("left_to_right",)
    both = PSEUDO if objective.mask_rate else ()
    return Abilities(
        (*forward, *both), "" if both else NO_GAPS, unmasks="" if not both else "too" if forward else "only"
    )


def _unilm(objective: UniLM) -> Abilities:
    both, forward, _, pairs = (share > 0 for share in objective.shares)
    plans: tuple[Plan, ...] = (*(PSEUDO if both else ()), *(("left_to_right",) if forward else ()))  # type: ignore[assignment]
    backwards = "was trained without "
    neither = "bidirectional or sequence-to-sequence texts, so it writes no continuation"
    return Abilities(
        plans,
        "" if both else backwards + "bidirectional texts, so it fills no gaps",
        "" if both or pairs else backwards + neither,
        "" if plans else backwards + "bidirectional and left-to-right texts, so it scores none",
        unmasks="" if not both else "too" if pairs else "only",
    )


def _rewriting(objective: Objective) -> Abilities:
    """Models that write (a part of) the text that a spoilt source comes from."""
    if isinstance(objective, Mass):
        return Abilities(("infill",), "", "must know how long a text will be before it writes one: use fill")
    if isinstance(objective, DroppedTokens):
        why = "was never told where dropped tokens stood, so it can score a text but not "
        return Abilities(("infill",), why + "fill a gap", why + "continue one")
    hides = objective.mask_rate > 0 if isinstance(objective, Bart) else getattr(objective, "noise", "") == "mask"
    infills = isinstance(objective, Bart) and objective.infill_rate > 0
    if not (hides or infills):
        why = "was trained to restore what holds no [MASK], so nothing can be asked of "
        return Abilities((), why + "a gap", why + "what follows a text", why + "a token of a text")
    short = "restores texts of the length that it is given, so it writes no continuation: use fill"
    return Abilities(("infill",), "", "" if infills else short)


def token_head_of(objective: Objective) -> Head | None:
    """The head that answers with tokens: the one that is asked, whatever its network's name in training."""
    found = (replace(head, network="model") for head in objective.heads() if head.over == "vocabulary")
    return next(found, None)


# ---------------------------------------------------------------- modes


def elsewhere(objective: Objective | None, can: Callable[[Abilities], bool]) -> str:
    """The end of a refusal by a mixture's first part: which other parts can do it, and how they are asked."""
    if not isinstance(objective, Mixture):
        return ""
    able = [name for name, part in list(objective.parts.items())[1:] if can(abilities(part.objective))]
    if not able:
        return ""
    each = f"its part {able[0]}" if len(able) == 1 else f"each of its parts {', '.join(able)}"
    return f"; {each} can be asked this: mode='{able[0]}' (--mode {able[0]})"


_PREFERRED = {"infill": "RXS"}
"""Of UL2, by plan: R (few, short spans) for gaps; S (the end) for texts as a whole."""


def modes_of(objective: Objective) -> tuple[str, ...]:
    """What `mode=` may name: UL2's denoisers, and of a mixture its parts (and their modes, as PART.MODE)."""
    return tuple(_modes(objective))


def told(objective: Objective, mode: str) -> Objective:
    """The objective asked in one mode: UL2 with the denoisers of that mode alone, a mixture with that part first.

    A mode is also found by the spelling of its token, with brackets or without.
    """
    modes = _modes(objective)
    if not modes:
        raise UserError(
            f"a model of {objective.type} was trained without mode tokens and is no mixture of parts: leave mode out"
        )
    spelt = {token: name for name, (token, _) in reversed(modes.items()) if token is not None}
    names = {token.strip("[]"): name for token, name in spelt.items()} | spelt | {name: name for name in modes}
    if mode not in names:
        known = ", ".join(modes)
        raise UserError(f"mode {mode!r} is none of this model's ({known}){nearest(mode, list(names))}")
    return modes[names[mode]][1]


def _modes(objective: Objective) -> dict[str, tuple[str | None, Objective]]:
    """Of each mode by name: the spelling of its token, and the objective in that mode."""
    if isinstance(objective, Mixture):
        found: dict[str, tuple[str | None, Objective]] = {}
        for name, part in objective.parts.items():
            found[name] = part.mode, objective.led_by(name)
            for mode, (token, own) in _modes(part.objective).items():
                found[f"{name}.{mode}"] = token, objective.led_by(name, own)
        return found
    if not isinstance(objective, UL2) or objective.modes == "none":
        return {}
    by_mode = {m: tuple(d for d in objective.denoisers if d.mode == m) for m in "RSX"}
    return {
        m: (objective.token(m), objective.model_copy(update={"denoisers": own})) for m, own in by_mode.items() if own
    }


def spoken(objective: Objective, plan: Plan) -> tuple[str, ...]:
    """The control tokens in front of a text that is asked by a plan, first to last: a mixture part's, then UL2's."""
    own = (objective.control,) if objective.control is not None else ()
    known = _modes(objective) if isinstance(objective, UL2) else {}
    if not known:
        return own
    token, _ = known[next(m for m in _PREFERRED.get(plan, "SXR") if m in known)]
    return own if token is None else (*own, token)

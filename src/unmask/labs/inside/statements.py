"""What the notes say of their model (section 3), as statements whose limits come from their numbers, not from ours.

Theirs are of another text and a single model, so a statement allows some room. It is judged on the model that
reads as theirs did (`stream`); the evidence tells of the one that reads line by line, too.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from unmask.labs.base import Statement, Verdict, about
from unmask.labs.inside.ablation import OPEN, WHOLE
from unmask.labs.inside.count import GPT2_SMALL, GPT3, INSIDE, shares, total
from unmask.labs.inside.opened import QUESTION, Opened
from unmask.labs.inside.temperature import SIZES, Measured

UNIFORM = float(np.log2(INSIDE.vocabulary))
"""5.459 bits: what a model says that knows nothing."""
CLOSE = 1e-5
DRAWN = 0.03
"""How far a spread of random numbers may lie from the expected one, as a share."""


class Both(NamedTuple):
    """The models of one seed, and random vectors of that seed."""

    stream: Opened
    lines: Opened
    temperature: list[Measured]

    @property
    def models(self) -> tuple[Opened, Opened]:
        """In the order of `model.READINGS`."""
        return self.stream, self.lines


def _both(found: Both, said: Callable[[Opened], str]) -> str:
    return f"{said(found.stream)}; line by line {said(found.lines)}"


# ---------------------------------------------------------------- what is in the model


def _count(found: Both) -> Verdict:
    n = {o.parameters for o in found.models}
    told = f"the models hold {', '.join(f'{x:,}' for x in n)}, the formula says {total(INSIDE):,}"
    return n == {total(INSIDE)} == {109_056}, told


def _large(_: Both) -> Verdict:
    small, large = total(GPT2_SMALL), total(GPT3)
    return abs(small / 124.4e6 - 1) < 1e-3 and abs(large / 174.6e9 - 1) < 1e-3, f"{small:,} and {large:,}"


def _shares(_: Both) -> Verdict:
    attention, feed, tables = shares(INSIDE)
    large = shares(GPT3)[2]
    fits = [round(100 * x) for x in (attention, feed)] == [33, 66] and round(1000 * tables) == 82
    told = f"attention {attention:.1%}, feed-forward {feed:.1%}; tables {tables:.1%} of ours and {large:.2%} of GPT-3"
    return fits and round(1e4 * large) == 37, told


def _tied(_: Both) -> Verdict:
    saved = INSIDE.vocabulary * INSIDE.hidden
    return saved == 2816, f"V d = {saved:,} parameters, {saved / total(INSIDE):.1%} of the model"


def _by_hand(found: Both) -> Verdict:
    worst = max(o.by_hand_double for o in found.models)
    return worst <= CLOSE, _both(
        found,
        lambda o: (
            f"{o.by_hand_double:.1e} in double precision, {o.by_hand:.1e} in single (logits to {o.largest_logit:.0f})"
        ),
    )


def _by_hand_prompt(found: Both) -> Verdict:
    return found.stream.by_hand_prompt <= CLOSE, _both(found, lambda o: f"{o.by_hand_prompt:.1e}")


def _future(found: Both) -> Verdict:
    clean = all(o.future == 0 and o.disturbed == 0 for o in found.models)
    return clean, _both(found, lambda o: f"weight on the future {o.future}, earlier logits moved by {o.disturbed}")


# ---------------------------------------------------------------- 1/√D


def _random(found: Both, scaled: bool) -> list[Measured]:
    return [m for m in found.temperature if m.scaled == scaled]


def _spread(found: Both) -> Verdict:
    plain, scaled = _random(found, False), _random(found, True)
    fits = all(abs(m.spread / m.size**0.5 - 1) < DRAWN for m in plain) and all(
        abs(m.spread - 1) < DRAWN for m in scaled
    )
    told = ", ".join(f"{a.spread:.2f} and {b.spread:.2f}" for a, b in zip(plain, scaled, strict=True))
    return fits, f"D = {', '.join(map(str, SIZES))}: {told}"


def _saturated(found: Both) -> Verdict:
    plain, scaled = ([m.saturated for m in _random(found, s)] for s in (False, True))
    rising = all(a < b for a, b in pairwise(plain))
    return rising and max(scaled) == 0, f"{', '.join(f'{x:.1%}' for x in plain)}; scaled at most {max(scaled):.1%}"


def _one_hot(found: Both) -> Verdict:
    last = _random(found, False)[-1]
    return (
        last.largest >= 0.9,
        f"largest weight {last.largest:.2f} on average, above .9 in {last.saturated:.0%} of rows",
    )


def _gradient(found: Both) -> Verdict:
    plain, scaled = _random(found, False)[-1], _random(found, True)[-1]
    return plain.gradient < scaled.gradient, (
        f"norm of the Jacobian {plain.gradient:.3f} without and {scaled.gradient:.3f} with; medians {plain.median:.3f} "
        f"and {scaled.median:.3f}; below .01 in {plain.stuck:.1%} and {scaled.stuck:.1%} of rows"
    )


# ---------------------------------------------------------------- the trained model


def _learnt(found: Both) -> Verdict:
    whole = found.stream.without(WHOLE)
    told = _both(found, lambda o: f"{o.without(WHOLE).bits:.3f} bits, facts {o.without(WHOLE).facts:.2f}")
    return about(whole.bits, 0.409) and whole.facts >= 0.9, told


def _layers(opened: Opened) -> list[float]:
    return [float(np.mean(heads)) for heads in opened.entropies]


def _entropies(found: Both) -> Verdict:
    first, second = _layers(found.stream)
    told = _both(found, lambda o: f"{_layers(o)[0]:.2f} and {_layers(o)[1]:.2f} of {o.uniform:.2f}")
    return second < first < found.stream.uniform, told


def _heads(found: Both) -> Verdict:
    def told(o: Opened) -> str:
        spread, name = _looks(o)
        return f"layer 0 at most {spread:.2f}, layer 1 up to {name:.2f} on the name"

    spread, name = _looks(found.stream)
    return spread < 0.2 and name >= 0.3, _both(found, told)


def _looks(opened: Opened) -> tuple[float, float]:
    """The largest weight of layer 0, and the largest on the name of layer 1."""
    heads = opened.portraits[QUESTION]
    return max(p.top_weight for p in heads if p.layer == 0), max(p.name for p in heads if p.layer == 1)


def _strokes(found: Both) -> Verdict:
    def longest(o: Opened) -> tuple[float, float]:
        lengths = {name: at for name, (at, _) in o.strokes.items()}
        last = lengths.pop("feed-forward 1")
        return last, max(lengths.values())

    last, others = longest(found.stream)
    told = _both(found, lambda o: "{:.1f}, the others at most {:.1f}".format(*longest(o)))
    return last > 2 * others, told


# ---------------------------------------------------------------- ablation


def _told(*parts: str) -> Callable[[Opened], str]:
    def told(o: Opened) -> str:
        rows = (o.without(part) for part in parts)
        return ", ".join(f"without {g.part} {g.bits:.2f} bits and {g.facts:.2f} of the facts" for g in rows)

    return told


def _positions(found: Both) -> Verdict:
    gone = found.stream.without("positions")
    return gone.bits > 4.5 and gone.facts <= 0.05, _both(found, _told("positions"))


def _needed(found: Both) -> Verdict:
    gone = {g.part: g.facts for g in found.stream.gone if g.part not in (WHOLE, OPEN)}
    best = max(gone, key=lambda part: gone[part])
    return gone[best] <= 0.1, _both(found, _told(best))


def _first_layer(found: Both) -> Verdict:
    parts = ("attention 0", "feed-forward 0")
    return all(found.stream.without(p).bits > UNIFORM for p in parts), _both(found, _told(*parts))


def _carrier(found: Both) -> Verdict:
    gone = {g.part: g for g in found.stream.gone if g.part != WHOLE}
    least = min(gone, key=lambda part: gone[part].bits)
    holds = least == "attention 1" and gone[least].bits < 2 and gone[least].facts <= 0.1
    return holds, _both(found, _told("attention 1"))


def _opened(found: Both) -> Verdict:
    return found.stream.without(OPEN).bits > UNIFORM, _both(found, _told(OPEN))


STATEMENTS: tuple[Statement[Both], ...] = (
    Statement("The model has 109,056 parameters, and the formula says the same", "notes 3.9", _count),
    Statement(
        "The formula of the parameters says 124.4 million for GPT-2 small and 174.6 billion for GPT-3",
        "notes 3.9, exercise 3",
        _large,
    ),
    Statement(
        "In a layer attention holds 33 % and feed-forward 66 %; tables hold 8.2 % of this model and 0.37 % of GPT-3",
        "notes 3.7 and 3.9",
        _shares,
    ),
    Statement("A tied output table saves 2,816 parameters", "notes 3.8", _tied),
    Statement("A forward pass by hand gives the model's logits to 1e-5", "notes 3 (8.9e-6)", _by_hand),
    Statement(
        "At the notes' prompt a forward pass by hand in single precision, as the model runs, gives its logits to 1e-5",
        "notes 3 (8.9e-6)",
        _by_hand_prompt,
    ),
    Statement("No weight of attention falls on the future, to the last bit", "notes 3.4 (0.0)", _future),
    Statement("Scores of random vectors spread by √D, and by 1 once divided by it", "notes 3.3", _spread),
    Statement(
        "Without scaling by 1/√D more rows of attention saturate the larger D is; with it none does",
        "notes 3.3",
        _saturated,
    ),
    Statement("At D = 128 without scaling the softmax is nearly one-hot", "notes 3.3", _one_hot),
    Statement("At D = 128 less gradient passes the softmax without scaling than with it", "notes 3.3", _gradient),
    Statement(
        "Held-out text costs about .409 bits a character, and .9 of the facts are completed",
        "notes 3.1 and 3.10 (.409, .93)",
        _learnt,
    ),
    Statement(
        "Heads of attention look less evenly than they could, in layer 1 less than in layer 0",
        "notes 3.3 (2.42, 1.92 of 3.58 nats)",
        _entropies,
    ),
    Statement(
        f"At the end of “{QUESTION}” no head of layer 0 puts .2 on one place, and one of layer 1 .3 on the name",
        "notes 3.5 (.39)",
        _heads,
    ),
    Statement(
        "The last feed-forward layer writes the longest stroke, more than twice any other",
        "notes 3.6 (1.3, 1.5, 1.4, 1.5, 4.8)",
        _strokes,
    ),
    Statement(
        "Without positions the model knows nearly nothing: above 4.5 bits a character, no fact",
        "notes 3.1 (5.022, 0)",
        _positions,
    ),
    Statement(
        "The model can miss no part: without any of them at most .1 of the facts is right", "notes 3.10", _needed
    ),
    Statement(
        "Without attention 0 or feed-forward 0 the model is worse than knowing nothing", "notes 3.10", _first_layer
    ),
    Statement(
        "Of all parts the model misses attention 1 least in bits (below 2 a character), but it loses nearly all facts",
        "notes 3.10 (1.348 bits, .05)",
        _carrier,
    ),
    Statement("With its mask opened the model is worse than knowing nothing", "notes 3.10 (7.528 bits)", _opened),
)

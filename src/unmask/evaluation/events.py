"""Which log-probability a score sums, as a phrase: every score names its event."""

from __future__ import annotations

from unmask.errors import UserError
from unmask.evaluation.abilities import spoken
from unmask.evaluation.base import Model, objective_of, tokenizer_of
from unmask.evaluation.bound import DRAWS, Draws
from unmask.evaluation.plans import LIKELIHOOD, MASKED, closing, layout_of, opening, starts_with_bos
from unmask.objectives.bart import Bart
from unmask.objectives.base import Plan
from unmask.objectives.denoise import SpanCorruption
from unmask.objectives.dials import Dials
from unmask.objectives.permutation import Permutation
from unmask.objectives.study import DroppedTokens, Restoration
from unmask.objectives.supervised import Supervised
from unmask.objectives.ul2 import UL2
from unmask.objectives.unilm import UniLM


def start_of(model: Model, plan: Plan) -> int | None:
    """The start token that a plan puts before its text, None where there is none; it must exist in the tokenizer."""
    bos = model.vocabulary.bos
    if bos is None or not starts_with_bos(objective_of(model), plan):
        return None
    tokenizer = tokenizer_of(model)
    size = tokenizer.vocabulary.size
    if not 0 <= bos < size or tokenizer.token(bos) == f"(no token {bos})":
        raise UserError(
            f"the model starts its texts with token {bos}, which its tokenizer ({size:,} entries) does not have: they "
            "do not belong together; put the right tokenizer.json into the model's directory"
        )
    return bos


def event(
    model: Model,
    plan: Plan,
    context: bool = False,
    end: bool = False,
    span: bool = False,
    draws: Draws = DRAWS,
    loss: bool = False,
) -> str:
    """The event of one text, after a context, with its end; or of a `span` of it.

    `loss`: what is reported is −log p.
    """
    objective, vocabulary, spell = objective_of(model), model.vocabulary, tokenizer_of(model).token
    if plan == "bound":
        given = "all other characters" if span else "its length and the context" if context else "its length"
        frame = _frame(model)
        weight = "L / l with l of its L tokens masked" if draws.masks == "number" else "1 / p at masking rate p"
        side, log = ("an upper", "−log p") if loss else ("a lower", "log p")
        return (
            f"{side} bound of {log}({'the given characters' if span else 'text'} | {given}), {frame}: mean over "
            f"{draws.number} keyed draws of the sum over masked tokens of {log}(token | unmasked tokens), times "
            f"{weight}"
        )
    if plan in MASKED:
        unit = "span" if span else "word"
        others = "all other tokens" + (f" but those of its {unit} to its right" if plan == "pseudo_words" else "")
        frame = _frame(model)
        after = ", after the context" if context else ""
        kind = f"whole-{unit} left-to-right pseudo" if plan == "pseudo_words" else "pseudo"
        return f"sum over tokens of log p(token | {others}, {frame}{after}): a {kind}-log-likelihood"
    if plan == "infill":
        given = f"all other tokens{' and the context' if context else ''}, {_gap(model)}"
        return f"sum over tokens of log p(token | {given}): a pseudo-log-likelihood"
    if isinstance(objective, Permutation | UniLM):
        return _own_order(model, context, end)
    if opening(objective, vocabulary, plan):
        return _without_start(context, f" {spell(vocabulary.need('eos'))}" if end else "")
    start, kind = spell(vocabulary.need("bos")), layout_of(objective).kind
    source, zero, mode = "context" if context else "", "", " ".join(spoken(objective, plan))
    if plan == "decoder":
        zero = "" if kind == "blanks" else spell(int(vocabulary.sentinels[0]))
        before, behind = ("what precedes", "what follows") if span else (source, "")
        source = " ".join(filter(None, [mode, before, zero, behind, spell(vocabulary.need("eos"))]))
        if kind == "blanks":
            opens, blank, closed = (spell(vocabulary.need(role)) for role in ("cls", "mask", "sep"))
            source = " ".join(filter(None, [opens, mode, before, blank, behind, closed]))
    elif isinstance(objective, Supervised):
        source = " ".join(filter(None, [mode, source, spell(vocabulary.need("eos"))]))
    elif source or kind != "encdec":  # an empty source stays empty
        source = f"{mode} {source}".strip()
    if kind == "encdec":
        given = f"source {source or 'empty'}, {start} {zero}"
    elif kind == "blanks":
        given = f"{source}, {start}"
    else:
        given = f"{'visible prefix ' if kind == 'prefix' else ''}{start} {source}".rstrip() + (
            f", {zero}" if zero else ""
        )
    last = closing(objective, vocabulary) if plan == "decoder" else vocabulary.eos
    what = "the given characters" if plan == "decoder" and span else "text"
    return f"log p({what}{f' {spell(last)}' if end and last is not None else ''} | {given.rstrip()})"


def _frame(model: Model) -> str:
    """What stands around a text that is seen from both sides."""
    objective, vocabulary, spell = objective_of(model), model.vocabulary, tokenizer_of(model).token
    told = spoken(objective, "pseudo")
    if isinstance(objective, Dials) and objective.prefix != "all":
        return f"after {' '.join([spell(vocabulary.need('bos')), *told])}"
    opens, closed = spell(vocabulary.need("cls")), spell(vocabulary.need("sep"))
    if isinstance(objective, Permutation) and objective.cls == "last":
        return f"{'after ' if told else ''}{' '.join(told)}{' and ' if told else ''}before {closed} {opens}"
    return f"between {' '.join([opens, *told])} and {closed}"


def _gap(model: Model) -> str:
    """What stands in a token's place where it is to be written."""
    objective, vocabulary, spell = objective_of(model), model.vocabulary, tokenizer_of(model).token
    mode = " ".join(spoken(objective, "infill"))
    after = f", after {mode}" if mode else ""
    if isinstance(objective, DroppedTokens):
        return f"nothing in its place{after}"
    if isinstance(objective, SpanCorruption | UL2):
        return f"{spell(int(vocabulary.sentinels[0]))} in its place{after}"
    written = " of the source, what precedes it written already" if isinstance(objective, Bart | Restoration) else ""
    return f"{spell(vocabulary.need('mask'))} in its place{written}{after}"


def _own_order(model: Model, context: bool, end: bool) -> str:
    """From left to right, by models that can read in any order."""
    objective, vocabulary, spell = objective_of(model), model.vocabulary, tokenizer_of(model).token
    opens, closed = spell(vocabulary.need("cls")), spell(vocabulary.need("sep"))
    before = " ".join([opens, *spoken(objective, "left_to_right"), *(["context"] if context else [])])
    if isinstance(objective, Permutation):
        given = "the context and its length" if context else "its length"  # [SEP] is seen, so the length is
        return f"log p(text | {given}), {_frame(model)}: every token from those before it"
    if isinstance(objective, UniLM) and objective.next_token:
        return f"log p(text{f' {closed}' if end else ''} | {before})"
    return f"log p(text | {before}), each token as {spell(vocabulary.need('mask'))} behind those before it"


def _without_start(context: bool, end: str) -> str:
    if context:
        return f"log p(text{end} | context), without a start token: the tokenizer has none"
    return (
        f"log p(text{end} without its first token | its first token), which is not scored: the tokenizer has no start "
        "token to put before it"
    )


def label(model: Model, plan: Plan) -> str:
    """What bits per byte under a plan are called: what is no likelihood of the whole text says so."""
    objective = objective_of(model)
    if plan == "bound":
        return "bits per byte (an upper bound)"
    if plan not in LIKELIHOOD:
        return "pseudo bits per byte"
    if isinstance(objective, Permutation):
        return "bits per byte given each piece's length (which causal models must predict: no figure of theirs)"
    if isinstance(objective, UniLM) and not objective.next_token:
        return "bits per byte without the ends of texts (which causal models must predict: no figure of theirs)"
    return "bits per byte"


SEAM = "; a token spans the seam of context and text, scored from it on"
UNSCORED = "; a token spans the seam of context and text and is not scored, as nothing precedes it"
ONLY = "; only the tokens of the given characters"
SHORTENED = "; the source without its end, which does not fit into {most} tokens"
EDGE = "; a token spans their edge and is scored"


def cut_note(longest: int, opening: int = 0, context: str | None = None) -> str:
    """What an event adds where texts are too long for the model.

    context  "each": every piece is given all of it; "first": it precedes the first; None = there is none
    """
    given = "given the last token of the one before" if opening else "scored by itself"
    if context == "each":
        given = "each given the context and nothing else of the text"
    elif context == "first":
        given = f"the first after the context, each other {given}"
    else:
        given = f"each {given}"
    return f"; cut into pieces of at most {longest} tokens, {given}"


def context_note(longest: int) -> str:
    """What it adds where a context does not fit beside its text, or into the source."""
    return f"; the context without its beginning, which does not fit into {longest} tokens"


def span_note(longest: int) -> str:
    """What it adds where what surrounds a span does not fit."""
    return f"; only the nearest of what surrounds the span, which does not fit into {longest} tokens"


def window_note(longest: int, stride: int, plan: Plan, source: int | None) -> str:
    """What it adds where windows roll over long texts."""
    if plan not in LIKELIHOOD:
        given = f"at least {(longest - stride) // 2} tokens on either side"
    elif source is not None:
        given = f"a source of up to {source} tokens before them"
    else:
        given = f"at least {longest - stride} tokens before them"
    return (
        f"; windows of {longest} tokens with stride {stride}: every token is scored once, the {stride} new ones of a "
        f"window given {given} where the text has them"
    )

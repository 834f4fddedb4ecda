"""Which log-probability a score sums, as a phrase: every score names its event."""

from __future__ import annotations

from unmask.errors import UserError
from unmask.evaluate.base import Model, objective_of, tokenizer_of
from unmask.evaluate.plans import FORWARD, MASKED, closing, layout_of, opening
from unmask.objectives.base import Plan


def start_of(model: Model, plan: Plan) -> int | None:
    """The start token that a plan puts before its text, None where there is none; it must exist in the tokenizer."""
    bos = model.vocabulary.bos
    if plan in MASKED or bos is None:
        return None
    tokenizer = tokenizer_of(model)
    size = tokenizer.vocabulary.size
    if not 0 <= bos < size or tokenizer.token(bos) == f"(no token {bos})":
        raise UserError(
            f"the model starts its texts with token {bos}, which its tokenizer ({size:,} entries) does not have: they "
            "do not belong together; put the right tokenizer.json into the model's directory"
        )
    return bos


def event(model: Model, plan: Plan, context: bool = False, end: bool = False, span: bool = False) -> str:
    """The event of one text, after a context, with its end; or of a `span` of it."""
    objective, vocabulary, spell = objective_of(model), model.vocabulary, tokenizer_of(model).token
    if plan in MASKED:
        unit = "span" if span else "word"
        others = "all other tokens" + (f" but those of its {unit} to its right" if plan == "pseudo_words" else "")
        frame = f"between {spell(vocabulary.need('cls'))} and {spell(vocabulary.need('sep'))}"
        after = ", after the context" if context else ""
        kind = f"whole-{unit} left-to-right pseudo" if plan == "pseudo_words" else "pseudo"
        return f"sum over tokens of log p(token | {others}, {frame}{after}): a {kind}-log-likelihood"
    if plan == "infill":
        after = " and the context" if context else ""
        zero = spell(int(vocabulary.sentinels[0]))
        given = f"all other tokens{after}, {zero} in its place"
        return f"sum over tokens of log p(token | {given}): a pseudo-log-likelihood"
    if opening(objective, vocabulary, plan):
        return _without_start(context, f" {spell(vocabulary.need('eos'))}" if end else "")
    start, kind = spell(vocabulary.need("bos")), layout_of(objective).kind
    source, zero = "context" if context else "", ""
    if plan == "decoder":
        zero = spell(int(vocabulary.sentinels[0]))
        before, behind = ("what precedes", "what follows") if span else (source, "")
        source = " ".join(filter(None, [before, zero, behind, spell(vocabulary.need("eos"))]))
    if kind == "encdec":
        given = f"source {source or 'empty'}, {start} {zero}"
    else:
        given = f"{'visible prefix ' if kind == 'prefix' else ''}{start} {source}".rstrip() + (
            f", {zero}" if zero else ""
        )
    last = closing(objective, vocabulary) if plan == "decoder" else vocabulary.eos
    what = "the given characters" if plan == "decoder" and span else "text"
    return f"log p({what}{f' {spell(last)}' if end and last is not None else ''} | {given.rstrip()})"


def _without_start(context: bool, end: str) -> str:
    if context:
        return f"log p(text{end} | context), without a start token: the tokenizer has none"
    return (
        f"log p(text{end} without its first token | its first token), which is not scored: the tokenizer has no start "
        "token to put before it"
    )


SEAM = "; a token spans the seam of context and text, scored from it on"
UNSCORED = "; a token spans the seam of context and text and is not scored, as nothing precedes it"
ONLY = "; only the tokens of the given characters"
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
    if plan not in FORWARD:
        given = f"at least {(longest - stride) // 2} tokens on either side"
    elif source is not None:
        given = f"a source of up to {source} tokens before them"
    else:
        given = f"at least {longest - stride} tokens before them"
    return (
        f"; windows of {longest} tokens with stride {stride}: every token is scored once, the {stride} new ones of a "
        f"window given {given} where the text has them"
    )

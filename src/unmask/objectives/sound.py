"""Are the examples of an objective what it says of them? Asked once, of its first ones, before anything is trained.

An objective of another package is checked by nobody else: an id beyond the vocabulary would end in a message of a
kernel, a target on the wrong place in a model that learns something else. Sizes matter, since packing trusts them.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from unmask.batch import QUERY, Examples, Head, Rows, Stream, Targets, start_of
from unmask.errors import UserError
from unmask.objectives.base import Objective, Sizes, Vocabulary, outline


def require_sound(objective: Objective, rows: Rows, vocabulary: Vocabulary) -> Examples:
    """The examples of these texts, or one sentence that says what is wrong with them.

    >>> from unmask.objectives.causal import Causal
    >>> from unmask.objectives.show import toy
    >>> require_sound(Causal(), Rows.of([[11, 12]]), toy()).stream.tokens.tolist()
    [2, 11, 12]
    """
    examples = objective(rows, vocabulary)
    require(objective.type, objective.heads(), objective.sizes(outline(rows)), examples, vocabulary.size)
    return examples


def require(name: str, heads: Iterable[Head], said: Sizes, examples: Examples, size: int) -> None:
    """Refuse examples whose ids lie beyond `size`, whose targets lie beside what their heads read or say, or whose
    lengths are not the ones that were announced."""
    if fault := _fault({head.name: head for head in heads}, said, examples, size):
        raise UserError(f"objective {name} makes wrong examples: {fault}; its code is to be mended")


def _fault(heads: dict[str, Head], said: Sizes, e: Examples, size: int) -> str:
    for what, stream, lengths in (("stream", e.stream, said.stream), ("source", e.source, said.source)):
        if (stream is None) != (lengths is None):
            return f"sizes() speaks of a {what} and there is none" if stream is None else f"sizes() knows no {what}"
        if stream is None or lengths is None:
            continue
        if found := _lengths(what, stream, np.asarray(lengths)) or _beyond(f"its {what} holds id", _ids(stream), size):
            return found
    for name, targets in e.targets.items():
        if name not in heads:
            return f"it has targets for head '{name}', which heads() does not declare ({', '.join(heads)})"
        if found := _targets(heads[name], targets, e, size):
            return found
    return ""


def _ids(stream: Stream) -> np.ndarray:
    return stream.tokens[stream.tokens != QUERY]


def _lengths(what: str, stream: Stream, said: np.ndarray) -> str:
    found = np.diff(start_of(stream))
    if int(found.sum()) != len(stream.tokens):
        return f"the texts of its {what} measure {int(found.sum())} tokens, and it has {len(stream.tokens)}"
    if len(found) != len(said):
        return f"its {what} has {len(found)} texts, and sizes() {len(said)}"
    if len(wrong := np.flatnonzero(found != said)):
        k = int(wrong[0])
        return f"example {k} has {found[k]} tokens in its {what}, and sizes() said {said[k]}"
    return ""


def _targets(head: Head, t: Targets, e: Examples, size: int) -> str:
    stack = e.stream if head.stack == "stream" else e.source
    if stack is None:
        return f"head '{head.name}' reads a source, and there is none"
    n, asked = len(stack.tokens), len(t.value) if t.index is None else len(t.index)
    if len(t.value) != asked or len(t.weight) != asked:
        return f"head '{head.name}' has {asked} places, {len(t.value)} values and {len(t.weight)} weights"
    if t.index is None and asked != n:
        return f"head '{head.name}' has {asked} values without an index, which are one for each of {n} tokens"
    if t.index is not None and (found := _beyond(f"a target of head '{head.name}' stands at token", t.index, n)):
        return found
    most = {"vocabulary": size, "classes": head.size, "binary": 2, "positions": n}.get(head.over)
    if most is None or t.value.ndim > 1 or t.value.dtype.kind == "f":
        return ""
    return _beyond(f"head '{head.name}' is to say", t.value, most)


def _beyond(what: str, values: np.ndarray, size: int) -> str:
    wrong = (values < 0) | (values >= size)
    return f"{what} {int(values[wrong][0])}, where 0 to {size - 1} are allowed" if wrong.any() else ""

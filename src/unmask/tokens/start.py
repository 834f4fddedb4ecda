"""Texts that are written start with a token, which some vocabularies do not have: T5's decoder starts with <pad>."""

from __future__ import annotations

from dataclasses import replace

from unmask.objectives.base import Objective
from unmask.tokens.special import Vocabulary


def started(objective: Objective, words: Vocabulary) -> Vocabulary:
    """The vocabulary; of two stacks, one without a start token starts what the second one writes with its pad.

    As T5, mT5 and UL2 were trained, whose vocabularies have no other (Raffel et al. 2020; `decoder_start_token_id` 0
    in their config.json). A text of one stack has no such start: there a pad would be a token that nobody trained.

    >>> from unmask.objectives import Causal, SpanCorruption
    >>> t5 = Vocabulary.of({"<pad>": 0, "</s>": 1, "<unk>": 2, "a": 3, "<extra_id_0>": 4})
    >>> started(SpanCorruption(), t5).bos, started(Causal(), t5).bos
    (0, None)
    """
    if words.bos is not None or words.pad is None or not objective.shape(_SOME).source:
        return words
    return replace(words, bos=words.pad)


_SOME = 64
"""Of a context: whether there is a source does not depend on it."""

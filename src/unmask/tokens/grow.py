"""More tokens for a tokenizer, and which entries of another vocabulary a vocabulary's entries correspond to."""

from __future__ import annotations

import json
from collections.abc import Sequence

from unmask.errors import UserError
from unmask.tokens.special import ROLES, SPELLINGS, roles_of
from unmask.tokens.structure import tokens_of, unknown_of
from unmask.tokens.tokenizer import Tokenizer


def with_tokens(tokenizer: Tokenizer, added: Sequence[str]) -> Tokenizer:
    """The tokenizer with these tokens behind its own, whose ids stay what they are.

    A spelling in [...] or <...> is a control token, which no text yields; any other is found in texts as it is written.
    """
    known = tokens_of(tokenizer.spec)
    for token in added:
        if not token.strip():
            raise UserError(f"the added token {token!r} is empty: give its spelling")
        if token in known or added.count(token) > 1:
            where = f"the tokenizer already holds it as id {known[token]}" if token in known else "it is given twice"
            raise UserError(f"the token {token!r} cannot be added: {where}")
    size = tokenizer.vocabulary.size
    plain = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    entries = [
        {"id": size + k, "content": token, **plain, "special": _is_control(token)} for k, token in enumerate(added)
    ]
    made = Tokenizer(json.dumps({**tokenizer.spec, "added_tokens": [*tokenizer.spec["added_tokens"], *entries]}))
    found = tokens_of(made.spec)
    if wrong := [e["content"] for e in entries if found.get(str(e["content"])) != e["id"]]:
        raise UserError(
            f"the token {wrong[0]!r} cannot be added: this tokenizer's ids have holes, which the library would fill"
        )
    return made


def missing(tokenizer: Tokenizer, role: str) -> str:
    """How a role (mask, eos, …) would be spelt in this tokenizer: as <mask> where its control tokens are in <...>. A
    control token without a role is its own spelling."""
    if role not in ROLES:
        return role
    tokens = tokens_of(tokenizer.spec)
    angular = any(spellings[1] in tokens for spellings in SPELLINGS.values())
    return SPELLINGS[role][1] if angular else ROLES[role]


def rows_of(old: Tokenizer, new: Tokenizer) -> list[list[int]]:
    """For each entry of `new` the old ids it starts from: its equal, else its pieces, else none.

    Equal are control tokens of one spelling, or of one role where the old one has no such spelling, and other tokens
    that stand for the same text (the " the" of one vocabulary is the "▁the" of another). An entry's pieces are its
    text under the old tokenizer. `model.convert.grow_vocabulary` reads this.
    """
    mine = tokens_of(old.spec)
    roles = roles_of(mine, unknown_of(old.spec))
    same = {old.part(i): i for i in reversed(range(old.vocabulary.size)) if not old.vocabulary.is_special[i]}
    out: list[list[int]] = [[] for _ in range(new.vocabulary.size)]
    wanted: list[tuple[int, str]] = []
    for token, i in tokens_of(new.spec).items():
        if new.vocabulary.is_special[i]:
            found = mine.get(token, _by_role(token, roles))
            out[i] = [] if found is None else [found]
        elif (found := same.get(new.part(i))) is not None:
            out[i] = [found]
        else:
            wanted.append((i, new.part(i).content.decode("utf-8", "ignore")))
    for (i, _), ids in zip(wanted, old.encode_batch([text for _, text in wanted]), strict=True):
        out[i] = [int(k) for k in ids if k != old.vocabulary.unk]
    return out


def _by_role(token: str, roles: dict[str, int]) -> int | None:
    return next((i for role, i in roles.items() if token in SPELLINGS[role]), None)


def _is_control(token: str) -> bool:
    """
    >>> _is_control("[MASK]"), _is_control("<extra_id_7>"), _is_control("<3"), _is_control("covid")
    (True, True, False, False)
    """
    return len(token) > 2 and (token[0], token[-1]) in (("[", "]"), ("<", ">"))

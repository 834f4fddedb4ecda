"""The one table of special tokens, and what an objective may know of a vocabulary.

Our own vocabularies hold the control tokens first (in the order of `ROLES`), then the pieces, then the
sentinels `<extra_id_0>`, `<extra_id_1>`, … in ascending order. Vocabularies of other people's tokenizers
keep their order: roles are found by the spellings below.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from unmask.errors import UserError

ROLES: dict[str, str] = {
    "pad": "[PAD]",
    "unk": "[UNK]",
    "cls": "[CLS]",
    "sep": "[SEP]",
    "mask": "[MASK]",
    "bos": "[BOS]",
    "eos": "[EOS]",
}
"""Role → our spelling."""

SPELLINGS: dict[str, tuple[str, ...]] = {
    "pad": ("[PAD]", "<pad>", "<|pad|>", "<|padding|>", "<|finetune_right_pad_id|>"),
    "unk": ("[UNK]", "<unk>", "<|unk|>"),
    "cls": ("[CLS]", "<cls>"),
    "sep": ("[SEP]", "<sep>"),
    "mask": ("[MASK]", "<mask>", "<|mask|>"),
    "bos": ("[BOS]", "<s>", "<bos>", "<|begin_of_text|>", "<|startoftext|>", "<|endoftext|>"),
    "eos": ("[EOS]", "</s>", "<eos>", "<|end_of_text|>", "<|endoftext|>"),
}
"""Role → spellings in common vocabularies, the first found wins (GPT-2 opens and closes with one token)."""

FALLBACK: dict[str, str] = {"cls": "bos", "bos": "cls", "sep": "eos", "eos": "sep"}
"""A vocabulary with one opening (closing) token uses it for both roles: RoBERTa's <s>, BERT's [CLS]."""

_SENTINEL = re.compile(r"<extra_id_(\d+)>")


def sentinel(k: int) -> str:
    """The spelling of sentinel k (T5, Raffel et al. 2020, section 3.1.4)."""
    return f"<extra_id_{k}>"


@dataclass(frozen=True, eq=False)
class Vocabulary:
    """What objectives receive of a tokenizer: sizes and ids, numpy only.

    `size` counts every id from 0 to the highest. `specials` holds the ids of every control token, and
    ids that no token has (holes), so neither is ever drawn as a random replacement.
    """

    size: int
    pad: int | None
    unk: int | None
    cls: int | None
    sep: int | None
    mask: int | None
    bos: int | None
    eos: int | None
    sentinels: np.ndarray  # (S,) int32, ids of sentinel 0, 1, 2, …
    specials: np.ndarray  # (C,) int32, ascending
    extra: Mapping[str, int] = field(default_factory=dict)
    """Spelling → id of control tokens without a role, such as UL2's mode tokens; `need` finds these, too."""

    @staticmethod
    def of(tokens: Mapping[str, int], controls: Iterable[int] = (), unk: str | None = None) -> Vocabulary:
        """From token → id. `controls` are ids known to be special; `unk` is the model's own unknown token."""
        found = roles_of(tokens, unk)
        filled = {role: found.get(role, found.get(FALLBACK.get(role, ""))) for role in ROLES}
        numbered = {int(m[1]): i for t, i in tokens.items() if (m := _SENTINEL.fullmatch(t))}
        sentinels: list[int] = []
        while len(sentinels) in numbered:
            sentinels.append(numbered[len(sentinels)])
        size = max(tokens.values(), default=-1) + 1
        hole = np.ones(size, bool)
        hole[np.fromiter(tokens.values(), np.int64, len(tokens))] = False
        kept = set(controls)
        taken = {*found.values(), *numbered.values()}
        special = {*found.values(), *numbered.values(), *kept, *np.flatnonzero(hole).tolist()}
        return Vocabulary(
            size=size,
            **filled,
            sentinels=np.array(sentinels, np.int32),
            specials=np.array(sorted(special), np.int32),
            extra={t: i for t, i in tokens.items() if i in kept and i not in taken},
        )

    def find(self, role: str) -> int | None:
        """The id of a role, or of a control token by its spelling; None where there is none."""
        return getattr(self, role) if role in ROLES else self.extra.get(role)

    def need(self, role: str) -> int:
        """The id of a role (or of a control token by its spelling), or a sentence that says which one is lacking."""
        value = self.find(role)
        if value is None and role not in ROLES:
            raise UserError(
                f"this tokenizer ({self.size:,} entries) has no control token {role}, which the objective needs: train "
                f"it with tokenizer.extra=['{role}'], or add it with unmask convert … --add-token '{role}'"
            )
        if value is None:
            has = ", ".join(r for r in ROLES if getattr(self, r) is not None) or "none"
            raise UserError(
                f"this tokenizer ({self.size:,} entries) has no {role} token, which the objective needs "
                f"(it has: {has}); use one trained by `unmask tokenizer train`, or add the token to its file"
            )
        return int(value)

    @cached_property
    def is_special(self) -> np.ndarray:
        """(size,) bool."""
        flags = np.zeros(self.size, bool)
        flags[self.specials] = True
        return flags

    @cached_property
    def ordinary(self) -> np.ndarray:
        """(size - C,) int32, ids that may stand in text: what random replacements are drawn from."""
        return np.flatnonzero(~self.is_special).astype(np.int32)


def roles_of(tokens: Mapping[str, int], unk: str | None = None) -> dict[str, int]:
    """Role → id by spelling, without fallbacks; the model's own unknown token wins over a spelling."""
    found = {}
    for role, spellings in SPELLINGS.items():
        names = (unk, *spellings) if role == "unk" and unk is not None else spellings
        spelt = [name for name in names if name in tokens]
        if spelt:
            found[role] = tokens[spelt[0]]
    return found

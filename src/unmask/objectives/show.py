"""A toy vocabulary for worked examples."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

_ROLES = {"pad": 0, "unk": 1, "bos": 2, "cls": 2, "eos": 3, "sep": 3, "mask": 4}
_MODES = {"[NLU]": -3, "[S2S]": -2, "[NLG]": -1, "[R]": -3, "[S]": -2, "[X]": -1}


@dataclass(frozen=True)
class Toy:
    """Ids 0–4 pad, unk, bos = cls, eos = sep, mask; 5–89 words; 90–99 sentinels, the last three of them also UL2's mode
    tokens."""

    size: int = 100
    sentinels: np.ndarray = field(default_factory=lambda: np.arange(90, 100, dtype=np.int32))

    def need(self, role: str) -> int:
        return int(self.sentinels[_MODES[role]]) if role in _MODES else _ROLES[role]

    @property
    def ordinary(self) -> np.ndarray:
        return np.arange(5, 90, dtype=np.int32)


def toy() -> Toy:
    return Toy()

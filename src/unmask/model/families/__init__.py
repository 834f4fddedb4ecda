"""Model families of the common library: which settings a family is, and what it calls each tensor (`base`)."""

from unmask.model.families.bart import BART, MARIAN, MBART
from unmask.model.families.base import Family, Row, Settings
from unmask.model.families.bert import BERT
from unmask.model.families.gemma import T5GEMMA
from unmask.model.families.gpt import GPT2
from unmask.model.families.llama import LLAMA
from unmask.model.families.t5 import MT5, SWITCH, T5

_ALL = (
    *(BERT,),  # encoders
    *(GPT2, LLAMA),  # decoders
    *(T5, MT5, SWITCH, BART, MBART, MARIAN, T5GEMMA),  # encoder-decoders
)
FAMILIES: dict[str, Family] = {family.name: family for family in _ALL}

__all__ = ["FAMILIES", "Family", "Row", "Settings"]

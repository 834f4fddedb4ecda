"""Model families of the common library: which settings a family is, and what it calls each tensor (`base`)."""

from unmask.model.families.base import Family, Row, Settings
from unmask.model.families.bert import BERT
from unmask.model.families.gpt import GPT2
from unmask.model.families.llama import LLAMA
from unmask.model.families.t5 import T5

FAMILIES: dict[str, Family] = {family.name: family for family in (BERT, GPT2, LLAMA, T5)}

__all__ = ["FAMILIES", "Family", "Row", "Settings"]

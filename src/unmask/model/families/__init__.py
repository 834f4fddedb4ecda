"""Model families of the common library: which settings a family is, and what it calls each tensor (`base`)."""

from unmask.model.families.bart import BART, MARIAN, MBART
from unmask.model.families.base import Family, Row, Settings
from unmask.model.families.bert import ALBERT, BERT, DISTILBERT, ELECTRA, ROBERTA
from unmask.model.families.deberta import DEBERTA
from unmask.model.families.gemma import T5GEMMA
from unmask.model.families.gpt import BLOOM, GPT1, GPT2, GPT_NEO, GPT_NEOX
from unmask.model.families.llama import LLAMA, MISTRAL, NANOCHAT, QWEN3
from unmask.model.families.mixtral import DEEPSEEK_V3, MIXTRAL
from unmask.model.families.modernbert import MODERNBERT
from unmask.model.families.t5 import MT5, SWITCH, T5
from unmask.model.families.xlnet import XLNET

_ALL = (
    *(BERT, ROBERTA, ALBERT, ELECTRA, DISTILBERT, MODERNBERT, DEBERTA, XLNET),  # encoders
    *(GPT2, LLAMA, GPT1, GPT_NEO, GPT_NEOX, BLOOM),  # decoders
    *(MISTRAL, QWEN3, MIXTRAL, DEEPSEEK_V3, NANOCHAT),
    *(T5, MT5, SWITCH, BART, MBART, MARIAN, T5GEMMA),  # encoder-decoders
)
FAMILIES: dict[str, Family] = {family.name: family for family in _ALL}
ALIASES = {"xlm-roberta": "roberta", "camembert": "roberta"}
"""Other model types of config.json → the family that they are, tensor names and all."""

__all__ = ["ALIASES", "FAMILIES", "Family", "Row", "Settings"]

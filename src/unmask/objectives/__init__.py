"""Pretraining objectives by name. A new objective is one file, one import and one name in `OWN` here."""

from __future__ import annotations

from typing import TYPE_CHECKING

from unmask.objectives.ahead import MultiToken
from unmask.objectives.annotated import Ernie, SalientSpans
from unmask.objectives.bart import Bart
from unmask.objectives.base import Objective
from unmask.objectives.causal import Causal
from unmask.objectives.contrastive import Contrastive
from unmask.objectives.denoise import PrefixLM, SpanCorruption
from unmask.objectives.dials import Dials
from unmask.objectives.diffuse import Diffusion
from unmask.objectives.glm import GLM
from unmask.objectives.infilling import CausallyMasked, FillInTheMiddle
from unmask.objectives.masked import Masked
from unmask.objectives.mass import Mass
from unmask.objectives.mixture import Mixture
from unmask.objectives.permutation import Permutation
from unmask.objectives.registry import Registry
from unmask.objectives.replaced import Replaced
from unmask.objectives.sentence import FullSentences, NextSentence, SentenceOrder
from unmask.objectives.shifted import ShiftedMasked
from unmask.objectives.study import DroppedTokens, Restoration
from unmask.objectives.supervised import Supervised
from unmask.objectives.ul2 import UL2
from unmask.objectives.unilm import UniLM

OWN: tuple[type[Objective], ...] = (
    Causal,
    FillInTheMiddle,
    CausallyMasked,
    MultiToken,
    Masked,
    ShiftedMasked,
    Ernie,
    SalientSpans,
    PrefixLM,
    SpanCorruption,
    Mass,
    DroppedTokens,
    Restoration,
    Bart,
    UL2,
    Supervised,
    NextSentence,
    SentenceOrder,
    FullSentences,
    Contrastive,
    Dials,
    Diffusion,
    GLM,
    Permutation,
    UniLM,
    Replaced,
    Mixture,
)
"""Every objective of this package, one name a line; plug-ins join by entry point (`registry`)."""

REGISTRY = Registry(OWN)

if TYPE_CHECKING:
    AnyObjective = Objective
else:
    AnyObjective = REGISTRY.union()

__all__ = [
    "GLM",
    "OWN",
    "REGISTRY",
    "UL2",
    "AnyObjective",
    "Bart",
    "Causal",
    "CausallyMasked",
    "Contrastive",
    "Dials",
    "Diffusion",
    "DroppedTokens",
    "Ernie",
    "FillInTheMiddle",
    "FullSentences",
    "Masked",
    "Mass",
    "Mixture",
    "MultiToken",
    "NextSentence",
    "Permutation",
    "PrefixLM",
    "Replaced",
    "Restoration",
    "SalientSpans",
    "SentenceOrder",
    "ShiftedMasked",
    "SpanCorruption",
    "Supervised",
    "UniLM",
]

"""Every preset and every type's defaults against the papers' settings, written down here by hand.

Nothing of this is computed from the code: a default that moves, a preset that is new or gone, makes it fail.
"""

from __future__ import annotations

from typing import Any

import pytest

from unmask.objectives import OWN, REGISTRY
from unmask.objectives.base import Objective
from unmask.objectives.registry import name_of

Settings = dict[str, Any]


def but(base: Settings, **more: Any) -> Settings:
    return {**base, **more}


# ---------------------------------------------------------------- what several share

FATES = {"mask_share": 0.8, "random_share": 0.1}
"""Devlin et al. 2019, section 3.1: 80 % [MASK], 10 % a random token, 10 % unchanged."""
EVERY_EPOCH = {"duplicates": 0}
"""Liu et al. 2019, section 4.1: masks are drawn anew each time."""
FIFTEEN = {"mask_rate": 0.15, "final_rate": None, "selection": "exact"}
"""Devlin et al. 2019, section 3.1: 15 % of the tokens; their code rounds the count, and draws no other."""
TOKENS = {"unit": "token", "span_lengths": "one"}
ROBERTA = {"type": "masked", **FATES, "fate": "token", **EVERY_EPOCH, **FIFTEEN, **TOKENS, "boundary_offsets": 0}
BERT = but(ROBERTA, duplicates=10)
"""google-research/bert, create_pretraining_data.py: dupe_factor 10."""
ALBERT = but(ROBERTA, unit="word", span_lengths="harmonic", max_span=3)
"""Lan et al. 2020, section 4.1: p(n) = (1 / n) / Σ 1 / k, n-grams of whole words, 3 at most."""
ELECTRA: Settings = {
    "type": "replaced",
    # Clark et al. 2020, section 3.1 and appendix A: 15 %; code: 85 % [MASK], 15 % as they are, none random.
    **{"mask_share": 0.85, "random_share": 0.0, "fate": "token", **EVERY_EPOCH, **FIFTEEN, **TOKENS},
    # Table 6: λ = 50; section 3.2: generators of 1/4 to 1/2 the size, embeddings shared.
    **{"coefficient": 50.0, "task": "detection", "generator_width": 0.25, "generator_depth": 1.0},
    "sharing": "embeddings",
}
ENCDEC = {"layout": {"kind": "encdec", "bos": "front", "loss": "target"}}
PREFIX = {"layout": {"kind": "prefix", "bos": "front", "loss": "target"}}
T5: Settings = {
    "type": "span_corruption",
    **ENCDEC,
    # Raffel et al. 2020, section 3.3.4: 15 % in spans of 3; section 3.1.4: one more sentinel closes the target.
    **{"noise_density": 0.15, "mean_span": 3.0, "edges": "free", "final_sentinel": True},
}
STUDY = {"type": "restoration", **ENCDEC, "noise": "mask", "mask_rate": 0.15}
MASS: Settings = {
    "type": "mass",
    **ENCDEC,
    # Song et al. 2019: half of the text; 80 / 10 / 10.
    **{"fragment": 0.5, "fragment_tokens": None, "opening": "mask", "begin": "uniform", **FATES},
}
NOTHING: Settings = {
    **{"type": "bart", **ENCDEC, "infill_rate": 0.0, "mean_span": 3.5, "delete_rate": 0.0, "mask_rate": 0.0},
    **{"random_share": 0.0, "permute_sentences": False, "rotate": False},
}
BART = but(NOTHING, infill_rate=0.3, permute_sentences=True)
"""Lewis et al. 2020, section 5.1: 30 % of the tokens, Poisson(3.5), all sentences permuted."""
UL2: Settings = {
    "type": "ul2",
    **ENCDEC,
    "denoisers": tuple(
        {"mode": mode, "mean_span": mean, "noise_density": density, "weight": 1.0}
        for mode, mean, density in (  # Tay et al. 2022, table 1
            ("R", 3, 0.15),
            ("R", 8, 0.15),
            ("S", None, None),
            ("X", 3, 0.5),
            ("X", 8, 0.5),
            ("X", 64, 0.15),
            ("X", 64, 0.5),
        )
    ),
    **{"sequential": "half", "modes": "released", "final_sentinel": True},
}
FIM: Settings = {
    # Bavarian et al. 2022, section 3: half of the documents, half of them SPM; the loss on all tokens.
    **{"type": "fill_in_the_middle", "rate": 0.5, "spm_rate": 0.5, "spm": "v2", "splits": "tokens", "end": "eos"},
    "loss": "all",
}
CM3: Settings = {
    # Aghajanyan et al. 2022: Poisson(1) masks, clipped at 16; of 900,000 texts one has more than 8.
    **{"type": "causally_masked", "max_spans": 8, "end_of_span": False, "predict_sentinels": True},
}
NSP: Settings = {
    **{"type": "next_sentence", "masking": ROBERTA, "boundary": "sentence", "input_format": "segment_pair"},
    **{"one_sentence": "none", "short_share": 0.0},
}
DIALS = {"type": "dials", "mask_rate": 0.0, "selection": "independent", "prefix": "none", "predict": "all"}
MDLM = {"type": "diffusion", "eps": 0.001, "times": "stratified", "random_length_share": 0.0}
GLM: Settings = {
    # Du et al. 2022, section 2.1.1: 15 % in spans of Poisson(3), in random order.
    **{"type": "glm", "spans": "short", "noise_density": 0.15, "mean_span": 3.0, "place": "anywhere", "shuffle": True},
}
PERMUTATION: Settings = {
    # Yang et al. 2019, sections 2.3 and 3.1: K = 6; L = 1 … 5, alike.
    **{"type": "permutation", "one_in": 6.0, "max_span": 5, "span_shares": "uniform", "context": "visible"},
    "cls": "first",
}
CONTRASTIVE: Settings = {
    **{
        "type": "contrastive",
        "pairs": "inverse_cloze",
        "removed": 0.9,
        "dimension": 128,
        "shared": True,
        "pool": "mean",
    },
    **{"similarity": "cosine", "temperature": 0.05, "directions": "both"},
}
PART = {"weight": 1.0, "final_weight": None, "mode": None, "factor": 1.0}

# ---------------------------------------------------------------- the presets

PRESETS: dict[str, Settings] = {
    "fim": FIM,
    "cm3": CM3,
    # Fried et al. 2023: Poisson(1), clipped at 256 (8: as above); <EOM>; no loss on mask sentinels.
    "incoder": but(CM3, end_of_span=True, predict_sentinels=False),
    # Gloeckle et al. 2024, section 2: n = 4 independent heads of one weight.
    "gloeckle": {"type": "multi_token", "num_future": 4, "kind": "parallel", "coefficients": ()},
    # DeepSeek-V3, sections 2.2 and 4.2: depth 1, λ = 0.3.
    "deepseek_v3": {"type": "multi_token", "num_future": 2, "kind": "sequential", "coefficients": (1.0, 0.3)},
    "modded_nanogpt": {"type": "multi_token", "num_future": 3, "kind": "shared", "coefficients": (1.0, 0.5, 0.25)},
    "bert": BERT,
    "roberta": ROBERTA,
    "whole_word": but(ROBERTA, unit="word"),  # google-research/bert, README: do_whole_word_mask
    "albert": ALBERT,
    # Joshi et al. 2020, sections 3.1 and 3.2: Geo(0.2) clipped at 10 words, one fate a span; 20 places (their code).
    "spanbert": but(
        ROBERTA, unit="word", span_lengths="geometric", max_span=10, span_p=0.2, fate="span", boundary_offsets=20
    ),
    "wettig": but(ROBERTA, mask_rate=0.4, mask_share=1.0, random_share=0.0),  # Wettig et al. 2023: 40 %, all [MASK]
    "modernbert": but(ROBERTA, mask_rate=0.3),  # Warner et al. 2024: 30 %
    # Charpentier and Samuel 2024, and their code: 15 masked to 1 causal, 30 to 15 %, spans of 1 to 3.
    "gpt_bert": {
        **{"type": "shifted_masked", **FATES, "fate": "span", **EVERY_EPOCH, "mask_rate": 0.3, "final_rate": 0.15},
        **{"schedule": "linear", "selection": "exact", "unit": "token", "span_lengths": "uniform", "max_span": 3},
        "causal_share": 1 / 16,
    },
    # BehnamGhader et al. 2024: 20 %.
    "mntp": {
        **{"type": "shifted_masked", **FATES, "fate": "token", **EVERY_EPOCH, **FIFTEEN, "mask_rate": 0.2, **TOKENS},
        "causal_share": 0.0,
    },
    # Sun et al. 2019: basic, then phrase, then entity level; a third of the run each is ours.
    "ernie1": {
        **{"type": "ernie", **FATES, "fate": "token", **EVERY_EPOCH, "mask_rate": 0.15, "final_rate": None},
        **{"phrases_from": 1 / 3, "entities_from": 2 / 3},
    },
    # Guu et al. 2020, section 3.4: one salient span, [MASK].
    "realm": {
        **{"type": "salient_spans", "mask_share": 1.0, "random_share": 0.0, "fate": "token", **EVERY_EPOCH},
        "max_spans": 1,
    },
    "t5": T5,
    "t5_code": but(T5, edges="official", final_sentinel=False),  # t5/data/preprocessors.py, random_spans_noise_mask
    "iid": but(T5, mean_span=None),  # Raffel et al. 2020, sections 3.1.4 and 3.3.2
    "mass_released": but(MASS, opening="token", begin="edges"),  # microsoft/MASS, masked_dataset.py
    # Raffel et al. 2020, table 3 and section 3.3.1.
    "t5_study": {"type": "dropped_tokens", **ENCDEC, "noise_density": 0.15, "mean_span": None, "edges": "free"},
    "bert_style": but(STUDY, random_share=0.1),
    "mass_style": but(STUDY, random_share=0.0),
    "deshuffling": but(STUDY, noise="shuffle"),
    # Lewis et al. 2020, section 2.2, each alone.
    "bart": BART,
    "bart_code": but(BART, random_share=0.1),
    "token_masking": but(NOTHING, mask_rate=0.15),
    "token_deletion": but(NOTHING, delete_rate=0.15),
    "text_infilling": but(NOTHING, infill_rate=0.3),
    "sentence_permutation": but(NOTHING, permute_sentences=True),
    "document_rotation": but(NOTHING, rotate=True),
    "ul2": UL2,
    "without_modes": but(UL2, modes="none"),  # Tay et al. 2022: the ablation that is not told
    # Devlin et al. 2019, section 3.1 and appendix A.1 and A.2: a tenth of the sequences short.
    "bert_nsp": but(NSP, masking=BERT, one_sentence="random", short_share=0.1),
    "segment_pair": NSP,  # Liu et al. 2019, section 4.2
    "sentence_pair": but(NSP, input_format="sentence_pair"),
    "albert_sop": {"type": "sentence_order", "masking": ALBERT, "boundary": "sentence"},  # Lan et al. 2020, 3.1 and 4.1
    "doc_sentences": {"type": "full_sentences", "documents": "apart", "masking": ROBERTA},  # Liu et al. 2019, 4.2
    # Lee et al. 2019: removed from its passage 90 % of the time, inner products of 128 numbers, [CLS]'s states.
    "inverse_cloze": but(CONTRASTIVE, shared=False, pool="at", similarity="dot", temperature=1.0, directions="query"),
    "neighbours": but(
        CONTRASTIVE, pairs="neighbours"
    ),  # Neelakantan et al. 2022 (pooled as here: theirs is [EOS]'s state)
    # Artetxe et al. 2022, table 1.
    "nxt_uni": DIALS,
    "nxt_pre": but(DIALS, prefix="uniform", predict="rest"),
    "msk_uni": but(DIALS, mask_rate=0.15, predict="masked"),
    "msk_bi": but(DIALS, mask_rate=0.15, prefix="all", predict="masked"),
    "hyb_uni": but(DIALS, mask_rate=0.15),
    "hyb_pre": but(DIALS, mask_rate=0.15, prefix="uniform", predict="rest"),
    "mdlm": MDLM,  # Sahoo et al. 2024, and their code: ε = 1e-3, low-discrepancy times
    "llada": but(MDLM, times="independent", random_length_share=0.01),  # Nie et al. 2025, section 2.2
    "glm_document": but(GLM, spans="document"),  # Du et al. 2022, section 2.1.2
    "glm_sentence": but(GLM, spans="sentence"),
    "xlnet": but(PERMUTATION, span_shares="inverse", cls="last"),  # zihangdai/xlnet, data_utils.py: pvals ∝ 1 / n
    "electra": ELECTRA,
    "deberta_v3": but(ELECTRA, mask_share=1.0, generator_width=1.0, generator_depth=0.5, sharing="gdes"),
    # Clark et al. 2020, section 3.5.
    "electra_15": but(ELECTRA, task="masked_detection"),
    "replace_mlm": but(ELECTRA, task="recovery", coefficient=1.0),
    "all_tokens_mlm": but(ELECTRA, task="all_tokens", coefficient=1.0),
    # Yu et al. 2024: 4 epochs causal, 16 masked, 4 causal.
    "antlm": {
        "type": "mixture",
        "parts": {
            "clm": {"type": "causal", **PART, "from": 0.0, "until": 4 / 24},
            "mlm": {**BERT, **PART, "from": 4 / 24, "until": 20 / 24},
            "clm_again": {"type": "causal", **PART, "from": 20 / 24, "until": 1.0},
        },
        "sees": None,
    },
}

TYPES: dict[str, Settings] = {
    "causal": {"type": "causal"},
    "fill_in_the_middle": FIM,
    "causally_masked": but(CM3, max_spans=16),
    "multi_token": PRESETS["gloeckle"],
    "masked": ROBERTA,
    "shifted_masked": but(PRESETS["mntp"], mask_rate=0.15),
    "ernie": PRESETS["ernie1"],
    "salient_spans": PRESETS["realm"],
    "prefix_lm": {"type": "prefix_lm", **PREFIX},
    "span_corruption": T5,
    "mass": MASS,
    "dropped_tokens": PRESETS["t5_study"],
    "restoration": PRESETS["bert_style"],
    "bart": BART,
    "ul2": UL2,
    "pairs": {"type": "pairs", **ENCDEC, "max_target": 128},
    "next_sentence": NSP,
    "sentence_order": {"type": "sentence_order", "masking": ROBERTA, "boundary": "sentence"},
    "full_sentences": {"type": "full_sentences", "documents": "joined", "masking": ROBERTA},
    "contrastive": CONTRASTIVE,
    "dials": DIALS,
    "diffusion": MDLM,
    "glm": GLM,
    "permutation": PERMUTATION,
    # Dong et al. 2019, sections 2.3 and 2.4: 1/3 both ways, 1/3 sequence to sequence, 1/6 each one way; 80 % single
    # tokens, else two or three; 15 %, 80 / 10 / 10.
    "unilm": {
        **{"type": "unilm", "shares": (1 / 3, 1 / 6, 1 / 6, 1 / 3), "mask_rate": 0.15, **FATES},
        **{"span_shares": (0.8, 0.1, 0.1), "next_token": False},
    },
    "replaced": ELECTRA,
}

IDLE = {"schedule": ("final_rate", (None,)), "max_span": ("span_lengths", ("one",))}
"""Settings that say nothing while another one has one of these values."""


def told(settings: Settings) -> Settings:
    """Settings without those that say nothing, in nested objectives too."""
    out = {k: v for k, v in settings.items() if k not in IDLE or settings.get(IDLE[k][0], "") not in IDLE[k][1]}
    if settings.get("span_lengths", "geometric") != "geometric":
        out.pop("span_p", None)
    if settings.get("noise") == "shuffle":
        out = {k: v for k, v in out.items() if k not in ("mask_rate", "random_share")}
    if "parts" in out:
        out["parts"] = {name: told(part) for name, part in out["parts"].items()}
    return {k: told(v) if k == "masking" else v for k, v in out.items()}


def settings_of(objective: Objective) -> Settings:
    return told(objective.model_dump())


@pytest.mark.parametrize("name", REGISTRY.own_presets)
def test_a_preset_is_what_its_paper_says(name: str) -> None:
    assert name in PRESETS, f"write down what the paper of '{name}' says"
    assert settings_of(REGISTRY.preset(name)) == told(PRESETS[name])


@pytest.mark.parametrize("cls", [c for c in OWN if name_of(c) != "mixture"], ids=name_of)
def test_defaults_are_what_the_papers_say(cls: type[Objective]) -> None:
    assert settings_of(cls()) == told(TYPES[name_of(cls)])


def test_the_table_names_nothing_that_is_gone() -> None:
    assert set(PRESETS) == set(REGISTRY.own_presets)
    assert set(TYPES) == {name_of(c) for c in OWN} - {"mixture"}

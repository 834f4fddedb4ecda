"""Published encoders."""

from __future__ import annotations

from unmask.model.presets.base import BASE, BERT, DROP, LARGE, PLAIN, POST, Values

_ELECTRA: Values = {
    **BERT,
    "family": "electra",
    "detector_transform": True,
    "embedding_size": 128,
    "hidden_size": 256,
    "num_heads": 4,
    "intermediate_size": 1024,
}
_DEBERTA: Values = {
    **BERT,
    "family": "deberta-v2",
    "vocab_size": 128100,
    "token_types": 0,
    "norm_eps": 1e-7,
    "positions": "deberta",
    "relative_buckets": 256,
    "relative_max_distance": 512,
    "relative_norm": True,
}

ENCODERS: dict[str, Values] = {
    # Devlin et al. 2019, section 3; with next-sentence head
    "bert-base": {**BERT, "pooler": True},
    "bert-large": {**BERT, **LARGE, "pooler": True},
    # Liu et al. 2019: byte-level BPE, and positions that begin after the pad id, which is 1
    "roberta-base": {
        **BERT,
        "family": "roberta",
        "vocab_size": 50265,
        "token_types": 1,
        "norm_eps": 1e-5,
        "position_offset": 2,
    },
    # Lan et al. 2020, table 1 (version 2, which has no dropout): one layer's weights used twelve times
    "albert-base": {
        **BERT,
        "family": "albert",
        "vocab_size": 30000,
        "embedding_size": 128,
        "distinct_layers": 1,
        "activation": "gelu_tanh",
        "pooler": True,
        "dropout": 0.0,
        "attention_dropout": 0.0,
    },
    # Clark et al. 2020, table 6. The released small generator is as large as its discriminator;
    # the paper's is a quarter of it (hidden_size 64, num_heads 1, intermediate_size 256)
    "electra-small-generator": _ELECTRA,
    "electra-small-discriminator": _ELECTRA,
    # He et al. 2021 (v2: convolution, shared projections) and He et al. 2023 (v3)
    "deberta-v2-xlarge": {**_DEBERTA, **LARGE, "hidden_size": 1536, "num_heads": 24, "intermediate_size": 6144}
    | {"convolution": 3},
    "deberta-v3-base": _DEBERTA,
    # Yang et al. 2019, appendix A.4
    "xlnet-base": {
        **BASE,
        **POST,
        **DROP,
        "family": "xlnet",
        "visibility": "bidirectional",
        "vocab_size": 32000,
        "positions": "xlnet",
        "norm_eps": 1e-12,
        "attention_bias": False,
        "query_vector": True,
        "head_bias": True,
    },
    # Warner et al. 2024, table 4: alternating attention, window 128 = 64 to either side
    "modernbert-base": {
        **PLAIN,
        **BASE,
        "family": "modernbert",
        "visibility": "bidirectional",
        "vocab_size": 50368,
        "num_layers": 22,
        "intermediate_size": 1152,
        "activation": "geglu",
        "max_position": 8192,
        "positions": "rotary",
        "rotary_base": 160000.0,
        "rotary_local_base": 10000.0,
        "attention_pattern": "GLL",
        "window": 64,
        "norm_bias": False,
        "embedding_norm": True,
        "skip_first_norm": True,
        "head_transform": True,
        "head_transform_bias": False,
        "head_activation": "gelu",
        "head_bias": True,
    },
    # Joshi et al. 2020: BERT without sentence pairs; cased vocabulary
    "spanbert-base": {**BERT, "vocab_size": 28996},
    # Sanh et al. 2019: every second layer of BERT, no token types, no pooler
    "distilbert-base": {**BERT, "family": "distilbert", "num_layers": 6, "token_types": 0},
    # Dong et al. 2019, section 2.2: the segment embedding also says which objective trains; their code has 6 rows
    "unilm-base": {**BERT, "family": "unmask", "visibility": "prefix", "vocab_size": 28996, "token_types": 6},
    # Du et al. 2022, section 2.2: normalise before, one linear output, two tables of positions (their code: 512 + 1)
    "glm-base": {
        **BASE,
        **DROP,
        "visibility": "prefix",
        "vocab_size": 30522,
        "max_position": 513,
        "positions2": 513,
    },
}

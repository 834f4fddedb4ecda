"""Published decoders."""

from __future__ import annotations

from unmask.model.presets.base import BASE, DROP, LARGE, PLAIN, POST, RMS, Values

_GPT: Values = {**BASE, **DROP, "activation": "gelu_tanh"}
_LLAMA: Values = {
    **PLAIN,
    **RMS,
    "family": "llama",
    "vocab_size": 32000,
    "hidden_size": 4096,
    "num_layers": 32,
    "num_heads": 32,
    "intermediate_size": 11008,
    "positions": "rotary",
    "activation": "swiglu",
    "tied_head": False,
}

DECODERS: dict[str, Values] = {
    # Radford et al. 2018; normalises after the sum, as the first Transformer
    "gpt1": {**_GPT, **POST, "family": "openai-gpt", "vocab_size": 40478, "max_position": 512},
    # Radford et al. 2019, table 2
    "gpt2": {**_GPT, "family": "gpt2", "vocab_size": 50257, "max_position": 1024},
    # Brown et al. 2020, table 2.1; the window of its local layers is unpublished: _GPT-Neo's 256
    "gpt3": {
        **_GPT,
        "vocab_size": 50257,
        "hidden_size": 12288,
        "num_layers": 96,
        "num_heads": 96,
        "intermediate_size": 49152,
        "max_position": 2048,
        "attention_pattern": "GL",
        "window": 255,
    },
    # Touvron et al. 2023a, table 2; 2023b
    "llama-7b": {**_LLAMA, "max_position": 2048},
    "llama2-7b": {**_LLAMA, "max_position": 4096, "norm_eps": 1e-5},
    # Biderman et al. 2023, table 1 (_GPT-NeoX's layer: Black et al. 2022)
    "pythia-160m": {
        **BASE,
        "family": "gpt_neox",
        "vocab_size": 50304,
        "max_position": 2048,
        "positions": "rotary",
        "rotary_share": 0.25,
        "parallel_block": True,
        "tied_head": False,
    },
    # Scao et al. 2022, table 3
    "bloom-560m": {
        **LARGE,
        "family": "bloom",
        "vocab_size": 250880,
        "max_position": 2048,
        "positions": "alibi",
        "activation": "gelu_tanh",
        "embedding_norm": True,
    },
    # Jiang et al. 2024, table 1; the checkpoint's coefficient 0.02 is of the sum over both choices, ours of their mean
    "mixtral-8x7b": {
        **_LLAMA,
        "family": "mixtral",
        "num_kv_heads": 8,
        "intermediate_size": 14336,
        "norm_eps": 1e-5,
        "max_position": 32768,
        "rotary_base": 1e6,
        "experts": {"count": 8, "per_token": 2, "balance_loss": 0.04},
    },
    # DeepSeek-AI 2024, section 4.2; the layer that predicts a second token is not part of it
    "deepseek-v3": {
        **_LLAMA,
        "family": "deepseek_v3",
        "vocab_size": 129280,
        "hidden_size": 7168,
        "num_layers": 61,
        "num_heads": 128,
        "head_size": 128,
        "intermediate_size": 18432,
        "max_position": 4096,
        "latent": {"query_rank": 1536, "key_rank": 512, "rotary_size": 64, "value_size": 128},
        "experts": {
            "count": 256,
            "per_token": 8,
            "intermediate_size": 2048,
            "shared": 1,
            "first_dense": 3,
            "router": "sigmoid",
            "scale": 2.5,
            "groups": 8,
            "groups_kept": 4,
            "balance_bias": True,
            "balance_loss": 1e-4,
        },
    },
}

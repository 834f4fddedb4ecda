"""One Transformer as settings."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from unmask.config.base import Strict

Activation = Literal["gelu", "gelu_tanh", "relu", "relu2", "silu", "tanh", "geglu", "geglu_tanh", "swiglu", "reglu"]
Visibility = Literal["bidirectional", "causal", "prefix"]
Positions = Literal["learned", "sinusoidal", "rotary", "t5", "alibi", "deberta", "xlnet", "none"]
FamilyName = Literal[
    "unmask",
    "bert",
    "roberta",
    "albert",
    "electra",
    "distilbert",
    "deberta-v2",
    "xlnet",
    "modernbert",
    "openai-gpt",
    "gpt2",
    "gpt_neo",
    "gpt_neox",
    "bloom",
    "llama",
    "mistral",
    "mixtral",
    "qwen3",
    "deepseek_v3",
    "nanochat",
    "bart",
    "mbart",
    "marian",
    "t5",
    "mt5",
    "switch_transformers",
    "t5gemma",
]
"""The common library's model types, and unmask: any settings."""


class ExpertsConfig(Strict):
    """Feed-forward layers of experts, of which a router picks a few for each token."""

    count: int = Field(8, ge=2)
    """Routed experts of a layer."""
    per_token: int = Field(2, ge=1)
    """How many a token is sent to: 1 in Switch (Fedus et al. 2021), 2 in Mixtral, 8 in DeepSeek-V3."""
    intermediate_size: int | None = Field(None, ge=1)
    """Width of one expert; None = the model's own. Fine-grained experts are narrow (DeepSeekMoE, Dai et al. 2024)."""
    shared: int = Field(0, ge=0)
    """Experts that every token visits, built as one feed-forward layer of `shared` × their width."""
    pattern: str = Field("E", pattern="^[DE]+$")
    """Dense and expert layers, repeated over the depth: DE = every second layer (Switch), E = all."""
    first_dense: int = Field(0, ge=0)
    """Layers at the bottom that stay dense whatever `pattern` says (DeepSeek-V3: 3)."""
    router: Literal["softmax", "sigmoid"] = "softmax"
    """What the router's logits become: probabilities over all experts, or a score each (DeepSeek-V3)."""
    router_bias: bool = False
    normalise: bool = True
    """The chosen experts' gates are divided by their sum (Mixtral); Switch keeps the probability itself: with
    per_token=1 every divided gate would be 1, and the router would learn nothing from the task."""
    scale: float = Field(1.0, gt=0)
    """Factor on the gates after that (DeepSeek-V3: 2.5)."""
    groups: int = Field(1, ge=1)
    """Experts stand in this many groups, and a token's come from `groups_kept` of them (DeepSeek-V3: 8 and 4)."""
    groups_kept: int = Field(1, ge=1)
    balance_bias: bool = False
    """A bias on the scores that only chooses, without weighting (DeepSeek-V3's balance without a loss)."""
    capacity: int | None = Field(None, ge=1)
    """An expert takes at most so many tokens of a row, in their order (Switch in the common library). None = all."""
    capacity_factor: float | None = Field(None, gt=0)
    """An expert takes at most factor × tokens × per_token / count; the rest passes by the residual. None = all."""
    balance_loss: float = Field(0.0, ge=0)
    """Coefficient of the balance loss (Fedus et al. 2021, equations 4 to 6)."""
    z_loss: float = Field(0.0, ge=0)
    """Coefficient of the router's z-loss (Zoph et al. 2022, equation 5)."""

    @model_validator(mode="after")
    def _counts_fit(self) -> ExpertsConfig:
        if self.per_token > self.count:
            raise ValueError(f"experts.per_token={self.per_token} is more than experts.count={self.count}")
        if self.count % self.groups or self.groups_kept > self.groups:
            raise ValueError(
                f"experts.groups={self.groups} must divide experts.count={self.count} and hold "
                f"experts.groups_kept={self.groups_kept}"
            )
        if self.per_token > self.count // self.groups * self.groups_kept:
            raise ValueError(f"experts.per_token={self.per_token} is more than {self.groups_kept} groups hold")
        return self


class LatentConfig(Strict):
    """Attention from compressed states (multi-head latent attention: DeepSeek-V2, Liu et al. 2024, section 2.1)."""

    query_rank: int | None = Field(None, ge=1)
    """Rows of the query's bottleneck; None = none."""
    key_rank: int = Field(512, ge=1)
    """Rows of the bottleneck that keys and values share."""
    rotary_size: int = Field(64, ge=2, multiple_of=2)
    """Head dimensions with rotary positions, whose key all heads share; `head_size` counts those without."""
    value_size: int = Field(128, ge=1)


class ModelConfig(Strict):
    """One Transformer: a stack over the stream, and with `num_source_layers` one over the source.

    A model family is a set of these values plus a table of tensor names, never a class.
    """

    family: FamilyName = "unmask"
    """Whose tensor names and file format `export` uses; unmask = the first that fits, else a file of our own."""
    visibility: Visibility = "causal"
    """How `lm.logits` and `lm.generate` fill reveal and horizon; training takes them from the record."""

    # ------------------------------------------------------------ sizes

    vocab_size: int = Field(0, ge=0)
    """Rows of the embedding table; 0 takes the tokenizer's size."""
    hidden_size: int = Field(128, ge=1)
    embedding_size: int | None = Field(None, ge=1)
    """Width of the embeddings where it differs: a projection leads to hidden_size (ALBERT, ELECTRA)."""
    num_layers: int = Field(4, ge=1)
    """Layers of the stack that reads the stream (the decoder where there are two)."""
    num_source_layers: int = Field(0, ge=0)
    """Layers of the stack that reads the source; 0 = a single stack."""
    distinct_layers: int | None = Field(None, ge=1)
    """Layers with weights of their own, each used for a run of neighbouring depths (ALBERT: 1); None = all."""
    share_stacks: bool = False
    """Source and stream use the same layers but for cross-attention (Raffel et al. 2020, section 3.2.2)."""
    num_heads: int = Field(4, ge=1)
    num_kv_heads: int | None = Field(None, ge=1)
    """Grouped-query attention (Ainslie et al. 2023): key and value heads; None = num_heads."""
    head_size: int | None = Field(None, ge=1)
    """None = hidden_size / num_heads."""
    intermediate_size: int | None = Field(None, ge=1)
    """Width of the feed-forward layer; None = 4 × hidden_size (8/3, rounded up to 8, for gated ones)."""
    max_position: int = Field(512, ge=1)
    """Longest sequence of either stack."""

    # ------------------------------------------------------------ embeddings and positions

    positions: Positions = "learned"
    """learned and sinusoidal vectors are added to the tokens; rotary turns queries and keys (Su et al. 2021); t5 and
    alibi (Press et al. 2022) add a number to each score; deberta (He et al. 2021) and xlnet (Dai et al. 2019;
    Yang et al. 2019) add terms of content and relative position."""
    position_offset: int = Field(0, ge=0)
    """Unused rows at the head of the learned table (RoBERTa: pad id + 1; BART: 2); max_position does not count them."""
    source_table: bool = False
    """The source stack has a token table of its own (T5Gemma)."""
    positions2: int = Field(0, ge=0)
    """Rows of a second learned table, over `Stream.positions2` (GLM's place inside a span); 0 = none."""
    rotary_base: float = Field(10000.0, gt=0)
    rotary_local_base: float | None = Field(None, gt=0)
    """The base in local layers (ModernBERT); None = the same."""
    rotary_share: float = Field(1.0, gt=0, le=1)
    """Share of a head's dimensions that turn, the first ones (GPT-NeoX: 0.25)."""
    relative_buckets: int = Field(32, ge=0)
    """t5 and deberta: buckets of relative distance; deberta: 0 = every distance up to the largest."""
    relative_max_distance: int = Field(128, ge=2)
    relative_norm: bool = False
    """deberta: LayerNorm on the shared table of relative positions."""
    relative_shared: bool = True
    """deberta: relative positions are projected by the layer's own query and key matrices."""
    relative_start: Literal["normal", "neighbours"] = "normal"
    """t5: how tables start. neighbours: N(0, 2), and each head prefers one offset of -1, 1, -2, 2 by 4 nats."""
    token_types: int = Field(0, ge=0)
    """Rows of the token-type table (BERT's segments); 0 = none. xlnet has its segment term instead."""
    embedding_norm: bool = False
    """Normalise the sum of the embeddings (BERT)."""
    embedding_scale: float = Field(1.0, gt=0)
    """Factor on token embeddings before positions are added (Vaswani et al. 2017: hidden_size ** 0.5)."""
    query_vector: bool = False
    """A learned start vector for appended queries, whose token is -1 (XLNet)."""

    # ------------------------------------------------------------ layers

    norm: Literal["layer", "rms"] = "layer"
    norm_position: Literal["pre", "post", "both"] = "pre"
    """Before a sub-layer, after the residual sum, or before and again on its output (Gemma 2)."""
    norm_eps: float = Field(1e-5, ge=0)
    norm_bias: bool = True
    """LayerNorm's shift (RMSNorm never has one)."""
    norm_weight: bool = True
    """The norms' learned factors; without, a norm has no parameters."""
    skip_first_norm: bool = False
    """The first layer's attention reads the embeddings as they are (ModernBERT, whose embeddings are normalised)."""
    final_norm: bool = True
    """Normalise the last layer's output (families that do not normalise after the sum)."""
    parallel_block: bool = False
    """Attention and feed-forward both read the layer's input (Wang and Komatsuzaki 2021, GPT-J; GPT-NeoX)."""
    attention_pattern: str = Field("G", pattern="^[GL]+$")
    """Global and local layers, repeated over the depth: GLL is ModernBERT, GL GPT-3 (Brown et al. 2020), L Mistral."""
    window: int = Field(0, ge=0)
    """Largest position difference that a local layer sees."""
    source_window: int | None = Field(None, ge=1)
    """The same in the source stack (T5Gemma: one more); None = window."""
    attention_bias: bool = True
    """Biases of the query, key, value and output projections."""
    attention_out_bias: bool | None = None
    """The output projection's alone; None = as attention_bias."""
    qk_norm: bool = False
    """RMS-normalise queries and keys of each head (Henry et al. 2020; Dehghani et al. 2023)."""
    qk_norm_after: bool = False
    """After the rotary turn instead of before it (nanochat)."""
    attention_scale: float | None = Field(None, gt=0)
    """Factor on query·key; None = head_size ** -0.5 (T5 uses 1)."""
    attention_softcap: float | None = Field(None, gt=0)
    """cap · tanh(score / cap) before the mask (Gemma 2)."""
    latent: LatentConfig | None = None
    """Latent attention (DeepSeek-V2 and V3)."""
    activation: Activation = "gelu"
    """geglu, geglu_tanh, reglu and swiglu are gated: act(gate) * up (Shazeer 2020)."""
    mlp_bias: bool = True
    experts: ExpertsConfig | None = None
    """Mixture of experts instead of one feed-forward layer."""
    convolution: int = Field(0, ge=0)
    """Kernel of the convolution beside the first layer (DeBERTa v2: 3); 0 = none."""
    convolution_activation: Literal["gelu", "tanh", "relu"] = "gelu"
    """Of the convolution (published v2 models: gelu; the common library reads tanh where config.json is silent)."""
    mask_decoder: bool = False
    """DeBERTa's enhanced mask decoder: the last layer runs twice more from absolute positions (He et al. 2021, 3.2)."""
    value_embeddings: bool = False
    """Every second layer (the second, the fourth, …) adds a gated table of its own to its values (nanochat;
    modded-nanogpt record 14)."""
    residual_scalars: bool = False
    """Each layer reads a · stream + b · embeddings with learned a and b (nanochat: resid_lambdas, x0_lambdas)."""
    ahead_layers: int = Field(0, ge=0)
    """Modules that say later tokens than the next one, a layer each; they run only where a head asks (training)."""
    ahead: Literal["parallel", "sequential"] = "parallel"
    """Beside the last layer (Gloeckle et al. 2024, section 2), or one after the other (DeepSeek-V3, section 2.2)."""

    # ------------------------------------------------------------ heads

    tied_head: bool = True
    """The vocabulary head uses the embedding table."""
    head_bias: bool = False
    head_transform: bool = False
    """BERT's head: dense, activation, norm before the table."""
    head_transform_bias: bool = True
    head_activation: Activation | None = None
    """Of the transform; None = the model's own."""
    pooler: bool = False
    """BERT's pooler: dense and tanh in front of heads over classes, score and group."""
    detector_transform: bool = False
    """ELECTRA's discriminator: dense and activation in front of binary heads."""
    head_scale: float = Field(1.0, gt=0)
    """Factor on the hidden state before the table (T5 1.0: hidden_size ** -0.5)."""
    logit_softcap: float | None = Field(None, gt=0)
    """cap · tanh(logits / cap) (Gemma 2)."""

    # ------------------------------------------------------------ training

    dropout: float = Field(0.0, ge=0, lt=1)
    attention_dropout: float = Field(0.0, ge=0, lt=1)
    init_std: float = Field(0.02, ge=0)
    embedding_std: float | None = Field(None, ge=0)
    """Spread of the tables at the start; None = init_std."""
    head_std: float | None = Field(None, ge=0)
    """Spread of an untied vocabulary head at the start; None = init_std."""
    zero_init_projections: bool = False
    """Start the output projections of attention and feed-forward at zero (Yang et al. 2021, appendix D.2)."""

    @model_validator(mode="after")
    def _shapes_fit(self) -> ModelConfig:
        if self.head_size is None and self.hidden_size % self.num_heads:
            raise ValueError(
                f"num_heads={self.num_heads} does not divide hidden_size={self.hidden_size}: "
                "choose a divisor, or set head_size"
            )
        if self.num_heads % self.kv_heads:
            raise ValueError(f"num_kv_heads={self.kv_heads} does not divide num_heads={self.num_heads}")
        if self.positions == "rotary" and self.latent is None and (self.rotary_size % 2 or not self.rotary_size):
            raise ValueError(f"rotary positions need an even number of dimensions a head, not {self.rotary_size}")
        if self.num_layers % (self.distinct_layers or 1) or self.num_source_layers % (self.distinct_layers or 1):
            raise ValueError(f"distinct_layers={self.distinct_layers} does not divide the depth")
        return self

    @model_validator(mode="after")
    def _settings_agree(self) -> ModelConfig:
        if "L" in self.attention_pattern and not self.window:
            raise ValueError(f"attention_pattern={self.attention_pattern} has local layers: set window")
        if self.table_size != self.hidden_size and self.tied_head and not self.head_transform:
            raise ValueError("a tied head reads embedding_size: set head_transform, or tied_head=false")
        if self.share_stacks and self.num_source_layers not in (0, self.num_layers):
            raise ValueError("share_stacks needs num_source_layers = num_layers")
        if self.parallel_block and (self.norm_position != "pre" or self.num_source_layers):
            raise ValueError("parallel_block is written for one stack with norm_position=pre")
        if self.latent and self.positions != "rotary":
            raise ValueError("latent attention has rotary positions: set positions=rotary")
        if self.latent and (self.qk_norm or self.num_kv_heads):
            raise ValueError("latent attention has norms of its own and no groups: drop qk_norm and num_kv_heads")
        if self.positions == "t5" and self.relative_buckets < 4:
            raise ValueError(f"relative_buckets={self.relative_buckets}: t5 positions need at least 4")
        if self.relative_start == "neighbours" and self.positions != "t5":
            raise ValueError("relative_start=neighbours is of positions=t5")
        if self.value_embeddings and (self.latent or self.distinct_layers):
            raise ValueError("value_embeddings are tables of a layer's own: drop latent and distinct_layers")
        if self.positions == "xlnet" and self.attention_softcap:
            raise ValueError("attention_softcap would bend the terms of xlnet positions: drop one of the two")
        if self.ahead_layers and (self.num_source_layers or self.mask_decoder or self.convolution):
            raise ValueError("ahead_layers are written for one causal stack: drop source layers, or ahead_layers")
        if self.ahead_layers and (self.value_embeddings or self.residual_scalars):
            raise ValueError("ahead_layers are plain layers: drop value_embeddings and residual_scalars")
        if self.ahead_layers and self.ahead == "sequential" and self.table_size != self.hidden_size:
            raise ValueError("sequential ahead_layers join states and embeddings: drop embedding_size")
        if self.mask_decoder and self.residual_scalars:
            raise ValueError("mask_decoder runs the last layer its own way: drop residual_scalars")
        if self.skip_first_norm and self.norm_position == "post":
            raise ValueError("skip_first_norm is of a norm before attention: set norm_position=pre")
        if self.mask_decoder and (self.positions != "deberta" or self.table_size != self.hidden_size):
            raise ValueError("mask_decoder is written for positions=deberta with embeddings as wide as hidden_size")
        return self

    @property
    def kv_heads(self) -> int:
        return self.num_heads if self.num_kv_heads is None else self.num_kv_heads

    @property
    def size_per_head(self) -> int:
        return self.head_size or self.hidden_size // self.num_heads

    @property
    def scale(self) -> float:
        """The factor on query·key."""
        if self.attention_scale is not None:
            return self.attention_scale
        if self.latent:
            return (self.size_per_head + self.latent.rotary_size) ** -0.5
        # He et al. 2021, equation 4: scores are sums of three terms
        return (self.size_per_head * (3 if self.positions == "deberta" else 1)) ** -0.5

    @property
    def out_bias(self) -> bool:
        return self.attention_bias if self.attention_out_bias is None else self.attention_out_bias

    @property
    def rotary_size(self) -> int:
        """Dimensions of a head that turn."""
        return self.latent.rotary_size if self.latent else int(self.size_per_head * self.rotary_share)

    @property
    def value_size(self) -> int:
        """Dimensions of a head's values."""
        return self.latent.value_size if self.latent else self.size_per_head

    @property
    def table_size(self) -> int:
        """Width of the embedding tables."""
        return self.embedding_size or self.hidden_size

    @property
    def gated(self) -> bool:
        return self.activation in ("geglu", "geglu_tanh", "swiglu", "reglu")

    @property
    def mlp_size(self) -> int:
        if self.intermediate_size is not None:
            return self.intermediate_size
        return -(-self.hidden_size * 8 // 3 // 8) * 8 if self.gated else 4 * self.hidden_size

    @property
    def expert_size(self) -> int:
        """Width of one routed expert."""
        return (self.experts.intermediate_size if self.experts else None) or self.mlp_size

    def depths(self, depth: int) -> list[int]:
        """Which layer with weights of its own runs at each depth (ALBERT: neighbours share).

        >>> ModelConfig(num_layers=6, distinct_layers=2).depths(6)
        [0, 0, 0, 1, 1, 1]
        """
        return [i * (self.distinct_layers or depth) // depth for i in range(depth)]

    def ahead_depth(self, k: int) -> int:
        """The depth whose kind of layer (local, of experts) module k = 0, 1, … that looks ahead has."""
        return self.num_layers - 1 if self.ahead == "parallel" else self.num_layers + k

    def local(self, layer: int) -> bool:
        """Whether a layer's attention is local."""
        return self.attention_pattern[layer % len(self.attention_pattern)] == "L"

    def lends_values(self, layer: int) -> bool:
        """Whether a layer adds a table of its own to its values."""
        return self.value_embeddings and layer % 2 == 1

    def sparse(self, layer: int) -> bool:
        """Whether a layer's feed-forward part is one of experts."""
        e = self.experts
        return e is not None and layer >= e.first_dense and e.pattern[layer % len(e.pattern)] == "E"

"""A model as the `transformers` library wants it: the last part of every generated `modeling_unmask.py`.

It is only copied (`unmask.model.gather`), never imported by unmask itself.

Legend: B rows, T tokens, V vocabulary.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor, nn
from transformers import GenerationMixin, PreTrainedConfig, PreTrainedModel
from transformers import initialization as init
from transformers.modeling_outputs import BaseModelOutput, CausalLMOutput, MaskedLMOutput, ModelOutput, Seq2SeqLMOutput
from transformers.utils.generic import can_return_tuple

from unmask.batch import Head, Stream
from unmask.config import ModelConfig
from unmask.model.heads import HeadModule
from unmask.model.parts import Norm
from unmask.model.permuted import permuted
from unmask.model.transformer import Transformer
from unmask.model.wrapper_parts import continued, kept, mean_loss, stream_of

RESIZE = (
    "the vocabulary of this model cannot be changed here, where heads and settings would not follow: "
    "unmask convert MODEL RUN --add-token TOKEN (or --tokenizer FILE) does it, and unmask export RUN writes it again"
)


class UnmaskConfig(PreTrainedConfig):  # type: ignore[misc]
    """config.json; `unmask` there holds the model's settings (`model`) and its heads (`heads`)."""

    model_type = "unmask"


class UnmaskPreTrainedModel(PreTrainedModel):  # type: ignore[misc]
    """The network with all its heads, whatever a subclass reads of it."""

    config_class = UnmaskConfig
    accepts_loss_kwargs = False
    _no_split_modules = ("Layer",)

    def __init__(self, config: UnmaskConfig) -> None:
        super().__init__(config)
        settings = ModelConfig.model_validate(config.unmask["model"])
        self.model = Transformer(settings, [Head(**head) for head in config.unmask["heads"]])
        first: dict[int, str] = {}
        named = [(name, id(p)) for name, p in self.named_parameters(remove_duplicate=False)]
        tied = {name: first[key] for name, key in named if first.setdefault(key, name) != name}
        self._tied_weights_keys = tied or None
        self.post_init()

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        """A model made from settings alone; one that is loaded takes every number from its file."""
        for name, parameter in module.named_parameters(recurse=False):
            if parameter.dim() > 1:
                init.normal_(parameter, 0.0, self.model.config.init_std)
            else:
                init.constant_(parameter, float(isinstance(module, Norm) and name == "weight"))

    def get_input_embeddings(self) -> nn.Module:
        return self.model.embedding

    def set_input_embeddings(self, value: nn.Module) -> None:
        raise NotImplementedError(RESIZE)

    def resize_token_embeddings(self, *_: Any, **__: Any) -> nn.Module:
        raise NotImplementedError(RESIZE)

    def states(
        self,
        stream: Stream,
        source: Stream | None = None,
        memory: Tensor | None = None,
        each: list[Tensor] | None = None,
    ) -> Tensor:
        """The last states (B, T, d) of the stream, given the source's; `each` receives those of every depth."""
        return self.model.decode(stream, memory, source, generator=self.noise(stream.tokens.device), states=each)

    def source_states(self, source: Stream, each: list[Tensor] | None = None) -> Tensor:
        """The last states (B, S, d) of the source; `each` receives those of every depth."""
        return self.model.encode(source, self.noise(source.tokens.device), states=each)

    def noise(self, device: torch.device) -> torch.Generator | None:
        """In training, where dropout comes from: a generator that torch's own random numbers seed."""
        seed = int(torch.randint(2**62, ())) if self.training else 0
        return torch.Generator(device).manual_seed(seed) if self.training else None

    def answers(self, states: Tensor, name: str) -> Tensor:
        """(B, T, outputs) of a head at every position of states (B, T, d)."""
        head = cast(HeadModule, self.model.heads[name])
        return head.project(head.features(states.flatten(0, 1)[:, None])).view(*states.shape[:2], -1)

    def vocabulary_head(self) -> str:
        """The name of the first head over the vocabulary."""
        found = [n for n, h in self.model.declared.items() if h.over == "vocabulary" and h.arity == 1]
        if not found:
            raise ValueError("this model has no head over the vocabulary")
        return found[0]

    def read(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None,
        token_type_ids: Tensor | None,
        prefix_length: int | Tensor | None,
        position_ids: Tensor | None,
        positions2: Tensor | None,
    ) -> Stream:
        """What a model of one stack reads."""
        order = self.model.config.visibility
        self.check_types(token_type_ids)
        return stream_of(input_ids, attention_mask, order, prefix_length, token_type_ids, position_ids, positions2)

    def read_source(self, input_ids: Tensor, attention_mask: Tensor | None, token_type_ids: Tensor | None) -> Stream:
        """What the first of two stacks reads."""
        self.check_types(token_type_ids)
        return stream_of(input_ids, attention_mask, "bidirectional", None, token_type_ids)

    def check_types(self, token_type_ids: Tensor | None) -> None:
        """Types that the model would not look at are a mistake."""
        typed = self.model.config.token_types > 0 or self.model.config.positions == "xlnet"
        if token_type_ids is not None and not typed and bool(token_type_ids.any()):
            raise ValueError("this model has no token types: drop token_type_ids, or give zeros")


class UnmaskModel(UnmaskPreTrainedModel):
    """The last states, without a head; of two stacks the encoder's unless `decoder_input_ids` are given."""

    @can_return_tuple  # type: ignore[untyped-decorator]
    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        decoder_input_ids: Tensor | None = None,
        decoder_attention_mask: Tensor | None = None,
        prefix_length: int | Tensor | None = None,
        position_ids: Tensor | None = None,
        positions2: Tensor | None = None,
        output_hidden_states: bool | None = None,
    ) -> BaseModelOutput:
        each: list[Tensor] = []
        if self.model.source is None:
            stream = self.read(input_ids, attention_mask, token_type_ids, prefix_length, position_ids, positions2)
            last = self.states(stream, each=each)
            return BaseModelOutput(last_hidden_state=last, hidden_states=kept(each, output_hidden_states))
        if position_ids is not None or positions2 is not None or prefix_length is not None:
            raise ValueError("a model of two stacks takes no position_ids, positions2 or prefix_length")
        source = self.read_source(input_ids, attention_mask, token_type_ids)
        last = self.source_states(source, None if decoder_input_ids is not None else each)
        if decoder_input_ids is not None:
            stream = stream_of(decoder_input_ids, decoder_attention_mask, "causal")
            last = self.states(stream, source, last, each)
        return BaseModelOutput(last_hidden_state=last, hidden_states=kept(each, output_hidden_states))


class UnmaskForMaskedLM(UnmaskPreTrainedModel):
    """Logits (B, T, V); `labels` (B, T) stand at the positions that must say them.

    `perm_mask` (B, T, T) and `target_mapping` (B, N, T) are XLNet's: who does not see whom, and where N queries stand.
    With the latter, logits and labels are those of the queries, (B, N, V) and (B, N).
    """

    accepts_loss_kwargs = True

    @can_return_tuple  # type: ignore[untyped-decorator]
    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        labels: Tensor | None = None,
        position_ids: Tensor | None = None,
        positions2: Tensor | None = None,
        perm_mask: Tensor | None = None,
        target_mapping: Tensor | None = None,
        num_items_in_batch: Tensor | int | None = None,
        output_hidden_states: bool | None = None,
    ) -> MaskedLMOutput:
        stream = self.read(input_ids, attention_mask, token_type_ids, None, position_ids, positions2)
        first = 0  # from which place on the answers stand
        if perm_mask is not None or target_mapping is not None:
            stream = self.reordered(stream, perm_mask, target_mapping)
            first = 0 if target_mapping is None else input_ids.shape[1]
        each: list[Tensor] = []
        logits = self.answers(self.states(stream, each=each)[:, first:], self.vocabulary_head())
        loss = None if labels is None else mean_loss(logits, labels, num_items_in_batch)
        return MaskedLMOutput(loss=loss, logits=logits, hidden_states=kept(each, output_hidden_states))

    def reordered(self, stream: Stream, perm_mask: Tensor | None, target_mapping: Tensor | None) -> Stream:
        """The stream in an order of its own, with the queries appended."""
        if target_mapping is not None and not self.model.config.query_vector:
            raise ValueError("target_mapping asks by appended queries, and this model has no query vector")
        return permuted(stream, perm_mask, target_mapping)


class UnmaskForPreTraining(UnmaskPreTrainedModel):
    """What every head says that reads one position: NAME_logits, (B, T, outputs), or (B, T) where it is one number.

    A head over classes answers once a row, at the first real token: (B, classes).
    """

    @can_return_tuple  # type: ignore[untyped-decorator]
    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        prefix_length: int | Tensor | None = None,
        position_ids: Tensor | None = None,
        positions2: Tensor | None = None,
    ) -> ModelOutput:
        stream = self.read(input_ids, attention_mask, token_type_ids, prefix_length, position_ids, positions2)
        states = self.states(stream)
        first = states[torch.arange(len(states), device=states.device), stream.block.argmax(1)][:, None]
        out = ModelOutput()
        for name, head in self.model.declared.items():
            if head.arity == 1 and head.pool == "at" and head.stack == "stream":
                answer = self.answers(first if head.over == "classes" else states, name)
                out[f"{name}_logits"] = answer[:, 0] if head.over == "classes" else answer.squeeze(-1)
        return out


class UnmaskForCausalLM(UnmaskPreTrainedModel, GenerationMixin):  # type: ignore[misc]
    """Logits (B, T, V) of the next token; `labels` (B, T) are the ids themselves, shifted here.

    `generate` keeps no cache of keys: each new token reads the whole text again. For a prefix model the prompt
    is the prefix unless `prefix_length` says otherwise. A new token's position is the last one's plus 1; where the
    prompt has `positions2` (GLM: the place inside the span), these count on and the position stays.
    """

    accepts_loss_kwargs = True

    @can_return_tuple  # type: ignore[untyped-decorator]
    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        labels: Tensor | None = None,
        prefix_length: int | Tensor | None = None,
        position_ids: Tensor | None = None,
        positions2: Tensor | None = None,
        num_items_in_batch: Tensor | int | None = None,
        output_hidden_states: bool | None = None,
    ) -> CausalLMOutput:
        stream = self.read(input_ids, attention_mask, token_type_ids, prefix_length, position_ids, positions2)
        each: list[Tensor] = []
        logits = self.answers(self.states(stream, each=each), self.vocabulary_head())
        loss = None if labels is None else mean_loss(logits[:, :-1], labels[:, 1:], num_items_in_batch)
        return CausalLMOutput(loss=loss, logits=logits, hidden_states=kept(each, output_hidden_states))

    def generate(self, inputs: Tensor | None = None, *args: Any, **kwargs: Any) -> Any:
        """The library's own, with the prompt as a prefix model's prefix."""
        prompt = kwargs.get("input_ids") if inputs is None else inputs
        if self.model.config.visibility == "prefix" and kwargs.get("prefix_length") is None and prompt is not None:
            mask = kwargs.get("attention_mask")
            kwargs["prefix_length"] = (torch.ones_like(prompt) if mask is None else mask).sum(1)
        return super().generate(inputs, *args, **kwargs)

    def prepare_inputs_for_generation(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        prefix_length: int | Tensor | None = None,
        position_ids: Tensor | None = None,
        positions2: Tensor | None = None,
        **_: Any,
    ) -> dict[str, Any]:
        length = input_ids.shape[1]
        if positions2 is not None and position_ids is not None:
            prompt = positions2.shape[1]  # the library has let the positions count on from there
            position_ids = continued(position_ids[:, :prompt], length, 0)
            positions2 = continued(positions2, length, 1)
        return {
            "input_ids": input_ids,
            "attention_mask": attention_mask,
            "token_type_ids": token_type_ids,
            "prefix_length": prefix_length,
            "position_ids": position_ids,
            "positions2": positions2,
        }

    @classmethod
    def _supports_default_dynamic_cache(cls) -> bool:
        return False


class Encoder(nn.Module):
    """The source stack as `generate` calls it; it borrows the model and holds no weights of its own."""

    def __init__(self, whole: UnmaskPreTrainedModel) -> None:
        super().__init__()
        self.whole = (whole,)  # in a tuple, so that its parameters are not counted twice

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        **_: Any,  # what `generate` tells every encoder
    ) -> BaseModelOutput:
        (whole,) = self.whole
        source = whole.read_source(input_ids, attention_mask, token_type_ids)
        return BaseModelOutput(last_hidden_state=whole.source_states(source))


class UnmaskForSeq2SeqLM(UnmaskPreTrainedModel, GenerationMixin):  # type: ignore[misc]
    """Logits (B, T, V) at every position of `decoder_input_ids` (B, T), which predicts its next token.

    `labels` (B, T) stand at the positions that must say them; the decoder then reads them shifted by one, after
    generation_config.decoder_start_token_id. `generate` keeps no cache of keys.
    """

    accepts_loss_kwargs = True

    @can_return_tuple  # type: ignore[untyped-decorator]
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        decoder_input_ids: Tensor | None = None,
        decoder_attention_mask: Tensor | None = None,
        encoder_outputs: BaseModelOutput | None = None,
        labels: Tensor | None = None,
        num_items_in_batch: Tensor | int | None = None,
        output_hidden_states: bool | None = None,
    ) -> Seq2SeqLMOutput:
        of_source: list[Tensor] = []
        each: list[Tensor] = []
        memory = None if encoder_outputs is None else encoder_outputs[0]
        if input_ids is None:
            if memory is None:
                raise ValueError("give input_ids, or encoder_outputs")
            input_ids = torch.zeros(memory.shape[:2], dtype=torch.long, device=memory.device)  # only their shape counts
        source = self.read_source(input_ids, attention_mask, token_type_ids)
        if memory is None:
            memory = self.source_states(source, of_source)
        if decoder_input_ids is None:
            if labels is None:
                raise ValueError("give decoder_input_ids, or labels")
            start = labels.new_full((len(labels), 1), self.generation_config.decoder_start_token_id)
            decoder_input_ids = torch.cat([start, labels[:, :-1].clamp(min=0)], 1)
        stream = stream_of(decoder_input_ids, decoder_attention_mask, "causal")
        logits = self.answers(self.states(stream, source, memory, each), self.vocabulary_head())
        return Seq2SeqLMOutput(
            loss=None if labels is None else mean_loss(logits, labels, num_items_in_batch),
            logits=logits,
            decoder_hidden_states=kept(each, output_hidden_states),
            encoder_last_hidden_state=memory,
            encoder_hidden_states=kept(of_source, output_hidden_states),
        )

    def get_encoder(self, modality: str | None = None) -> nn.Module:
        return Encoder(self)

    def prepare_inputs_for_generation(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,  # which the encoder has read by now
        decoder_attention_mask: Tensor | None = None,
        encoder_outputs: BaseModelOutput | None = None,
        **_: Any,
    ) -> dict[str, Any]:
        return {
            "decoder_input_ids": input_ids,
            "attention_mask": attention_mask,
            "decoder_attention_mask": decoder_attention_mask,
            "encoder_outputs": encoder_outputs,
        }

    @classmethod
    def _supports_default_dynamic_cache(cls) -> bool:
        return False

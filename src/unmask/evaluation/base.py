"""What evaluation asks of a model, and the one way it reads losses at targets.

Legend: B rows, T tokens, d hidden size, n targets, V vocabulary.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from unmask.batch import Batch, Head, Stream, Targets
from unmask.config import ModelConfig
from unmask.errors import UserError
from unmask.loss import states_read
from unmask.model.heads import HeadModule, read
from unmask.objectives.base import LM as TOKENS
from unmask.objectives.base import Objective, Shape
from unmask.objectives.mixture import Mixture
from unmask.tokens.special import Vocabulary

if TYPE_CHECKING:
    from unmask.tokens.tokenizer import Tokenizer


class Model(Protocol):
    """A network and what is known of how it was trained; `unmask.lm.LM` is one."""

    @property
    def network(self) -> Any: ...  # Transformer, or anything that answers as it does

    @property
    def config(self) -> ModelConfig: ...

    @property
    def tokenizer(self) -> Tokenizer | None: ...

    @property
    def objective(self) -> Objective | None: ...

    @property
    def vocabulary(self) -> Vocabulary: ...

    @property
    def context(self) -> int: ...  # tokens of a row in training

    @property
    def target_context(self) -> int | None: ...  # of the target's row where there are two stacks

    def told(self, mode: str | None) -> Model: ...  # the model asked in one of its modes


def tokenizer_of(model: Model) -> Tokenizer:
    if model.tokenizer is None:
        raise UserError("this model has no tokenizer, so it reads ids only: put a tokenizer.json into its directory")
    return model.tokenizer


def objective_of(model: Model) -> Objective:
    if model.objective is None:
        raise UserError(
            f"it is not known what this model (family {model.config.family}) was trained to predict: its hidden "
            "states can be read, but it can neither score nor write"
        )
    if not says_tokens(model):
        name = next(head.network for head in model.objective.heads() if head.over == "vocabulary")
        why = "restores texts that hold no [MASK]" if TOKENS.uses in model.network.heads else "says no tokens"
        raise UserError(
            f"this network of a model of {model.objective.type} (heads: {', '.join(_heads(model))}) {why}, so it can "
            f"neither score nor write: ask its {name} (unmask.load(run, network='{name}'), on the command line "
            f"--network {name})"
        )
    return model.objective.first if isinstance(model.objective, Mixture) else model.objective


def says_tokens(model: Model) -> bool:
    """Whether the network has the head that its objective says tokens with.

    ELECTRA's discriminator has none, and what restores replaced tokens (Replace MLM) has one that never saw [MASK].
    """
    if model.objective is None:
        return False
    said = [head for head in model.objective.heads() if head.over == "vocabulary"]
    if all(head.network == "model" for head in said):
        return True
    return said[0].name in _heads(model)


def _heads(model: Model) -> list[str]:
    """The heads of a network by their own names, where they share a module."""
    return [head.name for head in model.network.declared.values()]


def shape_of(model: Model) -> Shape:
    """The longest streams that the model was trained on; the tables may hold more positions, never trained ones."""
    if model.objective is not None:
        return model.objective.shape(model.context, model.target_context)
    two = model.config.num_source_layers > 0
    return Shape(model.target_context or model.context, model.context) if two else Shape(model.context)


def device_of(network: nn.Module) -> torch.device:
    first = next(iter(network.parameters()), None)
    return torch.device("cpu") if first is None else first.device


@contextmanager
def evaluating(*networks: nn.Module) -> Iterator[None]:
    """No gradients, evaluation mode; every module's mode is restored at the end."""
    modules = [m for network in networks for m in network.modules()]
    modes = [m.training for m in modules]
    for network in networks:
        network.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for module, mode in zip(modules, modes, strict=True):
            module.training = mode


def release() -> None:
    """Give freed memory back to the kernel; elsewhere than on glibc nothing happens.

    Forward passes of many shapes leave holes between what is kept, so that a long evaluation's process would grow
    with its text although nothing of it is held. Call it after a part of many batches, not after each:
    the next pass pays page faults.
    """
    if sys.platform.startswith("linux"):
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
        if trim is not None:
            trim(0)


def states_of(networks: Mapping[str, Any], batch: Batch) -> dict[str, dict[str, Tensor]]:
    """One forward pass, without dropout, of each network that a head of the batch names."""
    return {name: states_read(networks[name], name, batch) for name in {h.network for h in batch.heads.values()}}


def token_losses(
    head: Head, module: HeadModule, states: Tensor, stream: Stream, targets: Targets
) -> tuple[Tensor, Tensor]:
    """(n,) −log probability of each target token in nats, and (n,) whether it is the likeliest."""
    n = len(targets.value)
    # Filled in place: small results allocated between the chunks would split the memory that those leave.
    losses, hits = states.new_empty(n, dtype=torch.float32), states.new_empty(n, dtype=torch.bool)
    for here, logits, own in token_logits(head, module, states, stream, targets):
        losses[here] = F.cross_entropy(logits, own, reduction="none")
        hits[here] = logits.argmax(-1) == own
    return losses, hits


def token_logits(
    head: Head, module: HeadModule, states: Tensor, stream: Stream, targets: Targets
) -> Iterator[tuple[slice, Tensor, Tensor]]:
    """Targets a chunk of k at a time: which they are, their (k, V) logits, and their (k,) tokens.

    The logits exist only in chunks of about 16 MB, whatever the number of targets.
    """
    if targets.index is None:
        targets = replace(targets, index=torch.arange(len(targets.value), device=states.device))
    begin, size = 0, 32
    while begin < len(targets.value):
        here = slice(begin, begin + size)
        part = targets.map(lambda a, here=here: a[here])  # type: ignore[misc]
        logits = module.project(module.features(read(states, stream, head, part.index), part.extra)).float()
        yield here, logits, part.value
        begin, size = begin + size, max(32, min(1024, (1 << 22) // logits.shape[1]))

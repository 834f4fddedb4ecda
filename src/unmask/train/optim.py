"""AdamW, and Muon for the hidden matrices: one object that steps both and can be written down without pickle.

Which parameter goes where (`split`):

    Muon    with optimizer=muon: a matrix inside a repeated layer, that is, a 2-D parameter (or a stack of matrices)
            all of whose names have the part "layers" and none a part "heads" (a matrix shared with something outside
            has other names too), and that is no table (a layer's value embeddings)
    AdamW   everything else: tables, heads, tied matrices, norms, biases, bare vectors

A module whose `weight` is several projections in one (queries, keys and values; gate and up) may say so by an
attribute `parts`, the rows of each: Muon then orthogonalises each part by itself. A module that holds stacks of
matrices (m, rows, columns), such as experts, lists them in an attribute `stacks`: name → rows of each part. A 3-D
parameter that nobody lists (a convolution) is no stack.

Decay is decoupled (Loshchilov and Hutter 2019, "Decoupled Weight Decay Regularization") and touches matrices and
tables only, never 1-D parameters nor stacks of biases (names that end in "bias").
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

import torch
from torch import Tensor, nn

from unmask.config import TrainConfig
from unmask.errors import UserError
from unmask.tensors import Readable
from unmask.train.layout import HERE, Layout, Moved

NS_COEFFICIENTS = (3.4445, -4.7750, 2.0315)
NS_STEPS = 5
NS_EPS = 1e-7


class Optimizer:
    """Both optimizers over the distinct parameters of `networks`, which lie as `layout` says."""

    def __init__(self, networks: nn.Module, config: TrainConfig, layout: Layout = HERE) -> None:
        self.config = config
        self.layout = layout
        self.named = dict(networks.named_parameters())  # a shared parameter once, under its first name
        muon, adam = split(networks, config)
        settled = (config.muon_momentum, config.weight_decay, fused_parts(networks), self.layout)
        self.muon = Muon(muon, *settled) if muon else None
        self.adam_names = {id(p): name for name, p in adam.items()}
        decayed = [p for name, p in adam.items() if _is_matrix(name, p)]
        plain = [p for name, p in adam.items() if not _is_matrix(name, p)]
        groups = [{"params": decayed, "weight_decay": config.weight_decay}, {"params": plain, "weight_decay": 0.0}]
        groups = [g for g in groups if g["params"]]
        settings = {"lr": config.learning_rate, "betas": (config.beta1, config.beta2), "eps": config.adam_eps}
        self.adam = torch.optim.AdamW(groups, fused=True, **settings) if groups else None  # type: ignore[arg-type]

    def step(self, factor: float) -> None:
        """Move every parameter that has a gradient, at `factor` × its peak rate."""
        if self.adam is not None:
            for group in self.adam.param_groups:
                group["lr"] = factor * self.config.learning_rate
            self.adam.step()
        if self.muon is not None:
            self.muon.step(factor * self.config.muon_learning_rate)

    def gradient_norm(self, clip: float) -> float:
        """The norm over all gradients together; where it passes `clip` > 0, all are scaled down to it."""
        gradients = [p.grad for p in self.named.values() if p.grad is not None]
        norm = self.layout.whole(nn.utils.get_total_norm(gradients))
        if clip:
            held = [p for p in self.named.values() if p.grad is not None]
            nn.utils.clip_grads_with_norm_(held, clip, norm)
        return float(norm)

    def zero(self) -> None:
        for p in self.named.values():
            p.grad = None

    def state_tensors(self) -> dict[str, Tensor]:
        """Every tensor of the state under "parameter:name"; parameters that never moved have none."""
        out = {}
        if self.adam is not None:
            for p, state in self.adam.state.items():
                out.update({f"{self.adam_names[id(p)]}:{k}": v for k, v in state.items()})
        if self.muon is not None:
            out.update({f"{name}:momentum": v for name, v in self.muon.momentum.items()})
        return out

    def load_state_tensors(self, tensors: Mapping[str, Readable]) -> None:
        """Take the state back; what is not in `tensors` starts afresh, an unknown name is an error."""
        if self.adam is not None:
            self.adam.state.clear()
        if self.muon is not None:
            self.muon.momentum.clear()
        adam = set(self.adam_names.values())
        for key, value in tensors.items():
            name, _, part = key.rpartition(":")
            p = self.named.get(name)
            if p is None or (part != "step" and value.shape != p.shape):
                raise UserError(f"optimizer state '{key}' fits no parameter of this model: the recipe has changed")
            if name in adam and self.adam is not None:
                self.adam.state[p][part] = self._placed(part, value, p)
            elif self.muon is not None and part == "momentum":
                self.muon.momentum[name] = self._placed(part, value, p)
            else:
                raise UserError(f"optimizer state '{key}' belongs to another optimizer than {self.config.optimizer}")

    def _placed(self, part: str, value: Readable, p: Tensor) -> Tensor:
        """A part of the state where its parameter is; AdamW's count of steps is one number, whole on every rank."""
        return value[...].to(p.device, copy=True) if part == "step" else self.layout.part(value, p)

    def state_bytes(self) -> int:
        """Bytes of the full state, known before the first step: two moments for AdamW, one for Muon."""
        muon = self.muon.parameters if self.muon is not None else {}
        return sum((1 if n in muon else 2) * p.numel() * p.element_size() + 4 for n, p in self.named.items())


def split(networks: nn.Module, config: TrainConfig) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """(Muon's, AdamW's) parameters that train, by name; the rule stands at the top of this module."""
    hidden: dict[int, bool] = {}
    parts = fused_parts(networks)
    tables = {id(m.weight) for m in networks.modules() if isinstance(m, nn.Embedding)}
    for name, p in networks.named_parameters(remove_duplicate=False):
        path = name.split(".")
        matrix = (p.ndim == 2 and _is_matrix(name, p) and id(p) not in tables) or (p.ndim == 3 and id(p) in parts)
        hidden[id(p)] = hidden.get(id(p), True) and matrix and "layers" in path and "heads" not in path
    muon: dict[str, Tensor] = {}
    adam: dict[str, Tensor] = {}
    for name, p in networks.named_parameters():
        if p.requires_grad:
            (muon if hidden[id(p)] and config.optimizer == "muon" else adam)[name] = p
    return muon, adam


def fused_parts(networks: nn.Module) -> dict[int, tuple[int, ...]]:
    """id of a parameter → rows of its parts, from the modules that declare them."""
    declared = [(m.weight, getattr(m, "parts", None)) for m in networks.modules() if isinstance(m, nn.Linear)]
    for m in networks.modules():
        declared.extend((getattr(m, name), rows) for name, rows in getattr(m, "stacks", {}).items())
    return {id(weight): parts for weight, parts in declared if parts is not None}


def _is_matrix(name: str, p: Tensor) -> bool:
    """A matrix, a table or a stack of them; not the biases of a stack, which are 2-D too."""
    return p.ndim >= 2 and not name.endswith("bias")


class Muon:
    """Momentum whose update is orthogonalised (Jordan et al. 2024, kellerjordan.github.io/posts/muon).

        B ← μ B + (1 - μ) G        U = (1 - μ) G + μ B  (Nesterov)
        W ← (1 - η λ) W - η · sqrt(max(1, rows / columns)) · NS(U)

    The scale is Jordan's: it keeps the update's effect on the output's RMS alike for all shapes. NS is five
    Newton–Schulz iterations in bf16, run for all matrices of a shape at once; torch.optim.Muon is the same by loop.
    Of sharded matrices the updates U are gathered, bundle by bundle; every rank orthogonalises them, as it would its
    copies, and moves its own shards.
    """

    def __init__(
        self,
        parameters: Mapping[str, Tensor],
        momentum: float,
        weight_decay: float,
        parts: Mapping[int, tuple[int, ...]] | None = None,
        layout: Layout = HERE,
    ) -> None:
        self.parameters = dict(parameters)
        self.mu = momentum
        self.decay = weight_decay
        self.parts = parts or {}
        self.layout = layout
        self.momentum: dict[str, Tensor] = {}

    @torch.no_grad()
    def step(self, rate: float) -> None:
        moved: list[Moved] = []  # (parameter, its update before NS)
        for name, p in self.parameters.items():
            if p.grad is None:
                continue
            if name not in self.momentum:
                self.momentum[name] = torch.zeros_like(p.grad)
            buffer = self.momentum[name]
            buffer.lerp_(p.grad, 1.0 - self.mu)
            moved.append((p, p.grad.lerp(buffer, self.mu)))
            p.mul_(1.0 - rate * self.decay)
        for bundle in self.layout.bundles(moved):
            self._turn([(p, self.layout.goal(p), self.layout.whole(update)) for p, update in bundle], rate)

    def _turn(self, bundle: Iterable[tuple[Tensor, Tensor, Tensor]], rate: float) -> None:
        """Orthogonalise whole updates and move the parameters by them: (parameter, its goal, its update)."""
        updates: list[tuple[Tensor, Tensor]] = []  # (view of rows of a goal, its update before NS)
        for p, goal, update in bundle:
            rows = list(self.parts.get(id(p), (p.shape[-2],)))
            for matrix, change in zip(_matrices(goal), _matrices(update), strict=True):
                updates.extend(zip(torch.split(matrix, rows), torch.split(change, rows), strict=True))
        for group in _by_shape(updates):
            views, stack = [v for v, _ in group], torch.stack([u for _, u in group])
            rows_, columns = stack.shape[1:]
            scale = math.sqrt(max(1.0, rows_ / columns))
            for view, direction in zip(views, orthogonalise(stack), strict=True):
                view.add_(direction, alpha=-rate * scale)
        for p, goal, _ in bundle:
            self.layout.settle(p, goal)


def _matrices(x: Tensor) -> tuple[Tensor, ...]:
    """Views of the matrices of a stack; of a matrix, itself."""
    return (x,) if x.ndim == 2 else x.unbind(0)


def _by_shape(updates: Iterable[tuple[Tensor, Tensor]]) -> list[list[tuple[Tensor, Tensor]]]:
    groups: dict[torch.Size, list[tuple[Tensor, Tensor]]] = {}
    for view, update in updates:
        groups.setdefault(update.shape, []).append((view, update))
    return list(groups.values())


def orthogonalise(stack: Tensor) -> Tensor:
    """(m, rows, columns) → about U Vᵀ of each matrix's SVD, in bf16: singular values end between 0.7 and 1.2."""
    a, b, c = NS_COEFFICIENTS
    x = stack.bfloat16()
    tall = x.shape[1] > x.shape[2]
    if tall:
        x = x.mT
    x = x / x.norm(dim=(1, 2), keepdim=True).clamp(min=NS_EPS)
    for _ in range(NS_STEPS):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.mT if tall else x

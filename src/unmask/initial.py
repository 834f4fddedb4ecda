"""Where a run's weights come from when they do not start anew: `init=DIR`.

taken(recipe, lm)               the recipe with DIR's model settings and tokenizer in it
start(networks, lm, …)          its weights by name (`fill`), a report of each tensor, and a copy kept in the run
again(out, networks, …)         that copy: a resumed run needs DIR no more
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from unmask.config import ModelConfig, TokenizerConfig
from unmask.errors import UserError
from unmask.lm import LM
from unmask.loading import load, network_names
from unmask.model.convert import Weights, to_visibility
from unmask.model.interop import LEAST
from unmask.model.transformer import Transformer
from unmask.networks import Shifted
from unmask.objectives.base import Objective
from unmask.recipe import OF_TRAINING, Recipe
from unmask.tensors import named_once
from unmask.tokens.asked import require_controls
from unmask.tokens.tokenizer import Tokenizer
from unmask.train import checkpoint
from unmask.train.layout import HERE, Layout

KEPT = "init"
"""The folder of a run that holds the weights it started from."""
ADDED = ("query_vector", "positions2", "token_types")
"""Model settings that add a tensor or rows to what there is, which objectives may ask for: they start from the seed."""
SHOWN = 6
"""Names in one line of the report; init.json lists all."""


@dataclass(frozen=True)
class Filled:
    """What became of the tensors: ours in the first five, those of the directory in `unused`.

    restarted  heads of another size, which start anew with the spread of every other one
    grown      tables with more rows, of which the first are loaded
    reshaped   of a Hugging Face directory: fused from several, or transposed
    """

    loaded: tuple[str, ...]
    new: tuple[str, ...]
    restarted: tuple[str, ...]
    reshaped: tuple[str, ...]
    unused: tuple[str, ...]
    numbers: int
    body_share: float
    grown: tuple[str, ...] = ()

    def lines(self) -> list[str]:
        """The report, one kind a line."""
        kinds = {
            "new, from the recipe's seed": self.new,
            "of another size, started anew": self.restarted,
            "with more rows, the new ones from the recipe's seed": self.grown,
            "re-shaped (fused or transposed)": self.reshaped,
            "not used": self.unused,
        }
        first = f"{len(self.loaded)} tensors loaded: {self.numbers:,} numbers, {self.body_share:.0%} of the body"
        return [first, *(f"{len(names)} {kind}: {_listed(names)}" for kind, names in kinds.items() if names)]


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - SHOWN} more (init.json lists them)" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more


# ---------------------------------------------------------------- settings and tokenizer


def taken(recipe: Recipe, lm: LM) -> tuple[Recipe, Tokenizer | TokenizerConfig]:
    """The recipe with the model's settings and tokenizer in it, or a sentence why that cannot be.

    The mask is the objective's: causal weights may be continued as a masked or a prefix model.
    """
    place, asked = Path(str(recipe.init)), recipe.model
    explicit = {name: getattr(asked, name) for name in asked.model_fields_set}
    config = _with_more(_under(recipe.objective, lm, place), explicit, place)
    for name, value in explicit.items():
        if name not in OF_TRAINING and value != getattr(config, name):
            raise UserError(
                f"init={place} has model.{name}={getattr(config, name)}, not {value}: leave model.{name} out (only "
                f"{', '.join(OF_TRAINING)} may be set, and {', '.join(ADDED)} where the objective needs them), or "
                "convert the model first (unmask convert)"
            )
    free = {name: value for name, value in explicit.items() if name in OF_TRAINING}
    given = "tokenizer" in recipe.model_fields_set
    tokenizer: Tokenizer | TokenizerConfig = recipe.tokenizer
    if lm.tokenizer is not None:
        if given:
            raise UserError(
                f"init={place} brings its tokenizer: leave the tokenizer settings out, or give the model another "
                "vocabulary first (unmask convert --tokenizer)"
            )
        tokenizer = lm.tokenizer
        require_controls(recipe.objective, lm.vocabulary, lm.tokenizer, str(place), str(place))
    elif recipe.tokenizer.file is None:
        raise UserError(f"init={place} holds no tokenizer: give the one it was trained with (tokenizer.file=…)")
    found = {
        "model": config.model_copy(update=free),
        "init": str(place.absolute()),
        "tokenizer": recipe.tokenizer if lm.tokenizer is None else TokenizerConfig(file=str(place.absolute())),
        **{name: end for name, end in _ends(lm).items() if name not in recipe.model_fields_set},
    }
    made = recipe.model_copy(update=found)
    if fault := made.misfit():
        raise UserError(f"init={place}: {fault}")
    return made, tokenizer


def _under(objective: Objective, lm: LM, place: Path) -> ModelConfig:
    """The model's settings under the objective's mask."""
    stacks = 2 if objective.shape(64).source else 1
    if stacks != 1 + (lm.config.num_source_layers > 0):
        to = f"make two of it first (unmask convert {place} NEW --to encdec)" if stacks == 2 else "take another model"
        raise UserError(
            f"objective {objective.type} in this layout needs {stacks} stack{'s' * (stacks - 1)}, and init={place} has "
            f"{3 - stacks}: {to}"
        )
    config = lm.config if stacks == 2 else to_visibility(Weights.of(lm.network), objective.visibility).config
    return config.model_copy(update={"ahead_layers": 0})  # the objective's own, if it has any


def _with_more(config: ModelConfig, explicit: Mapping[str, Any], place: Path) -> ModelConfig:
    """The settings with the tensors and rows that are asked for beside `init`."""
    more = {
        name: explicit[name] for name in ADDED if explicit.get(name, getattr(config, name)) != getattr(config, name)
    }
    for name, value in more.items():
        if value < getattr(config, name):
            raise UserError(
                f"init={place} has model.{name}={getattr(config, name)}, and {value} would drop what it learnt: leave "
                f"model.{name} out"
            )
    return Weights(config, {}).changed("", **more).config if more else config


def _ends(lm: LM) -> dict[str, int | None]:
    """Start and end ids that the model was trained with where its tokenizer does not say them."""
    if lm.words is None or lm.tokenizer is None:
        return {}
    own = lm.tokenizer.vocabulary
    return {
        "start": lm.words.bos if lm.words.bos != own.bos else None,
        "end": lm.words.eos if lm.words.eos != own.eos else None,
    }


# ---------------------------------------------------------------- weights


def fill(network: Transformer, weights: Weights, title: str) -> Filled:
    """Copy weights into a model by name, in place.

    Heads that the weights lack, or have in another size, keep the start that the model gave them. Under 90 % of the
    body's numbers, those aside that objectives add to a model (`ADDED`), or a body's tensor of another size is an
    error: this is another model.
    """
    own = named_once(network)[0]
    loaded, new, restarted, grown = [], [], [], []
    for name, tensor in own.items():
        there = weights.state.get(name)
        if there is None:
            new.append(name)
        elif there.shape == tensor.shape:
            loaded.append(name)
        elif name.startswith("heads."):
            restarted.append(name)
        elif _may_grow(name) and there.shape[1:] == tensor.shape[1:] and len(there) < len(tensor):
            grown.append(name)
        else:
            raise UserError(
                f"{title} holds {name} with {_sizes(there)}, and this model needs {_sizes(tensor)}: "
                "they are different models"
            )
    body = {name: tensor.numel() for name, tensor in own.items() if not _apart(name)}
    share = sum(body[name] for name in loaded if name in body) / sum(body.values())
    needed = {name: size for name, size in body.items() if name != "query" and not _may_grow(name)}
    known = sum(needed[name] for name in loaded if name in needed) / sum(needed.values())
    if known < LEAST:
        absent = next(name for name in needed if name not in loaded)
        raise UserError(
            f"{title} holds only {known:.0%} of the body's weights (first missing: {absent}), under {LEAST:.0%}: "
            "it is another model, or its tensors have other names"
        )
    with torch.no_grad():
        for name in loaded:
            own[name].copy_(weights.state[name])
        for name in grown:
            own[name][: len(weights.state[name])] = weights.state[name]
    unused = tuple(name for name in weights.state if name not in own)
    numbers = sum(weights.state[name].numel() for name in (*loaded, *grown))
    return Filled(tuple(loaded), tuple(new), tuple(restarted), (), unused, numbers, share, tuple(grown))


def _may_grow(name: str) -> bool:
    """Tables that an objective may ask for, or for more rows of (`ADDED`)."""
    return name.endswith(("positions2.weight", "token_types.weight"))


def _apart(name: str) -> bool:
    """What is no part of the body: heads, modules that look ahead for some, and E_Δ, which starts at 0."""
    return name.startswith("heads.") or ".ahead." in name or name.endswith(".delta")


def _sizes(tensor: torch.Tensor) -> str:
    return " × ".join(str(n) for n in tensor.shape)


def start(networks: nn.ModuleDict, lm: LM, recipe: Recipe, out: Path, say: Callable[[str], None]) -> Filled:
    """Fill the run's networks, say what was found, and keep the weights in the run: a resumed one reads them there."""
    title = f"init={recipe.init}"
    others = {name: _other(network, name, recipe, title) for name, network in networks.items() if name != "model"}
    network = networks["model"]
    assert isinstance(network, Transformer)
    weights = Weights.of(lm.network)
    if not lm.config.num_source_layers:
        weights = to_visibility(weights, network.config.visibility)
    if any(isinstance(found, Filled) for found in others.values()):
        weights = replace(weights, state=_beside(network, weights.state))
    filled = fill(network, weights, title)  # last: what networks share is the model's
    if lm.report is not None:
        read = set(filled.loaded)
        filled = replace(
            filled,
            reshaped=tuple(n for n in lm.report.reshaped if n in read),
            unused=(*filled.unused, *lm.report.unused),
        )
    for line in filled.lines():
        say(f"{title}: {line}")
    for name, found in others.items():
        for line in [found] if isinstance(found, str) else found.lines():
            say(f"{title}: {name}: {line}")
    checkpoint.write(out / KEPT, 0, networks, {}, {"step": 0})
    more = {name: found if isinstance(found, str) else asdict(found) for name, found in others.items()}
    report = {**asdict(filled), **({"others": more} if more else {})}
    checkpoint.write_json(out / "init.json", {"format": checkpoint.FORMAT, "init": recipe.init, **report})
    return filled


def _other(network: nn.Module, name: str, recipe: Recipe, title: str) -> Filled | str:
    """Fill another network of the run (ELECTRA's generator) from that of the same name; or why it starts anew."""
    assert isinstance(network, Transformer) and recipe.init is not None
    if name not in network_names(recipe.init):
        return f"from the recipe's seed: {recipe.init} holds no network of this name"
    lm = load(recipe.init, device="cpu", network=name)
    try:
        return fill(network, Weights.of(lm.network), title)
    except UserError as error:
        return f"from the recipe's seed: {error}"


def _beside(network: Transformer, state: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Tensors of a model whose tables are sums (gdes): what is added to the generator's, which is there already."""
    found = dict(state)
    for name, table in network.named_modules():
        sum_ = state.get(f"{name}.weight")
        if isinstance(table, Shifted) and sum_ is not None and sum_.shape == table.weight.shape:
            own = table.weight.detach().clone()
            found |= {f"{name}.weight": own, f"{name}.delta": sum_ - own}
    return found


def again(out: Path, networks: nn.ModuleDict, layout: Layout = HERE) -> None:
    """The weights that a run started from, as it kept them, into networks that lie so (`Trainer.start`)."""
    place = checkpoint.find(out / KEPT).whole.get(0)
    if place is None:
        raise UserError(f"{out} was started with init, and lacks the weights in {out / KEPT}: start it anew")
    checkpoint.load_model(networks, place, layout)

"""Where a run's weights come from when they do not start anew: `init=DIR`.

taken(recipe, lm)               the recipe with DIR's model settings and tokenizer in it
start(networks, lm, …)          its weights by name (`fill`), a report of each tensor, and a copy kept in the run
again(networks, out)            that copy: a resumed run needs DIR no more
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import nn

from unmask.batch import Rows
from unmask.config import ModelConfig, TokenizerConfig
from unmask.errors import UserError
from unmask.lm import LM
from unmask.model.convert import Weights, to_visibility
from unmask.model.interop import LEAST
from unmask.model.transformer import Transformer
from unmask.objectives.base import Objective
from unmask.objectives.mixture import parts_of
from unmask.recipe import OF_TRAINING, Recipe
from unmask.tensors import named_once
from unmask.tokens.grow import missing
from unmask.tokens.special import Vocabulary
from unmask.tokens.tokenizer import Tokenizer
from unmask.train import checkpoint

KEPT = "init"
"""The folder of a run that holds the weights it started from."""
SHOWN = 6
"""Names in one line of the report; init.json lists all."""


@dataclass(frozen=True)
class Filled:
    """What became of the tensors: ours in the first four, those of the directory in `unused`.

    restarted  heads of another size, which start anew with the spread of every other one
    reshaped   of a Hugging Face directory: fused from several, or transposed
    """

    loaded: tuple[str, ...]
    new: tuple[str, ...]
    restarted: tuple[str, ...]
    reshaped: tuple[str, ...]
    unused: tuple[str, ...]
    numbers: int
    body_share: float

    def lines(self) -> list[str]:
        """The report, one kind a line."""
        kinds = {
            "new, from the recipe's seed": self.new,
            "of another size, started anew": self.restarted,
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
    config = _under(recipe.objective, lm, place)
    explicit = {name: getattr(asked, name) for name in asked.model_fields_set}
    for name, value in explicit.items():
        if name not in OF_TRAINING and value != getattr(config, name):
            raise UserError(
                f"init={place} has model.{name}={getattr(config, name)}, not {value}: leave model.{name} out "
                f"(only {' and '.join(OF_TRAINING)} may be set), or convert the model first (unmask convert)"
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
        suffices(recipe.objective, lm.tokenizer, lm.vocabulary, str(place))
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
    if stacks == 2:
        return lm.config
    return to_visibility(Weights.of(lm.network), objective.visibility).config


def _ends(lm: LM) -> dict[str, int | None]:
    """Start and end ids that the model was trained with where its tokenizer does not say them."""
    if lm.words is None or lm.tokenizer is None:
        return {}
    own = lm.tokenizer.vocabulary
    return {
        "start": lm.words.bos if lm.words.bos != own.bos else None,
        "end": lm.words.eos if lm.words.eos != own.eos else None,
    }


def suffices(objective: Objective, tokenizer: Tokenizer, words: Vocabulary, place: str) -> None:
    """Try the objective on a text of 16 words: what control tokens it misses is known before anything is prepared."""
    if not objective.needs <= {"word", "sentence"}:  # such texts cannot be made up here
        return
    asked = _Asked(words, [])
    marks, fault = np.ones(16, bool), ""
    try:
        for part in parts_of(objective).values():
            part(Rows.of([np.resize(words.ordinary, 16)], word=marks, sentence=marks), asked)
    except UserError as error:
        fault = str(error)
    if asked.lacking:
        roles = list(dict.fromkeys(asked.lacking))
        adding = " ".join(f"--add-token '{missing(tokenizer, role)}'" for role in roles)
        raise UserError(
            f"the tokenizer of {place} has no {' and no '.join(roles)} token, which objective {objective.type} needs: "
            f"add it with unmask convert {place} NEW {adding}, and take NEW"
        )
    if fault:
        raise UserError(
            f"the tokenizer of {place} does not suffice: {fault}; or add tokens with unmask convert {place} NEW "
            "--add-token '<extra_id_0>' …, and take NEW"
        )


@dataclass(frozen=True)
class _Asked:
    """A vocabulary that notes the roles it lacks and answers for them all the same."""

    own: Vocabulary
    lacking: list[str]

    def need(self, role: str) -> int:
        if self.own.find(role) is None:
            self.lacking.append(role)
            return 0
        return self.own.need(role)

    @property
    def size(self) -> int:
        return self.own.size

    @property
    def sentinels(self) -> np.ndarray:
        return self.own.sentinels

    @property
    def ordinary(self) -> np.ndarray:
        return self.own.ordinary


# ---------------------------------------------------------------- weights


def fill(network: Transformer, weights: Weights, title: str) -> Filled:
    """Copy weights into a model by name, in place.

    Heads that the weights lack, or have in another size, keep the start that the model gave them. Under 90 % of the
    body's numbers, or a body's tensor of another size, is an error: this is another model.
    """
    own = named_once(network)[0]
    loaded, new, restarted = [], [], []
    for name, tensor in own.items():
        there = weights.state.get(name)
        if there is None:
            new.append(name)
        elif there.shape == tensor.shape:
            loaded.append(name)
        elif name.startswith("heads."):
            restarted.append(name)
        else:
            raise UserError(
                f"{title} holds {name} with {_sizes(there)}, and this model needs {_sizes(tensor)}: "
                "they are different models"
            )
    mine = (name for name in own if not name.startswith("heads.") and not name.endswith(".delta"))  # E_Δ starts at 0
    body = {name: own[name].numel() for name in mine}
    share = sum(body[name] for name in loaded if name in body) / sum(body.values())
    if share < LEAST:
        absent = next(name for name in body if name not in loaded)
        raise UserError(
            f"{title} holds only {share:.0%} of the body's weights (first missing: {absent}), under {LEAST:.0%}: "
            "it is another model, or its tensors have other names"
        )
    with torch.no_grad():
        for name in loaded:
            own[name].copy_(weights.state[name])
    unused = tuple(name for name in weights.state if name not in own)
    numbers = sum(own[name].numel() for name in loaded)
    return Filled(tuple(loaded), tuple(new), tuple(restarted), (), unused, numbers, share)


def _sizes(tensor: torch.Tensor) -> str:
    return " × ".join(str(n) for n in tensor.shape)


def start(networks: nn.ModuleDict, lm: LM, recipe: Recipe, out: Path, say: Callable[[str], None]) -> Filled:
    """Fill the run's model, say what was found, and keep the weights in the run: a resumed one reads them there."""
    network = networks["model"]
    assert isinstance(network, Transformer)
    weights = Weights.of(lm.network)
    if not lm.config.num_source_layers:
        weights = to_visibility(weights, network.config.visibility)
    filled = fill(network, weights, f"init={recipe.init}")
    if lm.report is not None:
        read = set(filled.loaded)
        filled = replace(
            filled,
            reshaped=tuple(n for n in lm.report.reshaped if n in read),
            unused=(*filled.unused, *lm.report.unused),
        )
    for line in filled.lines():
        say(f"init={recipe.init}: {line}")
    checkpoint.write(out / KEPT, 0, networks, {}, {"step": 0})
    checkpoint.write_json(out / "init.json", {"format": checkpoint.FORMAT, "init": recipe.init, **asdict(filled)})
    return filled


def again(networks: nn.ModuleDict, out: Path) -> None:
    """The weights that a run started from, as it kept them; needed only where no checkpoint can be taken up."""
    if _planned(out):
        return  # the trainer takes up its newest checkpoint, which holds all weights
    place = checkpoint.find(out / KEPT).whole.get(0)
    if place is None:
        raise UserError(f"{out} was started with init, and lacks the weights in {out / KEPT}: start it anew")
    checkpoint.load_model(networks, place)


def _planned(out: Path) -> bool:
    """Whether a run has a whole checkpoint that it goes on from: one of a run whose length was known."""
    newest, _ = checkpoint.newest(out / "checkpoints")
    return newest is not None and ((out / "plan.json").exists() or bool(checkpoint.read_state(newest)["plan"]))

"""Writing with a model that fills [MASK]s: all of a text's places are masked, then unmasked a few at a time.

    [CLS] prompt [MASK] [MASK] [MASK] … [SEP]

The frame, the order of attention and where a masked place is answered are those of the model's training, as for fill
and scores (`shown.cloze`): a permutation model answers at queries behind the text and is shown no [MASK]. The length
is given beforehand; with block=1 the text is written from left to right.

In each step every masked place is predicted, given the prompt and what already stands; then some are masked again:

    confidence     of those just predicted, the least probable, so that the number of masked places falls evenly (LLaDA:
                   Nie et al. 2025, section 2.4, low-confidence remasking; as in MaskGIT, Chang et al. 2022)
    random         of those just predicted, any (the reverse process of masked diffusion: Sahoo et al. 2024)
    mask_predict   of all that were written, the least probable: ⌊N (T − t) / T⌋ of N after step t of T (Mask-Predict,
                   Ghazvininejad et al. 2019, section 3; a probability is of the last time that a place was predicted)

Legend: R texts end to end, N their tokens, n masked places, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, get_args

import numpy as np
import torch

from unmask import keyed
from unmask.batch import Rows
from unmask.data.collate import collate
from unmask.errors import UserError, nearest
from unmask.evaluation.abilities import abilities, elsewhere, spoken
from unmask.evaluation.base import (
    Model,
    device_of,
    evaluating,
    objective_of,
    shape_of,
    states_of,
    token_logits,
    tokenizer_of,
)
from unmask.evaluation.plans import room, take, token_head
from unmask.evaluation.sampling import GREEDY, Generation, Sampling, choose
from unmask.evaluation.shown import cloze
from unmask.evaluation.steps import Text
from unmask.objectives.base import LM
from unmask.objectives.permutation import Permutation
from unmask.train.devices import to_device

Order = Literal["confidence", "random", "mask_predict"]

ITERATIONS = 10
"""Steps of Mask-Predict, where no number is given (Ghazvininejad et al. 2019 take 4 or 10)."""


@dataclass(frozen=True)
class Unmasking:
    """How a text of a given length is unmasked.

    order     which places are masked again after a step, see above
    steps     for the whole text, shared evenly by its blocks; 0 = one a token (mask_predict: 10 a block)
    block     tokens of a block: blocks are unmasked one after the other, from left to right (LLaDA's
              semi-autoregressive remasking); 0 = the whole text is one
    sampling  how a predicted token is drawn; temperature 0 = the likeliest
    """

    order: Order = "confidence"
    steps: int = 0
    block: int = 0
    sampling: Sampling = GREEDY

    def __post_init__(self) -> None:
        if self.order not in get_args(Order):
            known = get_args(Order)
            raise UserError(f"order={self.order} is not known: give {', '.join(known)}{nearest(self.order, known)}")
        if self.steps < 0 or self.block < 0:
            name = "steps" if self.steps < 0 else "block"
            raise UserError(f"{name}={getattr(self, name)} must be at least 1, or 0 for the default")

    def left(self, size: np.ndarray, steps: np.ndarray, done: int) -> np.ndarray:
        """(R,) how many of `size` (R,) places are masked after `done` of their `steps` (R,) steps.

        >>> size, steps = np.array([7, 7]), np.array([3, 10])
        >>> [Unmasking().left(size, steps, t).tolist() for t in (1, 2, 3)]
        [[4, 6], [2, 5], [0, 4]]
        >>> [Unmasking("mask_predict").left(size, steps, t).tolist() for t in (1, 2, 3)]
        [[4, 6], [2, 5], [0, 4]]
        >>> [int(Unmasking(order).left(np.array([8]), np.array([3]), 1)[0]) for order in ("confidence", "mask_predict")]
        [5, 5]
        """
        if self.order == "mask_predict":
            return np.asarray(np.maximum(size * (steps - done) // steps, 0))
        each, more = np.divmod(size, steps)  # the first steps unmask one more, as in LLaDA's code
        return np.asarray(np.maximum(size - done * each - np.minimum(done, more), 0))


def unmasks(model: Model, rule: object = None) -> bool:
    """Whether the model writes by filling [MASK]s: in no other way, or as one of its ways that `rule` asks for."""
    found = abilities(objective_of(model)).unmasks
    return found == "only" or (found == "too" and isinstance(rule, Unmasking))


def misfit(model: Model) -> UserError:
    """Why a model that does not fill [MASK]s takes no `Unmasking`."""
    objective = objective_of(model)
    why = abilities(objective).generate or (
        "writes from left to right: leave out steps, order, block and length, which are for models that fill [MASK]s "
        "(masked, diffusion, permutation, …); give max_tokens"
    )
    return UserError(f"a model of {objective.type} {why}{elsewhere(model.objective, lambda a: bool(a.unmasks))}")


def longest_text(model: Model) -> int:
    """Tokens of the longest text, prompt and what is written, whose every position was trained."""
    objective, shape = objective_of(model), shape_of(model)
    if not isinstance(objective, Permutation):
        return room(objective, shape, "pseudo")
    # Queries take up a part of its stream: the texts of training were shorter, and so were their positions.
    return objective.room(replace(shape, stream=shape.stream - len(spoken(objective, "pseudo"))))


def unmask(
    model: Model,
    prompts: Sequence[str],
    rule: Unmasking,
    length: int,
    stops: tuple[str, ...] = (),
    batch_size: int = 16,
) -> list[Generation]:
    """What the model writes after each prompt: `length` tokens, or as many as the trained length has room for.

    Control tokens are never written. A text depends on no other: sample i of a seed has its own random numbers.
    """
    if length < 1:
        raise UserError(f"max_tokens={length} must be at least 1")
    tokenizer, most = tokenizer_of(model), longest_text(model)
    encoded = tokenizer.encode_batch(list(prompts))
    if (longest := max((len(ids) for ids in encoded), default=0)) >= most:
        raise UserError(
            f"a prompt of {longest} tokens with a token to write goes beyond the {most} that the model was trained on "
            "(control tokens apart): shorten it"
        )
    out = []
    with evaluating(model.network):
        for begin in range(0, len(encoded), batch_size):
            part = encoded[begin : begin + batch_size]
            canvas = Canvas(model, part, [min(length, most - len(ids)) for ids in part], begin)
            canvas.write(rule)
            for k, ids in enumerate(part):
                written, logprob = canvas.text(k)
                text = Text(tokenizer, ids, stops)
                cut = text.before_stop(written)
                stopped: Literal["stop", "tokens", "positions"] = "tokens" if len(written) == length else "positions"
                said = text.read(written) if cut is None else cut
                out.append(Generation(written, said, stopped if cut is None else "stop", logprob))
    return out


class Canvas:
    """R texts that are being unmasked: prompts, and behind them places that are masked or written.

    nth     (N,) the number of each place among those to write; −1 = it is not one of them
    masked  (N,) bool, the places that nothing stands in now
    """

    def __init__(self, model: Model, prompts: Sequence[np.ndarray], lengths: Sequence[int], first_sample: int) -> None:
        self.model, v = model, model.vocabulary
        self.rows = Rows.of([[*p, *[v.need("mask")] * n] for p, n in zip(prompts, lengths, strict=True)])
        self.tokens, self.row = self.rows.tokens, self.rows.row
        self.lengths = np.array(lengths, np.int64)
        self.nth = np.maximum(self.rows.place - np.array([len(p) for p in prompts])[self.row], -1)
        self.masked = self.nth >= 0
        self.logprob = np.zeros(len(self.tokens))
        self.sample = first_sample + np.arange(len(lengths))
        self.device, self.head = device_of(model.network), token_head(objective_of(model))
        self.forbidden = torch.ones(model.config.vocab_size, dtype=torch.bool, device=self.device)
        self.forbidden[torch.from_numpy(v.ordinary).long()] = False

    def write(self, rule: Unmasking) -> None:
        """Unmask every place, a block at a time."""
        block = rule.block or int(self.lengths.max())
        blocks = -(-self.lengths // block)
        for b in range(int(blocks.max())):
            inside = (self.nth >= b * block) & (self.nth < (b + 1) * block)
            self._block(rule, inside, self._steps(rule, inside, blocks, b), b)

    def _steps(self, rule: Unmasking, inside: np.ndarray, blocks: np.ndarray, b: int) -> np.ndarray:
        """(R,) how many steps each text has for its block number b."""
        if rule.steps:
            each, more = np.divmod(rule.steps, blocks)
            return np.asarray(np.maximum(each + (b < more), 1))
        size = np.bincount(self.row, inside, len(blocks)).astype(np.int64)
        return np.full(len(blocks), ITERATIONS) if rule.order == "mask_predict" else np.maximum(size, 1)

    def _block(self, rule: Unmasking, inside: np.ndarray, steps: np.ndarray, b: int) -> None:
        size = np.bincount(self.row, inside, len(steps)).astype(np.int64)
        hidden, done = inside, 0
        while hidden.any():
            self._predict(hidden, rule.sampling, (b << 40) + (done << 20))
            self.masked &= ~hidden
            done += 1
            among = inside if rule.order == "mask_predict" else hidden
            hidden = self._least(among, self._worth(rule), rule.left(size, steps, done))
            self.masked |= hidden

    def _worth(self, rule: Unmasking) -> np.ndarray:
        """(N,) what keeps a place from being masked again."""
        if rule.order != "random":
            return self.logprob
        key = keyed.row_keys(rule.sampling.seed, 0, self.sample, "unmasking order")
        return keyed.uniform(key[self.row], np.maximum(self.nth, 0))

    def _least(self, among: np.ndarray, worth: np.ndarray, count: np.ndarray) -> np.ndarray:
        """(N,) bool: of each text the `count` (R,) places of least worth among some; of equal ones the later."""
        at = np.flatnonzero(among)
        at = at[np.lexsort((-self.nth[at], worth[at], self.row[at]))]
        row = self.row[at]
        rank = np.arange(len(at)) - np.searchsorted(row, row)
        out = np.zeros(len(among), bool)
        out[at[rank < count[row]]] = True
        return out

    def _predict(self, asked: np.ndarray, sampling: Sampling, number: int) -> None:
        """Write a token into every place `asked` (N,) bool, with its log-probability; `number` makes this step's draws
        its own."""
        active = np.flatnonzero(np.bincount(self.row[asked], minlength=len(self.lengths)))
        rows, stood = take(self.rows, active)
        where = np.flatnonzero(asked[stood])
        examples = cloze(objective_of(self.model), rows, self.masked[stood], where, self.model.vocabulary)
        examples = replace(examples, targets={self.head.name: examples.targets[LM.name]})
        batch = to_device(collate({"unmask": examples}, {"unmask": (self.head,)}), self.device)
        states = states_of({"model": self.model.network}, batch)["model"][self.head.states]
        targets = batch.targets["unmask", self.head.name].map(lambda a: a[: len(where)])
        module, at = self.model.network.heads[self.head.uses], stood[where]
        for here, logits, _ in token_logits(self.head, module, states, batch.stream, targets):
            place = at[here]
            allowed = logits.masked_fill(self.forbidden, -torch.inf)
            token = choose(allowed, sampling, self.sample[self.row[place]], number + self.nth[place])
            self.tokens[place] = token.cpu().numpy()
            self.logprob[place] = logits.log_softmax(-1).gather(1, token[:, None])[:, 0].double().cpu().numpy()

    def text(self, k: int) -> tuple[tuple[int, ...], float]:
        """The tokens written into text k, and the sum of their log-probabilities."""
        mine = (self.row == k) & (self.nth >= 0)
        return tuple(self.tokens[mine].tolist()), float(self.logprob[mine].sum())

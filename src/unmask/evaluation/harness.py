"""lm-eval (EleutherAI) as a customer: every architecture answers its requests (needs the extra `lm-eval`).

    from lm_eval import simple_evaluate
    from unmask import load
    from unmask.evaluation.harness import harness
    simple_evaluate(harness(load("runs/a")), tasks=["blimp"])

or, with lm-eval's own options, `unmask lm-eval run --model unmask --model_args path=runs/a --tasks blimp`.

Log-likelihoods are `evaluation.score`'s, of context and continuation encoded as one string, by the model's plan: for
masked models and span corruption that is a pseudo-log-likelihood, and the results name it (`get_model_info`). A text
longer than the model's room is cut into windows, each token scored once; contexts lose their beginning first.

A model that writes by filling [MASK]s (masked, diffusion, permutation, …) answers generation tasks with as many tokens
as a task allows, cut at its stop strings, by `evaluation.unmasking`: steps, order and block go in beside the path
(`path=runs/a,steps=32,order=confidence,block=8`). A step is a forward pass, and by default there is one a token.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from unmask.errors import UserError
from unmask.evaluation.base import Model, objective_of, shape_of, tokenizer_of
from unmask.evaluation.generate import generations
from unmask.evaluation.items import Events, scored, shortened
from unmask.evaluation.plans import plan_of
from unmask.evaluation.sampling import Sampling
from unmask.evaluation.unmasking import Unmasking, longest_text, misfit, unmasks
from unmask.evaluation.watch import Watch, shown
from unmask.objectives.base import Plan

NAME = "unmask"
"""What `lm_eval --model` calls it."""
NEW_TOKENS = 256
"""Tokens written where a task does not say how many (lm-eval's own default)."""


FRAME = 5
"""Control tokens that may stand around a prompt, and one to spare where a shortened text is cut otherwise."""


class Answers:
    """What lm-eval asks of a model. `harness` joins it with lm-eval's base class.

    unmasking: how generation tasks are written; None = as `generate` does by default. Sampling is each request's own.
    """

    def __init__(
        self, model: Model, plan: Plan | None = None, watch: Watch = shown, unmasking: Unmasking | None = None
    ) -> None:
        super().__init__()
        if unmasking is not None and not unmasks(model, unmasking):
            raise misfit(model)
        self.model, self.watch, self.unmasking = model, watch, unmasking
        self.plan = plan_of(objective_of(model), plan, model.objective)
        self.events = Events()
        self.shortened = 0

    def loglikelihood(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[tuple[float, bool]]:
        """(log p(continuation | context), whether each of its tokens is the likeliest) of each request."""
        joined = [_parted(str(r.args[0]), str(r.args[1])) for r in requests]
        asked, texts = [c for c, _ in joined], [t for _, t in joined]
        contexts = [shortened(self.model, self.plan, c, [t]) for c, t in zip(asked, texts, strict=True)]
        self.shortened += sum(len(a) < len(b) for a, b in zip(contexts, asked, strict=True))
        scores = scored(self.model, texts, contexts, plan=self.plan, watch=self.watch, what="requests")
        return [(s.logprob, s.greedy) for s in self.events.see(scores)]

    def loglikelihood_rolling(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[float]:
        """log p(text) of each request, without the end of the document."""
        texts = [str(r.args[0]) for r in requests]
        scores = scored(self.model, texts, plan=self.plan, watch=self.watch, what="texts")
        return [s.logprob for s in self.events.see(scores)]

    def generate_until(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[str]:
        """Continuations up to each request's stop strings; equal settings are decoded together.

        A prompt that leaves too little room for its answer loses its beginning.
        """
        out: dict[int, str] = {}
        groups: dict[str, list[int]] = {}
        for i, request in enumerate(requests):
            groups.setdefault(repr(sorted(request.args[1].items())), []).append(i)
        for which in groups.values():
            settings = Settings.of(requests[which[0]].args[1])
            prompts = [self._shortened(str(requests[i].args[0]), settings.tokens) for i in which]
            rule = settings.sampling if self.unmasking is None else replace(self.unmasking, sampling=settings.sampling)
            written = generations(self.model, prompts, settings.tokens, rule, settings.stop)
            out |= {i: g.text for i, g in zip(which, written, strict=True)}
        return [out[i] for i in range(len(requests))]

    def _shortened(self, prompt: str, tokens: int) -> str:
        """The end of a prompt that leaves room for `tokens`, or at least half of the model's for the prompt."""
        shape = shape_of(self.model)
        most = longest_text(self.model) if unmasks(self.model, self.unmasking) else shape.stream
        keep = max((shape.source or max(most - tokens, most // 2)) - FRAME, 1)
        begin = tokenizer_of(self.model).encode_aligned([prompt])[0].begin
        self.shortened += len(begin) > keep
        return prompt if len(begin) <= keep else prompt[int(begin[-keep]) :]

    def get_model_info(self) -> dict[str, Any]:
        """What lm-eval writes beside the results: by which plan, and of which event, log-probabilities are."""
        found = {"objective": objective_of(self.model).type, **self.events.named(), "plan": self.plan}
        counted = {"shortened_contexts": self.shortened, "merged_seams": self.events.merged}
        by = self.unmasking or Unmasking()
        how = {"steps": by.steps or "default", "order": by.order, "block": by.block or "whole"}
        writing = {"writing": how} if unmasks(self.model, self.unmasking) else {}
        return {f"unmask_{k}": v for k, v in {**found, **writing, **counted}.items()}

    @property
    def tokenizer_name(self) -> str:
        return f"unmask-{tokenizer_of(self.model).fingerprint}"


def _parted(context: str, text: str) -> tuple[str, str]:
    """Context and continuation; blanks at the context's end belong to the continuation, as in lm-eval's own models.

    A blank that some answers' first tokens take in and others' do not would be scored here and given there.

    >>> _parted("a dog and the ", "cat")
    ('a dog and the', ' cat')
    """
    bare = context.rstrip()
    return bare, context[len(bare) :] + text


@dataclass(frozen=True)
class Settings:
    """A request's gen_kwargs."""

    stop: tuple[str, ...]
    tokens: int
    sampling: Sampling

    @staticmethod
    def of(asked: dict[str, Any]) -> Settings:
        """do_sample=False (the default) is greedy, whatever the temperature says, as in lm-eval's own models."""
        until = asked.get("until") or ()
        stop = (until,) if isinstance(until, str) else tuple(until)
        tokens = int(
            next((asked[k] for k in ("max_gen_toks", "max_new_tokens", "max_tokens") if k in asked), NEW_TOKENS)
        )
        temperature = float(asked.get("temperature") or 0.0)
        sampled = asked.get("do_sample", temperature > 0)
        sampling = Sampling(
            (temperature or 1.0) if sampled else 0.0, int(asked.get("top_k") or 0), float(asked.get("top_p") or 1.0)
        )
        return Settings(stop, tokens, sampling)


def harness(model: Model, plan: Plan | None = None, watch: Watch = shown, unmasking: Unmasking | None = None) -> Any:
    """A model as an `lm_eval.api.model.LM`; see `Answers`."""
    return _joined()(model, plan, watch, unmasking)


def unmasking_of(given: dict[str, Any]) -> Unmasking | None:
    """The rule that model_args' steps, order and block give; they are taken out of `given`. None without any.

    >>> unmasking_of({"plan": "pseudo", "steps": 8, "order": "random"})
    Unmasking(order='random', steps=8, block=0, sampling=Sampling(temperature=0.0, top_k=0, top_p=1.0, seed=0))
    """
    own = {name: given.pop(name) for name in ("steps", "order", "block") if name in given}
    for name in ("steps", "block"):
        if name in own and (not isinstance(own[name], int) or isinstance(own[name], bool)):
            raise UserError(f"model_args {name}={own[name]} must be a whole number")
    return Unmasking(**own) if own else None


def register(load: Callable[[str], Model]) -> None:
    """Make `--model unmask --model_args path=RUN[,plan=…,mode=…,steps=…,order=…,block=…]` known to lm-eval."""
    base = _joined()
    from lm_eval.api.registry import MODEL_REGISTRY, register_model
    from lm_eval.utils import simple_parse_args_string

    if NAME in MODEL_REGISTRY:
        return

    @register_model(NAME)
    class Opened(base):  # type: ignore[misc, valid-type]
        @classmethod
        def create_from_arg_string(cls, arg_string: str, additional_config: dict[str, Any] | None = None) -> Any:
            return cls.create_from_arg_obj(simple_parse_args_string(arg_string), additional_config)

        @classmethod
        def create_from_arg_obj(cls, arg_dict: dict[str, Any], additional_config: dict[str, Any] | None = None) -> Any:
            given = dict(arg_dict)
            path, plan, mode = (given.pop(name, None) for name in ("path", "plan", "mode"))
            unmasking = unmasking_of(given)
            if path is None or given:
                wrong = f", not {next(iter(given))}" if given else ""
                raise UserError(
                    f"--model {NAME} takes --model_args path=RUN (and plan, mode, steps, order, block){wrong}"
                )
            return cls(load(str(path)).told(None if mode is None else str(mode)), plan, shown, unmasking)


def command(load: Callable[[str], Model], arguments: Sequence[str]) -> None:
    """lm-eval's command line, with our models."""
    register(load)
    from lm_eval.__main__ import cli_evaluate

    before = sys.argv
    sys.argv = ["unmask lm-eval", *arguments]
    try:
        cli_evaluate()
    except (ValueError, OSError) as error:  # a task that it does not know, or cannot download
        raise UserError(f"lm-eval: {' '.join(str(error).split())}") from error
    finally:
        sys.argv = before


def _joined() -> type:
    """lm-eval's base class, answered by `Answers`."""
    try:
        from lm_eval.api.model import LM
    except ImportError as error:
        raise UserError("lm-eval is not installed: pip install 'unmask[lm-eval]'") from error
    return type("Harness", (Answers, LM), {})

"""Examples that are not what their objective says of them are refused with one sentence, everything of ours passes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest

from unmask.batch import Examples, Head, Rows, Targets
from unmask.data.loader import Loader
from unmask.errors import UserError
from unmask.objectives import Masked, PrefixLM
from unmask.objectives.base import Outline, Shape, Sizes, Vocabulary, outline
from unmask.objectives.sound import require, require_sound
from unmask.show import show

from .cases import VOCABULARY
from .suite import OBJECTIVES, texts

HEAD = Head("lm")


@pytest.mark.parametrize("name", OBJECTIVES)
def test_our_own_are_sound(name: str) -> None:
    objective = OBJECTIVES[name]
    require_sound(objective, texts(objective, [40, 1, 23, 64] * 4), VOCABULARY)


def examples(**more: Any) -> Examples:
    return replace(Masked()(Rows.of([range(11, 31), range(11, 31)]), VOCABULARY), **more)


def target(value: int = 11, index: int = 3) -> dict[str, Targets]:
    return {"lm": Targets.at(np.array([index]), np.array([value]))}


@pytest.mark.parametrize(
    ("heads", "wrong", "fault"),
    [
        ((HEAD,), lambda: examples(targets=target(5012)), r"head 'lm' is to say 5012, where 0 to 109 are allowed"),
        ((HEAD,), lambda: examples(targets=target(-1)), r"head 'lm' is to say -1"),
        (
            (HEAD,),
            lambda: examples(targets=target(index=44)),
            r"a target of head 'lm' stands at token 44, where 0 to 43",
        ),
        ((HEAD,), lambda: examples(targets={"mlm": target()["lm"]}), r"head 'mlm', which heads\(\) does not declare"),
        ((HEAD,), lambda: examples(targets={"lm": Targets.at(None, np.array([1]))}), r"1 values without an index"),
        ((HEAD,), lambda: examples(targets={"lm": Targets.at(np.arange(2), np.array([1]))}), r"2 places, 1 values"),
        (
            (Head("lm", over="classes", size=2),),
            lambda: examples(targets=target(2)),
            r"is to say 2, where 0 to 1 are allowed",
        ),
        ((Head("lm", stack="source"),), lambda: examples(targets=target()), r"reads a source, and there is none"),
    ],
)
def test_wrong_targets_are_named(heads: tuple[Head, ...], wrong: Callable[[], Examples], fault: str) -> None:
    said = Masked().sizes(outline(Rows.of([range(11, 31), range(11, 31)])))
    with pytest.raises(UserError, match=f"objective mine makes wrong examples: .*{fault}.*; its code is to be mended"):
        require("mine", heads, said, wrong(), 110)


def test_wrong_lengths_are_named() -> None:
    e = examples()
    for said, fault in (
        (Sizes(np.array([22, 21])), r"example 1 has 22 tokens in its stream, and sizes\(\) said 21"),
        (Sizes(np.array([22])), r"its stream has 2 texts, and sizes\(\) 1"),
        (Sizes(np.array([22, 22]), np.array([1, 1])), r"sizes\(\) speaks of a source and there is none"),
    ):
        with pytest.raises(UserError, match=fault):
            require("mine", (HEAD,), said, e, 110)
    two = PrefixLM(layout="encdec")(Rows.of([range(11, 31)]), VOCABULARY)
    with pytest.raises(UserError, match=r"sizes\(\) knows no source"):
        require("mine", (HEAD,), Sizes(np.diff(two.stream.start)), two, 110)


class Beyond(Masked):
    type: Literal["beyond"] = "beyond"  # type: ignore[assignment]

    def __call__(self, rows: Rows, vocabulary: Vocabulary) -> Examples:
        e = super().__call__(rows, vocabulary)
        t = e.targets["lm"]
        return replace(e, targets={"lm": replace(t, value=t.value + 5000)})


class Short(Masked):
    type: Literal["short"] = "short"  # type: ignore[assignment]

    def sizes(self, of: Outline) -> Sizes:
        return Sizes(of.lengths)


def test_a_run_and_show_ask_before_they_begin() -> None:
    text = type("Text", (), {"tokens": np.arange(400) % 80 + 11, "documents": np.array([0, 150, 400])})()
    for objective, fault in (
        (Beyond(), "objective beyond .*where 0 to"),
        (Short(), r"objective short .*sizes\(\)"),
    ):
        loader = Loader(text, objective, VOCABULARY, Shape(32), rows=4, seed=0)
        with pytest.raises(UserError, match=fault):
            loader.require_sound()
        with pytest.raises(UserError, match=fault.partition(" .*")[0]):
            show(objective, "the cat sat on the mat and the dog lay on the rug")
    Loader(text, Masked(), VOCABULARY, Shape(32), rows=4, seed=0).require_sound()


def test_a_run_hears_of_it_in_one_sentence(tmp_path: Path) -> None:
    from unmask.recipe import load_recipe
    from unmask.run import pretrain

    (tmp_path / "text.txt").write_text("the cat sat on the mat and the dog lay on the rug . " * 200)
    tiny = {"model.hidden_size": 16, "model.num_layers": 1, "model.num_heads": 2, "tokenizer.type": "byte"}
    recipe = load_recipe("encoder-small", {"corpus": str(tmp_path / "text.txt"), "budget.steps": 1, **tiny})
    recipe = recipe.model_copy(update={"objective": Beyond()})
    with pytest.raises(UserError, match="objective beyond makes wrong examples: head 'lm' is to say"):
        pretrain(recipe, out=tmp_path / "run", cache=tmp_path / "cache")
    assert not (tmp_path / "run").exists()

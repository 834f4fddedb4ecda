"""The code of every model card is run, and says what `lm.fill`, `lm.generate` or the writer itself say."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml

from unmask.config import ModelConfig, TokenizerConfig
from unmask.evaluation.abilities import abilities, spoken
from unmask.evaluation.generate import Writer
from unmask.evaluation.sampling import Sampling
from unmask.evaluation.steps import Start
from unmask.evaluation.usage import GAP, PROMPT, TEXT, usage
from unmask.lm import LM
from unmask.model.transformer import Transformer
from unmask.model.verify import trusted
from unmask.objectives import REGISTRY, Mixture
from unmask.objectives.bart import Bart
from unmask.objectives.base import Objective
from unmask.objectives.study import Restoration
from unmask.tokens.tokenizer import Tokenizer

WORDS = ("the", "a", "cat", "dog", "bird", "sat", "ran", "flew", "on", "under", "mat", "tree", "and", "big", "red")
SIZES = {"hidden_size": 32, "num_layers": 2, "num_heads": 2, "max_position": 72, "tied_head": False}
TWO = {"num_source_layers": 1}
LAYOUTS = ("encdec", "prefix", "causal")
XLNET = {
    "family": "xlnet", "positions": "xlnet", "norm_position": "post", "norm_eps": 1e-12, "final_norm": False,
    "attention_bias": False, "head_bias": True, "query_vector": True, "tied_head": True,
}  # fmt: skip


def cases() -> Iterator[tuple[str, dict[str, Any], dict[str, Any]]]:
    """Name, settings of the objective, settings of the model."""
    seen = set()
    for name in [*(cls.model_fields["type"].default for cls in REGISTRY.own), *REGISTRY.own_presets]:
        types = name not in REGISTRY.own_presets or name == REGISTRY.own_presets[name]().type
        kind = {"type" if types else "preset": name}
        made = REGISTRY.make(name, {})
        shown = {k: str(v) for k, v in made.model_dump().items() if k in ("cls", "context", "end", "layout", "opening")}
        heads = tuple((h.name, h.over, h.network) for h in made.heads())
        key = str((made.type, abilities(made), made.visibility, heads, spoken(made, "infill"), shown))
        if key in seen:  # another noise: the same question
            continue
        seen.add(key)
        more: dict[str, Any] = {"query_vector": True} if made.type == "permutation" else {}
        more |= {"token_types": 6} if made.type == "unilm" else {"positions2": 72} if made.type == "glm" else {}
        if "layout" in type(made).model_fields:
            for layout in LAYOUTS if "type" in kind else LAYOUTS[:1]:
                yield f"{name}-{layout}", {**kind, "layout": layout}, TWO if layout == "encdec" else more
        else:
            yield name, kind, more
    yield "fim1", {"type": "fill_in_the_middle", "rate": 1.0}, {}
    yield "fim1-eos", {"type": "fill_in_the_middle", "rate": 1.0, "end": "eos"}, {}
    yield "shifted_causal", {"type": "shifted_masked", "causal_share": 1.0}, {}
    yield "unilm_next", {"type": "unilm", "next_token": True}, {"token_types": 6}
    last = {"type": "permutation", "context": "ordered", "cls": "last"}
    yield "xlnet-ordered", {**last, "cls": "first"}, {"query_vector": True}
    yield "xlnet-ordered-last", last, {"query_vector": True}
    yield "xlnet-stock", {"type": "permutation", "cls": "last"}, XLNET
    yield "boundary", {"type": "span_corruption", "layout": {"kind": "prefix", "bos": "boundary"}}, {}
    for name, first in {"clm": "causal", "mlm": "masked"}.items():
        other = {"clm": "mlm", "mlm": "clm"}[name]
        parts = {name: {"type": first, "mode": "[NLG]"}, other: {"type": "masked" if name == "clm" else "causal"}}
        yield f"mixture-{name}", {"type": "mixture", "parts": parts}, {}
    parts = {"ul2": {"type": "ul2", "layout": "encdec", "mode": "[NLG]"}}
    yield "mixture-ul2", {"type": "mixture", "parts": parts}, TWO


CASES = {name: (objective, model) for name, objective, model in cases()}


@cache
def tokenizer() -> Tokenizer:
    extra = ("[NLU]", "[S2S]", "[NLG]", "[R]", "[S]", "[X]")
    config = TokenizerConfig(type="bbpe", vocab_size=420, sentinels=8, extra=extra)
    random = np.random.default_rng(5)
    return Tokenizer.train(config, [" ".join(random.choice(WORDS, random.integers(3, 9))) + "." for _ in range(100)])


def lm_of(name: str) -> LM:
    """A random model that never finds a control token the likeliest, which the library would write and unmask not, nor
    a part of a character, which they spell differently."""
    settings, more = CASES[name]
    kind = str(settings.get("preset", settings.get("type")))
    objective: Objective = REGISTRY.make(kind, {k: v for k, v in settings.items() if k not in ("type", "preset")})
    words = tokenizer()
    values = {**SIZES, "vocab_size": words.vocabulary.size, "visibility": objective.visibility, **more}
    heads = [replace(h, network="model") for h in objective.heads() if h.network == objective.kept]
    config = objective.networks(ModelConfig(**values))[objective.kept]
    network = Transformer(config, heads).eval()
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=0.3)  # attention tells texts apart
        likely = [
            int(i)
            for i in words.vocabulary.ordinary
            if words.decode([i]).isprintable() and "\ufffd" not in words.decode([i])
        ]
        unlikely = torch.ones(words.vocabulary.size, dtype=torch.bool)
        unlikely[likely] = False
        for name, parameter in network.named_parameters():
            if name.startswith("embedding" if config.tied_head else "heads.") and len(parameter) == len(unlikely):
                parameter[unlikely] *= 0.05
                parameter[~unlikely] *= 3
    return LM(network, 64, words, objective)


def blocks(text: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", text, re.DOTALL)


def front_of(text: str) -> dict[str, Any]:
    return yaml.safe_load(text.split("---\n")[1])  # type: ignore[no-any-return]


def expected(lm: LM, code: str) -> str | None:
    """What the model itself says to the question that the card's first block puts; None = it is asked nothing."""
    asked = lm.objective.first if isinstance(lm.objective, Mixture) else lm.objective
    assert asked is not None
    can = abilities(asked)
    if "topk" in code:
        return str([c.token for c in lm.fill(GAP).masks[0]])
    if "max_new_tokens=16" in code:
        return lm.fill(GAP).masks[0][0].token
    if "max_new_tokens=20" in code and isinstance(asked, Bart | Restoration):
        return restored(lm)
    if "max_new_tokens=20" in code:
        said = lm.generate(PROMPT, max_tokens=20)[0]
        return said if lm.config.num_source_layers else PROMPT + said
    if "lm.fill" in code:
        return lm.fill(GAP).text
    if "lm.generate" in code:
        return lm.generate(PROMPT, max_tokens=20)[0]
    if "lm.score" in code:
        assert can.fill and can.generate
        return str(lm.score(TEXT)[0])
    if "lm.embed" in code:
        return str(lm.embed(TEXT))
    assert "print(model(" in code
    return None


def restored(lm: LM) -> str:
    words = lm.vocabulary
    source = np.append(tokenizer().encode(TEXT), words.need("eos")).astype(np.int32)
    none = np.zeros(0, np.int32)
    writer = Writer(lm, Sampling(), frozenset([words.need("eos")]))
    text = writer.write([Start(source, none, 0, "infill")], [none], 20)[0].text
    return text if lm.config.num_source_layers else TEXT + text


def run(code: str, capsys: pytest.CaptureFixture[str]) -> tuple[str, Mapping[str, Any]]:
    capsys.readouterr()
    names: dict[str, Any] = {}
    with trusted():
        exec(compile(code, "README.md", "exec"), names)
    return capsys.readouterr().out.removesuffix("\n"), names


@pytest.mark.parametrize("name", CASES)
def test_the_cards_code_says_what_the_model_says(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("unmask.lm.check_export", lambda *_: 0.0)  # which has tests of its own and takes longest
    lm = lm_of(name)
    lm.export(tmp_path / "hf")
    text = (tmp_path / "hf" / "README.md").read_text()
    first, *others = blocks(text)
    monkeypatch.chdir(tmp_path / "hf")
    out, names = run(first, capsys)
    want = expected(lm, first)
    if want is None:
        assert len(out) > 10
    elif "max_new_tokens=16" in first:
        assert len(want) > 1 and out.startswith(want)  # `fill` stops where the target of training was full
    else:
        assert out == want
    for code in others:
        assert len(run(code, capsys)[0]) > 3
    task = front_of(text).get("pipeline_tag")
    asked = lm.objective.first if isinstance(lm.objective, Mixture) else lm.objective
    assert asked is not None
    if task == "fill-mask":
        logits = names["model"](names["inputs"].input_ids).logits[0, names["at"]]
        assert torch.equal(logits.topk(5).indices, names["logits"].topk(5).indices)
    elif task == "text-generation":
        assert not abilities(asked).generate and "generate(**inputs, max_new_tokens=20)" in first
    else:
        assert task is None
    if spoken(asked, "infill"):
        assert task is None


@pytest.mark.parametrize(
    ("name", "said", "asked"),
    [
        ("hyb_uni", "exported with the causal mask under which it writes", 'lm.fill("The [MASK] was here.")'),
        ("gpt_bert", "exported with the causal mask under which it writes", 'lm.fill("The [MASK] was here.")'),
        ("mixture-clm", "exported with the causal mask of `clm`", 'lm.fill("The [MASK] was here.", mode="mlm")'),
        ("mixture-mlm", "exported with the bidirectional mask of `mlm`", 'lm.generate("Once upon a time"'),
    ],
)
def test_the_card_says_which_side_of_its_training_was_exported(
    name: str, said: str, asked: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("unmask.lm.check_export", lambda *_: 0.0)
    lm_of(name).export(tmp_path / "hf")
    text = (tmp_path / "hf" / "README.md").read_text()
    assert said in text and asked in blocks(text)[1]
    assert ("`unmask convert RUN OUT --to masked`" in text) == (name == "mixture-clm")
    assert ("`unmask convert RUN OUT --to causal`" in text) == (name == "mixture-mlm")


def test_only_the_plain_calls_have_a_task() -> None:
    """By the objective, not the class: what the class suggests is another question."""
    cards = {name: usage(lm_of(name), ("AutoModel", auto)) for name, auto in AUTO.items()}
    assert {name for name, found in cards.items() if found.task == "fill-mask"} == {"masked", "diffusion"}
    assert {name for name, found in cards.items() if found.task == "text-generation"} == {"causal", "hyb_uni"}
    assert {name for name, found in cards.items() if found.own} == {"msk_uni", "mass-encdec", "restoration-causal"}
    assert "logits[0, at - 1]" in "".join(cards["shifted_masked"].code)
    assert "target_mapping" in "".join(cards["permutation"].code)
    assert "<extra_id_0>" in "".join(cards["ul2-encdec"].code) and "[NLU]" in "".join(cards["ul2-encdec"].code)


MASKED, WRITES, PAIRS = "AutoModelForMaskedLM", "AutoModelForCausalLM", "AutoModelForSeq2SeqLM"
AUTO = {
    **dict.fromkeys(("masked", "diffusion", "shifted_masked", "permutation"), MASKED),
    **dict.fromkeys(("causal", "hyb_uni", "msk_uni", "fim1", "glm", "restoration-causal"), WRITES),
    **dict.fromkeys(("mass-encdec", "ul2-encdec", "span_corruption-encdec"), PAIRS),
}

"""Objectives of other packages, and presets: by name in recipes, in `show`, and from the documentation."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib.metadata import EntryPoint
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

import numpy as np
import pytest
import yaml
from pydantic import BaseModel, ValidationError

from unmask.batch import Rows
from unmask.directory import stored_recipe
from unmask.errors import UserError
from unmask.evaluation.abilities import PSEUDO, abilities
from unmask.loading import load
from unmask.objectives import OWN, REGISTRY, Causal, Masked, Permutation, SpanCorruption
from unmask.objectives.base import Objective
from unmask.objectives.registry import GROUP, Registry, given, name_of, presets_of
from unmask.objectives.show import toy
from unmask.recipe import load_recipe, validate
from unmask.show import listing

from .suite import OBJECTIVES, texts

ROOT = Path(__file__).resolve().parents[2]
DOCS = (ROOT / "docs" / "objectives.md").read_text(encoding="utf-8")
CODE = re.findall(r"```python\n(.*?)```", DOCS, re.S)[0]
TOML = re.findall(r"```toml\n(.*?)```", DOCS, re.S)[0]


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The objective of the documentation, as a module that can be imported."""
    made = ModuleType("my_objectives")
    exec(compile(CODE, "docs/objectives.md", "exec"), made.__dict__)
    made.broken = 3  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "my_objectives", made)
    return made


def announced(**values: str) -> Registry:
    return Registry(OWN, lambda: [EntryPoint(name, value, GROUP) for name, value in values.items()])


def field_of(registry: Registry) -> type[BaseModel]:
    class Holder(BaseModel):
        objective: registry.union()  # type: ignore[valid-type]

    return Holder


# ---------------------------------------------------------------- the documentation's own objective


def test_the_documented_objective_is_complete_in_40_lines_and_does_what_it_says(module: ModuleType) -> None:
    assert len(CODE.splitlines()) < 40
    rows = Rows.of([[11, 12, 13, 14, 15], [21, 22]], key=[3, 4])
    everything = module.Unswap(swap_rate=1)(rows, toy())
    assert everything.stream.tokens.tolist() == [2, 12, 11, 14, 13, 15, 3, 2, 22, 21, 3]
    assert everything.targets["lm"].index.tolist() == [1, 2, 3, 4, 8, 9]
    assert everything.targets["lm"].value.tolist() == [11, 12, 13, 14, 21, 22]
    texts = Rows.of(np.random.default_rng(0).integers(5, 90, (2000, 40)))
    assert abs(len(module.Unswap()(texts, toy()).targets["lm"].value) / texts.tokens.size - 0.15) < 0.006


def test_the_catalogue_of_the_documentation_is_the_registry_s() -> None:
    done = subprocess.run([sys.executable, str(ROOT / "docs" / "draw_catalogue.py"), "--check"])
    assert done.returncode == 0, "run python docs/draw_catalogue.py"


def test_an_installed_package_joins_without_a_fork(tmp_path: Path) -> None:
    """What pip would write for the documented pyproject.toml, and then the command line alone."""
    (tmp_path / "my_objectives.py").write_text(CODE, encoding="utf-8")
    info = tmp_path / "my_objectives-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: my-objectives\nVersion: 1.0\n")
    section = re.search(r'entry-points\."(.*?)"\]\n(\w+) = "(.*?)"', TOML)
    assert section is not None and section[1] == GROUP
    (info / "entry_points.txt").write_text(f"[{section[1]}]\n{section[2]} = {section[3]}\n")
    (tmp_path / "text.txt").write_text("the cat sat on the mat and the dog lay on the rug . " * 200)

    def unmask(*words: str) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "PYTHONPATH": str(tmp_path), "UNMASK_CACHE": str(tmp_path / "cache")}
        command = [sys.executable, "-m", "unmask", *words]
        return subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120)

    listed = unmask("show", "--list")
    assert re.search(r"^unswap .*\n  often ", listed.stdout, re.M), listed.stderr
    assert unmask("show", "often", "--text", "a b c d").stdout.startswith("unswap: swap_rate 0.5")
    tiny = ["tokenizer.type=char", "model.hidden_size=32", "model.num_layers=2", "model.num_heads=2", "budget.steps=2"]
    done = unmask("pretrain", "encoder-small", "corpus=text.txt", "objective.preset=often", "out=run", *tiny)
    assert done.returncode == 0, done.stderr
    assert "type: unswap" in (tmp_path / "run" / "recipe.yaml").read_text()


def test_an_objective_that_never_shows_a_mask_is_asked_none(module: ModuleType) -> None:
    found = abilities(module.Unswap())
    assert found.plans == () and not found.unmasks
    assert all("trained without [MASK]" in why for why in (found.score, found.fill, found.generate))

    class Told(module.Unswap):  # type: ignore[name-defined, misc]
        masks: ClassVar[bool] = True

    assert abilities(Told()).plans == abilities(Masked()).plans and abilities(Told()).unmasks == "only"
    assert abilities(Masked(mask_share=0.0, random_share=1.0)).plans == ()


@pytest.mark.parametrize("name", sorted(n for n, o in OBJECTIVES.items() if o.plan in PSEUDO))
def test_what_is_asked_by_masks_shows_them_in_training(name: str) -> None:
    objective, vocabulary = OBJECTIVES[name], toy()
    e = objective(texts(objective, [40] * 32), vocabulary)
    shown = bool((e.stream.tokens[e.targets["lm"].index] == vocabulary.need("mask")).any())
    assert shown >= objective.masks
    if not isinstance(objective, Permutation):  # whose queries show nothing at all
        assert shown == bool(abilities(objective).plans)


# ---------------------------------------------------------------- plug-ins in the union


def test_a_plugin_is_read_and_written_like_any_other(module: ModuleType) -> None:
    holder = field_of(announced(unswap="my_objectives:Unswap"))
    found: Any = holder.model_validate({"objective": {"type": "unswap", "swap_rate": 0.3}})
    assert type(found.objective) is module.Unswap and found.objective.swap_rate == 0.3
    assert found.model_dump() == {"objective": {"type": "unswap", "swap_rate": 0.3}}
    assert holder.model_validate(found.model_dump()) == found
    assert holder(objective=module.Unswap()).objective == module.Unswap()
    assert holder.model_validate({"objective": {"preset": "often"}}).objective.swap_rate == 0.5
    assert type(holder.model_validate({"objective": {"type": "causal"}}).objective) is Causal


def test_what_is_wrong_with_a_plugin_s_settings_is_said(module: ModuleType) -> None:
    holder = field_of(announced(unswap="my_objectives:Unswap"))
    for values, expected in (
        ({"type": "unswap", "swap_rte": 0.3}, "no setting 'swap_rte' (known: swap_rate); did you mean 'swap_rate'?"),
        ({"type": "unswap", "swap_rate": 3}, "swap_rate=3 input should be less than or equal to 1"),
        ({"type": "unswop"}, "'unswop' is no objective"),
        ({"preset": "oftn"}, "did you mean 'often'?"),
    ):
        with pytest.raises(ValidationError) as caught:
            holder.model_validate({"objective": values})
        assert expected in caught.value.errors()[0]["msg"]


BROKEN = {
    "gone": ("no_such_module:Unswap", "cannot be loaded: ModuleNotFoundError"),
    "nameless": ("my_objectives:Nothing", "cannot be loaded: AttributeError"),
    "broken": ("my_objectives:broken", "is no objective: it must name a subclass"),
    "renamed": ("my_objectives:Unswap", "its type is 'unswap', which must be the entry's name"),
    "bare": ("unmask.objectives.base:Objective", "is not complete: it lacks __call__, room, sizes"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_plugin_is_one_clear_sentence_and_harms_no_other(name: str, module: ModuleType) -> None:
    value, reason = BROKEN[name]
    registry = announced(**{name: value}, unswap="my_objectives:Unswap")
    with pytest.raises(UserError) as caught:
        registry.make(name)
    sentence = str(caught.value)
    assert reason in sentence and f"'{name}' ({value}" in sentence and "\n" not in sentence
    types, broken = registry.types()
    assert "unswap" in types and name not in types and broken == {name: sentence}
    assert registry.make("often").swap_rate == 0.5  # type: ignore[attr-defined]
    holder = field_of(registry)
    assert holder.model_validate({"objective": {"type": "masked"}}).objective == Masked()  # type: ignore[attr-defined]
    with pytest.raises(ValidationError) as found:
        holder.model_validate({"objective": {"type": name}})
    assert sentence in found.value.errors()[0]["msg"]


def test_a_plugin_cannot_take_the_name_of_ours(module: ModuleType) -> None:
    assert announced(masked="my_objectives:Unswap").named("masked") is Masked


# ---------------------------------------------------------------- presets


def test_every_objective_of_ours_is_registered_by_its_type_and_works_by_default() -> None:
    assert len(REGISTRY.own_types) == len(OWN)
    for name, cls in REGISTRY.own_types.items():
        assert type(REGISTRY.make(name)) is cls and REGISTRY.make(name).type == name


def test_no_two_presets_share_a_name_and_none_is_the_name_of_another_type() -> None:
    owners: dict[str, set[str]] = {}
    for cls in OWN:
        for preset in presets_of(cls):
            owners.setdefault(preset, set()).add(name_of(cls))
    assert {name: who for name, who in owners.items() if len(who) > 1} == {}
    types = REGISTRY.own_types
    assert {name: who for name, who in owners.items() if name in types and who != {name}} == {}


@pytest.mark.parametrize("name", REGISTRY.own_presets)
def test_a_preset_is_its_settings_in_a_recipe(name: str) -> None:
    made = REGISTRY.preset(name)
    holder = field_of(REGISTRY)
    assert holder.model_validate({"objective": {"preset": name}}).objective == made  # type: ignore[attr-defined]
    assert holder.model_validate({"objective": made.model_dump(mode="json")}).objective == made  # type: ignore[attr-defined]
    assert type(made).model_validate(given(made)) == made
    assert name in REGISTRY.own_types or REGISTRY.make(name) == made


def test_presets_by_override_drop_the_recipe_s_settings_and_take_others_on_top() -> None:
    def objective(*overrides: str) -> Objective:
        return load_recipe("encoder-small", ["corpus=x.txt", *overrides]).objective

    assert objective() == Masked(mask_rate=0.3)
    assert objective("objective.preset=bert") == Masked.bert()
    assert objective("objective.mask_rate=0.2", "objective.preset=bert").model_dump() == {
        **Masked.bert().model_dump(),
        "mask_rate": 0.2,
    }
    spans = load_recipe("encdec-small", ["corpus=x.txt", "objective.preset=t5", "objective.mean_span=5"]).objective
    assert isinstance(spans, SpanCorruption) and spans.mean_span == 5 and spans.layout.kind == "encdec"


def test_an_unknown_preset_names_the_nearest() -> None:
    with pytest.raises(UserError, match=r"objective: 'brt' is no preset .*did you mean 'bert'"):
        load_recipe("encoder-small", ["corpus=x.txt", "objective.preset=brt"])
    with pytest.raises(UserError, match="preset bert is of type masked, not causal"):
        validate({"corpus": "x", "objective": {"preset": "bert", "type": "causal"}, "model": {}}, "here")
    with pytest.raises(UserError, match=r"'maskd' is no objective .*did you mean 'masked'"):
        REGISTRY.make("maskd")
    for ask in (
        lambda: REGISTRY.make("maskd"),
        lambda: load_recipe("encoder-small", ["corpus=x", "objective.type=maskd"]),
    ):
        with pytest.raises(UserError, match=r"unmask show --list names all; .*; did you mean 'masked'\?$") as said:
            ask()
        assert len(str(said.value)) < 220


def test_a_run_of_a_plug_in_that_is_not_installed_says_so(tmp_path: Path) -> None:
    """A run comes to another machine, or its package is gone: loading and going on both name what is missing."""
    values = {
        "objective": {"type": "unswap"},
        "model": {},
        "context": 16,
        "corpus": {"path": "x"},
        "budget": {"steps": 1},
    }
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(values))
    for ask in (lambda: load(tmp_path), lambda: stored_recipe(tmp_path)):
        with pytest.raises(UserError, match=r"'unswap' is no objective here .*known where that package is installed"):
            ask()


def test_a_plug_in_whose_settings_must_be_given_is_listed_all_the_same() -> None:
    """As laboratory `electra`'s `opposed`, which our own package announces."""
    rows, broken = listing()
    row = next(r for r in rows if r["name"] == "opposed")
    assert not broken and row["plugin"] and row["needs"] == [] and row["about"]
    assert [r["name"] for r in listing("opposed")[0]] == ["opposed"]

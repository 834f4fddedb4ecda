"""Objectives and presets by name: those of this package, and those that other packages plug in.

A plug-in is an entry point of the group `unmask.objectives`, whose name is the objective's `type`:

    [project.entry-points."unmask.objectives"]
    reversed = "my_package:Reversed"

It is imported when it is first named, so a broken one harms nobody who does not ask for it.

A preset is a named constructor: a public class method that returns its objective and needs no argument, such as
`Masked.bert`. Its name is the preset's: `objective: {preset: bert}`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property, reduce
from importlib.metadata import EntryPoint, entry_points
from operator import or_
from typing import Annotated, Any, get_args

from pydantic import Field, SerializeAsAny, ValidationError, WrapValidator
from pydantic_core import PydanticCustomError

from unmask.errors import UserError, nearest
from unmask.objectives.base import Objective

GROUP = "unmask.objectives"

Constructor = Callable[..., Objective]


def installed() -> tuple[EntryPoint, ...]:
    """The plug-ins that installed packages announce."""
    return tuple(entry_points(group=GROUP))


@dataclass(frozen=True, eq=False)
class Registry:
    """`own`: the objectives of this package, in the order in which they are listed."""

    own: tuple[type[Objective], ...]
    announced: Callable[[], Iterable[EntryPoint]] = field(default=installed)

    # ------------------------------------------------------------ types

    @cached_property
    def own_types(self) -> dict[str, type[Objective]]:
        return {name_of(cls): cls for cls in self.own}

    @cached_property
    def plugins(self) -> dict[str, EntryPoint]:
        """Plug-ins by name; a name of our own cannot be taken over."""
        return {e.name: e for e in self.announced() if e.name not in self.own_types}

    @property
    def names(self) -> list[str]:
        return [*self.own_types, *self.plugins]

    def named(self, name: str) -> type[Objective]:
        """The class of a type, or a sentence that says which there are, or why a plug-in cannot be used."""
        if name in self.own_types:
            return self.own_types[name]
        if name in self.plugins:
            return _loaded(self.plugins[name])
        raise UserError(unknown(name, self.names))

    def types(self) -> tuple[dict[str, type[Objective]], dict[str, str]]:
        """Every type that can be used, and for each plug-in that cannot the sentence that says why."""
        found, broken = dict(self.own_types), {}
        for name in self.plugins:
            try:
                found[name] = self.named(name)
            except UserError as error:
                broken[name] = str(error)
        return found, broken

    def complete(self) -> list[str]:
        """The types that are an objective without any setting: all of ours, and most plug-ins."""
        found = []
        for name in self.types()[0]:
            try:
                self.make(name)
            except UserError:
                continue
            found.append(name)
        return found

    # ------------------------------------------------------------ presets

    @cached_property
    def own_presets(self) -> dict[str, Constructor]:
        return {name: make for cls in self.own for name, make in presets_of(cls).items()}

    def presets(self) -> dict[str, Constructor]:
        """Every preset; where two have one name, ours wins, then the first."""
        found = dict(self.own_presets)
        for name, cls in self.types()[0].items():
            if name in self.plugins:
                found = {**presets_of(cls), **found}
        return found

    def preset(self, name: str) -> Objective:
        make = self.own_presets.get(name) or self.presets().get(name)
        if make is None:
            raise UserError(unknown(name, self.presets(), "preset of an objective"))
        return make()

    def make(self, name: str, settings: Mapping[str, Any] | None = None) -> Objective:
        """An objective by the name of its type or of a preset, with settings on top."""
        settings = dict(settings or {})
        if name in self.names:
            return validated(self.named(name), {"type": name, **settings})
        if name not in self.presets():
            raise UserError(unknown(name, [*self.names, *self.presets()]))
        base = self.preset(name)
        return validated(type(base), {**given(base), **settings})

    # ------------------------------------------------------------ in recipes

    def union(self) -> Any:
        """The annotation of a field that holds any objective, as pydantic reads it."""
        members: Any = reduce(or_, self.own)
        kind = Field(discriminator="type")
        return Annotated[members, kind, SerializeAsAny(), WrapValidator(self._validate)]  # type: ignore[type-arg]

    def _validate(self, value: Any, own: Callable[[Any], Any]) -> Any:
        """A preset becomes its settings; plug-ins are validated by their own class; the rest is the union's."""
        if isinstance(value, Objective):
            return value
        if not isinstance(value, Mapping):
            return own(value)
        try:
            value = self._expanded(value)
            name = value.get("type")
            if name in self.own_types or not isinstance(name, str):
                return own(value)
            if name in self.plugins:
                return validated(self.named(name), value)
        except UserError as error:
            raise ValueError(str(error)) from error
        raise PydanticCustomError("union_tag_invalid", "{said}", {"said": unknown(name, self.names)})

    def _expanded(self, value: Mapping[str, Any]) -> Mapping[str, Any]:
        """`preset` replaced by what it sets, under the settings beside it."""
        if "preset" not in value:
            return value
        base = given(self.preset(str(value["preset"])))
        if value.get("type", base["type"]) != base["type"]:
            raise UserError(
                f"preset {value['preset']} is of type {base['type']}, not {value['type']}: drop one of them"
            )
        return {**base, **{k: v for k, v in value.items() if k != "preset"}}


def unknown(name: str, known: Iterable[str], what: str = "objective") -> str:
    """That there is no objective (or preset) of a name, how to see which there are, and the nearest.

    >>> unknown("maskd", ["masked"]).rpartition("; ")[2]
    "did you mean 'masked'?"
    """
    where = "unmask show --list names all; one of another package is known where that package is installed"
    return f"'{name}' is no {what} here ({where}){nearest(name, known)}"


# ---------------------------------------------------------------- of one class


def name_of(cls: type[Objective]) -> str:
    """The `type` of an objective's class."""
    field_ = cls.model_fields["type"]
    return str(field_.default if isinstance(field_.default, str) else get_args(field_.annotation)[0])


def presets_of(cls: type[Objective]) -> dict[str, Constructor]:
    """The named constructors that a class itself declares.

    >>> from unmask.objectives.causal import Causal
    >>> presets_of(type("Backwards", (Causal,), {"paper": classmethod(lambda cls: cls())}))["paper"]()
    Backwards(type='causal')
    """
    found = {}
    for name, member in vars(cls).items():
        if not isinstance(member, classmethod) or name.startswith(("_", "model_")):
            continue
        make = getattr(cls, name)
        needed = [p for p in inspect.signature(make).parameters.values() if p.default is p.empty]
        if all(p.kind is p.VAR_KEYWORD for p in needed):
            found[name] = make
    return found


def given(objective: Objective) -> dict[str, Any]:
    """The settings of an objective that differ from its defaults, and its type."""
    return {"type": objective.type, **objective.model_dump(exclude_defaults=True)}


def validated(cls: type[Objective], values: Mapping[str, Any]) -> Objective:
    """An objective of a class, or a sentence that says which setting is wrong and the nearest right one."""
    try:
        return cls.model_validate(dict(values))
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"])
        name = values.get("type", name_of(cls))
        if first["type"] == "extra_forbidden":
            known = [k for k in cls.model_fields if k != "type"]
            raise UserError(
                f"objective {name} has no setting '{key}' (known: {', '.join(known)}){nearest(key, known)}"
            ) from error
        message = first["msg"].removeprefix("Value error, ")
        shown = f" {key}={first['input']!r}" if key else ""
        raise UserError(f"objective {name}:{shown} {message[0].lower()}{message[1:]}") from error


def _loaded(entry: EntryPoint) -> type[Objective]:
    where = f"the plug-in objective '{entry.name}' ({entry.value}{_package(entry)})"
    try:
        cls = entry.load()
    except Exception as error:
        reason = " ".join(str(error).split())
        raise UserError(
            f"{where} cannot be loaded: {type(error).__name__}: {reason}; mend or uninstall that package"
        ) from error
    if not (isinstance(cls, type) and issubclass(cls, Objective)):
        raise UserError(f"{where} is no objective: it must name a subclass of unmask.objectives.base.Objective")
    if inspect.isabstract(cls) or "type" not in cls.model_fields or name_of(cls) != entry.name:
        missing = ", ".join(sorted(getattr(cls, "__abstractmethods__", ())))
        fault = f"it lacks {missing}" if missing else f"its type is '{name_of(cls)}', which must be the entry's name"
        raise UserError(f"{where} is not complete: {fault}")
    return cls


def _package(entry: EntryPoint) -> str:
    return f" of {entry.dist.name}" if entry.dist is not None else ""

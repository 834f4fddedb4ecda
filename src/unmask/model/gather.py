"""One Python file from the modules of this package that a module needs: their source text, not another version of it.

Starting from everything in one module, each top-level statement that a kept one names is kept too, wherever in this
package it stands. Modules come in the order of their imports; imports from elsewhere are merged at the top. Two things
change on the way: settings checked by pydantic become dataclasses, and what starts new weights becomes nothing.
"""

from __future__ import annotations

import ast
import importlib.util
import re
from dataclasses import dataclass, field
from pathlib import Path

PACKAGE = "unmask"
SETTINGS = "Strict"
"""The base class of settings (`config.base`)."""

REPLACED = {
    SETTINGS: '''class Strict:
    """Settings, as dataclasses (in unmask itself they are checked by pydantic)."""

    @classmethod
    def model_validate(cls, values: Mapping[str, Any]) -> Any:
        """Settings from a file; groups of settings among them are built too."""
        found = dict(values)
        for part in fields(cls):  # type: ignore[arg-type]
            if isinstance(found.get(part.name), Mapping):
                found[part.name] = globals()[str(part.type).removesuffix(" | None")].model_validate(found[part.name])
        return cls(**found)

    def model_copy(self, update: Mapping[str, Any]) -> Any:
        """The settings with some of them changed."""
        return replace(self, **update)  # type: ignore[type-var]''',
    **{
        name: f'def {name}(*_: Any) -> None:\n    """Nothing: weights come from a file, or from `_init_weights`."""'
        for name in ("initialise", "_initialise")
    },
}
"""Top-level names whose text is another one here."""

NEEDED = {
    "Any": "from typing import Any",
    "Mapping": "from collections.abc import Mapping",
    "dataclass": "from dataclasses import dataclass",
    "fields": "from dataclasses import fields",
    "replace": "from dataclasses import replace",
}
"""Where names come from that only the changed texts use."""


@dataclass
class _Part:
    """One top-level statement with the comment above it and, of an assignment, the docstring below it."""

    names: tuple[str, ...]
    text: str
    uses: set[str] = field(default_factory=set)
    kept: bool = False


@dataclass
class _Module:
    name: str
    doc: str
    parts: list[_Part]
    imports: dict[str, tuple[str, str]]  # local name → (module, name there; "" = the module itself)
    order: list[str]  # modules of this package that must stand before it

    def part(self, name: str) -> _Part | None:
        return next((p for p in self.parts if name in p.names), None)


def gathered(start: str, header: str) -> str:
    """The text of one file that holds all of the module `start` and what it needs of this package.

    ValueError where two modules define one name, or where one imports a module of ours instead of names from it:
    both are faults of the code, which a test meets before a user does.
    """
    modules: dict[str, _Module] = {}
    _visit(start, modules)
    outside: dict[str, str] = {}
    for part in modules[start].parts:
        _keep(part, modules[start], modules, outside)
    modules[start] = modules.pop(start)  # last, also behind modules that are imported inside functions
    owner: dict[str, str] = dict.fromkeys(outside, "an import")
    out = []
    for module in modules.values():
        kept = [p for p in module.parts if p.kept]
        for name in (n for p in kept for n in p.names):
            if owner.setdefault(name, module.name) != module.name:
                raise ValueError(f"{name} is defined by {owner[name]} and by {module.name}: rename one")
        if kept:
            out.append(_section(module, kept))
    return "\n\n\n".join([header + _imports(outside), *out]) + "\n"


def _visit(name: str, modules: dict[str, _Module]) -> None:
    """Read a module after those that it imports."""
    if name in modules:
        return
    module = _read(name)
    pending = modules.setdefault(name, module)
    for other in module.order:
        _visit(other, modules)
    modules[name] = modules.pop(name, pending)  # to the end: after its imports


def _read(name: str) -> _Module:
    found = importlib.util.find_spec(name)
    if found is None or found.origin is None:
        raise ValueError(f"there is no module {name}")
    text = Path(found.origin).read_text(encoding="utf-8")
    tree, lines = ast.parse(text), text.splitlines()
    module = _Module(name, ast.get_docstring(tree) or "", [], {}, [])
    for node, after in zip(tree.body, [*tree.body[1:], None], strict=False):
        if isinstance(node, ast.Import | ast.ImportFrom):
            _note(node, module, ordered=True)
        elif isinstance(node, ast.If):  # if TYPE_CHECKING: names for annotations
            for inner in node.body:
                _note(inner, module, ordered=False)
        elif names := _defined(node):
            module.parts.append(_part(names, node, after, lines, module))
    return module


def _note(node: ast.stmt, module: _Module, ordered: bool) -> None:
    """Write down where an import's names come from."""
    if isinstance(node, ast.Import):
        module.imports.update({a.asname or a.name: (a.name, "") for a in node.names})
    elif isinstance(node, ast.ImportFrom) and node.module and node.module != "__future__":
        module.imports.update({a.asname or a.name: (node.module, a.name) for a in node.names})
        if ordered and _ours(node.module):
            module.order.append(node.module)


def _ours(module: str) -> bool:
    return module.split(".")[0] == PACKAGE


def _defined(node: ast.stmt) -> tuple[str, ...]:
    if isinstance(node, ast.ClassDef | ast.FunctionDef):
        return (node.name,)
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    return tuple(n.id for t in targets for n in ast.walk(t) if isinstance(n, ast.Name))


def _part(names: tuple[str, ...], node: ast.stmt, after: ast.stmt | None, lines: list[str], module: _Module) -> _Part:
    decorators = node.decorator_list if isinstance(node, ast.ClassDef | ast.FunctionDef) else []
    first = min([node.lineno, *(d.lineno for d in decorators)]) - 1
    while first and lines[first - 1].startswith("# ") and not lines[first - 1].startswith("# ---"):
        first -= 1
    last = node.end_lineno or node.lineno
    if isinstance(after, ast.Expr) and isinstance(node, ast.Assign | ast.AnnAssign):
        last = after.end_lineno or last
    dropped: set[int] = set()
    for inner in ast.walk(node):  # imports inside functions, of names that here stand in the same file
        if isinstance(inner, ast.ImportFrom) and inner.module and _ours(inner.module):
            _note(inner, module, ordered=False)
            dropped.update(range(inner.lineno - 1, inner.end_lineno or inner.lineno))
    text = "\n".join(line for i, line in enumerate(lines[first:last], first) if i not in dropped)
    if names[0] in REPLACED:
        text = REPLACED[names[0]]
    elif isinstance(node, ast.ClassDef) and any(isinstance(b, ast.Name) and b.id == SETTINGS for b in node.bases):
        text = _as_dataclass(node, lines)
    text = re.sub(r"  # type: ignore\[[^\]]*\]", "", text)
    return _Part(names, text, {n.id for n in ast.walk(ast.parse(text)) if isinstance(n, ast.Name)})


def _as_dataclass(node: ast.ClassDef, lines: list[str]) -> str:
    """A class of settings with its fields, their defaults and docs, and its methods; without pydantic's checks."""
    out = ["@dataclass(frozen=True)", f"class {node.name}({SETTINGS}):"]
    for inner in node.body:
        if isinstance(inner, ast.FunctionDef):
            if any("validator" in ast.unparse(d) for d in inner.decorator_list):
                continue
            out.append("")
        if isinstance(inner, ast.AnnAssign) and isinstance(inner.value, ast.Call):
            given = inner.value.args if ast.unparse(inner.value.func) == "Field" else [inner.value]
            default = f" = {ast.unparse(given[0])}" if given else ""  # Field(gt=0): it has to be given
            out.append(f"    {ast.unparse(inner.target)}: {ast.unparse(inner.annotation)}{default}")
            continue
        decorators = inner.decorator_list if isinstance(inner, ast.FunctionDef) else []
        first = min([inner.lineno, *(d.lineno for d in decorators)]) - 1
        out += lines[first : inner.end_lineno]
    return "\n".join(out)


def _keep(part: _Part, module: _Module, modules: dict[str, _Module], outside: dict[str, str]) -> None:
    """Keep a statement and, from wherever they come, the names it uses."""
    if part.kept:
        return
    part.kept = True
    for name in sorted(part.uses):
        own = module.part(name)
        if own is not None:
            _keep(own, module, modules, outside)
        elif name in module.imports:
            _reach(name, module, modules, outside)
        elif name in NEEDED:
            outside.setdefault(name, NEEDED[name])


def _reach(local: str, module: _Module, modules: dict[str, _Module], outside: dict[str, str]) -> None:
    """Keep what an imported name stands for, through packages that pass it on."""
    where, name = module.imports[local]
    if not _ours(where):
        spelled = f"import {where}" if not name else f"from {where} import {name}"
        line = spelled if local in (where, name) else f"{spelled} as {local}"
        if outside.setdefault(local, line) != line:
            raise ValueError(f"{local} is '{outside[local]}' in one module and '{line}' in {module.name}")
        return
    _visit(where, modules)
    found = modules[where].part(name)
    if local != name or (found is None and name not in modules[where].imports):
        raise ValueError(f"{module.name} imports {where}.{name} as {local}: import names of ours as they are")
    if found is None:
        _reach(name, modules[where], modules, outside)
    else:
        _keep(found, modules[where], modules, outside)


def _imports(outside: dict[str, str]) -> str:
    """Merged imports: the standard library's, then torch and transformers."""
    plain = {line for line in outside.values() if line.startswith("import ") or " as " in line}
    merged: dict[str, list[str]] = {}
    for line in sorted(set(outside.values()) - plain):
        where, name = line.removeprefix("from ").split(" import ")
        merged.setdefault(where, []).append(name)
    lines = [*plain, *(f"from {where} import {', '.join(names)}" for where, names in merged.items())]
    lines.sort(key=lambda line: (line.startswith("from "), line))
    heavy = [line for line in lines if line.split()[1].split(".")[0] in ("numpy", "torch", "transformers")]
    light = [line for line in lines if line not in heavy]
    return "\nfrom __future__ import annotations\n\n" + "\n".join(light) + "\n\n" + "\n".join(heavy)


def _section(module: _Module, kept: list[_Part]) -> str:
    """A module's part of the file, under its name and its own introduction."""
    path = module.name.removeprefix(f"{PACKAGE}.").replace(".", "/") + ".py"
    head = [f"# ---------------------------------------------------------------- {path}", "#"]
    head += [f"# {line}".rstrip() for line in module.doc.splitlines()]
    return "\n".join(head) + "\n\n" + "\n\n\n".join(p.text for p in kept)

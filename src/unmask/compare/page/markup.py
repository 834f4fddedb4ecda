"""HTML from Python: everything that is not markup already is escaped when it goes into an element.

>>> tag("p", "a < b", class_="note")
'<p class="note">a &lt; b</p>'
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Sequence
from html import escape

from unmask.chart import label


class Html(str):
    """Markup. A plain `str` is text."""


def text(value: object) -> Html:
    """Escaped; control characters and lone surrogates are shown as U+FFFD."""
    if isinstance(value, Html):
        return value
    held = (c if c in "\n\t" or unicodedata.category(c) not in ("Cc", "Cs") else "\ufffd" for c in str(value))
    return Html(escape("".join(held)))


def tag(name: str, *inside: object, **attributes: object) -> Html:
    """An element; `class_` is class, `aria_label` is aria-label, True is an attribute alone, None and False none."""
    shown = []
    for key, value in attributes.items():
        if value is not None and value is not False:
            name_of = key.rstrip("_").replace("_", "-")
            shown.append(f" {name_of}" if value is True else f' {name_of}="{text(value)}"')
    return Html(f"<{name}{''.join(shown)}>{join(inside)}</{name}>")


def join(parts: Iterable[object], between: str = "") -> Html:
    return Html(between.join(text(p) for p in parts))


def table(
    caption: str,
    columns: Sequence[object],
    rows: Sequence[Sequence[object]],
    *,
    note: object = "",
    class_: str | None = None,
    titled: bool = True,
) -> Html:
    """A table whose first column heads its rows; it scrolls by itself, also by keyboard, where it is too wide.

    Not `titled`: the caption is for screen readers alone, as the heading above says the same.
    """
    head = tag("tr", *(tag("th", c, scope="col") for c in columns))
    body = [tag("tr", tag("th", row[0], scope="row"), *(tag("td", cell) for cell in row[1:])) for row in rows]
    name = tag("caption", tag("span", caption, class_=None if titled else "unseen"))
    inside = tag("table", name, tag("thead", head), tag("tbody", *body), class_=class_)
    wide = tag("div", inside, class_="wide", tabindex="0", role="region", aria_label=caption)
    return join([wide, tag("p", note, class_="note under") if note else ""])


def more(summary: object, *inside: object, open_: bool = False) -> Html:
    """What is folded away until asked for."""
    return tag("details", tag("summary", summary), *inside, open=open_)


def number(value: float | None, digits: int = 3) -> str:
    """A measured value: so many digits behind the point below 10, fewer above.

    >>> [number(v) for v in (0.5, -0.0213, 12.3456, 1234.5, None)]
    ['0.500', '\u22120.021', '12.35', '1234', '–']
    """
    if value is None:
        return "–"
    size = abs(value)
    if 0 < size < 0.001:
        return short(value)
    behind = digits if size < 10 else max(0, digits - 1) if size < 100 else max(0, digits - 2) if size < 1000 else 0
    shown = f"{value:.{behind}f}"
    return shown.replace("-", "\u2212") if float(shown) else shown.removeprefix("-")


def short(value: float) -> str:
    """A count in few characters: k, M, G, then powers of ten.

    >>> [short(v) for v in (512, 125_312, 1.5e13, 2e-5, 2.5e-4)]
    ['512', '125.3k', '1.5×10¹³', '2×10⁻⁵', '2.5×10⁻⁴']
    """
    if value and not 1e-3 <= abs(value) < 1e12:
        digits, power = f"{value:.3e}".split("e")
        small = str(int(power)).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))
        return f"{digits.rstrip('0').rstrip('.')}×10{small}".replace("-", "\u2212")
    return label(value).replace("-", "\u2212")


def chance(p: float | None) -> str:
    """A p value.

    >>> [chance(v) for v in (0.0625, 0.00001, 1.0, None)]
    ['0.0625', '< 0.0001', '1.000', '–']
    """
    if p is None:
        return "–"
    return "< 0.0001" if p < 1e-4 else f"{p:.4f}" if p < 0.1 else f"{p:.3f}"


def span(interval: tuple[float, float] | None, digits: int = 3) -> str:
    """An interval.

    >>> span((0.25, 0.5))
    '0.250 to 0.500'
    """
    return "" if interval is None else f"{number(interval[0], digits)} to {number(interval[1], digits)}"


def listed(names: Sequence[str], last: str = "and") -> str:
    """
    >>> listed(["a", "b", "c"])
    'a, b and c'
    """
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} {last} {names[-1]}" if names else ""


def several(n: int, one: str) -> str:
    """
    >>> several(1, "seed"), several(5, "seed")
    ('1 seed', '5 seeds')
    """
    return f"{n} {one}" if n == 1 else f"{n} {one[:-1]}ies" if one.endswith("ry") else f"{n} {one}s"

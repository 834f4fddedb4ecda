"""Charts: well-formed and escaped, a value lands on its pixel, light and dark, nothing lost on the way."""

from __future__ import annotations

import math
import re
import xml.etree.ElementTree as ET

import pytest

from unmask.chart import COLOURS, MARKS, WIDTH, Chart, Scale, Series, label, svg

NS = "{http://www.w3.org/2000/svg}"


def parse(*charts: Chart) -> ET.Element:
    return ET.fromstring(svg(*charts))


def of_class(root: ET.Element, name: str) -> list[ET.Element]:
    return [e for e in root.iter() if name in e.get("class", "").split()]


def texts(root: ET.Element) -> list[str]:
    return [e.text or "" for e in root.iter(f"{NS}text")]


def numbers(text: str) -> list[float]:
    return [float(v) for v in re.findall(r"-?\d+\.?\d*", text)]


def axis_pixel(root: ET.Element, kind: str, tick: str) -> float:
    """Where the picture itself says that a tick's value lies: labels are printed beside their tick."""
    at = next(e for e in of_class(root, kind) if e.text == tick)
    return float(at.get("x", "")) if kind == "mid" else float(at.get("y", "")) - 4


LOSS = Chart("Held-out loss", (Series("a", [1, 10, 100, 1000], [5.0, 4.0, 3.0, 3.0]),), "step", "nats", log_x=True)


def test_a_known_value_lands_on_a_known_pixel() -> None:
    """x is logarithmic over 1 … 1000, y runs over the round values 3 … 5: thirds and halves of the area."""
    root = parse(LOSS)
    points = [(float(c.get("cx", "")), float(c.get("cy", ""))) for c in of_class(root, "dot")]
    (left, top), (x1, middle), (x2, bottom), (right, _) = points
    assert right == WIDTH - 16 and bottom - top == 200
    assert x1 == pytest.approx(left + (right - left) / 3, abs=0.1)
    assert x2 == pytest.approx(left + (right - left) * 2 / 3, abs=0.1)
    assert middle == pytest.approx((top + bottom) / 2, abs=0.1)
    line = of_class(root, "line")[0].get("d", "")
    assert numbers(line) == [v for p in points for v in p] and line.count("M") == 1


def test_ticks_stand_where_their_values_are_drawn() -> None:
    root = parse(LOSS)
    points = [(float(c.get("cx", "")), float(c.get("cy", ""))) for c in of_class(root, "dot")]
    assert [axis_pixel(root, "mid", t) for t in ("1", "10", "100", "1000")] == [x for x, _ in points]
    assert [axis_pixel(root, "end", t) for t in ("5", "4", "3")] == pytest.approx([y for _, y in points[:3]])


def test_a_bar_is_as_long_as_its_value() -> None:
    chart = Chart("Use", (Series("t", ["x", "y", "z"], [2.0, None, 8.0]),), y_label="bytes", kind="bar")
    root = parse(chart)
    bars = [e for e in of_class(root, "bar")]
    widths = [float(b.get("width", "")) for b in bars]
    assert widths[0] * 4 == pytest.approx(widths[1], abs=0.3) and len(bars) == 2
    assert {"x", "y", "z", "2", "8", "bytes"} <= set(texts(root))  # the gap keeps its label
    assert float(bars[1].get("y", "")) - float(bars[0].get("y", "")) == 2 * 23


def test_text_is_escaped_and_what_xml_forbids_is_replaced() -> None:
    nasty = "</text><script>alert(1)</script> & \"q\" 'p' \x00\x1b ü 文"
    series = Series(nasty, [1, 2], [1, 2])
    for kind in ("line", "bar"):
        chart = Chart(nasty, (series, series), nasty, nasty, kind=kind)
        text = svg(chart)
        root = ET.fromstring(text)
        assert "<script" not in text and not list(root.iter(f"{NS}script"))
        shown = nasty.replace("\x00", "\ufffd").replace("\x1b", "\ufffd")
        assert shown in texts(root) and next(root.iter(f"{NS}title")).text == shown


def test_a_screen_reader_is_told_the_values() -> None:
    root = parse(LOSS, Chart("Use", (Series("t", ["x", "y"], [2.0, None]),), kind="bar"))
    images = [g for g in root.iter(f"{NS}g") if g.get("role") == "img"]
    assert len(images) == 2
    ids = [e.get("id") for e in root.iter() if e.get("id")]
    assert len(set(ids)) == len(ids) == 4
    for image in images:
        title, desc = image.get("aria-labelledby", "").split()
        assert image[0].tag == f"{NS}title" and image[0].get("id") == title
        assert image[1].tag == f"{NS}desc" and image[1].get("id") == desc
    assert "a: 1: 5, 100: 3, 1000: 3" in (images[0][1].text or "")
    assert "t: x: 2." in (images[1][1].text or "")


def test_light_and_dark_differ_and_rules_stay_inside_the_picture() -> None:
    style = next(parse(LOSS).iter(f"{NS}style")).text or ""
    day, night = style.split("@media(prefers-color-scheme:dark)")
    assert ".page{fill:#fff}" in day and ".page{fill:#0d1117}" in night
    for k in range(COLOURS):
        light, dark = (re.search(rf"\.s{k}{{color:(#\w+)}}", part) for part in (day, night))
        assert light and dark and light[1] != dark[1]
    rules = re.findall(r"([^{}]+){[^{}]*}", style.replace("@media(prefers-color-scheme:dark){", ""))
    assert rules and all(rule.startswith(".unmask-chart ") for rule in rules)


def test_gaps_break_the_line_and_a_logarithm_leaves_out_what_it_cannot_show() -> None:
    series = Series("a", [0, 1, 2, 3, 4], [1.0, 2.0, None, math.nan, 3.0])
    linear = of_class(parse(Chart("t", (series,))), "line")[0].get("d", "")
    assert linear.count("M") == 2 and linear.count("L") == 1
    root = parse(Chart("t", (series,), log_x=True))
    assert len(of_class(root, "dot")) == 2  # x = 0 has no logarithm
    root = parse(Chart("t", (Series("a", [1, 2], [0.0, 2.0]),), log_y=True))
    assert len(of_class(root, "dot")) == 1


def test_a_band_runs_along_the_highs_and_back_along_the_lows() -> None:
    series = Series("a", [0, 1, 2], [2.0, 2.0, 2.0], low=[1.0, 1.5, 1.0], high=[3.0, 2.5, 3.0])
    root = parse(Chart("t", (series,)))
    band = numbers(of_class(root, "band")[0].get("d", ""))
    xs, ys = band[::2], band[1::2]
    assert xs[:3] == xs[:2:-1] and len(xs) == 6
    middle = float(of_class(root, "dot")[0].get("cy", ""))
    assert [y - middle for y in ys] == pytest.approx([100, 50, 100, -100, -50, -100])
    whiskers = Chart("t", (Series("a", ["x"], [2.0], low=[1.0], high=[4.0]),), kind="bar")
    bar = of_class(parse(whiskers), "bar")[0]
    start, stop = numbers(of_class(parse(whiskers), "axis")[0].get("d", ""))[::2]
    width = float(bar.get("width", ""))
    assert [start, stop] == pytest.approx([float(bar.get("x", "")) + width * f for f in (0.5, 2)], abs=0.2)


def test_lines_of_many_points_have_no_marks_and_names_make_a_legend() -> None:
    n = MARKS + 1
    many = Series("many", list(range(n)), [float(i) for i in range(n)])
    few = Series("few", [0, 1], [0.0, 1.0])
    root = parse(Chart("t", (many, few)))
    assert len(of_class(root, "dot")) == 2 and {"many", "few"} <= set(texts(root))
    assert "few" not in texts(parse(Chart("t", (few,))))  # one line needs no legend


def test_lengths_that_differ_are_refused_and_no_data_is_no_error() -> None:
    with pytest.raises(ValueError, match="'a'"):
        Series("a", [1, 2], [1.0])
    with pytest.raises(ValueError, match="low"):
        Series("a", [1], [1.0], low=[1.0])
    for kind in ("line", "bar"):
        assert parse(Chart("t", (), kind=kind)) is not None
        assert parse(Chart("t", (Series("a", [1], [None]),), kind=kind, log_x=kind == "line")) is not None
    assert svg(LOSS) == svg(LOSS)


@pytest.mark.parametrize("log", [False, True])
def test_ticks_are_few_round_and_inside(log: bool) -> None:
    for low, high in ((1, 2), (3.1, 4.7), (0.001, 900), (1, 50_000), (5e8, 6e8), (0.9999, 1.0001), (7, 7)):
        ticks = Scale(low, high, 0, 100, log).ticks()
        assert len(ticks) <= 8 and all(low * (1 - 1e-9) <= t <= high * (1 + 1e-9) for t in ticks)
        assert low == high or len(ticks) >= 2
        assert len({label(t) for t in ticks}) == len(ticks) or high / low < 1.001

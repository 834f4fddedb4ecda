"""The page in a real browser: keyboard, screen reader, phone, dark, paper, and no script at all."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from unmask.compare.report import write_report

from .browser import Browser, program
from .example import NAMES, example

pytestmark = pytest.mark.browser

CONTRAST = """(() => {
  const parse = (c) => { const v = c.match(/[\\d.]+/g).map(Number); return v.length < 4 ? [...v, 1] : v; };
  const light = (c) => c.slice(0, 3).map((v) => v / 255)
    .map((v) => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const behind = (e) => {
    for (; e; e = e.parentElement) { const c = parse(getComputedStyle(e).backgroundColor); if (c[3] === 1) return c; }
    return [255, 255, 255, 1];
  };
  const found = [];
  for (const e of document.querySelectorAll("body *")) {
    const own = [...e.childNodes].some((n) => n.nodeType === 3 && n.data.trim());
    if (!own || !e.checkVisibility() || e.closest("svg, script, style")) continue;
    const [a, b] = [light(parse(getComputedStyle(e).color)), light(behind(e))].sort((x, y) => y - x);
    found.push({text: e.textContent.slice(0, 40), ratio: (a + 0.05) / (b + 0.05)});
  }
  return found;
})()"""
SHOWN = """[...document.querySelectorAll(".chart")].filter((c) => c.checkVisibility())
  .map((c) => c.dataset.measure + " " + c.dataset.axis)"""
WIDE = "[document.documentElement.scrollWidth, innerWidth]"
FOCUS = """(() => {
  const e = document.activeElement, s = getComputedStyle(e.closest(".segments label")?.lastChild ?? e);
  const name = e.id || e.value || e.textContent.slice(0, 30);
  return {tag: e.tagName, name, ring: s.outlineStyle, wide: s.outlineWidth};
})()"""
UNFOLD = "document.querySelectorAll('details').forEach((d) => { d.open = true; })"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    found = program()
    if found is None:
        pytest.skip("needs a browser: apt-get install chromium")
    with Browser(found) as started:
        yield started


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_report(example(), tmp_path_factory.mktemp("report"))


def to_axis(browser: Browser) -> dict[str, Any]:
    """Tab on until the switch of the axis has the focus."""
    for _ in range(60):
        browser.press("Tab")
        focus = browser.run(FOCUS)
        if focus["tag"] == "INPUT":
            return focus
    raise AssertionError("the switch cannot be reached by keyboard")


def test_no_complaint_and_no_request(browser: Browser, file: Path) -> None:
    browser.open(file)
    assert browser.run("document.documentElement.classList.contains('js')")
    assert browser.complaints() == [] and browser.requests() == []


def test_the_axis_is_switched_by_keyboard_and_announced(browser: Browser, file: Path) -> None:
    browser.open(file)
    assert browser.run(SHOWN) == ["rating step"]
    assert browser.run("document.getElementById('announced').textContent") == ""
    assert to_axis(browser)["name"] == "step"
    seen = []
    for axis in ("tokens", "target_tokens", "flops", "seconds"):
        browser.press("ArrowRight")
        assert browser.run(SHOWN) == [f"rating {axis}"]
        seen.append(browser.run("document.getElementById('announced').textContent"))
    assert len(set(seen)) == 4 and seen[2].startswith("Rating accuracy against FLOPs, higher is better. causal from ")
    assert {"role": "status", "name": ""} in [{**n, "name": ""} for n in browser.spoken()]
    browser.press("ArrowLeft")
    assert browser.run(SHOWN) == ["rating flops"]


def test_the_measure_is_switched_by_keyboard(browser: Browser, file: Path) -> None:
    browser.open(file)
    browser.run("document.getElementById('measure').focus()")
    browser.press("ArrowDown")
    assert browser.run(SHOWN) == ["fill step"]
    assert browser.run("document.getElementById('announced').textContent").startswith("Fill in one pass against steps")


def test_focus_is_seen_and_its_order_is_that_of_the_page(browser: Browser, file: Path) -> None:
    browser.open(file)
    places, names = [], []
    for _ in range(28):
        browser.press("Tab")
        focus = browser.run(FOCUS)
        assert focus["ring"] == "solid" and float(focus["wide"].removesuffix("px")) >= 2, focus
        names.append(focus["name"])
        places.append(browser.run("document.activeElement.getBoundingClientRect().top + scrollY"))
    assert names[0] == "Skip to the results" and names[1] == "theme"
    assert all(b > a - 60 for a, b in itertools.pairwise(places[1:]))


def test_a_screen_reader_finds_its_way(browser: Browser, file: Path) -> None:
    browser.open(file)
    spoken = browser.spoken()
    roles = {role: [n["name"] for n in spoken if n["role"] == role] for role in {n["role"] for n in spoken}}
    for landmark in ("banner", "navigation", "main", "contentinfo"):
        assert len(roles[landmark]) == 1, landmark
    assert len(roles["radio"]) == 5 and "target tokens" in roles["radio"]
    assert any(name.startswith("Rating accuracy against steps") for name in roles["image"])
    assert all(roles["region"]) and "Learning curves" in roles["region"]
    assert {"Final values", "Cost", "Tuning", "Environment"} <= set(roles["table"])
    assert roles["button"] == ["Dark mode"] and roles["combobox"] == ["Measure"]


@pytest.mark.parametrize("width", [360, 320, 768, 1200])
def test_no_page_is_wider_than_its_screen(browser: Browser, file: Path, tmp_path: Path, width: int) -> None:
    names = tuple(f"{name}_{'with_a_name_that_nowhere_breaks' * 3}" for name in NAMES)
    for made in (file, write_report(example(names), tmp_path)):
        browser.open(made, width=width)
        browser.run(UNFOLD)
        wide, inner = browser.run(WIDE)
        assert inner == width and wide <= width


def test_what_is_on_a_phone_can_be_touched_and_read(browser: Browser, file: Path) -> None:
    browser.open(file, width=360)
    sizes = browser.run("""[...document.querySelectorAll("body *:not(.unseen)")].filter((e) => e.checkVisibility())
        .map((e) => parseFloat(getComputedStyle(e).fontSize))""")
    assert min(sizes) >= 12
    heights = browser.run("""[...document.querySelectorAll("button, select, .segments label, summary")]
        .filter((e) => e.checkVisibility()).map((e) => e.getBoundingClientRect().height)""")
    assert min(heights) >= 24  # WCAG 2.2, 2.5.8
    apart = browser.run("""[...document.querySelectorAll(".chart:not([hidden]) .name")]
        .map((e) => e.getBoundingClientRect()).map((r) => [r.top, r.bottom, r.right])""")
    assert all(b[0] >= a[1] - 3 for a, b in itertools.pairwise(sorted(apart))) and max(a[2] for a in apart) <= 360


@pytest.mark.parametrize("dark", [False, True])
def test_contrast_is_enough(browser: Browser, tmp_path: Path, dark: bool) -> None:
    """Of all words, the eight colours of names included."""
    many = example(tuple(f"{name}-{k}" for k in (1, 2) for name in NAMES))
    browser.open(write_report(many, tmp_path), dark=dark)
    browser.run(UNFOLD)
    found = browser.run(CONTRAST)
    assert len(found) > 500
    assert [f for f in found if f["ratio"] < 4.5] == []


def test_dark_follows_the_reader_and_the_button(browser: Browser, file: Path) -> None:
    back = "getComputedStyle(document.body).backgroundColor"
    pressed = "document.getElementById('theme').getAttribute('aria-pressed')"
    browser.open(file)
    light = browser.run(back)
    assert browser.run(pressed) == "false"
    browser.open(file, dark=True)
    night = browser.run(back)
    assert night != light and browser.run(pressed) == "true"
    browser.run("document.getElementById('theme').focus()")
    browser.press(" ")
    assert browser.run(back) == light and browser.run(pressed) == "false"
    browser.press("Enter")
    assert browser.run(back) == night


def test_it_is_read_without_a_script(browser: Browser, file: Path) -> None:
    browser.open(file, script=False)
    browser.call("Emulation.setScriptExecutionDisabled", value=False)  # the page has loaded without it
    assert browser.run("document.documentElement.className") == ""
    assert browser.run(SHOWN) == ["rating step", "fill step", "bpb step"]
    assert not browser.run("document.querySelector('.switches').checkVisibility()")
    assert not browser.run("document.getElementById('theme').checkVisibility()")


def test_it_prints(browser: Browser, file: Path) -> None:
    browser.open(file, dark=True, print_=True)
    assert browser.run("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    for gone in ("nav", ".switches", "#theme"):
        assert not browser.run(f"document.querySelector('{gone}').checkVisibility()")
    paper = browser.paper()
    assert paper.startswith(b"%PDF") and paper.count(b"/Type /Page\n") >= 4
    assert browser.run("document.querySelectorAll('details[open]').length") == 1  # folded again, as they were


def test_a_script_in_the_record_does_not_run(browser: Browser, tmp_path: Path) -> None:
    study = example()
    nasty = "<img src=x onerror='window.ran=1'><script>window.ran=1</script>"
    browser.open(write_report(study.model_copy(update={"title": nasty, "notes": [nasty]}), tmp_path))
    assert browser.run("window.ran") is None and browser.complaints() == []
    assert browser.run("document.querySelector('h1').textContent") == nasty

"""The HTML report in a real browser, from the disk: Debian's Chromium, driven through its DevTools protocol."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from eval.report.html.build import Wanted, build
from eval.report.html.sources import read_sources
from tests.rigs.reporting.browser import Browser, program
from tests.rigs.reporting.invented import Size, write_results

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(program() is None, reason="no Chromium: apt-get install chromium"),
]


def report_of(folder: Path, size: Size) -> Path:
    cases = write_results(folder, size)
    return build(read_sources(folder, lambda record: cases), folder / "report", Wanted())


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return report_of(tmp_path_factory.mktemp("results"), Size(memories=4, histories=6, questions=20))


@pytest.fixture(scope="module")
def running() -> Iterator[Browser]:
    with Browser() as browser:
        yield browser


@pytest.fixture
def browser(running: Browser) -> Iterator[Browser]:
    """A browser whose pages must raise no error and ask for nothing but files."""
    running.problems.clear()
    running.resize(1440, 900)
    yield running
    assert running.problems == []


def texts(browser: Browser, selector: str) -> list[str]:
    found: list[str] = browser.run(
        f"[...document.querySelectorAll({json.dumps(selector)})].map((each) => each.textContent)"
    )
    return found


def click(browser: Browser, selector: str) -> None:
    browser.run(f"document.querySelector({json.dumps(selector)}).click()")


def index_of(page: Path) -> Any:
    text = (page.parent / "data" / "index.js").read_text()
    return json.loads(json.loads(text[len('report.receive("index", JSON.parse(') : -len("));\n")]))


def test_every_page_opens_from_the_disk_at_both_widths(browser: Browser, page: Path) -> None:
    for width in (1440, 390):
        browser.resize(width, 900)
        for name in ("overview", "compare", "question", "memory", "cost", "published"):
            browser.open(page, f"#/{name}")
            assert "cannot be shown" not in browser.run("document.body.textContent")
            assert "[object" not in browser.run("document.getElementById('page').textContent")
            assert browser.run("document.documentElement.scrollWidth") <= width, f"{name} is wider than {width}"


def test_a_title_of_one_long_word_and_the_links_of_the_pages_fit_a_phone(browser: Browser, page: Path) -> None:
    browser.resize(390, 844)
    browser.open(page, "#/question")
    browser.run("document.querySelectorAll('h2, h3 a').forEach((each) => { each.textContent = 'Very'.repeat(99); })")
    assert browser.run("document.documentElement.scrollWidth") <= 390
    ends = browser.run("[...document.querySelectorAll('#nav a')].map((each) => each.getBoundingClientRect().right)")
    assert max(ends) <= 390


def test_pale_rows_can_be_read(browser: Browser, page: Path) -> None:
    browser.colours("light")
    browser.open(page)
    shades = browser.run(
        """(() => { const row = document.querySelector('.leaderboard tbody tr');
        row.className = 'dim';
        return [getComputedStyle(row).color, getComputedStyle(row.closest('.card')).backgroundColor]; })()"""
    )
    light, dark = sorted((luminance(shade) for shade in shades), reverse=True)
    assert (light + 0.05) / (dark + 0.05) >= 4.5


def luminance(shade: str) -> float:
    """The relative luminance of `rgb(…)`, as WCAG defines it."""
    parts = [int(part) / 255 for part in re.findall(r"\d+", shade)]
    red, green, blue = (part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def test_what_the_numbers_are_worth_is_in_sight_and_the_leaderboard_sorts(browser: Browser, page: Path) -> None:
    browser.open(page)
    assert "STAND-IN" in browser.run("document.querySelector('.worth').innerText")
    assert "Detectable difference" in browser.run("document.getElementById('page').innerText")
    click(browser, ".leaderboard thead th:nth-child(2) button")
    scores = [float(text) for text in texts(browser, ".leaderboard tbody td:nth-child(2)")]
    assert scores == sorted(scores, reverse=True)
    assert len(scores) == 4
    assert "sort=1" in browser.run("location.hash")


def test_numbers_are_rounded_as_python_rounds_them(browser: Browser, page: Path) -> None:
    browser.open(page)
    values = [place / 16 for place in range(-17, 18)] + [0.0005, 0.0015, 1e-9, 2 / 3, 0.1235, 720.5, 721.5]
    for digits in (0, 1, 2, 3, 4):
        rounded = browser.run(f"{json.dumps(values)}.map((value) => fixed(value, {digits}))")
        assert rounded == [f"{value:.{digits}f}" for value in values]


def test_the_search_finds_what_python_finds_and_its_link_stays_valid(browser: Browser, page: Path) -> None:
    browser.open(page, "#/compare")
    rows = browser.run("report.load('set0').then((set) => set.questions)")
    browser.run(
        "(() => { const box = document.getElementById('search'); box.value = 'vio.in did'; box.dispatchEvent(new Event('input')); })()"
    )
    expected = sum(bool(re.search("vio.in did", f"{row[2]}\n{row[3]}")) for row in rows)
    assert expected > 0
    assert len(texts(browser, ".list li")) == expected
    link = browser.run("location.hash")
    browser.open(page, "#/overview")
    browser.open(page, link)
    assert len(texts(browser, ".list li")) == expected
    browser.run(
        "(() => { const box = document.getElementById('search'); box.value = '('; box.dispatchEvent(new Event('input')); })()"
    )
    assert "Not a regular expression" in browser.run("document.querySelector('[role=status]').textContent")


def test_the_four_fields_of_a_comparison_are_counted_and_filter(browser: Browser, page: Path) -> None:
    browser.open(page, "#/compare")
    first, second = (browser.run(f"report.load('set0-run{place}').then((run) => run.scores[0])") for place in (0, 1))
    expected = [0, 0, 0, 0]
    for x, y in zip(first, second, strict=True):
        expected[(0 if x >= 0.5 else 2) + (0 if y >= 0.5 else 1)] += 1
    assert [int(text) for text in texts(browser, ".quad strong")] == [*expected, 0]
    click(browser, ".quad button:nth-child(2)")
    assert len(texts(browser, ".list li")) == expected[1]
    assert "side=1" in browser.run("location.hash")
    swapped = texts(browser, "h2")[0].split(" against ")
    browser.run("[...document.querySelectorAll('button')].find((each) => each.textContent === 'Swap').click()")
    browser.wait(f"document.querySelector('h2').textContent === {json.dumps(' against '.join(reversed(swapped)))}")
    assert [int(text) for text in texts(browser, ".quad strong")] == [
        expected[0],
        expected[2],
        expected[1],
        expected[3],
        0,
    ]


def test_a_question_shows_gold_evidence_recall_verdicts_and_the_prompt(browser: Browser, page: Path) -> None:
    browser.open(page, "#/question")
    assert len(texts(browser, ".turn.evidence")) == 1
    assert len(texts(browser, "article")) == 4
    assert "repeat 2" in texts(browser, ".verdicts")[0]
    browser.run("document.querySelectorAll('article details').forEach((box) => { box.open = true; })")
    browser.wait("document.querySelectorAll('article .item').length === 32")
    browser.wait("document.querySelectorAll('article pre').length >= 4")
    question = browser.run("document.querySelector('h2.text').textContent")
    assert any(question in text for text in texts(browser, "article pre"))


def test_the_link_of_a_judges_prompt_opens_it_and_nothing_else(browser: Browser, page: Path) -> None:
    browser.open(page, "#/question")
    browser.run("document.querySelector('article details[data-sent^=judge]').open = true")
    browser.wait("document.querySelectorAll('article details[data-sent^=judge] pre').length > 0")
    link = browser.run("document.querySelector('article details[data-sent^=judge] a').getAttribute('href')")
    browser.open(page, link)
    assert len(texts(browser, "article details[open]")) == 1
    sent = " ".join(texts(browser, "article details[open] pre"))
    assert browser.run("document.querySelector('h2.text').textContent") in sent
    assert browser.run("document.querySelector('article .answer').textContent") in sent


def test_a_reader_rates_and_the_browser_keeps_and_exports_it(browser: Browser, page: Path) -> None:
    browser.open(page, "#/question")
    click(browser, "article .rate button:nth-child(3)")
    browser.run(
        "(() => { const note = document.querySelector('.rate input'); note.value = 'nearly'; note.dispatchEvent(new Event('change')); })()"
    )
    browser.open(page, "#/overview")
    browser.open(page, "#/question")
    assert browser.run("document.querySelector('.rate button[aria-pressed=true]').textContent") == "partial"
    (rating,) = browser.run("report.ratings()")
    assert (rating["value"], rating["why"]) == (0.5, "nearly")
    assert rating["run"] == index_of(page)["runs"][0]["key"]
    assert "Export 1 rating" in texts(browser, ".export")[0]
    click(browser, ".rate button[aria-pressed=true]")
    assert browser.run("report.ratings()") == []


def test_the_nodes_of_a_memory_open_level_by_level(browser: Browser, page: Path) -> None:
    browser.open(page, "#/memory")
    assert len(texts(browser, ".tree .node")) == 5
    click(browser, ".tree li li button[aria-expanded=false]")
    assert len(texts(browser, ".tree .node")) == 15
    browser.run("document.querySelector('.tree').replaceChildren(longText('word '.repeat(99), null, 160))")
    click(browser, ".tree button")
    assert len(texts(browser, ".tree .text")[0]) == 5 * 99
    assert browser.run("document.querySelectorAll('polyline').length") == 18  # three panels of six histories


def test_the_keys_reach_pages_search_and_questions(browser: Browser, page: Path) -> None:
    browser.open(page)
    browser.key("2")
    browser.wait("document.getElementById('page').dataset.ready.startsWith('#/compare')")
    browser.key("/")
    assert browser.run("document.activeElement.id") == "search"
    browser.run("document.activeElement.blur()")
    browser.key("j")
    assert browser.run("document.activeElement.matches('.list a')")
    browser.key("3")
    browser.wait("document.getElementById('page').dataset.ready.startsWith('#/question')")
    asked = browser.run("document.querySelector('.card .meta').textContent")
    browser.key("j")
    browser.wait(f"document.querySelector('.card .meta').textContent !== {json.dumps(asked)}")


def test_a_choice_keeps_its_focus_and_its_place_on_the_page(browser: Browser, page: Path) -> None:
    browser.open(page, "#/memory")
    place = browser.run(
        """(() => {
        const select = [...document.querySelectorAll("main label")].find((each) => each.textContent.startsWith("History")).lastChild;
        select.scrollIntoView(); select.focus(); select.selectedIndex = 1; select.dispatchEvent(new Event("change"));
        return scrollY;
    })()"""
    )
    assert place > 0
    browser.wait("document.getElementById('page').dataset.ready.includes('case=')")
    assert browser.run("document.activeElement.labels[0].firstChild.textContent") == "History"
    assert browser.run("scrollY") == place
    browser.open(page, "#/compare")
    browser.run("document.querySelectorAll('.quad button')[1].focus()")
    click(browser, ".quad button:nth-child(2)")
    assert browser.run("document.activeElement.getAttribute('aria-pressed')") == "true"


def test_the_tabs_open_on_the_data_that_overview_showed(browser: Browser, page: Path) -> None:
    browser.open(page)
    key = browser.run("report.index.sets[0].key")
    assert (
        browser.run("document.querySelector('#nav a[data-page=question]').getAttribute('href')")
        == f"#/question?set={key}"
    )


def test_scores_are_in_view_on_a_phone_and_nothing_is_cut_on_a_desk(browser: Browser, page: Path) -> None:
    browser.resize(390, 844)
    browser.open(page)
    assert browser.run("document.querySelector('.leaderboard td.number').getBoundingClientRect().right") < 390
    browser.resize(1440, 900)
    browser.open(page)
    assert (
        browser.run(
            "(() => { const box = document.querySelector('.leaderboard').parentElement; return box.scrollWidth - box.clientWidth; })()"
        )
        <= 1
    )


COVERED = """[...document.querySelectorAll("#page svg:not(.bar)")].flatMap((figure) => {
  const all = (name) => [...figure.querySelectorAll(name)].map((each) => [each.textContent, each.getBoundingClientRect()]);
  const shared = (a, b, low, high) => Math.min(a[high], b[high]) - Math.max(a[low], b[low]) > 1;
  const meet = (a, b) => shared(a, b, "left", "right") && shared(a, b, "top", "bottom");
  const texts = all("text"), others = (at) => [...texts.slice(at + 1), ...all("circle")];
  return texts.flatMap(([text, box], at) => others(at).filter(([, other]) => meet(box, other)).map(([other]) => `${text} and ${other}`));
})"""
"""The texts of figures that lie over another text or over a point."""


@pytest.mark.parametrize("width", [1440, 390])
def test_no_text_of_a_figure_lies_over_a_point_or_another_text(browser: Browser, page: Path, width: int) -> None:
    browser.resize(width, 900)
    browser.open(page)
    browser.run(
        """(() => {
      const point = (x, y, name) => ({ x, y, name, title: name, href: "#" });
      const front = [point(1, 0.5, "BM25"), point(1.2, 0.51, "SegTreeMem, TD"), point(1.3, 0.52, "Mem0"), point(9, 0.9, "A long name")];
      const beaten = [point(1.5, 0.5, "x"), point(2, 0.515, "y"), point(2.2, 0.52, "z"), point(8, 0.88, "w")];
      const small = [{ name: "run", points: [[0, 0], [1, 0.00012], [2, 0.000034]] }];
      document.getElementById("page").replaceChildren(
        scatter([...front, ...beaten], { xTitle: "tokens a question", yTitle: "judge", front }),
        curves(small, { xTitle: "units written", yTitle: "seconds of a very long title" }));
    })()"""
    )
    assert browser.run("document.querySelectorAll('#page svg text').length") > 10
    assert browser.run(COVERED) == []


def test_light_and_dark_follow_the_system_and_the_button(browser: Browser, page: Path) -> None:
    shade = "getComputedStyle(document.body).backgroundColor"
    browser.colours("light")
    browser.open(page)
    light = browser.run(shade)
    browser.colours("dark")
    dark = browser.run(shade)
    assert light != dark
    click(browser, "#theme")
    assert browser.run(shade) == light
    browser.run("localStorage.removeItem('memsys-theme')")
    browser.colours("light")


def test_on_paper_folded_parts_are_open(browser: Browser, page: Path) -> None:
    browser.open(page, "#/question")
    folded = "document.querySelectorAll('details:not([open])').length"
    before = browser.run(folded)
    browser.run("dispatchEvent(new Event('beforeprint'))")
    assert browser.run(folded) == 0
    assert browser.run("document.querySelectorAll('article .item').length") == 32
    browser.run("dispatchEvent(new Event('afterprint'))")
    assert browser.run(folded) == before
    assert browser.pdf().startswith(b"%PDF")


def test_hostile_text_is_shown_and_does_nothing(browser: Browser, tmp_path: Path) -> None:
    page = report_of(tmp_path, Size(memories=2, histories=2, questions=7, hostile=True))
    browser.open(page)
    for name in ("compare", "memory", *(f"question?case=h0&id=h0-q{n}" for n in range(7))):
        browser.go(f"#/{name}")
        browser.run(
            "document.querySelectorAll('details').forEach((box) => { if (box.fillNow) box.fillNow(); box.open = true; })"
        )
        assert browser.run("document.querySelectorAll('main img, main script, main iframe').length") == 0
        assert browser.run("document.documentElement.scrollWidth") <= 1440
    browser.go("#/question?case=h0&id=h0-q0")
    assert texts(browser, "h2.text") == ["<script>alert('shown')</script>"]
    browser.go("#/question?case=h0&id=h0-q5")
    assert len(texts(browser, "h2.text")[0]) < 2_000
    assert browser.run("({}).right === undefined && Object.getPrototypeOf({}) === Object.prototype")


def test_a_report_that_was_moved_still_opens(browser: Browser, page: Path, tmp_path: Path) -> None:
    moved = Path(shutil.copytree(page.parent, tmp_path / "else where #1"))
    browser.open(moved / "index.html")
    assert len(texts(browser, ".leaderboard tbody tr")) == 4

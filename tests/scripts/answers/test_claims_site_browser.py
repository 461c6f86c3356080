"""The site of claims in a real browser, from the disk, as large as it may become: 130 claims on 1,540 questions."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from scripts.answers.audit import STORED, Grader, Judged
from scripts.answers.claim_tables import rows_of
from scripts.answers.scoring import ScoredClaim
from scripts.commands.claims_site import Wanted, build
from tests.rigs.reporting.browser import Browser, program

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(program() is None, reason="no Chromium: apt-get install chromium"),
]
CLAIMS, QUESTIONS = 130, 1540
SCRIPTS = "<script>document.title = 'taken'</script>"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory, many: Callable[[int, int], list[ScoredClaim]]) -> Path:
    scored = many(CLAIMS, QUESTIONS)
    nasty = (f"{SCRIPTS}\u202e reversed", *scored[7].texts[1:])
    scored[7] = ScoredClaim(**{**vars(scored[7]), "texts": nasty})
    asked = [(each.case_id, each.question_id) for each in scored[7].asked]
    other = {
        key: value if at % 10 else 1.0 - value
        for at, (key, value) in enumerate(zip(asked, scored[7].verdicts, strict=True))
    }
    again = {"claim-7": Judged((Grader(STORED, {}, 0), Grader(f"mem0 by {'long' * 9}", other, 0)), scored[7].sha256)}
    folder = tmp_path_factory.mktemp("claims") / "site"
    return build(scored, rows_of(scored), {}, folder, Wanted("2026-11-24"), again).parent


@pytest.fixture(scope="module")
def running() -> Iterator[Browser]:
    with Browser() as browser:
        yield browser


@pytest.fixture(params=[1440, 390])
def browser(running: Browser, request: pytest.FixtureRequest) -> Iterator[Browser]:
    """A browser of both widths, whose pages raise no error, ask for nothing but files and do not scroll sideways."""
    running.problems.clear()
    running.resize(request.param, 900)
    yield running
    assert running.problems == []
    assert running.run("document.documentElement.scrollWidth") <= request.param


def search(browser: Browser, text: str) -> str:
    """Type into the search box; what the page then says about the count."""
    said: str = browser.run(
        f"(() => {{ const box = document.getElementById('search'); box.value = {json.dumps(text)}; "
        "box.dispatchEvent(new Event('input')); return document.getElementById('count').textContent; })()"
    )
    return said


def shown(browser: Browser, selector: str) -> int:
    count: int = browser.run(f"document.querySelectorAll({json.dumps(selector)}).length")
    return count


def test_the_leaderboard_shows_every_claim_and_its_search_some(browser: Browser, site: Path) -> None:
    browser.open(site / "index.html", "")
    assert shown(browser, "table.claims tbody tr") == CLAIMS
    assert search(browser, "claim-12 SYSTEM") == "11 of 130 files"  # claim-12 and claim-120 to claim-129
    assert shown(browser, "table.claims tbody tr:not([hidden])") == 11
    assert search(browser, "nothing of the kind") == "0 of 130 files"
    assert shown(browser, ".board:not([hidden])") == 0
    assert search(browser, "") == "130 files"


def test_no_heading_of_a_leaderboard_is_broken_within_a_word(browser: Browser, site: Path) -> None:
    browser.open(site / "index.html", "")
    broken = browser.run(
        "[...document.querySelectorAll('table.claims thead button')].filter((each) => { const text = document.createRange(); "
        "text.selectNodeContents(each); return text.getClientRects().length > 1; }).map((each) => each.textContent)"
    )
    assert broken == []


def test_a_leaderboard_sorts_by_its_columns(browser: Browser, site: Path) -> None:
    browser.open(site / "index.html", "")
    browser.run("document.querySelector('table.claims thead th:nth-child(6) button').click()")
    scores: list[str] = browser.run(
        "[...document.querySelectorAll('table.claims tbody tr')].map((row) => row.cells[5].firstChild.textContent)"
    )
    assert scores == sorted(scores, reverse=True)
    assert len(set(scores)) > 10


def test_the_questions_of_a_claim_load_when_they_are_asked_for_and_can_be_searched(
    browser: Browser, site: Path
) -> None:
    browser.open(site / "claim-claim-7.html", "")
    assert "System claim-7" in browser.run("document.body.textContent")
    browser.run("document.getElementById('search').focus()")
    browser.wait("document.getElementById('questions').dataset.ready")
    assert browser.run("document.getElementById('count').textContent") == "1,540 questions"
    assert shown(browser, "#list li") == 50
    browser.run("document.getElementById('more').click()")
    assert shown(browser, "#list li") == 100
    assert search(browser, "near DAY 77?") == "15 of 1,540 questions"  # 77, 177 to 1477
    assert "day 77?" in browser.run("document.querySelector('#list .text').textContent")
    browser.run("document.getElementById('kind').value = 'wrong'")
    assert search(browser, "").endswith(" of 1,540 questions")
    assert shown(browser, "#list li") == 50
    assert "verdict 1 " not in browser.run("document.getElementById('list').textContent")


def test_rows_are_laid_out_when_they_are_near_the_screen(browser: Browser, site: Path) -> None:
    """All 130 rows come back after a search; a table that measured each of them took 57 ms for that, these rows take 3."""
    browser.open(site / "index.html", "")
    styles = "[...document.querySelectorAll('table.claims tbody tr')].map((row) => getComputedStyle(row)"
    assert set(browser.run(f"{styles}.contentVisibility)")) == {"auto"}
    assert set(browser.run(f"{styles}.display)")) == {"grid"}
    roles = browser.run(
        "[...document.querySelector('table.claims tbody tr').cells].map((cell) => cell.getAttribute('role'))"
    )
    assert roles == ["rowheader", *["cell"] * 10]


def test_questions_on_which_judges_differ_are_found(browser: Browser, site: Path) -> None:
    browser.open(site / "claim-claim-7.html", "")
    browser.run("report.questions()")
    browser.wait("document.getElementById('questions').dataset.ready")
    browser.run("document.getElementById('kind').value = 'differ'")
    assert search(browser, "") == "154 of 1,540 questions"
    assert "mem0 by longlong" in browser.run("document.querySelector('#list .meta').textContent")


def test_a_script_in_an_answer_is_text(browser: Browser, site: Path) -> None:
    browser.open(site / "claim-claim-7.html", "")
    browser.run("report.questions()")
    browser.wait("document.getElementById('questions').dataset.ready")
    assert search(browser, "reversed").startswith("1 of")
    assert SCRIPTS in browser.run("document.querySelector('#list .said').textContent")
    assert "\u202e" not in browser.run("document.body.textContent")
    assert browser.run("document.title") == "System claim-7 on LoCoMo"


def test_the_analysis_opens_and_every_page_prints(browser: Browser, site: Path) -> None:
    for page in ("analysis.html", "claim-claim-0.html"):
        browser.open(site / page, "")
        assert "[object" not in browser.run("document.body.textContent")
        assert browser.pdf().startswith(b"%PDF")


def test_dark_and_light_differ(running: Browser, site: Path) -> None:
    colours = []
    for scheme in ("light", "dark"):
        running.colours(scheme)
        running.open(site / "index.html", "")
        colours.append(running.run("getComputedStyle(document.body).backgroundColor"))
    running.colours("light")
    assert len(set(colours)) == 2

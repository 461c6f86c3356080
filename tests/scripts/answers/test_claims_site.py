"""The site of claims: its numbers, what it shows of others' texts, that these are inert, and the feed of changes."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

from eval.files.store import RunError
from eval.judging.agreement import kappa
from eval.report.rendering import number, span
from scripts.answers import audit
from scripts.answers.audit import STAND_IN, STORED, Grader, Judged, rank_agreement, regressions, spreads
from scripts.answers.claim_tables import as_json, ends, rows_of
from scripts.answers.manifest import AnswersFile, Printed
from scripts.answers.matching import Asked
from scripts.answers.pages import EXCERPT, EXCERPTS, LONGEST, data_terms, disagreements, terms_of
from scripts.answers.scoring import ScoredClaim
from scripts.command import verb
from scripts.commands import claims as claims_command
from scripts.commands import claims_site
from scripts.commands.claims_site import APART_EACH, ATOM, Wanted, build

pytestmark = pytest.mark.slow

Invent = Callable[..., ScoredClaim]
DAY = Wanted("2026-11-24")
FREE, CLOSED = terms_of("MIT", False), terms_of("none stated", False)


def site(folder: Path, *scored: ScoredClaim, wanted: Wanted = DAY, missing: dict[str, str] | None = None) -> Path:
    return build(scored, rows_of(scored), missing or {}, folder / "site", wanted).parent


def texts(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text(encoding="utf-8") for path in sorted(folder.rglob("*")) if path.is_file()}


def page(folder: Path, name: str) -> str:
    return (folder / f"claim-{name}.html").read_text(encoding="utf-8")


def data(folder: Path, name: str) -> Any:
    text = (folder / "data" / f"{name}.js").read_text(encoding="ascii")
    return json.loads(json.loads(text[text.index("JSON.parse(") + len("JSON.parse(") : -len("));\n")]))


class Tags(HTMLParser):
    """Every start tag of a page with its attributes."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))


def attributes(folder: Path) -> Iterator[tuple[str, str, str, str]]:
    """Page, tag, attribute and value of everything in the pages."""
    for name, text in texts(folder).items():
        for tag, attrs in Tags(text).tags if name.endswith(".html") else ():
            yield from ((name, tag, key, value or "") for key, value in attrs.items())


# --- numbers -----------------------------------------------------------------------------------------------------------


def test_the_numbers_are_those_that_the_command_claims_writes(tmp_path: Path, many: Any) -> None:
    scored = many(3, 40)
    folder = site(tmp_path, *scored)
    content = json.loads((folder / "claims.json").read_text())
    added = {"page", "hash"}
    bare = [{name: value for name, value in each.items() if name not in added} for each in content["claims"]]
    assert bare == json.loads(as_json(rows_of(scored), {}))["claims"]
    assert (content["schema"], content["version"]) == ("memsys-bench/claims", 1)
    for row in rows_of(scored):
        f1 = row.measures["f1"]
        assert f1 is not None
        assert f">{number(f1.mean)}<" in (folder / "index.html").read_text()
        assert ">0.99<" in (folder / "index.html").read_text(), "the printed score"


def test_full_context_stands_first_and_a_table_without_it_says_so(tmp_path: Path, invent: Invent) -> None:
    whole = invent("whole", product="full context", measures={"verdict": np.zeros(40)})
    folder = site(tmp_path, invent("memory"), whole, invent("other", dataset="BEAM"))
    index = (folder / "index.html").read_text()
    locomo, beam = index.split('id="set-LoCoMo')[1].split('id="set-BEAM')
    assert locomo.index("claim-whole.html") < locomo.index("claim-memory.html")
    assert "No full-context run" not in locomo
    assert "No full-context run" in beam
    assert "claim-whole.html" in page(folder, "memory")
    assert "No full-context run" in page(folder, "other")


def test_a_strip_draws_the_printed_means_and_those_of_full_context(tmp_path: Path, invent: Invent) -> None:
    whole = invent("whole", product="full context", measures={"verdict": np.array([1.0, 0.0] * 20)})
    folder = site(tmp_path, memory := invent("memory"), whole)
    (row,), (full_context,) = rows_of([memory]), rows_of([whole])
    judge, bar, f1 = row.answerable, full_context.answerable, row.measures["f1"]
    assert judge is not None
    assert bar is not None
    assert f1 is not None
    text = page(folder, "memory")
    strip = Tags(text[text.index('<svg class="strip"') : text.index("</svg>")]).tags
    drawn = {(tag, attrs.get("class")): attrs for tag, attrs in strip}
    assert drawn["circle", "judge"]["cx"] == str(round(200 * judge.mean, 1))
    assert drawn["line", "bar-judge"]["x1"] == str(round(200 * bar.mean, 1))
    assert float(drawn["rect", "f1"]["x"] or "nan") == pytest.approx(200 * f1.mean - 3.2, abs=0.06)


@pytest.mark.parametrize(
    ("count", "printed", "badge"), [(2000, 0.75, "badge good"), (40, 0.75, "badge"), (40, 0.99, "badge warning")]
)
def test_a_printed_score_has_the_colour_of_its_status(
    tmp_path: Path, invent: Invent, count: int, printed: float, badge: str
) -> None:
    """Supported by a file of the whole data set, by a part of it, and not supported."""
    verdict = np.array([1.0, 1.0, 1.0, 0.0] * (count // 4))
    claimed = (Printed(printed, 2, "judge", "all", "README"),)
    folder = site(tmp_path, invent("mem", count, claimed=claimed, measures={"verdict": verdict}))
    index = Tags((folder / "index.html").read_text())
    assert [attrs["class"] for tag, attrs in index.tags if tag == "span" and "badge" in (attrs.get("class") or "")] == [
        badge
    ]


def test_a_page_says_what_is_printed_and_what_the_file_gives(tmp_path: Path, invent: Invent) -> None:
    verdict = np.array([1.0] * 30 + [0.0] * 10)
    claimed = (
        Printed(0.80, 2, "judge", "all", "README", printed_at="docs/RESULTS.md:7 @0123abc"),
        Printed(0.75, 2, "judge", "all", "README", until="2026-05-13"),
    )
    invented = invent("mem", claimed=claimed, measures={"verdict": verdict}, answer_model="a reader")
    text = page(site(tmp_path, invented), "mem")
    said = (
        "0.80 (mean verdict, all questions) is printed in README; this file gives 0.75 (mean verdict): not supported by"
    )
    assert said in text
    line = "https://github.com/someone/results/blob/0123abc/docs/RESULTS.md#L7"
    assert f'Printed at <a href="{line}" rel="noopener noreferrer">docs/RESULTS.md:7 @0123abc</a>' in text
    assert "is printed in README until 2026-05-13; this file gives 0.75 (mean verdict): subset" in text
    assert ".venv/bin/python -m scripts claims mem --data ~/data" in text
    assert "https://github.com/someone/results/tree/0123abc" in text
    assert f"sha256 {'ab' * 32}" in text
    for name, value in {"date": "2026-03-01", "answer model": "a reader", "judge": "not stated"}.items():
        assert f"<dt>{name}</dt><dd>{value}</dd>" in text
    assert not re.search(r"\b(cheat|mislead|lie|fake|dishonest|manipulat)", text.casefold())


def test_the_page_over_many_files_has_the_numbers_of_its_functions(tmp_path: Path, many: Any) -> None:
    scored = [replace(each, claim=replace(each.claim, product="one product")) for each in many(6, 1100)]
    text = (site(tmp_path, *scored) / "analysis.html").read_text()
    fits = regressions(scored)
    assert fits
    for who, fit in fits.items():
        assert (
            f"<p>Verdicts of {who}: {fit.questions:,} answers, {fit.systems} files, {fit.histories} conversations."
            in text
        )
        for name, (points, interval) in fit.effects.items():
            row = f'<th scope="row">{name}</th><td class="number">{points:.1f}</td>'
            assert f"{row}<td>{span(interval, digits=1)}</td>" in text
    ranks = rank_agreement(scored)
    assert ranks is not None
    assert f"mean F1 over {ranks.claims} files: {ranks.plain:.2f}; with words held equal" in text
    (spread,) = spreads(scored)
    assert f'<th scope="row">one product</th><td data-label="data">{spread.dataset}</td>' in text
    assert f'<td data-label="judge">{ends(spread.verdict)}</td><td data-label="F1">{ends(spread.f1)}</td>' in text
    assert [text.count(f'<a href="{name}"') > 0 for name in ("claim-claim-0.html", "claim-claim-3.html")] == [True] * 2
    beam = replace(scored[0], claim=replace(scored[0].claim, dataset="BEAM"))
    few = (site(tmp_path / "few", beam) / "analysis.html").read_text()
    assert "Too few judged files of LoCoMo for this analysis." in few


@pytest.mark.parametrize(
    ("repository", "place"),
    [("javascript:alert(1)//x", "README.md:7 @0123abc"), ("a/b", "READ ME:7 @0123abc"), ("a/b", "README.md:7 @main")],
)
def test_a_place_of_another_kind_is_text_without_a_link(
    tmp_path: Path, invent: Invent, repository: str, place: str
) -> None:
    claimed = (Printed(0.5, 1, "judge", "all", "x", printed_at=place),)
    text = page(site(tmp_path, invent("mem", repository=repository, claimed=claimed)), "mem")
    assert f"Printed at {place}</li>" in text


def test_the_same_answers_under_another_name_are_linked(tmp_path: Path, invent: Invent) -> None:
    one = invent("one")
    folder = site(tmp_path, one, invent("two", texts=one.texts))
    for name, other in (("one", "two"), ("two", "one")):
        assert f'<li>same answers as <a href="claim-{other}.html"' in page(folder, name)


def test_missing_blank_and_repeated_answers_are_counted_and_listed(tmp_path: Path, invent: Invent) -> None:
    counts = Counter({"blank answer": 2, "duplicate": 30})
    listed = tuple(f"a.json[{at}]: duplicate" for at in range(30))
    text = page(site(tmp_path, invent("mem", counts=counts, listed=listed)), "mem")
    assert "and BEAM's abstentions, which have a reference answer" in " ".join(text.split())
    assert re.search(r"blank answer</th><td class=\"number\">2<", text)
    assert "a.json[19]: duplicate" in text
    assert "a.json[20]" not in text
    assert "and 10 more" in text


def test_the_largest_differences_of_verdict_and_f1_come_first(invent: Invent) -> None:
    verdict, f1 = np.full(40, np.nan), np.full(40, 0.5)
    verdict[:4], f1[:4] = [1, 1, 0, 1], [0.4, 0.1, 0.9, 0.9]
    made = disagreements(invent("mem", measures={"verdict": verdict, "f1": f1}), 10, FREE, FREE)
    assert [each["f1"] for each in made["right"]["listed"]] == ["0.10", "0.40"]
    assert [each["f1"] for each in made["wrong"]["listed"]] == ["0.90"]
    assert (made["right"]["count"], made["right"]["of"], made["wrong"]["of"]) == (2, 3, 1)


def test_questions_are_in_data_files_that_pages_load(tmp_path: Path, invent: Invent) -> None:
    first, half, own = invent("first"), invent("half", 20), invent("own", 20, dataset="BEAM", licence="Apache-2.0")
    folder = site(tmp_path, first, half, own)
    shared = data(folder, "questions-locomo")
    for scored in (first, half):
        mine = data(folder, f"claim-{scored.claim.name}")
        assert [shared[at][1] for at in mine["at"]] == [asked.question_id for asked in scored.asked]
        assert [shared[at][4] for at in mine["at"]] == [asked.text for asked in scored.asked]
        assert mine["answers"] == list(scored.texts)
    assert [row[5] for row in data(folder, "claim-own")["questions"]] == [asked.gold for asked in own.asked]
    assert first.texts[0] not in (folder / "index.html").read_text()


def judged(scored: ScoredClaim, people: bool = False, sha256: str = "") -> Judged:
    """The stored verdicts of a claim, of three in four answers where people gave them, and those of a judge that agrees with 30 of 40."""
    keys = [(each.case_id, each.question_id) for each in scored.asked]
    stored = dict(zip(keys, scored.verdicts, strict=True))
    labels = {key: value for at, (key, value) in enumerate(stored.items()) if at % 4 or not people}
    ours = {key: value if at < 30 else 1.0 - value for at, (key, value) in enumerate(stored.items())}
    return Judged((Grader(STORED, labels, 0), Grader("mem0 by j <b>", ours, 2)), sha256 or scored.sha256)


def test_answers_that_were_judged_again_have_every_grader_on_their_page(tmp_path: Path, invent: Invent) -> None:
    scored, other = invent("mem"), invent("other", seed=1)
    folder = build(
        (scored, other), rows_of((scored, other)), {}, tmp_path / "site", DAY, {"mem": judged(scored)}
    ).parent
    text = page(folder, "mem")
    assert re.search(r'<th scope="row">stored verdict</th><td data-label="judged">40</td>', text)
    assert re.search(
        r'<th scope="row">mem0 by j &lt;b&gt;</th><td data-label="judged">40</td><td data-label="failed">2</td>', text
    )
    both = [{key: value >= 0.5 for key, value in each.values.items()} for each in judged(scored).graders]
    assert f">stored verdict {number(kappa(*both))} [" in text
    assert "on 40</td>" in text
    assert "prediction-powered" not in text
    assert '<option value="differ">' in text
    assert "Judged again" not in page(folder, "other")
    assert "differ" not in page(folder, "other").split("<noscript>")[0].split('id="kind"')[1]
    mine = data(folder, "claim-mem")
    assert [name for name, _ in mine["judges"]] == ["mem0 by j <b>"]
    assert mine["judges"][0][1][:30] == mine["verdict"][:30]
    assert mine["judges"][0][1][30:] == [1.0 - value for value in mine["verdict"][30:]]
    assert "judges" not in data(folder, "claim-other")
    (first, second) = json.loads((folder / "claims.json").read_text())["claims"]
    again = (first if first["name"] == "mem" else second)["judged_again"]
    assert [each["grader"] for each in again["graders"]] == ["stored verdict", "mem0 by j <b>"]
    assert again["graders"][1]["kappa with"].endswith("on 40")


def test_labels_by_people_give_a_prediction_powered_score_on_the_page(tmp_path: Path, invent: Invent) -> None:
    scored = invent("mem", judge="people")
    folder = build(
        (scored,), rows_of((scored,)), {}, tmp_path / "site", DAY, {"mem": judged(scored, people=True)}
    ).parent
    assert re.search(
        r"prediction-powered by mem0 by j &lt;b&gt;: 0?\.\d+ .* from 30 labels and 40 verdicts", page(folder, "mem")
    )


def test_verdicts_on_another_version_of_the_file_are_not_shown(tmp_path: Path, invent: Invent) -> None:
    scored = invent("mem")
    old = {"mem": judged(scored, sha256="ab" * 32)}
    folder = build((scored,), rows_of((scored,)), {}, tmp_path / "site", DAY, old).parent
    assert "judged again in another version of this file" in page(folder, "mem")
    assert "mem0 by j" not in page(folder, "mem")
    assert "judges" not in data(folder, "claim-mem")


def test_a_stand_in_is_named_on_the_page_and_foreign_verdicts_are_counted(tmp_path: Path, invent: Invent) -> None:
    scored = invent("mem")
    graders = (Grader(f"mem0 by extractive{STAND_IN}", {("conv-0", "conv-0_0"): 1.0, ("gone", "gone"): 1.0}, 0),)
    again = {"mem": Judged(graders, scored.sha256)}
    text = page(build((scored,), rows_of((scored,)), {}, tmp_path / "site", DAY, again).parent, "mem")
    assert "its verdicts say nothing about the answers" in text
    assert "Left out are 1 of the verdicts" in text


def test_a_claim_whose_files_are_not_there_is_named(tmp_path: Path, invent: Invent) -> None:
    folder = site(tmp_path, invent("mem"), missing={"gone": "2 of 2 files are not there"})
    assert "gone: 2 of 2 files are not there" in (folder / "index.html").read_text()


# --- licences ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("licence", "shown", "commercial"),
    [
        ("MIT", True, True),
        ("MIT (README)", True, True),
        ("Apache-2.0", True, True),
        ("BSD-3-Clause", True, True),
        ("CC BY-NC 4.0", True, False),
        ("CC BY-NC-SA 4.0", False, False),
        ('AGPL-3.0 ("Core License")', False, False),
        ("LICENSE-ARTIFACTS.md", False, False),
        ("none stated", False, False),
        ("", False, False),
    ],
)
def test_a_licence_decides_whether_answers_are_shown(licence: str, shown: bool, commercial: bool) -> None:
    assert (terms_of(licence, False).whole, terms_of(licence, True).whole) == (shown, commercial)


def test_the_licences_of_data_sets_are_those_of_the_manifest() -> None:
    assert data_terms("LoCoMo", False).licence == "CC BY-NC 4.0"
    assert data_terms("LongMemEval", True).whole
    assert not data_terms("HaluMem", False).whole


def test_without_leave_a_page_has_scores_ids_and_short_excerpts_alone(tmp_path: Path, invent: Invent) -> None:
    long = tuple(f"reply {at} " + "and so on, at some length, " * 9 + f"until its end{at}." for at in range(200))
    folder = site(tmp_path, invent("closed", 200, licence="none stated", texts=long), invent("open", 200, texts=long))
    assert data(folder, "claim-closed")["answers"] is None
    assert data(folder, "claim-open")["answers"] == list(long)
    closed = page(folder, "closed")
    quoted = re.findall(r"reply \d+ and so on[^<]*", closed)
    assert 0 < len(quoted) <= EXCERPTS
    assert max(map(len, quoted)) <= EXCERPT + 2
    assert "until its end" not in "".join(text for name, text in texts(folder).items() if "open" not in name)
    assert (
        "without a licence the texts may not be passed on. Shown are scores, question ids and at most 20 excerpts"
        in closed
    )
    assert "it allows passing texts on, so the texts are here" in page(folder, "open")
    assert 2 * APART_EACH <= EXCERPTS


def test_a_commercial_host_gets_no_text_under_a_non_commercial_licence(tmp_path: Path, invent: Invent) -> None:
    folder = site(tmp_path, invent("mem"), wanted=replace(DAY, commercial=True))
    assert {(row[4], row[5]) for row in data(folder, "questions-locomo")} == {("", "")}
    assert "this site is a commercial one" in page(folder, "mem")


# --- text of others is inert -------------------------------------------------------------------------------------------

NASTY = "\u202eevil\u2066 <script>alert(1)</script><img src=x onerror=alert(2)> \"'`{{7*7}} ]]> &amp; \x1b[31m\x00\ufffe \u2028"
LONE = "\ud800"
"""Half a character, which answers and names cannot hold: reading refuses it."""


@pytest.fixture
def planted(tmp_path: Path, invent: Invent) -> Path:
    """A site of claims in which every text of others is nasty, and some are very long."""
    huge = LONE + NASTY + "x" * 100_000
    asked = tuple(
        Asked(NASTY, f"{LONE}{NASTY}{at}", huge if at == 0 else NASTY, NASTY, NASTY, True) for at in range(40)
    )
    facts = dict.fromkeys(("system", "by", "product", "date", "answer_model", "judge", "form", "note", "part"), huge)
    link = {"repository": "javascript:alert(3)//x", "commit": '"><script>alert(4)</script>'}
    files = (AnswersFile("javascript:alert(5)", "x", NASTY, 1), AnswersFile("it's/../<b>.json", "x", "ab" * 32, 1))
    claimed = (
        Printed(0.5, 1, NASTY, NASTY, huge, NASTY, NASTY, NASTY),
        Printed(0.5, 1, "judge", "all", "x", printed_at='javascript:"><script>:1 @0123abc'),
    )
    bad = {"asked": asked, "texts": (huge[1:], *[NASTY] * 39), "listed": (huge,) * 30, "counts": Counter({NASTY: 3})}
    verdict = np.array([1.0, 0.0] * 20)
    scored = [
        invent(
            name,
            **facts,
            **link,
            **bad,
            files=files,
            claimed=claimed,
            dataset=dataset,
            licence="MIT",
            measures={"verdict": verdict},
        )
        for name, dataset in (
            (NASTY, "LoCoMo"),
            ("../../up", "HaluMem"),
            ("a" * 300, "LoCoMo"),
            ("A", "LoCoMo"),
            ("a", "LoCoMo"),
        )
    ]
    return site(tmp_path, *scored, missing={NASTY: huge}, wanted=Wanted("2026-11-24", "", NASTY))


def test_planted_texts_become_no_tag_no_attribute_and_no_address(planted: Path) -> None:
    known = {
        "html",
        "head",
        "meta",
        "title",
        "link",
        "body",
        "a",
        "header",
        "h1",
        "nav",
        "main",
        "footer",
        "p",
        "script",
        "h2",
        "h3",
    }
    known |= {
        "ul",
        "li",
        "ol",
        "b",
        "small",
        "br",
        "div",
        "label",
        "input",
        "select",
        "option",
        "section",
        "table",
        "thead",
        "tbody",
    }
    known |= {
        "tr",
        "th",
        "td",
        "span",
        "svg",
        "line",
        "circle",
        "rect",
        "details",
        "summary",
        "i",
        "dl",
        "dt",
        "dd",
        "pre",
        "code",
    }
    known |= {"noscript", "button"}
    pages = {name: Tags(text).tags for name, text in texts(planted).items() if name.endswith(".html")}
    assert len(pages) == 7
    for name, tags in pages.items():
        assert {tag for tag, _ in tags} <= known, name
        assert [attrs.get("src") for tag, attrs in tags if tag == "script"] == ["dom.js", "claims.js"], name
    for name, tag, key, value in attributes(planted):
        assert not key.startswith("on"), (name, tag, key)
        assert key != "style", (name, tag)
        if key in ("href", "src"):
            assert re.fullmatch(r"[\w.#-]+|https://github\.com/[^\s\"'<>]*", value), (name, tag, value[:80])


def test_planted_texts_turn_no_direction_end_no_script_and_stay_short(planted: Path) -> None:
    for name, text in texts(planted).items():
        assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]", text), name
        if name.endswith(".js") and name.startswith(("claim-", "questions-")):
            assert "<" not in text
            assert re.fullmatch(r'report\.receive\("[^"\\]+", JSON\.parse\(".*"\)\);\n', text, re.DOTALL)
        if name.endswith(".html"):
            assert len(text) < 200_000, name
    assert len(data(planted, "questions-locomo")[0][4]) < LONGEST + 100
    ElementTree.fromstring((planted / "atom.xml").read_bytes())


def test_names_of_claims_become_names_of_files_in_the_site(planted: Path) -> None:
    names = [path.relative_to(planted).as_posix() for path in planted.rglob("*") if path.is_file()]
    assert all(re.fullmatch(r"(data/)?[\w.-]{1,90}", name) for name in names), names
    assert len({name.lower() for name in names if name.startswith("claim-")}) == 5


def test_the_site_asks_no_other_server_for_anything(tmp_path: Path, many: Any) -> None:
    folder = site(tmp_path, *many(2, 40))
    for name, tag, key, value in attributes(folder):
        if key in ("href", "src") and not (tag == "a" and value.startswith("https://github.com/")):
            assert (folder / value.partition("#")[0]).exists(), (name, tag, value)
    assert "default-src 'none'" in (folder / "index.html").read_text()
    assert not re.search(r"url\(|@import", (folder / "claims.css").read_text())


def test_folders_of_this_machine_and_keys_are_not_in_the_site(
    tmp_path: Path, invent: Invent, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = "sk-" + "q7" * 12
    monkeypatch.setenv("TOY_API_KEY", secret)
    said = (f"see {tmp_path / 'private'}/a.txt, {secret}", *["x"] * 39)
    folder = site(tmp_path, invent("mem", texts=said), wanted=Wanted("2026-11-24", private=(tmp_path / "private",)))
    whole = "".join(texts(folder).values())
    assert str(tmp_path / "private") not in whole
    assert secret not in whole


# --- changes -----------------------------------------------------------------------------------------------------------


def entries(folder: Path) -> list[dict[str, str]]:
    feed = ElementTree.fromstring((folder / "atom.xml").read_bytes())
    names = ("id", "title", "updated", "summary")
    return [{name: each.findtext(f"{{{ATOM}}}{name}", "") for name in names} for each in feed.iter(f"{{{ATOM}}}entry")]


def test_the_same_numbers_give_the_same_bytes(tmp_path: Path, many: Any) -> None:
    first, second = (site(tmp_path / name, *many(3, 40)) for name in "ab")
    before = {path.name: path.read_bytes() for path in first.rglob("*") if path.is_file()}
    assert before == {path.name: path.read_bytes() for path in second.rglob("*") if path.is_file()}
    again = site(tmp_path / "a", *many(3, 40), wanted=Wanted("2027-01-01"))
    assert before == {path.name: path.read_bytes() for path in again.rglob("*") if path.is_file()}


def test_a_claim_whose_numbers_change_gets_an_entry_and_keeps_the_old_one(tmp_path: Path, invent: Invent) -> None:
    folder = site(tmp_path, invent("mem"), invent("still", seed=5))
    old = entries(folder)
    assert len(old) == 2
    site(tmp_path, invent("mem", seed=1), invent("still", seed=5), wanted=Wanted("2026-12-01"))
    new, *rest = entries(folder)
    assert sorted(map(str, rest)) == sorted(map(str, old))
    assert (new["title"], new["updated"]) == ("mem: numbers have changed", "2026-12-01T00:00:00Z")
    assert re.search(r"F1: 0\.\d{3} → 0\.\d{3}", new["summary"])
    assert len({each["id"] for each in (new, *rest)}) == 3
    assert "2026-12-01" in page(folder, "mem")


def test_a_new_note_is_no_change_of_numbers(tmp_path: Path, invent: Invent) -> None:
    folder = site(tmp_path, invent("mem"))
    site(tmp_path, invent("mem", note="its page has moved"), wanted=Wanted("2026-12-01"))
    assert [each["updated"] for each in entries(folder)] == ["2026-11-24T00:00:00Z"]


def test_without_a_day_the_manifest_dates_what_is_new_and_a_change_asks_for_one(tmp_path: Path, invent: Invent) -> None:
    folder = site(tmp_path, invent("mem"), invent("undated", date=""), wanted=Wanted())
    assert {each["updated"] for each in entries(folder)} == {"2026-03-01T00:00:00Z"}
    with pytest.raises(RunError, match="numbers of mem have changed; give the day of the change: --date"):
        site(tmp_path, invent("mem", seed=1), wanted=Wanted())


def test_the_changes_of_a_claim_that_is_left_out_stay(tmp_path: Path, invent: Invent) -> None:
    folder = site(tmp_path, invent("mem"), invent("other", seed=3))
    site(tmp_path, invent("mem"))
    assert len(entries(folder)) == 2


@pytest.mark.parametrize(
    "poison", [{"numbers": 5}, {"numbers": {"F1": {"a": 1}}}, {"date": '"><script>'}, {"hash": ["x"]}, {"more": "x"}]
)
def test_a_history_of_other_values_is_refused(tmp_path: Path, invent: Invent, poison: dict[str, Any]) -> None:
    place = site(tmp_path, invent("mem")) / "claims.json"
    content = json.loads(place.read_text())
    content["changes"]["mem"][0] |= poison
    place.write_text(json.dumps(content))
    with pytest.raises(RunError, match="no history of claims"):
        site(tmp_path, invent("mem"))


def test_names_of_data_sets_are_no_ids_of_the_page(tmp_path: Path, invent: Invent) -> None:
    names = ("search", "status", "page", "count", "LoCoMo", "locomo", '"><b>')
    folder = site(tmp_path, *(invent(f"mem{at}", dataset=name) for at, name in enumerate(names)))
    tags = Tags((folder / "index.html").read_text()).tags
    ids = [attrs["id"] for _, attrs in tags if "id" in attrs]
    assert len(ids) == len(set(ids))
    for at in range(len(names)):
        (link,) = re.findall(r'href="index\.html#(set-[^"]*)"', page(folder, f"mem{at}"))
        assert link in ids


def test_another_folder_is_not_replaced_and_a_damaged_history_is_named(tmp_path: Path, invent: Invent) -> None:
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "mine.txt").write_text("keep")
    with pytest.raises(RunError, match="is no report"):
        site(tmp_path, invent("mem"))
    (tmp_path / "site" / "claims.json").write_text('{"changes": {"mem": [1]}}')
    with pytest.raises(RunError, match="no history of claims"):
        site(tmp_path, invent("mem"))
    assert (tmp_path / "site" / "mine.txt").read_text() == "keep"


# --- README's table ----------------------------------------------------------------------------------------------------


def test_the_head_has_its_rows_in_order_80_columns_wide_with_remarks(
    invent: Invent, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claims_command, "HEAD_NAMES", ("second", "gone", "first"))
    monkeypatch.setattr(audit, "WHOLE", {"LoCoMo": 38})  # the answerable questions of an invented claim
    own = rows_of([invent("second")])[0].file_mean
    assert own is not None
    claimed = tuple(Printed(score, 3, "judge", "all", "page") for score in (0.991, own))
    long = invent("second", product="a | b *c* " * 9, note="word " * 40, claimed=claimed)
    made = rows_of([invent("first", claimed=()), long, invent("third")])
    lines = claims_command.head(made).splitlines()
    assert {len(line) for line in lines[:4]} == {80}
    assert max(map(len, lines)) <= 80
    assert lines[2].startswith("| a / b *c* a / b")
    first = next(row for row in made if row.scored.claim.name == "first")
    assert first.answerable is not None
    assert first.measures["f1"] is not None
    numbers = [f"{value:.3f}" for value in (first.file, first.answerable.mean, first.measures["f1"].mean)]
    assert [cell.strip() for cell in lines[3].split("|")[1:-2]] == ["first · someone", "–", *numbers]
    assert lines[5].startswith("- a / b \\*c\\*")
    remarks = " ".join(map(str.strip, lines[5:]))
    assert "0.991 is not supported by this file" in remarks
    assert ": supported" not in remarks


# --- the command -------------------------------------------------------------------------------------------------------


def test_the_command_builds_the_site_and_says_what_is_not_there(
    tmp_path: Path, invent: Invent, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(
        claims_site, "scored_claims", lambda wanted, root, workers: ([invent("mem")], {"gone": "no file"})
    )
    assert (
        verb("claims-site", ["--results", str(tmp_path), "--date", "2026-11-24", "--url", "https://x.org/claims"]) == 1
    )
    printed = capsys.readouterr().out
    assert f"1 claim; open in a browser: {tmp_path}/claims_site/index.html" in printed
    assert "not there: gone: no file" in printed
    assert 'href="https://x.org/claims/claim-mem.html"' in (tmp_path / "claims_site" / "atom.xml").read_text()
    assert verb("claims-site", ["--results", str(tmp_path), "--url", "javascript:1"]) == 2
    with pytest.raises(SystemExit):
        verb("claims-site", ["--date", "yesterday"])

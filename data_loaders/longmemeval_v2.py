"""LongMemEval-V2, its text part: trajectories of web agents, and questions about the environments that they worked in.

Wu et al. 2026 (arXiv 2605.12493). The released files were not available: this loader was written from
- the release's code, xiaowu0162/LongMemEval-V2 at be15ea6 (data/public_data.py, memory_modules/trajectory_store.py, evaluation/harness.py):
  files, fields, types, rules of validity, and the condition for sharing a memory;
- the card of the data set (hub: xiaowu0162/longmemeval-v2, revision f152293): files, 451 questions, 1,870 trajectories, Apache-2.0;
- notes of other projects that counted revision f152293, from an index of public texts that does not name the projects: 29 questions show a
  screenshot, all of them `errors-gotchas`; 422 do not, 294 of them scored without a judge; their types and domains; 100 trajectories for
  each question of the small tier, 200 in all; the sha256 of each file, on which two of them agree.

A folder holds `questions.jsonl`, `trajectories.jsonl` and `haystacks/lme_v2_<tier>.json`, which maps a question's id to the ids of its
trajectories. Questions with the same list of trajectories share one history, as in the official harness. `trajectories.jsonl` has 1.2 GB;
it is indexed as a stream, and the trajectories of a history are parsed when the history is read.

How the raw files are treated:
- A trajectory is a session and each of its states a turn: address, thought, action and accessibility tree, one below the other, as far
  as they are given. The action of a state led to it from the state before. `observations="drop"` leaves the trees out, which hold most of
  the tokens. Goal and outcome are in the heading of the session, so that every unit names its task. Screenshots are not read.
- A question with a screenshot is left out, with a note. No question of errors and gotchas is left then.
- Turn ids are `<trajectory>:<position of the state>`. There are no dates, and the release has no evidence labels.
- The domain's description, which the official system prompt gives, is the question's instruction, in our words.

Deviation from the release: its reader sees images as well, and is a fixed model (Qwen3.5-9B). Its system prompts ask for an explanation
"in oxed{}" behind a backspace character, a slip in a string; ours ask for `\\boxed{}`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from data_loaders.raw import LazyCases, Raw, check_choice, check_unique, line_at, read_lines, read_raw, scan_lines
from data_loaders.schema import Case, DataError, Gold, Question, Session, Turn

CATEGORIES: Mapping[str, str] = {
    "static-environment": "static",
    "static-environment-abs": "static-abs",
    "dynamic-environment": "dynamic",
    "dynamic-environment-abs": "dynamic-abs",
    "procedure": "procedure",
    "procedure-abs": "procedure-abs",
    "errors-gotchas": "gotchas",
}
"""Category by the raw `question_type`, as in the official summary; `-abs` marks the questions with a wrong premise."""
ENVIRONMENTS: Mapping[str, str] = {
    "web": "Environment: a web shop, the administration of that shop (both Magento), and a forum (Postmill), each customised.",
    "enterprise": "Environment: a customised ServiceNow instance.",
}
"""The reader's introduction to each domain."""

Tier = Literal["small", "medium"]
Observations = Literal["keep", "drop"]
Judged = Literal["keep", "drop"]

_QUESTIONS, _TRAJECTORIES = "questions.jsonl", "trajectories.jsonl"


@dataclass(frozen=True, slots=True)
class _Place:
    """The position of a trajectory in its file."""

    where: str
    position: int
    domain: str


def load(
    path: Path, *, tier: Tier = "small", observations: Observations = "keep", judged: Judged = "keep"
) -> LazyCases:
    """One case per list of trajectories that questions of the folder `path` share; sizes are numbers of trajectories.

    `judged="drop"` leaves out the questions whose scorer asks a model, which have a wrong premise. Case ids are `<domain>-<number>`.
    `Gold.detail` has `eval_function` (the scorer and its options, as released), `question_type`, `domain` and `environment`.
    Raises DataError for malformed files, and ValueError for an unknown choice.
    """
    check_choice("tier", tier, Tier)
    check_choice("observations", observations, Observations)
    check_choice("judged", judged, Judged)
    asked = read_lines(path / _QUESTIONS)
    check_unique((each.text("id") for each in asked), f"{_QUESTIONS}: id")
    groups = _groups(asked, path / "haystacks" / f"lme_v2_{tier}.json")
    places = _places(path / _TRAJECTORIES, {name for names in groups for name in names})
    for names, questions in groups.items():
        question, domain = questions[0].text("id"), _domain(questions[0])
        if wrong := next((places[name] for name in names if places[name].domain != domain), None):
            raise DataError(f"{wrong.where}.domain: expected {domain}, as question {question}, found another")
    domains = [_domain(questions[0]) for questions in groups.values()]
    ids = [f"{domain}-{domains[: number + 1].count(domain)}" for number, domain in enumerate(domains)]

    def parse(index: int) -> Case:
        names, questions = list(groups.items())[index]
        kept = [each for each in questions if judged == "keep" or not each.text("eval_function").startswith("llm_")]
        return _case(ids[index], path / _TRAJECTORIES, [(name, places[name]) for name in names], kept, observations)

    return LazyCases(ids, [len(names) for names in groups], parse)


def _domain(asked: Raw) -> str:
    return asked.choice(ENVIRONMENTS, "domain")


def _groups(asked: Sequence[Raw], file: Path) -> dict[tuple[str, ...], list[Raw]]:
    """Questions by their list of trajectories, in the order of the file of questions."""
    haystacks = read_raw(file)
    groups: dict[tuple[str, ...], list[Raw]] = {}
    for each in asked:
        _domain(each)
        names = haystacks.texts(each.text("id"))
        check_unique(names, f"{file.name}.{each.text('id')}")
        groups.setdefault(names, []).append(each)
    if unknown := set(haystacks.of(dict)) - {each.text("id") for each in asked}:
        raise DataError(f"{file.name}: expected ids of {_QUESTIONS}, found {min(unknown)[:60]!r}")
    return groups


def _places(file: Path, wanted: set[str]) -> dict[str, _Place]:
    places: dict[str, _Place] = {}
    for position, record in scan_lines(file):
        name = record.text("id")
        if name in places:
            raise DataError(f"{record.where}.id: expected unique ids, found {name[:60]!r} twice")
        if name in wanted:
            places[name] = _Place(record.where, position, record.text("domain"))
    if missing := wanted - set(places):
        raise DataError(
            f"{file.name}: expected the trajectories of the haystacks, found none called {min(missing)[:60]!r}"
        )
    return places


def _case(
    case_id: str, file: Path, places: Sequence[tuple[str, _Place]], asked: Sequence[Raw], observations: Observations
) -> Case:
    sessions = tuple(
        _session(number, name, line_at(file, place.position, place.where), observations)
        for number, (name, place) in enumerate(places, 1)
    )
    questions = tuple(_question(each) for each in asked if each.of(dict).get("image") is None)
    shown = len(asked) - len(questions)
    notes = (f"Left out, because they show a screenshot: {shown} of {len(asked)} questions.",) if shown else ()
    return Case(case_id, ("Agent",), sessions, questions, cluster=case_id, notes=notes)


def _session(number: int, name: str, record: Raw, observations: Observations) -> Session:
    states = enumerate(record.each("states"))
    turns = tuple(Turn(f"{name}:{place}", "Agent", _state(state, observations)) for place, state in states)
    outcome = record.optional("outcome")
    heading = f"Task: {record.text('goal')}{f' (outcome: {outcome})' if outcome else ''}"
    return Session(f"S{number}", turns, heading=heading)


def _state(state: Raw, observations: Observations) -> str:
    """A state as text: a line for its address, thought and action, then its accessibility tree."""
    lines = [f"Page: {state.text('url')}"]
    for key, title in (("thought", "Thought"), ("action", "Action")):
        if text := state.optional(key):
            lines.append(f"{title}: {text}")
    tree = state.optional("accessibility_tree")
    return "\n".join([*lines, tree] if tree and observations == "keep" else lines)


def _question(asked: Raw) -> tuple[Question, Gold]:
    kind = asked.choice(CATEGORIES, "question_type")
    text, answer = asked.text("question"), asked.text("answer")
    if not text.strip() or not answer.strip():
        raise DataError(f"{asked.where}: expected a question and an answer, found none")
    domain = _domain(asked)
    detail = {
        "eval_function": asked.text("eval_function"),
        "question_type": kind,
        "domain": domain,
        "environment": asked.optional("environment"),
    }
    gold = Gold((answer,), (), CATEGORIES[kind], answerable=not kind.endswith("-abs"), groups=(domain,), detail=detail)
    return Question(asked.text("id"), text, instruction=ENVIRONMENTS[domain]), gold

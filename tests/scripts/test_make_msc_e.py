"""MSC-E made again: what is asked for in which order, what is refused, and what a kill leaves behind."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from scripted import ScriptedLLM

from data_loaders.msc import load as load_msc
from data_loaders.msc_e import load
from eval.files.store import RunError, read_lines
from memsys.llm.ask import ParseFailure
from memsys.llm.protocol import ModelError, Request
from memsys.prompts import Prompts
from scripts.command import verb
from scripts.commands.make_msc_e import Seed, Writer, generate, lines, read_rounds, seeds

main = partial(verb, "make-msc-e")

pytestmark = pytest.mark.slow

MSC = Path(__file__).resolve().parents[2] / "data_loaders" / "samples" / "msc"
PROMPTS = Prompts()
SEED = Seed(0, "valid_9", 0, tuple((f"A{n}.", f"B{n}.") for n in range(1, 7)))
SETTINGS = {
    "version": "v",
    "model": "scripted",
    "stand_in": False,
    "window": 8,
    "rounds_a_step": 2,
    "prompts": PROMPTS.digest(["msc_e"]),
}


def well_behaved(request: Request) -> str:
    """Numbered turns and a question about them; the same for the same request, as a cache would have it."""
    start = request.fields["round"] + 1
    if request.purpose == "msc_e.question":
        return json.dumps({"question": f"What about {start}?", "response": f"A{start}."})
    return "\n".join(f"Alex: A{n}.\nBob: B{n}." for n in range(start, start + request.fields["rounds"]))


def writer(folder: Path, script: Any = well_behaved, *, rounds: int = 12, retries: int = 2) -> Writer:
    return Writer(ScriptedLLM(script), PROMPTS, rounds, retries, folder / "msc_e.jsonl.parts")


def requests(one: Writer) -> list[Request]:
    assert isinstance(one.llm, ScriptedLLM)
    return one.llm.requests


def several(count: int) -> list[Seed]:
    return [replace(SEED, number=number) for number in range(count)]


# --- what is asked for -------------------------------------------------------------------------------------------------


def test_each_step_asks_for_two_rounds_and_then_for_one_question(tmp_path: Path) -> None:
    one = writer(tmp_path)
    generate(one, [SEED], tmp_path, SETTINGS)
    assert [request.purpose for request in requests(one)] == ["msc_e.continue", "msc_e.question"] * 3
    turns = [request.fields["turns"] for request in requests(one)[::2]]
    assert turns == [4, 4, 4]


def test_a_step_sees_the_last_eight_turns_and_no_more(tmp_path: Path) -> None:
    one = writer(tmp_path)
    generate(one, [SEED], tmp_path, SETTINGS)
    first, second = requests(one)[0], requests(one)[2]
    assert list(first.fields["recent"]) == lines((f"A{n}.", f"B{n}.") for n in (3, 4, 5, 6))
    assert list(second.fields["recent"]) == lines((f"A{n}.", f"B{n}.") for n in (5, 6, 7, 8))
    shown = first.messages[-1][1]
    assert "Alex: A3.\nBob: B3.\n" in shown
    assert "A2." not in shown
    assert "Write the 4 turns that come next. Alex opens" in shown
    assert "each of them speaks 2 time(s)" in shown


def test_a_question_is_asked_about_the_new_rounds_only(tmp_path: Path) -> None:
    one = writer(tmp_path)
    generate(one, [SEED], tmp_path, SETTINGS)
    shown = requests(one)[1].messages[-1][1]
    assert "<chat>\nAlex: A7.\nBob: B7.\nAlex: A8.\nBob: B8.\n</chat>" in shown
    assert "Bob could put to Alex" in shown


def test_the_last_step_asks_for_no_more_rounds_than_are_missing(tmp_path: Path) -> None:
    one = writer(tmp_path, rounds=9)
    (case,) = load(generate(one, [SEED], tmp_path, SETTINGS))
    assert [request.fields["rounds"] for request in requests(one)[::2]] == [2, 1]
    assert len(case.turns) == 18


def test_a_seed_drawn_upon_again_is_another_draw_from_the_model(tmp_path: Path) -> None:
    one = writer(tmp_path)
    generate(one, [replace(SEED, draw=3)], tmp_path, SETTINGS)
    assert {request.sample for request in requests(one)} == {3}


# --- what is refused ---------------------------------------------------------------------------------------------------


def test_turns_are_read_with_their_names_and_without_decoration() -> None:
    reply = "Alex: One: two.\n\n**Bob:** Three.\n  Alex : Four.\nBob: Five."
    assert read_rounds(reply, 2) == (("One: two.", "Three."), ("Four.", "Five."))


def test_turns_out_of_turn_are_refused_with_a_reason(subtests: pytest.Subtests) -> None:
    for reply, why in [
        ("Bob: One.\nAlex: Two.", "expected Alex, Bob to speak, found Bob, Alex"),
        ("Alex: One.\nAlex: Two.", "found Alex, Alex"),
        ("Alex: One.", "found Alex"),
        ("Alex: One.\nBob: Two.\nAlex: Three.\nBob: Four.", "found Alex, Bob, Alex, Bob"),
        ("Alex: One.\nBob: Two.\nand so on", "line 3 does not begin with a name"),
        ("Here it comes\nAlex: One.\nBob: Two.", "line 1 does not begin with a name"),
        ("Alex: One.\nCarla: Two.", "line 2 does not begin with a name"),
        ("Alex: One.\nBob:", "line 2 does not begin with a name"),
        ("", "found nobody"),
    ]:
        with subtests.test(reply=reply, why=why):
            found = read_rounds(reply, 1)
            assert isinstance(found, ParseFailure)
            assert why in found.why


def test_a_reply_out_of_turn_is_asked_for_again(tmp_path: Path) -> None:
    turns = ["Bob: No.\nAlex: No.", "Alex: A.\nBob: B."]
    one = writer(tmp_path, {"msc_e.continue": turns, "msc_e.question": well_behaved}, rounds=7)
    (case,) = load(generate(one, [SEED], tmp_path, SETTINGS))
    assert [(request.purpose, request.retry) for request in requests(one)] == [
        ("msc_e.continue", 0),
        ("msc_e.continue", 1),
        ("msc_e.question", 0),
    ]
    assert [turn.text for turn in case.turns[-2:]] == ["A.", "B."]


@pytest.mark.parametrize(
    "bad",
    [
        "no JSON",
        '{"question": "What?"}',
        '{"question": " ", "response": "x"}',
        '{"question": "what about... 7", "response": "x"}',
    ],
)
def test_a_question_that_is_none_or_was_asked_before_is_asked_for_again(tmp_path: Path, bad: str) -> None:
    good = [json.dumps({"question": f"What about {n}?", "response": "x"}) for n in (7, 9)]
    one = writer(tmp_path, {"msc_e.continue": well_behaved, "msc_e.question": [good[0], bad, good[1]]}, rounds=10)
    (case,) = load(generate(one, [SEED], tmp_path, SETTINGS))
    assert [question.text for question, _ in case.questions] == ["What about 7?", "What about 9?"]
    assert [request.retry for request in requests(one) if request.purpose == "msc_e.question"] == [0, 0, 1]


def test_when_no_attempt_helps_the_others_are_finished_and_no_set_is_written(tmp_path: Path) -> None:
    def stubborn(request: Request) -> str:
        return "nonsense" if request.fields["number"] == 1 and request.fields["round"] == 8 else well_behaved(request)

    one = writer(tmp_path, stubborn)
    with pytest.raises(RunError, match=r"1 of 3 .* msc_e_1 after round 8: no usable reply .* in 3 attempts"):
        generate(one, several(3), tmp_path, SETTINGS)
    assert not (tmp_path / "msc_e.jsonl").exists()
    assert [len(read_lines(one.part(seed))) for seed in several(3)] == [3, 1, 3]


def test_a_call_that_fails_for_good_ends_its_conversation_only(tmp_path: Path) -> None:
    def failing(request: Request) -> Any:
        return ModelError("no credit") if request.fields["number"] == 0 else well_behaved(request)

    one = writer(tmp_path, failing)
    with pytest.raises(RunError, match="1 of 2 conversations are not finished; no credit"):
        generate(one, several(2), tmp_path, SETTINGS)
    assert len(read_lines(one.part(several(2)[1]))) == 3


# --- going on ----------------------------------------------------------------------------------------------------------


class Killed(BaseException):
    """As abrupt as a kill, but only for the test's own threads."""


def killed_after(calls: int) -> Callable[[Request], str]:
    left = iter(range(calls))

    def reply(request: Request) -> str:
        if next(left, None) is None:
            raise Killed
        return well_behaved(request)

    return reply


@pytest.mark.parametrize("calls", [0, 1, 2, 3, 5, 11])
def test_a_killed_run_goes_on_behind_its_last_whole_step(tmp_path: Path, calls: int) -> None:
    whole = generate(writer(tmp_path / "whole"), several(2), tmp_path / "whole", SETTINGS)
    with pytest.raises(Killed):
        generate(writer(tmp_path, killed_after(calls)), several(2), tmp_path, SETTINGS, threads=1)
    again = writer(tmp_path)
    path = generate(again, several(2), tmp_path, SETTINGS)
    assert path.read_bytes() == whole.read_bytes()
    assert len(requests(again)) == 12 - calls // 2 * 2


def test_after_a_kill_the_questions_of_before_still_count_as_asked(tmp_path: Path) -> None:
    with pytest.raises(Killed):
        generate(writer(tmp_path, killed_after(2)), [SEED], tmp_path, SETTINGS)
    questions = [json.dumps({"question": f"What about {n}?", "response": "x"}) for n in (7, 9)]
    again = writer(tmp_path, {"msc_e.continue": well_behaved, "msc_e.question": questions}, rounds=10)
    (case,) = load(generate(again, [SEED], tmp_path, SETTINGS))
    assert [question.text for question, _ in case.questions] == ["What about 7?", "What about 9?"]


def test_a_torn_line_is_written_anew(tmp_path: Path) -> None:
    one = writer(tmp_path)
    whole = generate(one, [SEED], tmp_path, SETTINGS).read_bytes()
    part = one.part(SEED)
    part.write_bytes(part.read_bytes()[:-30])
    again = writer(tmp_path)
    assert generate(again, [SEED], tmp_path, SETTINGS).read_bytes() == whole
    assert len(requests(again)) == 2
    assert len(part.read_text().splitlines()) == 3


def test_a_finished_set_asks_nothing_and_takes_more_conversations(tmp_path: Path) -> None:
    before = generate(writer(tmp_path), several(1), tmp_path, SETTINGS).read_bytes()
    silent = writer(tmp_path, {})
    assert generate(silent, several(1), tmp_path, SETTINGS).read_bytes() == before
    more = writer(tmp_path)
    assert generate(more, several(2), tmp_path, SETTINGS).read_bytes().startswith(before)
    assert {request.fields["number"] for request in requests(more)} == {1}


def test_parts_of_another_model_are_not_continued(tmp_path: Path) -> None:
    generate(writer(tmp_path), [SEED], tmp_path, SETTINGS)
    with pytest.raises(RunError, match=r"begun with other settings \(model\)"):
        generate(writer(tmp_path), [SEED], tmp_path, {**SETTINGS, "model": "another"})


# --- what is written ---------------------------------------------------------------------------------------------------


def long(folder: Path, **more: Any) -> Any:
    (case,) = load(generate(writer(folder, rounds=82), [SEED], folder, SETTINGS, **more))
    return case


def test_the_loader_reads_the_set_and_has_nothing_to_remark(tmp_path: Path) -> None:
    case = long(tmp_path)
    assert case.id == "msc_e_0"
    assert case.notes == ()
    assert case.speakers == ("Alex", "Bob")
    assert [turn.speaker for turn in case.turns] == ["Alex", "Bob"] * 82
    assert [turn.text for turn in case.turns][:2] == ["A1.", "B1."]
    assert case.turns[-1].text == "B82."
    assert len(case.questions) == (82 - 6) // 2


def test_evidence_is_the_turns_of_the_step_and_its_bin_the_round_in_which_it_ends(tmp_path: Path) -> None:
    case = long(tmp_path)
    known = {turn.id: turn.text for turn in case.turns}
    for number, (question, gold) in enumerate(case.questions):
        first = 7 + 2 * number
        assert gold.evidence == (f"R{first}:1", f"R{first}:2", f"R{first + 1}:1", f"R{first + 1}:2")
        assert question.text == f"What about {first}?"
        assert gold.answers == (f"A{first}.",) == (known[gold.evidence[0]],)
    bins = [gold.category for _, gold in case.questions]
    assert bins == ["0-40"] * 17 + ["40-80"] * 20 + ["80-120"]


def test_questions_are_asked_at_the_end_or_after_their_step(tmp_path: Path) -> None:
    assert {question.after for question, _ in long(tmp_path).questions} == {None}
    asked = long(tmp_path, after_round=True).questions
    assert [question.after for question, _ in asked] == [gold.evidence[-1] for _, gold in asked]


def test_the_files_say_who_made_them_and_that_they_are_not_the_papers(tmp_path: Path) -> None:
    path = generate(writer(tmp_path), several(2), tmp_path, SETTINGS)
    about = json.loads((tmp_path / "msc_e.jsonl.about.json").read_text())
    assert "Not the paper's data" in about["what"]
    assert "STAND-IN" not in about["what"]
    assert (about["model"], about["prompts"]) == ("scripted", PROMPTS.digest(["msc_e"]))
    assert about["sha256"] == hashlib.sha256(path.read_bytes()).hexdigest()
    assert (about["conversations"], about["questions"]) == (2, 6)
    made = [json.loads(line)["generator"] for line in path.read_text().splitlines()]
    assert {each["model"] for each in made} == {"scripted"}
    assert made[0]["prompts"] == about["prompts"]
    assert made[0]["seed"] == {"conversation": "valid_9", "rounds": 6, "draw": 0}


# --- seeds -------------------------------------------------------------------------------------------------------------


def test_a_seed_is_the_first_session_in_whole_steps() -> None:
    cases = load_msc(MSC)
    found = seeds(cases, 2, 200)
    assert [seed.origin for seed in found] == [case.id for case in cases][:2]
    for seed, case in zip(found, cases, strict=False):
        said = [turn.text for turn in case.sessions[0].turns]
        assert len(seed.rounds) == len(said) // 4 * 2
        assert [text for pair in seed.rounds for text in pair] == said[: 2 * len(seed.rounds)]


def test_too_few_seeds_are_drawn_upon_again_and_more_conversations_change_no_earlier_one() -> None:
    cases = load_msc(MSC)
    assert [(seed.origin, seed.draw) for seed in seeds(cases, 5, 200)] == [
        *((case.id, 0) for case in cases),
        *((case.id, 1) for case in list(cases)[:2]),
    ]
    assert seeds(cases, 5, 200)[:2] == seeds(cases, 2, 200)


def test_without_a_usable_seed_nothing_begins() -> None:
    with pytest.raises(RunError, match="no first session of at least two rounds"):
        seeds([replace(case, sessions=()) for case in load_msc(MSC)], 1, 200)


# --- the command -------------------------------------------------------------------------------------------------------


def test_offline_a_stand_in_writes_the_set_and_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["--conversations", "4", "--rounds", "44"]
    assert main(["--out", str(tmp_path / "one"), *command]) == 0
    said = capsys.readouterr().out
    assert "STAND-IN" in said
    assert "not comparable with the paper's" in said
    about = json.loads((tmp_path / "one" / "msc_e.jsonl.about.json").read_text())
    assert about["stand_in"]
    assert "STAND-IN" in about["what"]
    assert about["seeds"]["status"] == "sample"
    cases = load(tmp_path / "one" / "msc_e.jsonl")
    assert [len(case.turns) for case in cases] == [88] * 4
    assert len({case.turns[20:] for case in cases}) == 4
    assert not any(case.notes for case in cases)
    assert main(["--out", str(tmp_path / "two"), *command, "--threads", "1"]) == 0
    files = [(tmp_path / name / "msc_e.jsonl").read_bytes() for name in ("one", "two")]
    assert files[0] == files[1]


@pytest.mark.parametrize("half", [["--model", "m"], ["--base-url", "http://127.0.0.1:9/v1"]])
def test_a_model_without_an_endpoint_is_refused(half: list[str], tmp_path: Path) -> None:
    with pytest.raises(SystemExit):
        main(["--out", str(tmp_path), *half])


def test_a_model_with_a_price_on_another_machine_needs_a_cap(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    paid = ["--model", "gpt-4o-mini", "--base-url", "https://api.example/v1", "--conversations", "1"]
    assert main(["--out", str(tmp_path), *paid, "--retries", "0"]) == 2
    assert (
        "https://api.example/v1 costs money: say how much may be spent, such as --max-usd 5" in capsys.readouterr().err
    )
    assert not list(tmp_path.rglob("*.parts"))


@pytest.fixture
def endpoint() -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """An OpenAI-compatible server that continues chats properly, and the bodies that it was sent."""
    bodies: list[dict[str, Any]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            bodies.append(body)
            text = f'{{"question": "What about {len(bodies)}?", "response": "This."}}'
            if "response_format" not in body:
                text = f"Alex: {len(bodies)} one.\nBob: Two.\nAlex: Three.\nBob: Four."
            usage = {"prompt_tokens": 100, "completion_tokens": 10}
            reply = json.dumps({"choices": [{"message": {"content": text}}], "usage": usage}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(reply)))
            self.end_headers()
            self.wfile.write(reply)

        def log_message(self, format: str, *arguments: Any) -> None:
            """Silence."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}/v1", bodies
    server.shutdown()
    server.server_close()
    thread.join(10)


def test_an_endpoint_is_asked_by_the_models_name_and_its_usage_recorded(
    endpoint: tuple[str, list[dict[str, Any]]], tmp_path: Path
) -> None:
    url, bodies = endpoint
    command = [
        "--out",
        str(tmp_path),
        "--conversations",
        "1",
        "--rounds",
        "8",
        "--model",
        "my-model",
        "--base-url",
        url,
    ]
    assert main(command) == 0
    seed = len(seeds(load_msc(MSC), 1, 8)[0].rounds)
    steps = (8 - seed) // 2
    assert [("response_format" in body) for body in bodies] == [False, True] * steps
    assert {body["model"] for body in bodies} == {"my-model"}
    about = json.loads((tmp_path / "msc_e.jsonl.about.json").read_text())
    assert (about["model"], about["endpoint"], about["stand_in"]) == ("my-model", url, False)
    assert (about["tokens_in"], about["tokens_out"]) == (200 * steps, 20 * steps)
    assert main(command) == 0
    assert len(bodies) == 2 * steps


def test_what_cannot_be_finished_is_one_line_and_exit_code_2(
    endpoint: tuple[str, list[dict[str, Any]]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # An odd number of rounds: the last step asks for one, and this server always writes two.
    command = ["--out", str(tmp_path), "--conversations", "1", "--rounds", "7", "--retries", "1", "--threads", "1"]
    assert main([*command, "--model", "m", "--base-url", endpoint[0]]) == 2
    said = capsys.readouterr().err.strip().splitlines()
    assert len(said) == 1
    assert "no usable reply to msc_e.continue in 2 attempts" in said[0]
    assert "--retries" in said[0]

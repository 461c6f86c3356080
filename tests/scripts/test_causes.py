"""The commonest cause of missing scores, and its remedy."""

from __future__ import annotations

import json
import string
from pathlib import Path

import pytest

from eval.files.provenance import ROOT
from eval.files.records import Prediction
from eval.files.store import write_lines
from scripts.setup.causes import Cause, commonest, remedy


def test_each_cause_has_its_remedy(subtests: pytest.Subtests) -> None:
    for message, said in [
        ("answer: ModelError: no key for https://x/v1: set the environment variable JUDGE_KEY", "set the environment"),
        ("http://x/v1/chat/completions: cannot connect (refused); is the server running?", "start the server"),
        (
            "https://x/v1: connection failed (Cannot connect to host x:443 ssl:True [SSLCertVerificationError: '[SSL: CERTIFICATE_VERIFY"
            "_FAILED] certificate verify failed: self-signed certificate'])",
            "SSL_CERT_FILE",
        ),
        ('https://x/v1/chat/completions: HTTP 401: {"error": "bad key"}', "refuses the key"),
        ('https://x/v1/chat/completions: HTTP 402: {"error": "Insufficient balance"}', "top it up"),
        ("answer: ModelError: replay: the cache c.sqlite has no answer for this reader call", "without replay=true"),
        ("https://x/chat/completions: HTTP 404: 404 page not found", "ends in /v1"),
        ('https://x/v1/chat/completions: HTTP 404: {"error": {"message": "The model `m` does not exist"}}', "MODEL="),
        ("https://x/v1: HTTP 400: response_format json_schema is not supported", "json_output"),
        ("https://x/v1: HTTP 400: Unsupported parameter: max_tokens", "token_limit_field"),
        ("https://x/v1: HTTP 400: maximum context length is 4096 tokens", "longer than the model's window"),
        ("https://x/v1: HTTP 429: quota", "endpoint.in_flight"),
        ("https://x/v1: no reply within 120 s", "endpoint.timeout"),
        ("https://x/v1: HTTP 503: loading", "the server fails"),
        ("answer: ModelError: collected, not sent: `batch export FILE` writes it", "batch import FILE"),
        ("https://x/chat/completions: the reply is not JSON: '<!DOCTYPE html>'", "ends in /v1"),
        ("https://x: the reply is not JSON: " + repr("\n<html>the server's page</html>"), "ends in /v1"),
        ("https://x: the reply is not JSON: 'busy'", "make doctor"),
        ("build: its worker process ended with exit code 3, 3 times", "executor=threads"),
        ("the metric returned nan", "Score(None, reason)"),
        ("no reason given", "Score(None, reason)"),
        ("something new", "make doctor"),
    ]:
        with subtests.test(message=message, said=said):
            assert said in remedy(message)


def test_the_commonest_cause_is_counted_over_messages_that_differ_in_numbers_alone(tmp_path: Path) -> None:
    folder, scores = tmp_path / "run", tmp_path / "judge.jsonl"
    errors = ["answer: HTTP 500: request 17", "answer: HTTP 500: request 18", "answer: HTTP 401: key"]
    lines = [Prediction("c", f"q{place}", "", (), (), "error", error) for place, error in enumerate(errors)]
    case = folder / "cases" / "c"
    case.mkdir(parents=True)
    write_lines(case / "predictions.jsonl", lines)
    scores.write_text(
        "\n".join(json.dumps({"value": value, "why": "HTTP 500: request 3"}) for value in (None, 1.0)) + "\n"
    )
    cause = commonest([folder], [scores])
    assert cause is not None
    assert (cause.count, cause.total) == (2, 4)
    assert "HTTP 500: request 17" in str(cause)
    assert "read its log" in str(cause)


def test_a_bug_of_a_memory_shows_its_line_and_its_log_and_no_doctor(tmp_path: Path) -> None:
    case = tmp_path / "run" / "cases" / "c"
    case.mkdir(parents=True)
    write_lines(
        case / "predictions.jsonl",
        [Prediction("c", "q", "", (), (), "error", "read: ZeroDivisionError: division by zero")],
    )
    log = case / "errors.log"
    frame = '  File "{}", line {}, in {}\n    1 / 0\n'
    frames = [
        frame.format(ROOT / "memsys/systems/mine.py", 40, "jaccard"),
        frame.format("/x/site-packages/numpy/a.py", 7, "f"),
    ]
    log.write_text("Traceback (most recent call last):\n" + "".join(frames) + "ZeroDivisionError: division by zero\n")
    text = str(commonest([tmp_path / "run"], []))
    assert "memsys/systems/mine.py:40 in jaccard" in text
    assert str(log) in text
    assert "doctor" not in text


def test_of_several_tracebacks_that_of_the_cause_is_named(tmp_path: Path) -> None:
    log = tmp_path / "errors.log"
    entry = 'Traceback (most recent call last):\n  File "/home/ada/mine.py", line {}, in {}\n    …\n{}\n'
    log.write_text(entry.format(7, "read", "KeyError: 'x'") + entry.format(9, "close", "RuntimeError: closed"))
    assert "remedy: /home/ada/mine.py:7 in read; " in str(Cause("read: KeyError: 'x'", 3, 3, log))
    assert "remedy: /home/ada/mine.py:9 in close; " in str(Cause("build: OSError: cut elsewhere", 3, 3, log))


@pytest.mark.parametrize(
    ("memory", "place"),
    [("/home/ada/mine.py", "/home/ada/mine.py:39 in write"), (f"{ROOT}/memsys/systems/mine.py", "memsys/systems/mine.py:39 in write")],
)  # fmt: skip
def test_a_memory_that_calls_a_helper_wrongly_is_the_place_and_not_the_helper(
    memory: str, place: str, tmp_path: Path
) -> None:
    log = tmp_path / "errors.log"
    frames = [
        (f"{ROOT}/eval/running/case.py", 228, "_write"),
        (memory, 39, "write"),
        ("<string>", 4, "__init__"),
        (f"{ROOT}/memsys/prompts.py", 99, "render"),
        (string.__file__, 114, "convert"),
    ]
    log.write_text("".join('  File "{}", line {}, in {}\n    …\n'.format(*frame) for frame in frames), encoding="utf-8")
    assert f"remedy: {place}; " in str(Cause("build: PromptError: prompt mine/note: cannot fill 'texts'", 3, 3, log))
    log.write_text(log.read_text("utf-8").replace(memory, f"{ROOT}/eval/running/loop.py"), encoding="utf-8")
    assert "remedy: memsys/prompts.py:99 in render; " in str(Cause("build: KeyError: 'x'", 3, 3, log))


def test_a_memory_in_rays_copy_of_the_modules_is_named_as_on_this_machine(tmp_path: Path) -> None:
    log, copy = tmp_path / "errors.log", "/tmp/ray/session_1/py_modules_files/_ray_pkg_0a1b"
    frames = [(f"{copy}/eval/running/case.py", 228), (f"{copy}2/mine.py", 39), (f"{copy}/memsys/prompts.py", 99)]
    log.write_text(
        "".join('  File "{}", line {}, in write\n    …\n'.format(*frame) for frame in frames), encoding="utf-8"
    )
    assert "remedy: mine.py:39 in write; " in str(Cause("build: KeyError: 'x'", 3, 3, log))


@pytest.mark.parametrize(
    "fault", ["Hung: no reply within 300 s", "ServiceError: HTTP 503", "SessionError: HTTP 404 model"]
)
def test_a_fault_of_a_product_or_a_service_has_no_remedy_of_an_endpoint(fault: str) -> None:
    text = str(Cause(f"write: {fault}", 1, 1))
    assert "endpoint." not in text
    assert "doctor" not in text


def test_a_table_without_gaps_has_no_cause(tmp_path: Path) -> None:
    assert commonest([tmp_path], []) is None

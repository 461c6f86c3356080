from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from memsys.llm.ask import ParseFailure, parse, read_json

PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer", "minimum": 0}},
    "required": ["name"],
    "additionalProperties": False,
}


def test_json_is_found_in_what_surrounds_it(subtests: pytest.Subtests) -> None:
    for text in [
        '{"a": [1, 2]}',
        '  \n{"a": [1, 2]}\n',
        '```json\n{"a": [1, 2]}\n```',
        '```\n{"a": [1, 2]}\n```',
        'Sure! Here it is:\n```json\n{"a": [1, 2]}\n```\nAnything else?',
        'Sure, {"a": [1, 2]} it is.',
        'As [1] said:\n```json\n{"a": [1, 2]}\n```',
        '```\nthinking\n``` {"a": [1, 2]}',
        '```json\n{"a": [1, 2]}',
    ]:
        with subtests.test(text=text):
            assert read_json(text) == {"a": [1, 2]}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('{"a": [1, 2', {"a": [1, 2]}),
        ("{'a': True, 'b': None,}", {"a": True, "b": None}),
        ('{a: 1}', {"a": 1}),
        ('["x" "y"]', ["x", "y"]),
    ],
)  # fmt: skip
def test_broken_json_is_repaired_once(text: str, value: Any) -> None:
    assert read_json(text) == value


def test_a_reply_without_json_is_a_failure(subtests: pytest.Subtests) -> None:
    for text in ["", "Sure!", "null", "12", '"x"', "```json {", "[", "{", "}{"]:
        with subtests.test(text=text):
            value = read_json(text)
            assert isinstance(value, ParseFailure)
            assert value.text == text


@pytest.mark.parametrize(("text", "value"), [("[]", []), ("{}", {})])
def test_empty_json_is_a_value(text: str, value: Any) -> None:
    assert read_json(text) == value


def test_backticks_within_a_string_are_no_fence() -> None:
    assert read_json('{"code": "```{x}```"}') == {"code": "```{x}```"}


def test_whole_numbers_are_integers_so_that_they_can_be_an_index() -> None:
    value = read_json('{"index": 2.0, "share": 0.5}')
    assert value == {"index": 2, "share": 0.5}
    assert type(value["index"]) is int


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999", "-1e999"])
def test_only_finite_numbers_are_numbers(number: str) -> None:
    schema = {"type": "array", "items": {"type": "number"}}
    assert isinstance(parse(f"[{number}]", schema, ()), ParseFailure)


def test_half_a_surrogate_pair_is_no_text() -> None:
    assert isinstance(read_json('["\\ud800"]'), ParseFailure)
    assert read_json('["\\ud83c\\udf75"]') == ["🍵"]


@pytest.mark.parametrize(
    "text",
    ["[" * 100_000, '{"a":' * 60 + "1" + "}" * 60, "{" + "]" * 5_000 + "[" * 5_000, '{"n": ' + "9" * 5_000 + "}"],
)
def test_hostile_json_costs_no_crash(text: str) -> None:
    assert isinstance(parse(text, PERSON, ()), ParseFailure)


def test_fifty_levels_are_read_and_fifty_one_are_not() -> None:
    assert read_json("[" * 50 + "]" * 50) == json.loads("[" * 50 + "]" * 50)
    assert "nested deeper than 50" in read_json("[" * 51 + "]" * 51).why


def test_closing_brackets_do_not_hide_the_depth() -> None:
    assert "nested deeper than 50" in read_json("{" + "]" * 60 + "[" * 60).why


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("ab`{", max_size=3), inner, max_size=3),
    max_leaves=8,
).filter(lambda value: isinstance(value, dict | list))


@pytest.mark.slow
@given(json_values, st.booleans())
def test_any_json_survives_a_round_trip(value: Any, ascii_only: bool) -> None:
    assert read_json(json.dumps(value, ensure_ascii=ascii_only)) == value


@given(st.text('{}[]",:`\\\n aj1-.e', max_size=60))
def test_no_reply_raises(text: str) -> None:
    for value in (parse(text, PERSON, ()), parse(text, None, ("a", "b")), parse(text, None, ())):
        assert isinstance(value, dict | str | ParseFailure)


def test_json_that_breaks_the_schema_says_where(subtests: pytest.Subtests) -> None:
    for text, complaint in [
        ('{"name": 3}', "name"),
        ('{"name": "Ann", "age": "old"}', "age"),
        ('{"name": "Ann", "age": -1}', "age"),
        ('{"name": "Ann", "age": true}', "age"),
        ('{"name": "Ann", "age": 1.5}', "age"),
        ('{"age": 3}', "name"),
        ('{"name": "Ann", "town": "Graz"}', "town"),
        ('["Ann"]', "reply"),
        ("{}", "name"),
    ]:
        with subtests.test(text=text, complaint=complaint):
            value = parse(text, PERSON, ())
            assert isinstance(value, ParseFailure)
            assert complaint in value.why


@pytest.mark.slow
@given(
    st.dictionaries(
        st.sampled_from(["name", "age", "town"]),
        st.none()
        | st.booleans()
        | st.integers()
        | st.floats(allow_nan=False, allow_infinity=False)
        | st.text(st.characters(exclude_categories=["Cs"])),
    )
)
def test_the_fast_checker_agrees_with_the_reference_implementation(value: dict[str, Any]) -> None:
    text = json.dumps(value)
    assert isinstance(parse(text, PERSON, ()), ParseFailure) != Draft202012Validator(PERSON).is_valid(read_json(text))


def test_json_that_keeps_the_schema_is_the_value() -> None:
    assert parse('```json\n{"name": "Ann", "age": 30.0}\n```', PERSON, ("ignored",)) == {"name": "Ann", "age": 30}


def test_a_label_may_be_dressed_up(subtests: pytest.Subtests) -> None:
    for text in ["MERGE", " merge\n", "Merge.", "**MERGE**", "`merge`", '"Merge"', "[MERGE]", "(merge)!"]:
        with subtests.test(text=text):
            assert parse(text, None, ("MERGE", "CONTINUE")) == "MERGE"


def test_a_label_in_company_is_a_failure(subtests: pytest.Subtests) -> None:
    for text in [
        "MERGE it",
        "I would MERGE",
        "MERGE or CONTINUE",
        "MERGE\nCONTINUE",
        "MER GE",
        "MERGED",
        "none",
        "...",
    ]:
        with subtests.test(text=text):
            value = parse(text, None, ("MERGE", "CONTINUE"))
            assert isinstance(value, ParseFailure)
            assert "MERGE, CONTINUE" in value.why


def test_an_empty_reply_is_a_failure_whatever_was_asked(subtests: pytest.Subtests) -> None:
    for text in ["", " \n\t"]:
        for labels in [(), ("A",)]:
            for schema in [None, PERSON]:
                with subtests.test(text=text, labels=labels, schema=schema):
                    assert parse(text, schema, labels) == ParseFailure(text, "the reply is empty")


def test_free_text_is_stripped_and_otherwise_left_alone() -> None:
    assert parse(" Two\nlines {x} \n", None, ()) == "Two\nlines {x}"


def test_a_failure_is_false_but_so_are_good_values() -> None:
    assert not ParseFailure("x", "why")
    assert parse("[]", {"type": "array"}, ()) == []

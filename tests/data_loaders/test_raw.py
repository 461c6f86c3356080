from __future__ import annotations

from pathlib import Path

import pytest
from mutations import BROKEN_BYTES

from data_loaders import raw
from data_loaders.raw import Raw, check_unique, parse_json, read_lines, read_raw
from data_loaders.schema import DataError


def test_a_broken_file_is_refused_with_its_name(tmp_path: Path, subtests: pytest.Subtests) -> None:
    for kind in sorted(BROKEN_BYTES):
        with subtests.test(kind=kind):
            path = tmp_path / "some.json"
            path.write_bytes(BROKEN_BYTES[kind](b'{"text": "hello there"}'))
            with pytest.raises(DataError, match=r"some\.json"):
                read_raw(path).text("text")


def test_numbers_that_are_no_json_are_refused(subtests: pytest.Subtests) -> None:
    for text in ["NaN", "Infinity", "-Infinity", "[1, NaN]", "1e999", '{"a": -1e999}']:
        with subtests.test(text=text), pytest.raises(DataError, match="valid JSON"):
            parse_json(text.encode(), "x.json")


def test_a_key_twice_in_one_object_is_refused_because_only_its_last_value_would_be_read() -> None:
    with pytest.raises(DataError, match=r"x\.json: expected valid JSON.* keys of an object: .*found 'a' twice"):
        parse_json(b'[{"a": {"b": 1}, "\\u0061": 2}]', "x.json")


def test_deep_nesting_is_a_data_error() -> None:
    with pytest.raises(DataError, match="nesting too deep"):
        parse_json(b"[" * 200_000, "x.json")


def test_invalid_utf8_names_the_byte_and_its_offset(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_bytes(b'{"a": "\xff"}')
    with pytest.raises(DataError, match=r"x\.json: expected UTF-8, found byte 0xff at offset 7"):
        read_raw(path)


def test_a_missing_file_is_a_data_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="No such file"):
        read_raw(tmp_path / "absent.json")


def test_lines_are_cut_at_newlines_only_and_errors_name_the_line(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_bytes('{"a": "one\u2028line"}\n\n{"a": 2}\r\n'.encode())
    assert [line.value for line in read_lines(path)] == [{"a": "one\u2028line"}, {"a": 2}]
    path.write_bytes(b'{"a": 1}\n\n{"a": \n')
    with pytest.raises(DataError, match=r"x\.jsonl: line 3"):
        read_lines(path)


def test_an_error_says_where_what_was_wanted_and_what_was_found() -> None:
    with pytest.raises(DataError) as caught:
        Raw(7, "x.json: rec: qa[3].question").of(str)
    assert str(caught.value) == "x.json: rec: qa[3].question: expected string, found int 7"
    with pytest.raises(DataError, match="expected string or int, found null"):
        Raw(None, "x").of((str, int))


def test_true_is_no_integer() -> None:
    with pytest.raises(DataError, match="expected int, found true/false True"):
        Raw(True, "x").of(int)
    assert Raw(True, "x").of(bool) is True


def test_get_distinguishes_a_missing_field_from_a_wrong_one() -> None:
    assert Raw({"a": 1}, "r").of(int, "a") == 1
    with pytest.raises(DataError, match=r"r\.b: expected a value, found no such field"):
        Raw({"a": 1}, "r").of(int, "b")
    with pytest.raises(DataError, match=r"r\.a: expected string, found int 1"):
        Raw({"a": 1}, "r").text("a")
    with pytest.raises(DataError, match="r: expected object, found list"):
        Raw([], "r").of(int, "a")


def test_a_turn_of_a_million_characters_passes_and_one_more_does_not() -> None:
    assert len(Raw("x" * raw.MAX_TEXT, "t").text()) == 1_000_000
    with pytest.raises(DataError, match="at most 1,000,000 characters, found 1,000,001"):
        Raw("x" * (raw.MAX_TEXT + 1), "t").text()


def test_a_lone_surrogate_is_refused_before_anything_tries_to_save_it() -> None:
    with pytest.raises(DataError, match="lone surrogate at character 2"):
        Raw("ab\ud800", "t").text()


def test_a_repeated_id_is_named() -> None:
    check_unique(["a", "b"], "x")
    with pytest.raises(DataError, match="x: expected unique ids, found 'b' twice"):
        check_unique(["a", "b", "b"], "x")

"""Texts of 100,000 characters on which a pattern with two ways to read the same blanks takes minutes: each is read in linear time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from data_loaders import beam, halumem
from eval.judging import answer_forms
from eval.metrics import beam as beam_metric
from eval.metrics import longmemeval_v2, quality, realmem
from memsys import dates
from memsys.llm.offline import reading
from memsys.llm.secrets import variables, written_key
from memsys.systems import mem0_v3
from scripts.setup import probes
from scripts.setup.launch import IN_SYNTAX

LONG = 100_000
HOSTILE: dict[str, tuple[Callable[[str], Any], str]] = {
    "BEAM, blanks before a marker": (beam.without_marker, f"->->\n{' ' * LONG}x\n->->"),
    "BEAM, a rubric of blanks": (lambda text: beam_metric.events_of([text], official=False), "\t" * LONG),
    "many dates": (lambda text: dates.mentions(text, None), "4 May " * (LONG // 6)),
    "HaluMem, a name without an end": (halumem._NAME.search, "Name:" + " " * LONG),
    "HaluMem, many names without an end": (halumem._NAME.search, "Name:" * (LONG // 5)),
    "RealMem, braces": (realmem.extract_json, "{" * LONG),
    "QuALITY, blank lines": (lambda text: quality.chosen_option(text, ("a cat", "a dog")), "x" + "\n" * LONG),
    "QuALITY, a label far away": (lambda text: quality.chosen_option(text, ("a cat",)), f"select{' ' * LONG}x"),
    "LongMemEval-V2, open boxes": (lambda text: longmemeval_v2._choice(text, "a", {}, True), "\\boxed{" * (LONG // 7)),
    "stand-in, dots": (reading._CLAUSE.split, f"{'.' * LONG}x"),
    "stand-in, no word twice": (reading.content_words, " ".join(f"w{number}" for number in range(LONG))),
    "judge card, a list of blanks": (answer_forms.items_of, f"a{' ' * LONG}b"),
    "judge card, a word in capitals": (lambda text: list(answer_forms.of_number(text)), f"{'G' * LONG}-b 2"),
    "Mem0 v3, many names": (mem0_v3.entities, "A1 " * (LONG // 3)),
    "doctor, open thoughts": (probes._object, "<think>" * (LONG // 7)),
    "settings, open variables": (variables, "${" * LONG),
    "settings, a password without an end": (lambda text: written_key({"a": text}), "://" + "a:" * LONG),
    "command line, open variables": (IN_SYNTAX.fullmatch, "${" * LONG),
    "Mem0 v3, open quotes": (mem0_v3.entities, "\u201c" * LONG),
}


@pytest.mark.timeout(20)
@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_text_is_read_in_linear_time(name: str) -> None:
    read, text = HOSTILE[name]
    read(text)

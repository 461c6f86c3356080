"""A small history of invented words, each said once, by one person, on one day, and the questions about them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from data_loaders.schema import Case, Question, Session, Turn


@dataclass(frozen=True, slots=True)
class Canary:
    """A word that occurs in one turn of the history and nowhere else."""

    word: str
    question: str
    """The question; it does not hold the word."""
    speaker: str
    own: bool
    """Whether the assistant said it."""
    time: datetime
    time_text: str
    turn: str


_ANN, _BEN = "Ottilie", "Casimir"
_SAID = (
    (
        datetime(2023, 3, 4, 9, 30),
        "9:30 am on 4 March, 2023",
        (
            (
                _ANN,
                "My sister keeps bees in Porto, and she named the best hive Quillonar.",
                "Quillonar",
                "What is the name of the best hive that the sister keeps in Porto?",
            ),
            (
                _BEN,
                "I painted the boat shed last week in a colour that is sold as Verdazzo.",
                "Verdazzo",
                "In which colour was the boat shed painted?",
            ),
        ),
    ),
    (
        datetime(2023, 6, 19, 18, 5),
        "6:05 pm on 19 June, 2023",
        (
            (
                _ANN,
                "I sold my old violin to a collector called Harrowgant at the street market.",
                "Harrowgant",
                "To which collector was the old violin sold at the street market?",
            ),
            (
                _BEN,
                "My doctor prescribed a syrup for the cough, it is called Tamberlixin.",
                "Tamberlixin",
                "Which syrup did the doctor prescribe for the cough?",
            ),
        ),
    ),
    (
        datetime(2023, 11, 2, 12, 45),
        "12:45 pm on 2 November, 2023",
        (
            (
                _ANN,
                "Our new train to the mountains leaves from a village named Zyndervale every Friday.",
                "Zyndervale",
                "From which village does the new train to the mountains leave?",
            ),
            (
                _BEN,
                "I baked a cake with a rare spice from the harbour, the label says Moxaberry.",
                "Moxaberry",
                "Which rare spice from the harbour is in the cake?",
            ),
        ),
    ),
)
_ELSEWHERE = (
    (
        _ANN,
        "The lighthouse keeper lent me a telescope that was built by Ferrowick.",
        "Ferrowick",
        "Who built the telescope that the lighthouse keeper lent?",
    ),
    (
        _BEN,
        "I planted a pear tree of the sort Glimmerine behind the school.",
        "Glimmerine",
        "Which sort of pear tree was planted behind the school?",
    ),
)


def _case(
    name: str, said: tuple[tuple[datetime, str, tuple[tuple[str, str, str, str], ...]], ...]
) -> tuple[Case, tuple[Canary, ...]]:
    sessions, canaries = [], []
    for place, (time, time_text, lines) in enumerate(said, 1):
        turns = []
        for number, (speaker, text, word, question) in enumerate(lines, 1):
            own, turn = speaker == _BEN, f"{name}-s{place}-t{number}"
            turns.append(Turn(turn, speaker, text, "assistant" if own else "user"))
            canaries.append(Canary(word, question, speaker, own, time, time_text, turn))
        sessions.append(Session(f"{name}-s{place}", tuple(turns), time, time_text))
    return Case(name, (_ANN, _BEN), tuple(sessions), ()), tuple(canaries)


HISTORY, CANARIES = _case("canaries", _SAID)
"""Three sessions of two turns."""
SUBJECT = "the best hive of my sister in Porto"
"""The subject of the first canary, for memories that delete by subject."""
OTHER, OTHERS = _case("others", ((datetime(2022, 1, 15, 8), "8:00 am on 15 January, 2022", _ELSEWHERE),))
"""Another case; its memory must not know the first case."""


def asked(canary: Canary) -> Question:
    """The question about a canary, with a time after the whole history."""
    time = datetime(2023, 12, 1, 10)
    return Question(f"about-{canary.turn}", canary.question, time=time, time_text="10:00 am on 1 December, 2023")


def shows_date(text: str, canary: Canary) -> bool:
    """Whether a text has the date of the canary's turn, in one of the usual spellings."""
    day, month, year = canary.time.day, canary.time.strftime("%B"), canary.time.year
    spelled = (f"{day} {month}", f"{month} {day}", f"{month[:3]} {day}", f"{day} {month[:3]}")
    numbers = (canary.time.strftime("%Y-%m-%d"), canary.time.strftime("%Y/%m/%d"), canary.time.strftime("%d/%m/%Y"))
    return any(date in text for date in numbers) or (str(year) in text and any(date in text for date in spelled))

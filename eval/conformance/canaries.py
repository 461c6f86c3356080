"""A small history of invented words, each said once, by one person, on one day, and the questions about them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from data_loaders.schema import Case, Question, Role, Session, Turn


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


SPEAKERS = ("Ottilie", "Casimir")
"""The user and the assistant."""
_SAID = """\
2023-03-04 09:30, 9:30 am on 4 March, 2023
Ottilie: My sister keeps bees in Porto, and she named the best hive Quillonar.
Quillonar: What is the name of the best hive that the sister keeps in Porto?
Casimir: I painted the boat shed last week in a colour that is sold as Verdazzo.
Verdazzo: In which colour was the boat shed painted?

2023-06-19 18:05, 6:05 pm on 19 June, 2023
Ottilie: I sold my old violin to a collector called Harrowgant at the street market.
Harrowgant: To which collector was the old violin sold at the street market?
Casimir: My doctor prescribed a syrup for the cough, it is called Tamberlixin.
Tamberlixin: Which syrup did the doctor prescribe for the cough?

2023-11-02 12:45, 12:45 pm on 2 November, 2023
Ottilie: Our new train to the mountains leaves from a village named Zyndervale every Friday.
Zyndervale: From which village does the new train to the mountains leave?
Casimir: I baked a cake with a rare spice from the harbour, the label says Moxaberry.
Moxaberry: Which rare spice from the harbour is in the cake?"""
_ELSEWHERE = """\
2022-01-15 08:00, 8:00 am on 15 January, 2022
Ottilie: The lighthouse keeper lent me a telescope that was built by Ferrowick.
Ferrowick: Who built the telescope that the lighthouse keeper lent?
Casimir: I planted a pear tree of the sort Glimmerine behind the school.
Glimmerine: Which sort of pear tree was planted behind the school?"""
_LATER = """\
2023-11-20 19:30, 7:30 pm on 20 November, 2023
Ottilie: My cousin opened a bakery next to the theatre, and I help there on Sundays.
Casimir: I gave my blue bicycle to the neighbour, she rides it to work now.
Ottilie: We want to visit the glass museum when my uncle is back from Oslo.
Casimir: I learned to knit socks, the first pair took me a month.
Ottilie: Somebody stole the garden gnome of my grandmother last night.
Casimir: I missed the concert because my car broke down on the bridge.
Ottilie: The dog of my flatmate is afraid of thunder and hides under my desk.
Casimir: I started to collect maps of old mines, I have nine of them.
Ottilie: My brother teaches chess in a prison, he goes there by ferry.
Casimir: I moved the piano to the cellar, four friends carried it.

2023-11-27 07:15, 7:15 am on 27 November, 2023
Ottilie: A watchmaker named Wexmarsh repaired the clock of the town hall.
Wexmarsh: Which watchmaker repaired the clock of the town hall?"""


def _case(name: str, said: str) -> tuple[Case, tuple[Canary, ...]]:
    """A case and its canaries from sessions of lines: the time, then `speaker: text`; below a canary's turn its word and the question."""
    sessions, canaries = [], []
    for place, block in enumerate(said.split("\n\n"), 1):
        head, *lines = block.split("\n")
        moment, _, time_text = head.partition(", ")
        time, turns = datetime.fromisoformat(moment), list[Turn]()
        for line in lines:
            first, _, text = line.partition(": ")
            if first in SPEAKERS:
                role: Role = "assistant" if first == SPEAKERS[1] else "user"
                turns.append(Turn(f"{name}-s{place}-t{len(turns) + 1}", first, text, role))
            else:
                last = turns[-1]
                canaries.append(Canary(first, text, last.speaker, last.role == "assistant", time, time_text, last.id))
        sessions.append(Session(f"{name}-s{place}", tuple(turns), time, time_text))
    return Case(name, SPEAKERS, tuple(sessions), ()), tuple(canaries)


HISTORY, CANARIES = _case("canaries", _SAID)
"""Three sessions of two turns."""
SUBJECT = "the best hive of my sister in Porto"
"""The subject of the first canary, for memories that delete by subject."""
OTHER, OTHERS = _case("others", _ELSEWHERE)
"""Another case; its memory must not know the first case."""
LATER, LAST = _case("later", _LATER)
"""What is said after the history: ten turns without a canary, and the last one."""


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

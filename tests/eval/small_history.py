"""A small history that tests of the protocol share: six facts, told by one of two people, and a question about each."""

from __future__ import annotations

from datetime import datetime

from data_loaders.schema import Case, Gold, Question, Session, Turn

FACTS = [
    "a grey cat called Pixel",
    "a kayak with red oars",
    "a recipe for plum jam",
    "tickets to Lisbon",
    "a broken violin",
    "two lemon trees",
]


def history(case_id: str = "case-1", *, after: dict[int, str | None] | None = None, questions: int = 6) -> Case:
    """Three sessions of four turns; question i asks for fact i, which turn s{i // 2}:{2 * (i % 2) + 1} tells."""
    sessions = []
    for number in range(3):
        turns = []
        for place in range(2):
            fact = FACTS[2 * number + place]
            turns.append(Turn(f"s{number}:{2 * place + 1}", "Ann", f"Guess what, I got {fact}.", "user"))
            turns.append(
                Turn(
                    f"s{number}:{2 * place + 2}",
                    "Ben",
                    f"How nice, tell me more about {fact.split()[-1]}.",
                    "assistant",
                )
            )
        sessions.append(
            Session(f"s{number}", tuple(turns), datetime(2023, 5, 7 + number, 13, 0), f"{7 + number} May 2023")
        )
    asked = tuple(
        (
            Question(f"q{i}", f"Which {FACTS[i].split()[-1]} did Ann get?", after=(after or {}).get(i)),
            Gold(
                (FACTS[i],),
                (f"s{i // 2}:{2 * (i % 2) + 1}",),
                "even" if i % 2 == 0 else "odd",
                detail={"category_id": 4},
            ),
        )
        for i in range(questions)
    )
    return Case(case_id, ("Ann", "Ben"), tuple(sessions), asked, case_id)

"""The kind of a gold answer, and the same answer in another form or with one thing changed; without a model.

Each change yields its kind, whether the changed answer is right, and the text. A change is made only where its result is right or wrong
for certain: a date must be the answer's only one, a number must stand alone, a unit must convert exactly.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from datetime import date

from dateutil.relativedelta import relativedelta

from memsys.dates import MONTHS, Mention, mentions, parse_time, written

RIGHT, WRONG = True, False
Made = tuple[str, bool, str]
"""Kind, whether it is right, and the answer."""

NUMBERS = "zero one two three four five six seven eight nine ten eleven twelve".split()
SMALLER = {
    "week": ("day", 7),
    "day": ("hour", 24),
    "hour": ("minute", 60),
    "minute": ("second", 60),
    "year": ("month", 12),
    "kilometre": ("metre", 1000),
    "kilometer": ("meter", 1000),
    "metre": ("centimetre", 100),
    "meter": ("centimeter", 100),
    "kilogram": ("gram", 1000),
    "foot": ("inch", 12),
    "dozen": ("piece", 12),
}
"""Units that convert exactly to a smaller unit, with that unit and the factor."""
PLURALS = {"foot": "feet", "inch": "inches", "dozen": "dozen"}
SHORT = {"km": "kilometre", "kg": "kilogram", "hr": "hour", "hrs": "hour", "min": "minute", "mins": "minute"}
STOP = frozenset(
    "a about after an and are as at be been because but by could did do does for from had has have he her him his i in into is it its me "
    "more my not of on or our she so than that the their them they this to was we were what when where which who will with would you "
    "your".split()
)
"""Words that two answers may share without saying the same."""

_REFUSES = re.compile(
    r"\b(?:(?:do not|don't|cannot|can't|could not|couldn't|unable to) (?:know|tell|say|find|determine|answer|recall)"
    r"|no (?:information|mention|record|evidence|details?)|(?:not|never|isn't|wasn't) (?:mentioned|specified|stated|provided|known)"
    r"|(?:does not|doesn't|do not|don't|did not|didn't) (?:say|mention|specify|state|provide|contain)"
    r"|not enough information)\b",
    re.IGNORECASE,
)


def is_refusal(answer: str) -> bool:
    """Whether an answer says that it does not know, and nothing else: it is empty, or a short one without a "but"."""
    every = words(answer)
    if len(every) <= 4 and (not every or {"unknown", "unanswerable"} & set(every)):
        return True
    certain = not {"but", "however", "although", "though"} & set(every)
    return certain and len(every) <= 30 and _REFUSES.search(answer.replace("\u2019", "'")) is not None


def words(text: str) -> list[str]:
    """The words of a text in lower case."""
    return re.findall(r"\w+", text.lower())


def content(text: str) -> set[str]:
    """The words of a text without stop words."""
    return set(words(text)) - STOP


def type_of(answer: str) -> str:
    """`date`, `number`, `yes or no`, `list`, `name`, `short` (up to eight words) or `long`."""
    every = words(answer)
    if not every:
        return "short"
    if every[0] in ("yes", "no"):
        return "yes or no"
    if (mention := only_date(answer)) is not None and len(answer) - (mention.end - mention.start) <= 12:
        return "date"
    if len(every) <= 4 and any(word.isdigit() or word in NUMBERS for word in every):
        return "number"
    if len(items_of(answer)) > 1:
        return "list"
    if len(every) <= 3 and all(word[0].isupper() for word in re.findall(r"\w+", answer)):
        return "name"
    return "short" if len(every) <= 8 else "long"


def differs(answers: Sequence[str], other: str) -> bool:
    """Whether another answer is certainly wrong where these are right: it shares none of their words, or hardly any of a long text.

    Two dates may share words: their days must differ.
    """
    if not content(other) or other in answers:
        return False
    own = only_date(answers[0])
    theirs = only_date(other)
    if own is not None and theirs is not None and own.day is not None and theirs.day is not None:
        return own.day != theirs.day
    ours = set().union(*(content(answer) for answer in answers))
    shared = ours & content(other)
    return len(shared) <= 0.1 * len(ours | content(other)) if min(len(ours), len(content(other))) > 8 else not shared


def only_date(answer: str) -> Mention | None:
    """The date of an answer that has exactly one; not a relative one, such as "yesterday"."""
    dates = mentions(answer, None)
    return dates[0] if len(dates) == 1 and not dates[0].relative else None


def of_date(answer: str) -> Iterator[Made]:
    """Other forms of the date, and dates nearby."""
    mention = only_date(answer)
    if mention is None:
        return

    def with_date(text: str) -> str:
        return answer[: mention.start] + text + answer[mention.end :]

    if mention.day is not None:
        yield from _of_day(answer, mention, with_date)
    elif month := _month_of(mention.resolved):
        yield "the month in figures", RIGHT, with_date(f"{month.year}-{month.month:02}")
        for unit, later in (("month", _later(month, "months")), ("year", _later(month, "years"))):
            yield f"a {unit} later", WRONG, with_date(f"{MONTHS[later.month - 1]} {later.year}")
    elif re.fullmatch(r"\d{4}", mention.resolved):
        yield "a year later", WRONG, with_date(str(int(mention.resolved) + 1))


def _of_day(answer: str, mention: Mention, with_date: Callable[[str], str]) -> Iterator[Made]:
    day = mention.day
    assert day is not None, "the caller looks"
    yield "the date in figures", RIGHT, with_date(day.isoformat())
    for kind, text in (
        ("the date, month first", f"{MONTHS[day.month - 1]} {day.day}, {day.year}"),
        ("the date, day first", written(day)),
    ):
        if with_date(text) != answer:
            yield kind, RIGHT, with_date(text)
    for unit in ("day", "month", "year"):
        yield f"a {unit} later", WRONG, with_date(written(_later(day, f"{unit}s")))


def _later(day: date, units: str) -> date:
    return day + relativedelta(**{units: 1})  # type: ignore[arg-type]


def _month_of(resolved: str) -> date | None:
    match = re.fullmatch(rf"({'|'.join(MONTHS)}) (\d{{4}})", resolved)
    parsed = parse_time(f"1 {resolved}") if match else None
    return None if parsed is None else parsed.date()


_NUMBER = re.compile(
    # A number at the beginning, or digits after a word in lower case: "Overcooked 2" is a name, "it takes two" a phrase.
    rf"^(?:(?:for|about|around|after|in|over|at least) )?(?P<first>\d{{1,3}}|{'|'.join(NUMBERS[1:])})(?![\w:-]|[.,]\d)"
    r"|(?<=[a-z] )(?P<later>\d{1,3})(?![\w:-]|[.,]\d)",
    re.IGNORECASE,
)


def of_number(answer: str) -> Iterator[Made]:
    """Change a short answer with one number and no date: number in words or digits, quantity in a smaller unit, number plus one."""
    matches = list(_NUMBER.finditer(answer))
    numbers = [word for word in words(answer) if word.isdigit() or word in NUMBERS]
    if len(matches) != 1 or len(numbers) != 1 or len(words(answer)) > 8 or mentions(answer, None):
        return
    match = matches[0]
    group = match.lastgroup or "first"
    word = match[group].lower()
    if group == "later" and re.search(r"[A-Z]\w{0,80} $", answer[: match.start(group)][-90:]):
        return
    value = int(word) if word.isdigit() else NUMBERS.index(word)

    def with_number(text: str, end: int = match.end()) -> str:
        return answer[: match.start(group)] + text + answer[end:]

    if word.isdigit() and 0 < value < len(NUMBERS):
        yield "the number in words", RIGHT, with_number(NUMBERS[value])
    elif not word.isdigit() and (value > 1 or len(words(answer)) == 1):  # "one" is often no number
        yield "the number in figures", RIGHT, with_number(str(value))
    unit = re.match(r"\s+([A-Za-z]+)(?!\w)", answer[match.end() :])
    if unit is not None and (smaller := _smaller(unit[1], value)) and re.search(r"\bold\b", answer) is None:
        yield "in another unit", RIGHT, with_number(smaller, match.end() + unit.end())
    if word.isdigit() or value > 1:
        yield "one more", WRONG, with_number(str(value + 1))


def _smaller(unit: str, count: int) -> str:
    """A quantity in the next smaller unit; empty where there is none, or where the result is unusual (a hundred days in hours)."""
    plain = unit.lower()
    known = {**SHORT, **{plural: single for single, plural in PLURALS.items()}, **{f"{one}s": one for one in SMALLER}}
    plain = known.get(plain, plain)
    if plain not in SMALLER or not 0 < count <= 10:
        return ""
    name, each = SMALLER[plain]
    return f"{count * each} {PLURALS.get(name, name + 's')}"


def of_yes_or_no(answer: str) -> Iterator[Made]:
    """The opposite of a bare yes or no."""
    if (bare := answer.strip().rstrip(".").lower()) in ("yes", "no"):
        yield "the opposite", WRONG, "No" if bare == "yes" else "Yes"


def items_of(answer: str) -> list[str]:
    """The items of a list of short items; any other text, also a date with a comma, is a single item."""
    plain = answer.strip().rstrip(".")
    items = [item.strip() for item in re.split(r",\s*(?:and\s+)?|(?<!\s)\s+and\s+", plain) if item.strip()]
    longest = max((len(item.split()) for item in items), default=0)
    if len(items) < 2 or longest > (4 if "," in plain else 2) or mentions(answer, None):
        return [answer]
    return items


def of_list(answer: str, other: str | None) -> Iterator[Made]:
    """Change a list: another order, without an item, and with an item of a wrong answer, if there is one."""
    items = items_of(answer)
    if len(items) < 2:
        return
    yield "the list in another order", RIGHT, ", ".join(items[::-1])
    yield "an item of the list missing", WRONG, ", ".join(items[:-1])
    if other is not None:
        yield "an item of the list swapped", WRONG, ", ".join([*items[:-1], items_of(other)[0]])


def of_speaker(answer: str, speakers: Sequence[str]) -> Iterator[Made]:
    """Replace the person that the answer names by the other of the two people."""
    named = [name for name in speakers if name and re.search(rf"\b{re.escape(name)}\b", answer)]
    others = [name for name in speakers if name not in named]
    if len(named) == 1 and len(others) == 1 and len(words(answer)) <= 8:
        yield "the other speaker", WRONG, re.sub(rf"\b{re.escape(named[0])}\b", others[0], answer)

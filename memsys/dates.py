"""Dates in text: parses the time texts of benchmarks, and resolves expressions such as "yesterday" against the day of speaking.

Resolved dates have the form that benchmarks for long-term memory use: a day is "7 May 2023", a month "June 2023", a year "2022", and
an inexact expression is anchored to a day, as in "the week before 9 June 2023". No function uses the system clock.

Weekdays are anchored too: "last Friday" and "on Friday" become "the Friday before 9 June 2023", "next Friday" and "this Friday" become
"the Friday after 9 June 2023"; `Mention.day` has the exact day. A month without a year is the month nearest to the day of speaking; of
two months at the same distance, the past one.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from functools import lru_cache

from dateutil.relativedelta import relativedelta

MONTHS = "January February March April May June July August September October November December".split()
WEEKDAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()

_FORMATS = (
    "%I:%M %p on %d %B, %Y",  # LoCoMo
    "%Y/%m/%d (%a) %H:%M",  # LongMemEval
    "%Y-%m-%d (%A)",  # RealMem
    "%Y-%m-%d %H:%M",  # PerLTQA
    "%Y/%m/%d %H:%M",
    "%Y/%m/%d",
    "%d %B %Y",
    "%d %B, %Y",
    "%B %d, %Y",
)


@dataclass(frozen=True, slots=True)
class Mention:
    """One date expression in a text."""

    start: int
    end: int
    """The expression is `text[start:end]`."""
    resolved: str
    """The resolved date; the expression itself if it is relative and the day of speaking is unknown."""
    day: date | None = None
    """The exact day, if the expression means one."""
    relative: bool = False
    """Whether its meaning depends on the day of speaking."""


@lru_cache(maxsize=1 << 14)
def parse_time(text: str) -> datetime | None:
    """The time in a data set's time text, without a time zone; of a span "first – last" the first; None if it cannot be parsed."""
    text = " ".join(text.split(" – ")[0].split())
    for form in _FORMATS:
        try:
            return datetime.strptime(text, form)
        except ValueError:
            continue
    try:
        return datetime.fromisoformat(text).replace(tzinfo=None)
    except ValueError:
        return None


def written(day: date) -> str:
    """A day written as "7 May 2023"."""
    return f"{day.day} {MONTHS[day.month - 1]} {day.year}"


def mentions(text: str, said: date | None) -> tuple[Mention, ...]:
    """All date expressions of a text, in order and without overlap, resolved against the day of speaking (None: unknown)."""
    accepted: list[Mention] = []
    taken = bytearray(len(text))
    for pattern, relative, rule in _RULES:
        for match in pattern.finditer(text):
            start, end = match.span()
            if any(taken[start:end]):
                continue
            value: date | str = match.group()
            day = None
            if said is not None or not relative:
                try:
                    value = rule(match, said or date(1, 1, 1))
                    day = value if isinstance(value, date) else _weekday_of(value)
                except (ValueError, OverflowError):  # 31 June, or a hundred thousand months ago
                    continue
            taken[start:end] = b"\1" * (end - start)
            accepted.append(Mention(start, end, written(value) if isinstance(value, date) else value, day, relative))
    return tuple(sorted(accepted, key=lambda mention: mention.start))


Rule = Callable[[re.Match[str], date], date | str]
"""Resolves a match against the day of speaking: to an exact day, or to a text."""


def _weekday_of(anchored: str) -> date | None:
    """The exact day of an anchored weekday such as "the Friday before 9 June 2023"; None for other texts."""
    match = re.match(rf"the ({'|'.join(WEEKDAYS)}) (before|after) (.+)", anchored, re.IGNORECASE)
    anchor = parse_time(match[3]) if match else None
    if match is None or anchor is None:
        return None
    ahead = (WEEKDAYS.index(match[1].capitalize()) - anchor.weekday()) % 7
    if match[2] == "before":
        return anchor.date() + timedelta(days=ahead - 7)
    return anchor.date() + timedelta(days=ahead or 7)


def _full(match: re.Match[str], said: date) -> date:
    return date(int(match["y"]), _month(match["m"]), int(match["d"]))


def _day_month(match: re.Match[str], said: date) -> date:
    day, month = int(match["d"]), _month(match["m"])
    return date(_nearest_year(month, said), month, day)


def _bare_month(match: re.Match[str], said: date) -> str:
    month, word = _month(match["m"]), match["w"].lower()
    if word == "last":
        year = said.year - (month >= said.month)
    elif word == "next":
        year = said.year + (month <= said.month)
    else:
        year = _nearest_year(month, said)
    return f"{MONTHS[month - 1]} {year}"


def _nearest_year(month: int, said: date) -> int:
    distance = month - said.month
    return said.year - (distance >= 6) + (distance < -6)


def _anchored(match: re.Match[str], said: date) -> date | str:
    """ "the week before 9 June 2023": stays as it is, with its date in standard form; "two days after …" becomes a day."""
    anchor = mentions(match["date"], said)
    if not anchor:
        raise ValueError("no such day")
    number, day = _number((match["count"] or "a").strip()), anchor[0].day
    if number is not None and day is not None and match["what"].startswith("day") and match["side"] != "of":
        return day + timedelta(days=number if match["side"] == "after" else -number)
    what = f"{match['count'] or 'the '}{match['what']}"
    return f"{what} {match['side']} {anchor[0].resolved}"


def _day(match: re.Match[str], said: date) -> date:
    words = match.group().lower()
    shift = next(days for key, days in _DAYS.items() if key in words)
    return said + timedelta(days=shift)


_DAYS = {"before yesterday": -2, "after tomorrow": 2, "yesterday": -1, "last night": -1, "tomorrow": 1, "": 0}


def _distance(match: re.Match[str], said: date) -> date | str:
    """ "three days ago", "in two weeks", "a few months ago"."""
    words, unit = match["n"].lower(), match["unit"].lower()
    sign = -1 if match["ago"] else 1
    number = _number(words)
    if number is not None and unit == "day":
        return said + timedelta(days=sign * number)
    if number is not None and unit == "month":
        return _of_month(said + relativedelta(months=sign * number))
    if number is not None and unit == "year":
        return str((said + relativedelta(years=sign * number)).year)
    side = "before" if sign < 0 else "after"
    return f"the {unit} {side} {written(said)}" if number == 1 else f"{words} {unit}s {side} {written(said)}"


def _number(words: str) -> int | None:
    return int(words) if words.isdigit() else _COUNTS.get(words.lower())


def _period(match: re.Match[str], said: date) -> date | str:
    """ "last week", "this weekend", "next month", "last year", "last summer", "last Friday", "on Friday"."""
    which, unit = match["which"].lower(), match["unit"].lower()
    step = -1 if which.endswith(("last", "past", "previous")) else 1 if which.endswith(("next", "coming")) else 0
    if unit == "month":
        return _of_month(said + relativedelta(months=step))
    if unit == "year":
        return str(said.year + step)
    if unit in ("summer", "winter", "spring", "fall", "autumn"):
        return f"{unit} {said.year + step}"
    if unit in ("week", "weekend"):
        return f"the {unit} {('before', 'of', 'after')[step + 1]} {written(said)}"
    forward = step > 0 or which.endswith(("this", "coming", "by", "until"))
    return f"the {unit.capitalize()} {'after' if forward else 'before'} {written(said)}"


def _of_month(day: date) -> str:
    return f"{MONTHS[day.month - 1]} {day.year}"


def _month(name: str) -> int:
    return next(index for index, month in enumerate(MONTHS, 1) if month[:3] == name[:3].capitalize())


_COUNTS = {word: number for number, word in enumerate("one two three four five six seven eight nine ten".split(), 1)}
_COUNTS |= {"a": 1, "an": 1}
# Only capitalised, because "may" and "march" are also ordinary words.
_M = rf"(?P<m>(?-i:{'|'.join(MONTHS)}|(?:Jan|Feb|Mar|Apr|Jun|Jul|Aug|Sept?|Oct|Nov|Dec)\b))"
_D = r"(?P<d>[0-3]?\d)(?:st|nd|rd|th)?"
_Y = r"(?P<y>(?:19|20)\d\d)"
_N = rf"(?P<n>\d{{1,5}}|{'|'.join(_COUNTS)}|(?:a )?few|several|(?:a )?couple(?: of)?)"
_DAY_NAMES = "|".join(WEEKDAYS)
_WHICH = "(?:(?:this|the) )?(?:last|past|previous|next|coming)|this"
_ANY_DATE = re.sub(r"\?P<\w+>", "?:", rf"(?:{_D}(?: of)? {_M},? {_Y}|{_M} {_D},? {_Y})")
# In order of precedence: a match that overlaps an earlier pattern's match is ignored.
_PATTERNS: tuple[tuple[str, bool, Rule], ...] = (
    (
        rf"(?:the )?(?P<count>{_N} )?(?P<what>(?:day|week|weekend|month|year)s?|{_DAY_NAMES}) (?P<side>before|after|of) "
        rf"(?P<date>{_ANY_DATE})",
        False,
        _anchored,
    ),
    (rf"{_D}(?: of)? {_M},? {_Y}", False, _full),
    (rf"{_M} {_D},? {_Y}", False, _full),
    (r"((?:19|20)\d\d)[-/](\d\d)[-/](\d\d)", False, lambda match, said: date(*map(int, match.groups()))),
    (rf"{_M},? {_Y}", False, lambda match, said: f"{MONTHS[_month(match['m']) - 1]} {match['y']}"),
    (rf"{_M} {_D}", True, _day_month),
    (rf"{_D}(?: of)? {_M}", True, _day_month),
    (
        "(?:the )?day before yesterday|(?:the )?day after tomorrow|yesterday|last night|tomorrow|today|tonight|"
        "this (?:morning|afternoon|evening)",
        True,
        _day,
    ),
    (rf"{_N} (?P<unit>day|week|weekend|month|year)s? (?P<ago>ago|back|earlier)", True, _distance),
    (rf"in {_N} (?P<unit>day|week|weekend|month|year)s?(?P<ago>)", True, _distance),
    (rf"(?P<which>{_WHICH}|on|by|until) (?P<unit>{_DAY_NAMES})", True, _period),
    (rf"(?P<which>{_WHICH}) (?P<unit>weekend|week|month|year|summer|winter|spring|fall|autumn)", True, _period),
    (rf"(?P<w>in|since|last|next|this|during|of|early|late|mid|by|until) {_M}", True, _bare_month),
    (_Y, False, lambda match, said: match["y"]),
)
_RULES: tuple[tuple[re.Pattern[str], bool, Rule], ...] = tuple(
    (re.compile(rf"(?<![\w-])(?:{text})(?!\w)", re.IGNORECASE), relative, rule) for text, relative, rule in _PATTERNS
)

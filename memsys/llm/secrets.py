"""API keys in use, and their removal from written and printed texts. `SECURITY.md` lists the promises.

Keys written into the settings themselves, where run.json, reports, cards and exports would repeat them, are refused. A setting says where
a key is (`key_env`, `keys`) and where it goes (`{key}`, `{NAME}`), never the key. The check looks at names and at the form of values, so
it is incomplete: a key that looks like a word, in a setting with a neutral name, is not detected. Values of environment variables that
look like secrets are redacted wherever they are (`register_environment`).
"""

from __future__ import annotations

import base64
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any
from urllib.parse import quote, urlsplit

from memsys.jsons import changed

LONG = 8
"""Keys of at least this many characters are removed from answers too. A shorter key may be a common word, such as `none` or `local`,
for a server without keys; it is removed from error messages only."""

SHORTEST = 3
"""Keys of fewer characters are never removed: they are placeholders such as `x`, which occur in every message."""

_keys: dict[str, str] = {}
"""Replacement of each key, by every spelling of the key; the longest first."""
_long: dict[bytes, bytes] = {}
"""The part of `_keys` whose keys have at least LONG characters, as bytes."""


def register(key: str, name: str) -> None:
    """From now on, replace the key by `<name>`: as given, stripped, and as JSON or a URL would escape it.

    A key of at least LONG characters also in upper and lower case, in hexadecimal digits, and in base64, alone or inside a longer text.
    A key that is split, reversed or encrypted is not recognised.
    """
    bare = key.strip()
    if len(bare) < SHORTEST:
        return
    escaped = {json.dumps(bare, ensure_ascii=ascii)[1:-1] for ascii in (True, False)}
    spellings = {key, bare, quote(bare, safe=""), bare.replace("/", "\\/"), *escaped}
    if len(bare) >= LONG:
        raw = bare.encode(errors="replace")
        spellings |= {bare.upper(), bare.lower(), raw.hex(), raw.hex().upper(), *_in_base64(raw)}
    _keys.update(dict.fromkeys(spellings, f"<{name}>"))
    longest_first = sorted(_keys.items(), key=lambda item: -len(item[0]))  # one key may be the beginning of another
    _keys.clear()
    _keys.update(longest_first)
    _long.clear()
    for spelling, label in longest_first:
        if len(spelling.strip()) >= LONG:
            _long[spelling.encode(errors="replace")] = label.encode()


def _in_base64(raw: bytes) -> set[str]:
    """Base64 of some bytes, in both alphabets, at each of the three places where they may begin in a longer text."""
    spellings = set()
    for before in range(3):
        whole = base64.b64encode(bytes(before) + raw).rstrip(b"=").decode()
        # The first characters hold bits of the text before, the last character bits of the text after.
        inner = whole[(0, 2, 3)[before] : len(whole) - (0 if (before + len(raw)) % 3 == 0 else 1)]
        spellings |= {inner, inner.replace("+", "-").replace("/", "_")}
    return spellings


def register_environment() -> None:
    """Register the value of every environment variable that looks like a secret, so that it is kept out of every file.

    Commands and workers do this when they begin, before anything is written.
    """
    for value, label in secrets_of_environment().items():
        register(value, label[1:-1])


def redact(text: str) -> str:
    """The text without the registered keys, and without the value of any environment variable that looks like a secret."""
    for key, label in list(_keys.items()):
        text = text.replace(key, label)
    for value, label in secrets_of_environment().items():
        text = text.replace(value, label)
    return text


def secrets_of_environment() -> dict[str, str]:
    """Replacement of the value of every environment variable that looks like a secret."""
    return {
        value.strip() or value: f"<{name}>"
        for name, value in os.environ.items()
        if len(value) >= LONG and _looks_secret(name)
    }


def environment_without_secrets() -> dict[str, str]:
    """The variables that do not look like secrets, for programs that need none, such as pip."""
    return {name: value for name, value in os.environ.items() if not _looks_secret(name)}


def _looks_secret(variable: str) -> bool:
    name = variable.upper()
    harmless = any(word in name for word in ("TOKENIZER", "KEYBOARD", "KEYMAP", "MAX_TOKENS"))
    return not harmless and any(word in name for word in ("KEY", "TOKEN", "SECRET", "PASSWORD"))


def redact_bytes(text: bytes) -> bytes:
    """The bytes of a reply or of a file's line without the registered keys of at least LONG characters."""
    for key, label in list(_long.items()):
        if key in text:
            text = text.replace(key, label)
    return text


def redact_values(value: Any) -> Any:
    """A text or nested configuration with `redact_bytes` applied to every string and key in it."""
    return changed(value, lambda text: redact_bytes(text.encode(errors="replace")).decode())


def scrub(error: BaseException) -> None:
    """Redact the message of an exception and of all exceptions that led to it, in place."""
    seen: set[int] = set()
    pending: list[BaseException | None] = [error]
    while pending:
        current = pending.pop()
        if current is None or id(current) in seen:
            continue
        seen.add(id(current))
        current.args = tuple(redact(part) if isinstance(part, str) else part for part in current.args)
        pending += [current.__cause__, current.__context__]


SECRET_WORDS = frozenset(
    "auth authorization authentication key apikey accesskey token secret password passwd passphrase pwd credential credentials cookie "
    "bearer".split()
)
"""Last words of names of settings, headers, query fields and variables that hold a key."""
SENT = frozenset("headers query env args path base_url url body arguments extra_body command".split())
"""Settings whose values are sent to a service or given to a program, and written to run.json unchanged."""

_PLACEHOLDER = re.compile(r"\$\{[^{}]*\}|\{\w+\}")
_SCHEME = re.compile(r"\s*(bearer|token|basic|apikey|api-key|key)?\s*", re.IGNORECASE)
_PREFIXED = re.compile(
    r"(?<![A-Za-z0-9])(?:(?:sk|pk|rk|m0|ak|hf|gsk|gh[opsu]|glpat|xox[abp]|nvapi|lsv2|pplx|tvly)[-_]|AKIA|AIza|eyJ)[A-Za-z0-9_-]{12,}"
    r"|\b(?i:bearer|basic) +[A-Za-z0-9+/_=.-]{8,}"
)
"""Prefixes of the providers' keys, and the text after the scheme of a header."""
_PASSWORD = re.compile(r"://(?=[^/@\s]*@)[^/@\s]*:(?!\$\{|\{)[^/@\s]+@")
"""User and password in an address."""
_HEX = re.compile(r"[0-9a-f]+|[0-9A-F]+")
_RANDOM = re.compile(r"[A-Za-z0-9]{20,}")
_FIELD = re.compile(r"[?&;]([^=&;]+)=([^&;]+)")
_FLAG = re.compile(r"--?([A-Za-z][\w-]*)(?:=(.*))?")
_VARIABLE = re.compile(r"\$\{(?:(?!\$\{)[^}])*\boc\.env:\s*(\w+)")


def names_secret(name: str) -> bool:
    """Whether a name ends in a word for a key: `X-Api-Key`, `accessToken`, `OPENAI_API_KEY_2`; `key_env` and `max_tokens` do not."""
    words = re.split(r"[^a-z]+", re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower())
    return next((word for word in reversed(words) if word), "") in SECRET_WORDS


def written_key(settings: Mapping[str, Any]) -> str:
    """A sentence about the first key written in the settings; empty if there is none. It repeats names, never a value."""
    return next((f"{path} {fault}" for path, fault in _faults(settings, "", "")), "")


def variables(settings: Any) -> set[str]:
    """Names of the environment variables that settings take values from, `${oc.env:NAME}`, before these are put in."""
    if isinstance(settings, str):
        return set(_VARIABLE.findall(settings))
    inner = settings.values() if isinstance(settings, Mapping) else settings if isinstance(settings, list) else ()
    return set().union(*map(variables, inner), set())


HOW = (
    "name its environment variable in key_env (an MCP server: in keys) and put {key} (MCP: {NAME}) into a header, "
    "because settings are written to run.json and to reports"
)


def _faults(value: Any, path: str, sent: str) -> Iterator[tuple[str, str]]:
    """The faults below a setting. `sent` is the nearest parent setting whose values leave the process."""
    name = path.rpartition(".")[2]
    sent = name if name in SENT else sent
    if isinstance(value, Mapping):
        for inner, below in value.items():
            if _PREFIXED.search(str(inner)):
                yield path, f"has a name that looks as if it were a key: {HOW}"
            yield from _faults(below, f"{path}.{inner}".lstrip("."), sent)
    elif isinstance(value, Sequence) and not isinstance(value, str | bytes):
        if sent == "args":
            yield from _flags(path, [str(each) for each in value])
        for number, below in enumerate(value):
            yield from _faults(below, f"{path}[{number}]", sent)
    elif isinstance(value, str | int) and not isinstance(value, bool):
        text = str(value)
        taken = _VARIABLE.search(text)
        if taken and (sent or names_secret(name) or names_secret(taken[1])):
            yield path, f"takes the value of {taken[1]} into the settings: {HOW}"
        elif _PASSWORD.search(text):
            yield path, f"holds a password; expected an address without user name, password and query: {HOW}"
        elif _literal(text) and names_secret(name):
            yield path, f"holds a key as it is: {HOW}"
        elif _looks_like_key(text, sent):
            yield path, f"looks as if it held a key: {HOW}"


def _flags(path: str, args: Sequence[str]) -> Iterator[tuple[str, str]]:
    for number, (argument, following) in enumerate(pairwise([*args, ""])):
        flag = _FLAG.fullmatch(argument)
        if flag and names_secret(flag[1]) and _literal(following if flag[2] is None else flag[2]):
            yield f"{path}[{number}]", f"gives the program a key as it is: {HOW}"


def _literal(text: str) -> bool:
    """Whether a text is more than placeholders and the name of a scheme."""
    return bool(_SCHEME.sub("", _PLACEHOLDER.sub("", text), count=1).strip())


def _looks_like_key(text: str, sent: str) -> bool:
    if _PREFIXED.search(text) or any(names_secret(name) and _literal(value) for name, value in _FIELD.findall(text)):
        return True
    if sent not in ("base_url", "url", "path", "headers", "query", "env"):
        return False
    place = urlsplit(text).path if "://" in text else text
    return any(
        re.search(r"[0-9]", run) and re.search(r"[A-Za-z]", run) and not _HEX.fullmatch(run)
        for run in _RANDOM.findall(place)
    )

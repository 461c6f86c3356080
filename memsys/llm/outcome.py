"""The outcome of one attempt at a call, from its HTTP response or its failure."""

from __future__ import annotations

import json
import os
import re
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from typing import Any
from urllib.parse import urljoin, urlsplit

from memsys.jsons import received
from memsys.llm.llama import key_of
from memsys.llm.network import is_local
from memsys.llm.protocol import ContextOverflow, ModelError, QuotaExhausted
from memsys.llm.replies import NOT_REPORTED, Usage, filtered_reply, is_overflow, usage_of
from memsys.llm.secrets import redact, redact_bytes, register
from memsys.llm.transport import HttpReply

RETRIED = frozenset({408, 409, 425, 429, 500, 502, 503, 504, 520, 522, 524, 529})
"""HTTP statuses after which a call is tried again."""
UNANSWERED = frozenset({504, 524})
"""HTTP statuses with which a proxy gives up waiting for a server that works on the call, and may bill it."""
OVERLOADED = frozenset({429, 503, 529})
"""HTTP statuses with which a server says that it gets too many calls."""
NO_QUOTA = frozenset(
    {
        "insufficient_quota",
        "billing_hard_limit_reached",
        "billing_not_active",
        "billing_error",
        "insufficient_balance",
    }
)
"""Codes and types of errors that say that the account has no quota left; they come with 429, 403, 402 or 400."""
EXHAUSTED = (
    "the account behind this key has no quota left: add credit or raise its limit, or set another key, then run the same command "
    "again, which resumes"
)
REDACTED = 100_000
"""Bytes of an error reply that are redacted before an excerpt is taken: an excerpt taken first could hold half a key."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of one attempt: a decoded reply, or a failure and how to go on after it."""

    value: Any = None
    """The decoded reply; None after a failure."""
    usage: Usage = NOT_REPORTED
    """Token counts of the reply."""
    why: str = ""
    """The failure, with keys redacted."""
    retry: bool = False
    """Whether the failure may be temporary."""
    refused: bool = False
    """Whether the server rejected the call before working on it, so that it costs nothing."""
    unreachable: bool = False
    """Whether no connection could be made."""
    retry_after: float = 0.0
    """Seconds that the server asks to wait."""
    overloaded: bool = False
    """Whether the server says that it gets too many calls (429, 503, 529)."""
    limits: Mapping[str, str] = field(default_factory=dict)
    """The reply's `x-ratelimit-*` headers."""
    error: type[ModelError] = ModelError
    """The exception to raise when the call fails for good."""


def outcome_of(url: str, reply: HttpReply) -> Outcome:
    """The outcome of an attempt that got an HTTP response."""
    if 300 <= reply.status < 400:
        target = redirected(url, reply)
        target = origin(target) if target else "nowhere"
        why = (
            f"HTTP {reply.status}: redirects to {target}, which is not followed; set base_url to the server's final URL"
        )
        return Outcome(why=redact(f"{url}: {why}"), refused=True)
    if reply.status >= 400:
        why = f"{url}: HTTP {reply.status}: {excerpt(reply.body, 500)}"
        if is_overflow(reply.status, reply.body):
            return Outcome(why=redact(why), refused=True, error=ContextOverflow)
        if reply.status == 400 and "/chat/" in url and (refusal := filtered_reply(reply.body)) is not None:
            return Outcome(value=refusal)
        if is_exhausted(reply.status, reply.body):
            return Outcome(why=redact(f"{why}; {EXHAUSTED}"), refused=True, error=QuotaExhausted)
        return Outcome(
            why=redact(why),
            retry=reply.status in RETRIED,
            refused=reply.status not in UNANSWERED,
            retry_after=_seconds_of(reply.retry_after),
            overloaded=reply.status in OVERLOADED,
            limits=reply.limits,
        )
    try:
        value = received(redact_bytes(reply.body))
    except ValueError:
        return Outcome(why=f"{url}: the reply is not JSON: {excerpt(reply.body, 200)!r}", retry=True)
    if not isinstance(value, dict) or not (value.get("choices") or value.get("data")):
        return Outcome(why=f"{url}: the reply has neither choices nor data: {excerpt(reply.body, 200)}", retry=True)
    return Outcome(value=value, usage=usage_of(value), limits=reply.limits)


def is_exhausted(status: int, body: bytes) -> bool:
    """Whether an error reply says that the account has no quota left, so that waiting does not help."""
    if status == 402:
        return True
    if status not in (400, 403, 429):
        return False
    try:
        error = json.loads(body[:REDACTED])["error"]
        words = {error.get("code"), error.get("type")}
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return False
    return bool(words & NO_QUOTA)


def excerpt(body: bytes, length: int) -> str:
    """The first characters of a reply, redacted."""
    return redact(body[:REDACTED].decode(errors="replace"))[:length]


def _seconds_of(retry_after: str) -> float:
    """The seconds to wait according to a Retry-After header, which holds a number of seconds or a date; at most 300."""
    if not retry_after:
        return 0.0
    try:
        return min(300.0, max(0.0, float(retry_after)))
    except ValueError:
        pass
    try:
        return min(300.0, max(0.0, parsedate_to_datetime(retry_after).timestamp() - time.time()))
    except (ValueError, OverflowError):
        return 0.0


def redirected(url: str, reply: HttpReply) -> str:
    """The URL that a response leads on to; empty if it names none."""
    try:
        target = urljoin(url, reply.location)
        urlsplit(target).port  # noqa: B018  # reading the property raises ValueError for an invalid port
    except ValueError:
        return ""
    return target if reply.location else ""


def origin(url: str) -> str:
    """Scheme, host and port of a URL, with the port always written out."""
    parts = urlsplit(url)
    host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
    return f"{parts.scheme}://{host}:{parts.port or (443 if parts.scheme == 'https' else 80)}"


API_VERSION = re.compile(r"api-version=[0-9A-Za-z.-]{1,40}")
"""The query that a base URL may have: Azure's classic form, `https://NAME.openai.azure.com/openai/deployments/DEPLOYMENT?api-version=…`."""


def located(base_url: str, path: str) -> str:
    """The URL of a path below a base URL; the query of Azure's classic form stays at the end."""
    base, mark, query = base_url.partition("?")
    return f"{base.rstrip('/')}{path}{mark}{query}"


def check_base_url(base_url: str) -> None:
    """Check that a base URL can be used and may be written to files.

    Raises:
        ModelError: it is not an http(s) URL, or contains a user name, a password, a fragment, or a query other than Azure's `api-version`.
    """
    try:
        parts = urlsplit(base_url)
        parts.port  # noqa: B018  # reading the property raises ValueError for an invalid port
    except ValueError as error:
        raise ModelError(f"endpoint.base_url is not a URL ({error})") from None
    versioned = not parts.query or API_VERSION.fullmatch(parts.query) is not None
    if parts.username is not None or parts.password is not None or parts.fragment or not versioned:
        raise ModelError(
            f"endpoint.base_url for {parts.hostname}: expected a URL without user name, password, fragment and query (but Azure's "
            "?api-version=…), because it would be written to files; put the key into the environment variable that endpoint.key_env names"
        )
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ModelError(
            f"endpoint.base_url must be an http or https URL such as http://127.0.0.1:8000/v1, found {base_url!r}"
        )


def note_unencrypted(base_url: str, key_env: str, key: str) -> None:
    """Warn on standard error that a key goes to another machine by plain http. It is still sent: servers in private networks need it."""
    if key and base_url.startswith("http://") and not is_local(base_url):
        print(
            f"note: the key of {key_env} goes to {base_url} without encryption, and whoever is on the way can read it; "
            "use https, or name another variable in key_env",
            file=sys.stderr,
            flush=True,
        )


def key_for(base_url: str, key_env: str) -> str:
    """The API key of a server from its environment variable; empty for a server on this machine that needs none.

    Raises:
        ModelError: the key is missing or malformed.
    """
    value = key_of(base_url) or os.environ.get(key_env, "")
    key = value.strip()  # a key read from a file ends in a newline
    if not key and not is_local(base_url):
        raise ModelError(f"no key for {base_url}: set the environment variable {key_env}")
    register(value, key_env)
    if not key.isascii() or not key.isprintable() or " " in key:
        raise ModelError(
            f"the environment variable {key_env} holds no key: expected plain ASCII without spaces, found other characters"
        )
    return key

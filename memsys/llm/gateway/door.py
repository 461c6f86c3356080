"""Access control of the gateway: programs on this machine with a token may call it, pages in a browser may not.

A browser sends any page's request to a loopback port, so the address alone protects nothing. `Origin` or `Sec-Fetch-Site` reveals a page
of another origin; `Host` reveals a page whose name was made to resolve to this machine; a form that is sent without a preflight request
(Fetch standard, "CORS-safelisted request-header") cannot have the content type of JSON.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from multidict import CIMultiDictProxy

HOSTS = ("127.0.0.1", "localhost", "[::1]")
JSON = "application/json"


@dataclass(frozen=True, slots=True)
class Refusal:
    """The reason why a request is refused."""

    status: int
    code: str
    message: str


def refusal(target: str, headers: CIMultiDictProxy[str], port: int, *, posted: bool) -> Refusal | None:
    """The reason why a request with these headers is refused; None if it is permitted.

    Args:
        target: of the request line; a target that is not a path names a host, which overrides the `Host` header (RFC 9112, 3.2.2).
        port: the port of the gateway.
        posted: whether the request has a body, which must be JSON.
    """
    hosts = headers.getall("Host", [])
    if not target.startswith("/") or len(hosts) != 1 or hosts[0].lower() not in _names(port):
        return Refusal(403, "host_refused", f"the gateway answers to 127.0.0.1:{port} and localhost:{port} alone")
    if "Origin" in headers or any(
        value.lower() not in ("none", "same-origin") for value in headers.getall("Sec-Fetch-Site", [])
    ):
        return Refusal(403, "origin_refused", "the gateway answers programs, not pages in a browser")
    if posted and headers.get("Content-Type", "").partition(";")[0].strip().lower() != JSON:
        return Refusal(415, "content_type", f"send the header Content-Type: {JSON} (curl: -H 'Content-Type: {JSON}')")
    return None


def _names(port: int) -> set[str]:
    names = {f"{host}:{port}" for host in HOSTS}
    return names | set(HOSTS) if port == 80 else names


def token_and_method(path: str, headers: Mapping[str, str]) -> tuple[str, str]:
    """The token of a request, and the rest of its path.

    The token is in the path (`/<token>/v1/models`, `/<token>/stats`), or if the path has none, in `Authorization: Bearer` or
    `api-key` (`/v1/models`, `/stats`).
    """
    first, *rest = path.strip("/").split("/")
    if first in ("v1", "stats"):
        scheme, _, sent = headers.get("Authorization", "").partition(" ")
        token = sent.strip() if scheme.lower() == "bearer" else headers.get("api-key", "")
        rest = [first, *rest]
    else:
        token = first
    return token, "/".join(rest[1:] if rest[:1] == ["v1"] else rest)

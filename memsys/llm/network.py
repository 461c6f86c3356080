"""`network=false`: while it holds, this process connects to nothing but its own machine.

Python's own sockets are watched by an audit hook. It does not see uvloop's, which opens them in C: `transport.new_event_loop` asks
`check` before each of them. A base URL beyond this machine is refused before anything is sent.
"""

from __future__ import annotations

import ipaddress
import socket
import sys
from functools import lru_cache
from typing import Any
from urllib.parse import urlsplit

_forbidden = False
_NAMES = ("localhost", "localhost.localdomain")


def forbid_network(forbidden: bool = True) -> None:
    """From now on, connecting to anything but this machine raises `PermissionError`, until an experiment is asked for with a network."""
    global _forbidden
    _forbidden = forbidden
    if forbidden:
        _hooked()


@lru_cache(maxsize=1)
def _hooked() -> None:
    sys.addaudithook(_watch)


def _watch(event: str, arguments: tuple[Any, ...]) -> None:
    if _forbidden and event in ("socket.connect", "socket.sendto") and isinstance(arguments[1], tuple):
        host = arguments[1][0]
        if not (_is_loopback_address(host) or host in ("", *_NAMES)):
            raise PermissionError(f"network=false: refused to connect to {host}")


def forbidden() -> bool:
    """Whether the network is out of bounds."""
    return _forbidden


def is_local(url: str) -> bool:
    """Whether a URL names this machine: `localhost` or a loopback address."""
    host = urlsplit(url).hostname or ""
    return host in _NAMES or _is_loopback_address(host)


def check_url(url: str) -> None:
    """Refuse a base URL beyond this machine, or a name of this machine that leads elsewhere, where the network is forbidden.

    Raises:
        PermissionError: it is refused.
    """
    if _forbidden:
        if not is_local(url):
            raise PermissionError(f"network=false: {url} is not on this machine; nothing was sent")
        check(urlsplit(url).hostname or "")


def check(host: str | bytes | None) -> None:
    """Refuse an address beyond this machine where the network is forbidden; a name counts by what it resolves to.

    Raises:
        PermissionError: it is refused.
    """
    if not _forbidden or not host:
        return
    name = host.decode(errors="replace") if isinstance(host, bytes) else host
    if _is_loopback_address(name):
        return
    if name in _NAMES and all(_is_loopback_address(str(found[4][0])) for found in _addresses(name)):
        return
    raise PermissionError(f"network=false: refused to connect to {name}")


def _addresses(name: str) -> list[Any]:
    return socket.getaddrinfo(name, None)


def _is_loopback_address(host: Any) -> bool:
    try:
        return ipaddress.ip_address(str(host).partition("%")[0]).is_loopback
    except ValueError:
        return False

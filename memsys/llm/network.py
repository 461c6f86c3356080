"""The setting `network=false`: this process may connect to its own machine only.

An audit hook watches Python's sockets. It does not see the sockets that uvloop opens in C; for those `transport.new_event_loop` calls
`check` before each connection. A base URL on another machine is refused before anything is sent.
"""

from __future__ import annotations

import ipaddress
import socket
import sys
from typing import Any
from urllib.parse import urlsplit

from memsys.llm.protocol import EndOfRun

OPENAI = "https://api.openai.com/v1"
_forbidden = _watched = False
"""Whether the network is forbidden, and whether the audit hook, which stays for the rest of the process, is set."""
_NAMES = ("localhost", "localhost.localdomain")


def forbid_network(forbidden: bool = True) -> None:
    """Forbid the network: from now on, connecting to another machine raises `PermissionError`. With False, allow it again."""
    global _forbidden, _watched
    _forbidden = forbidden
    if forbidden and not _watched:
        sys.addaudithook(_watch)
        _watched = True


def _watch(event: str, arguments: tuple[Any, ...]) -> None:
    if (
        _forbidden
        and event in ("socket.connect", "socket.sendto", "socket.sendmsg")
        and isinstance(arguments[1], tuple)
    ):
        host = arguments[1][0]
        if not (_is_loopback_address(host) or host in ("", *_NAMES)):
            raise PermissionError(f"network=false: refused to connect to {host}")


def forbidden() -> bool:
    """Whether the network is forbidden."""
    return _forbidden


def is_local(url: str) -> bool:
    """Whether the URL's host is this machine: `localhost` or a loopback address."""
    host = urlsplit(url).hostname or ""
    return host in _NAMES or _is_loopback_address(host)


def check_url(url: str) -> None:
    """Check that a base URL may be used.

    Raises:
        EndOfRun: the network is forbidden, and the URL is on another machine or is a local name that resolves to another machine.
    """
    if _forbidden:
        if not is_local(url):
            raise EndOfRun(f"network=false: {url} is not on this machine; nothing was sent")
        try:
            check(urlsplit(url).hostname or "")
        except OSError as error:
            raise EndOfRun(str(error)) from error


def check(host: str | bytes | None) -> None:
    """Check that a host may be connected to.

    Raises:
        PermissionError: the network is forbidden, and the host is not this machine. A local name is resolved first.
    """
    if not _forbidden or not host:
        return
    name = host.decode(errors="replace") if isinstance(host, bytes) else host
    if _is_loopback_address(name):
        return
    if name in _NAMES and all(_is_loopback_address(address[4][0]) for address in socket.getaddrinfo(name, None)):
        return
    raise PermissionError(f"network=false: refused to connect to {name}")


def _is_loopback_address(host: Any) -> bool:
    try:
        return ipaddress.ip_address(str(host).partition("%")[0]).is_loopback
    except ValueError:
        return False

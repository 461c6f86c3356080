"""A product for tests that tries to get out: 22 probes of what a process can read, write and reach beyond the gateway.

`nodes` makes them in the worker; `python prober.py TARGETS` makes them in a process without a guard and prints the names of those that got
through. What a probe has written or sent is looked for where it would be.
"""

from __future__ import annotations

import ctypes
import json
import os
import socket
import struct
import subprocess
import sys
from collections.abc import Callable
from typing import Any

ENVIRONMENT: dict[str, str] = {}
ABILITIES = {"sources": "exact", "score": "rank", "time": "clock"}
CONNECT = (
    "import socket,sys; s=socket.create_connection(('127.0.0.1',int(sys.argv[1])),2); s.sendall(sys.argv[2].encode())"
)
ELSEWHERE = ("198.51.100.7", 443)
"""An address for documentation, which nobody has."""


class Product:
    def __init__(self, given: dict[str, Any]) -> None:
        self._targets = given["settings"]

    def write(self, _: dict[str, Any]) -> dict[str, int]:
        return {"stored": 1, "changed": 0, "deleted": 0, "held": 1}

    def read(self, _: dict[str, Any]) -> list[dict[str, Any]]:
        return []

    def nodes(self, _: dict[str, Any]) -> list[dict[str, Any]]:
        return [{"id": name, "text": name} for name in got_through(self._targets)]


def got_through(targets: dict[str, Any]) -> list[str]:
    """Names of the probes that saw or asked for what they must not."""
    got = []
    for name, probe in PROBES.items():
        try:
            if probe(targets):
                got.append(name)
        except (OSError, subprocess.SubprocessError, TypeError):
            continue
    return got


def is_harness(targets: dict[str, Any]) -> bool:
    """Whether the process id is that of the harness here, too: it has the same start."""
    with open(f"/proc/{targets['pid']}/stat", "rb") as file:
        return file.read().rpartition(b")")[2].split()[19].decode() == targets["started"]


def environ_of_the_harness(targets: dict[str, Any]) -> bool:
    with open(f"/proc/{targets['pid']}/environ", "rb") as file:
        return is_harness(targets) and bool(file.read())


def memory_of_the_harness(targets: dict[str, Any]) -> bool:
    with open(f"/proc/{targets['pid']}/maps") as maps, open(f"/proc/{targets['pid']}/mem", "rb") as memory:
        first = next(line for line in maps if " rw-p " in line)
        memory.seek(int(first.split("-")[0], 16))
        return is_harness(targets) and bool(memory.read(16))


def signal_to_the_harness(targets: dict[str, Any]) -> bool:
    if not is_harness(targets):
        return False
    os.kill(targets["pid"], 0)
    return True


def reading(name: str) -> Callable[[dict[str, Any]], bool]:
    def read(targets: dict[str, Any]) -> bool:
        with open(targets[name], "rb") as file:
            return bool(file.read())

    return read


def writing(name: str) -> Callable[[dict[str, Any]], None]:
    def write(targets: dict[str, Any]) -> None:
        with open(targets[name], "ab") as file:
            file.write(b", changed")

    return write


def sent(family: int, kind: int, address: Callable[[dict[str, Any]], Any], name: str) -> Callable[..., None]:
    def send(targets: dict[str, Any]) -> None:
        with socket.socket(family, kind) as own:
            own.settimeout(2)
            own.connect(address(targets))
            own.sendall(name.encode())

    return send


class Anything(str):
    """A host that says that it equals every other."""

    __slots__ = ()

    def __eq__(self, _: object) -> bool:
        return True

    def __ne__(self, _: object) -> bool:
        return False

    __hash__ = str.__hash__


class Any_port(int):
    """A port that does."""

    def __eq__(self, _: object) -> bool:
        return True

    def __ne__(self, _: object) -> bool:
        return False

    __hash__ = int.__hash__


def datagram_by_sendto(targets: dict[str, Any]) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as own:
        own.sendto(b"datagram by sendto", ("127.0.0.1", targets["udp"]))


def datagram_by_sendmsg(targets: dict[str, Any]) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as own:
        own.sendmsg([b"datagram by sendmsg"], [], 0, ("127.0.0.1", targets["udp"]))


def routed() -> bool:
    """Whether a question for a name could leave this network."""
    with open("/proc/net/route") as routes:
        return len(routes.readlines()) > 1


def asked_for_a_name(_: dict[str, Any]) -> bool:
    try:
        socket.getaddrinfo("name.invalid", 80)
    except PermissionError:
        return False
    except OSError:
        pass
    return routed()


def asked_for_an_address(_: dict[str, Any]) -> bool:
    socket.getnameinfo(ELSEWHERE, 0)
    return routed()


def asked_for_a_host(_: dict[str, Any]) -> bool:
    try:
        socket.gethostbyaddr(ELSEWHERE[0])
    except PermissionError:
        return False
    except OSError:
        pass
    return routed()


def child(targets: dict[str, Any]) -> None:
    subprocess.run([sys.executable, "-c", CONNECT, str(targets["tcp"]), "child"], timeout=20, stderr=subprocess.DEVNULL)


def child_by_posix_spawn(targets: dict[str, Any]) -> None:
    arguments = [sys.executable, "-c", CONNECT, str(targets["tcp"]), "child by posix_spawn"]
    os.waitpid(os.posix_spawn(sys.executable, arguments, {}), 0)


def connection_by_ctypes(targets: dict[str, Any]) -> None:
    libc = ctypes.CDLL(None)
    own = libc.socket(socket.AF_INET, socket.SOCK_STREAM, 0)
    address = struct.pack("<H", socket.AF_INET) + struct.pack("!H4s8x", targets["tcp"], socket.inet_aton("127.0.0.1"))
    if libc.connect(own, address, len(address)) == 0:
        libc.send(own, b"connection by ctypes", 20, 0)
    os.close(own)


V4, V6, UNIX, STREAM = socket.AF_INET, socket.AF_INET6, socket.AF_UNIX, socket.SOCK_STREAM
PROBES: dict[str, Callable[[dict[str, Any]], bool | None]] = {
    "own environment": lambda targets: targets["variable"] in os.environ,
    "environ of the harness": environ_of_the_harness,
    "memory of the harness": memory_of_the_harness,
    "signal to the harness": signal_to_the_harness,
    "reading the home": reading("home"),
    "writing to the home": writing("home"),
    "reading the results": reading("results"),
    "writing to the results": writing("results"),
    "reading the cache": reading("cache"),
    "writing to the cache": writing("cache"),
    "connection": sent(V4, STREAM, lambda targets: ("127.0.0.1", targets["tcp"]), "connection"),
    "connection by IPv6": sent(V6, STREAM, lambda targets: ("::1", targets["tcp6"]), "connection by IPv6"),
    "address that equals all": sent(
        V4, STREAM, lambda targets: (Anything("127.0.0.1"), Any_port(targets["tcp"])), "address that equals all"
    ),
    "Unix socket": sent(UNIX, STREAM, lambda targets: targets["unix"], "Unix socket"),
    "datagram by sendto": datagram_by_sendto,
    "datagram by sendmsg": datagram_by_sendmsg,
    "question for a name": asked_for_a_name,
    "question for an address": asked_for_an_address,
    "question for a host": asked_for_a_host,
    "child": child,
    "child by posix_spawn": child_by_posix_spawn,
    "connection by ctypes": connection_by_ctypes,
}


if __name__ == "__main__":
    print(json.dumps(got_through(json.loads(sys.argv[1]))))

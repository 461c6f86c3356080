"""A product for tests that leaves things behind: a daemon in a session of its own, a pipe that its child holds, a step that never ends.

`settings["daemon"]` is the command of the daemon, `settings["then"]` what the product does when it has started it. What it counts when
it writes, and what it recalls, is the JSON that it is told.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import threading
from contextlib import suppress
from typing import Any

ENVIRONMENT: dict[str, str] = {}
ABILITIES = {"sources": "exact", "score": "rank", "time": "clock"}
CHILDREN = True


def _flood() -> None:
    """Write lines that are no replies to every pipe, the protocol's among them."""
    pipes = [each for each in range(3, 12) if os.path.exists(f"/proc/self/fd/{each}")]
    while True:
        for each in [each for each in pipes if os.readlink(f"/proc/self/fd/{each}").startswith("pipe")]:
            with suppress(OSError):
                os.write(each, b"x" * (1 << 20) + b"\n")


class Product:
    def __init__(self, given: dict[str, Any]) -> None:
        self._settings = given["settings"]

    def write(self, unit: dict[str, Any]) -> Any:
        if self._settings.get("daemon"):
            # The protocol's stream is among the descriptors that it keeps open.
            subprocess.Popen(["setsid", "-f", *self._settings["daemon"]], close_fds=False)
        if self._settings.get("comet"):
            comet = "import os, signal, sys\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nos.fork() and os._exit(0)\nos.setsid()\n"
            subprocess.Popen(
                ["python3", "-c", f"{comet}while True: os.fork() and os._exit(0)", self._settings["comet"]]
            )
        then = self._settings.get("then", "")
        if then == "die":
            os._exit(3)
        elif then == "hold the interpreter":
            re.match(r"(a+)+$", "a" * 60 + "b")
        elif then == "hoard in a child":
            hoard = "import time; held = bytearray(b'x' * (300 << 20)); time.sleep(600)"
            subprocess.run(["python3", "-c", hoard], check=False)
        elif then == "read no more":
            threading.Timer(0.2, lambda: os.kill(os.getpid(), signal.SIGSTOP)).start()
        elif then == "write without end":
            threading.Timer(0.5, _flood).start()
        return json.loads(unit["turns"][0]["text"])

    def read(self, question: dict[str, Any]) -> Any:
        return json.loads(question["text"])

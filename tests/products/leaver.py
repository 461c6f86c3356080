"""A product for tests that leaves things behind: a daemon in a session of its own, a pipe that its child holds, a step that never ends.

`settings["daemon"]` is the command of the daemon, `settings["then"]` what the product does when it has started it. What it counts when
it writes, and what it recalls, is the JSON that it is told.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from typing import Any

ENVIRONMENT: dict[str, str] = {}
ABILITIES = {"sources": "exact", "score": "rank", "time": "clock"}
CHILDREN = True


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
        return json.loads(unit["turns"][0]["text"])

    def read(self, question: dict[str, Any]) -> Any:
        return json.loads(question["text"])

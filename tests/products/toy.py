"""A product for tests: an adapter that needs nothing installed, and does on request whatever products do wrong.

It keeps a fact a turn, which the model writes, and finds by word overlap. `settings["fault"]` names what goes wrong, `at` in which write;
`settings["sabotage"]` what it does wrong without a sign (a fault of conformance).
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import time
import urllib.error
import urllib.request
import uuid
from typing import Any

ENVIRONMENT = {"TOY_TELEMETRY": "off"}
ABILITIES = {"sources": "exact", "score": "similarity", "time": "clock"}


class Product:
    def __init__(self, given: dict[str, Any]) -> None:
        self._url, self._settings = given["base_url"], given["settings"]
        self._facts: list[dict[str, Any]] = []
        self._writes = 0
        if self._settings.get("telemetry"):
            try:
                socket.create_connection(("203.0.113.7", 443), timeout=1)
            except PermissionError:
                print("toy: telemetry refused")
        self._hoard: list[bytearray] = []
        self._sabotage = self._settings.get("sabotage", "")

    def write(self, unit: dict[str, Any]) -> dict[str, int]:
        self._writes += 1
        turns = [turn for turn in unit["turns"] if turn["text"].strip()]
        if self._sabotage == "own text not stored":
            turns = [turn for turn in turns if turn["role"] != "assistant"]
        named = self._sabotage != "speaker lost"
        text = "\n".join(f"{turn['speaker']}: {turn['text']}" if named else turn["text"] for turn in turns)
        if self._settings.get("fault") and self._writes == self._settings.get("at", 3):
            self._misbehave(self._settings["fault"])
        stored = 0
        if text:
            said = self._chat(f"Today is {time.strftime('%Y-%m-%d', time.gmtime(time.time()))}.\n<new>{text}</new>")
            for fact in _facts(said):
                sources = [turn["id"] for turn in unit["turns"]]
                kept = {"id": str(uuid.uuid4()), "text": fact, "sources": sources, "stamp": time.time()}
                self._facts.append({**kept, "time_text": unit["time_text"]})
                stored += 1
        return {"stored": stored, "changed": 0, "deleted": 0, "held": len(self._facts)}

    def read(self, question: dict[str, Any]) -> list[dict[str, Any]]:
        if self._settings.get("fault") == "crash_in_read" and question["id"] == self._settings.get("at"):
            os.kill(os.getpid(), signal.SIGKILL)
        words = set(question["text"].lower().split())
        scored = [{**fact, "score": float(len(words & set(fact["text"].lower().split())))} for fact in self._facts]
        if self._sabotage == "search changes state":
            self._facts.append({"id": f"q{len(self._facts)}", "text": question["text"], "sources": [], "stamp": 0.0})
        best = sorted(scored, key=lambda fact: -fact["score"])
        return best if self._sabotage == "k ignored" else best[: question["k"]]

    def nodes(self, _: dict[str, Any]) -> list[dict[str, Any]]:
        return self._facts

    def _chat(self, text: str) -> str:
        messages = [{"role": "system", "content": "Toy: extract facts."}, {"role": "user", "content": text}]
        body = json.dumps({"model": "toy", "messages": messages, "response_format": {"type": "json_object"}}).encode()
        request = urllib.request.Request(f"{self._url}/chat/completions", body, {"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=60) as reply:
                return str(json.loads(reply.read())["choices"][0]["message"]["content"])
        except urllib.error.HTTPError:
            return ""  # as many products do: nothing is stored and nobody is told

    def _misbehave(self, fault: str) -> None:
        if fault == "crash":
            os.kill(os.getpid(), signal.SIGKILL)
        elif fault == "hang":
            time.sleep(600)
        elif fault == "raise":
            raise RuntimeError("the toy broke")
        elif fault == "garbage":
            print("not JSON, from Python")
            os.write(1, b"not JSON, from native code\n")
            for descriptor in range(3, 12):  # whichever is the protocol's: a product may write to any
                try:
                    if os.readlink(f"/proc/self/fd/{descriptor}").startswith("pipe"):
                        os.write(descriptor, b'half a line of JSON {"n": \n')
                        break
                except OSError:
                    continue
        elif fault == "hoard":
            while True:
                self._hoard.append(bytearray(b"x" * (8 << 20)))
                time.sleep(0.01)


def _facts(said: str) -> list[str]:
    try:
        facts = json.loads(said)["facts"]
    except (ValueError, KeyError, TypeError):
        return []
    return [fact for fact in facts if isinstance(fact, str)]


if __name__ == "__main__":
    sys.exit("an adapter is run by memsys/products/worker.py")

"""Evaluate a memory without a key: `memsys-bench probe --mcp "COMMAND"`, or `--http FILE` (or NAME) with a file as those of conf/memory.

Runs conformance (`memsys-bench conformance`), then the retrieval table on the LoCoMo sample: the share of the evidence that its searches
recall, compared with BM25. Settings of `memsys-bench run` may follow, such as `data.source=real data.root=~/data`.

COMMAND starts an MCP server on stdio, once for each history, in an empty folder; paths among its words are relative to the working folder,
and `--key NAME` passes the environment variable NAME to it. The purpose of its tools is inferred from their names and argument names, and
the place of the hits from the reply to one trial search; a tool with other required arguments is refused by name. `--save FILE` writes the
description: correct it there, and continue with `probe --http FILE`, `gate` and `run`. A memory that conformance refuses gets no table.
Exit codes: 0 accepted, 1 refused or too much not scored, 2 wrong input, 3 the plan was declined.
"""

from __future__ import annotations

import shlex
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from eval.conformance.canaries import CANARIES, HISTORY
from eval.files.store import RunError, replace_file
from eval.report.cell import Cell, Column, outcomes
from eval.report.rendering import EVIDENCE_INTERVAL, evidence_means, grid, intervals
from memsys.inert import visible
from memsys.interface import spoken
from memsys.services.mcp import Program, Session
from memsys.services.templates import filled, reached
from scripts.lab.lab import Lab, Scored, examined
from scripts.setup.arguments import verb_parser
from scripts.setup.options import CONF
from scripts.tables.captions import caption

GROUP = "run"
RUNS_MEMORIES = True

REFERENCE = "bm25"
KNOWN = yaml.safe_load((CONF / "probe.yaml").read_text(encoding="utf-8"))
"""Names of tools, of their arguments and of the fields of hits."""
SECONDS, PATIENCE = 60.0, 10.0
"""Maximum seconds for the start of a server and for a call, and maximum seconds until a trial search returns the added text."""
CANARY, TOLD = CANARIES[0], HISTORY.sessions[0].turns[0]
"""The canary of the trial, and the turn that states it."""


def main(arguments: Sequence[str]) -> int:
    parser = verb_parser("probe", __doc__)
    door = parser.add_mutually_exclusive_group(required=True)
    door.add_argument("--mcp", metavar="COMMAND", help="starts an MCP server on stdio")
    door.add_argument(
        "--http", metavar="FILE", help="describes a service; or the name of a shipped one: reference_http"
    )
    parser.add_argument("--key", action="append", default=[], metavar="NAME", help="a variable that the server gets")
    parser.add_argument("--save", type=Path, metavar="FILE", help="keep the description of the MCP server")
    parser.add_argument("settings", nargs="*", metavar="key=value", help="settings of memsys-bench run")
    args = parser.parse_intermixed_args(arguments)
    if args.http and (args.key or args.save):
        raise RunError("--key and --save belong to --mcp; the file of --http says all of that")
    with tempfile.TemporaryDirectory(prefix="memsys-probe-") as folder:
        named = {each.split("=")[0] for each in args.settings}
        own = {"results": folder, "network": "true"}  # the memory may be on this machine or another
        lab = Lab(*(f"{name}={own[name]}" for name in own if name not in named), *args.settings, probe=False)
        memory = lab.memory(args.http) if args.http else described(args.mcp, args.key)
        if args.save:
            replace_file(args.save, yaml.safe_dump(memory, sort_keys=False, allow_unicode=True))
            print(f"written: {args.save}")
        return probed(lab, memory)


def probed(lab: Lab, memory: Mapping[str, Any]) -> int:
    """Run conformance, then print the table of the memory and BM25; return the exit code."""
    dataset, rows = lab.load(), [memory, lab.memory(REFERENCE)]
    if not lab.agreed(rows, dataset, []):
        return 3
    if not examined(lab, dataset, memory):
        print("no table: mend what is named above, or excuse it with `waived: {check: reason}` in the file")
        return 1
    scored = [lab.score(lab.ask(row, dataset), [], []) for row in rows]
    print("\n" + "\n".join(table(lab, scored)))
    lost = scored[0].answers
    errors = sum("error" in each for each in outcomes([lost.folder], lost.questions).values())
    return int(errors > lab.cfg.missing_limit * len(lost.questions))


def table(lab: Lab, scored: Sequence[Scored]) -> Iterator[str]:
    """Lines of Markdown: evidence by memory, the paired difference from the last one, and notes on the numbers."""
    dataset, name = scored[0].answers.dataset, f"evidence@{lab.cfg.k_evidence}"
    column = Column.of(dataset.config, name, scored[0].answers.questions)
    cells = [Cell.of(column, (files[name] for files in each.files)) for each in scored]
    rows = []
    for each, cell in zip(scored, cells, strict=True):
        gap = None if cell is cells[-1] else cell.minus(cells[-1], test=False)
        errors = sum("error" in ended for ended in cell.outcomes.values())
        difference = "–" if gap is None else f"{gap.mean:+.3f} {intervals(gap)}"
        means = evidence_means(each.files[0][name])
        rows.append([visible(each.answers.title), *means, difference, str(errors)])
    yield f"## {name} on {dataset.title} (means over questions that name evidence)"
    yield ""
    yield EVIDENCE_INTERVAL
    yield ""
    header = ["Memory", "covered", "verbatim", "nDCG", "turns per item", "questions"]
    yield grid([*header, f"covered, minus {scored[-1].answers.title} {{by case}} [by question]", "errors"], rows)
    yield ""
    run = scored[0].answers.runs[0]
    yield from (f"- {visible(line)}" for line in caption(lab.cfg, lab.models, [(dataset, run.reader, run.unit)]))
    yield "- Answers are not scored here: no number above depends on a model that answers."


# --- an MCP server without a description --------------------------------------------------------------------------------


def described(command: str, keys: Sequence[str]) -> dict[str, Any]:
    """Derive the description of an MCP server, in the form of a file of conf/memory, from its tools and one trial search.

    Raises:
        RunError: the command does not exist, or its tools are not understood; the message names them.
    """
    program, *args = _words(command)
    session = Session(Program(program, tuple(args), {}, tuple(keys), "", {}, local=False), "", SECONDS)
    try:
        tools = session.tools(SECONDS)
        add, search = (_call(step, tools) for step in KNOWN["tools"])
        results = _tried(session, add, search)
        server = session.server
    finally:
        session.close()
    build = {
        "_target_": "memsys.services.mcp.McpMemory",
        "_partial_": True,
        **{"command": program, "args": args, "keys": list(keys), "k": 10, "add": add, "search": search},
        **{"results": results, "open_seconds": SECONDS, "step_seconds": SECONDS},
    }
    print(f"{server}: {add['tool']}({', '.join(add['arguments'])}), {search['tool']}({', '.join(search['arguments'])})")
    return {"name": "probed", "title": server, "build": build}


def _words(command: str) -> list[str]:
    """The words of a command, with absolute paths because the server runs in a folder of its own."""
    words = shlex.split(command)
    first = shutil.which(words[0]) if words else None
    if first is None:
        raise RunError(f"no program {words[0] if words else command!r} to start the MCP server with")
    return [
        str(Path(first).absolute()),
        *(str(Path(each).resolve()) if Path(each).exists() else each for each in words[1:]),
    ]


def _call(step: str, tools: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """The call of a step: its tool, and the values of the tool's arguments."""
    tool = next((name for name in KNOWN["tools"][step] if name in tools), None)
    if tool is None:
        raise RunError(
            f"no tool of the server is known to {step} memories: it has {', '.join(tools) or 'none'}; "
            "describe it as conf/memory/reference_mcp.yaml does, and give that file to --http"
        )
    schema = tools[tool]
    fields: Mapping[str, Any] = schema.get("properties", {})
    given: dict[str, Any] = {}
    for value, names in KNOWN["arguments"][step].items():
        if (name := next((each for each in names if each in fields and each not in given), None)) is not None:
            given[name] = {"each": "turns", "as": _message(fields[name], schema)} if value == "{each}" else value
    if "{dated_text}" in given.values() and "{time_text}" in given.values():  # the date has a field of its own
        given = {name: "{text}" if value == "{dated_text}" else value for name, value in given.items()}
    needed = "{query}" if step == "search" else "{text}"
    texts = {needed, "{dated_text}"} if step == "add" else {needed}
    if not (texts & {each for each in given.values() if isinstance(each, str)} or "messages" in given):
        raise RunError(f"{tool}: none of its arguments ({', '.join(fields)}) is known to take {needed}")
    if unknown := sorted(set(schema.get("required", ())) - set(given)):
        raise RunError(
            f"{tool} needs {unknown[0]}, whose value is not known; describe the server as "
            "conf/memory/reference_mcp.yaml does, and give that file to --http"
        )
    return {"tool": tool, "arguments": given}


def _message(field: Mapping[str, Any], schema: Mapping[str, Any]) -> dict[str, str]:
    """A message of the list `messages`: the fields that its schema names, or all our fields if it names none."""
    items = field.get("items", {})
    if "$ref" in items:
        items = schema.get("$defs", {}).get(str(items["$ref"]).rpartition("/")[2], {})
    wanted = items.get("properties") or KNOWN["message"]
    return {name: value for name, value in KNOWN["message"].items() if name in wanted}


def _tried(session: Session, add: Mapping[str, Any], search: Mapping[str, Any]) -> dict[str, str]:
    """The place of the hits in a search's reply, determined by adding one canary and searching for it."""
    turn = {"turn": TOLD.id, "speaker": TOLD.speaker, "role": TOLD.role, "text": TOLD.text}
    line = spoken(TOLD)
    values = {"namespace": "memsys-probe", "text": line, "dated_text": line, "session": "s1", "turns": [turn]}
    session.call(add["tool"], filled(add["arguments"], {**values, "time_text": None}), SECONDS)
    asked = filled(search["arguments"], {"namespace": "memsys-probe", "query": CANARY.question, "k": 10})
    until = time.monotonic() + PATIENCE
    while True:
        reply = session.call(search["tool"], asked, SECONDS)
        if (found := _results(reply, dated="{time_text}" in add["arguments"].values())) is not None:
            return found
        if time.monotonic() > until:
            raise RunError(
                f"{search['tool']} does not find what {add['tool']} was told within {PATIENCE:g} s, "
                f"or its reply has another form: {visible(repr(reply))[:300]}"
            )
        time.sleep(0.5)


def _results(reply: Any, *, dated: bool) -> dict[str, str] | None:
    """Paths in a reply (`memsys.services.memory`); None if no list or text of the reply holds the canary."""
    lists = [""] if isinstance(reply, list | str) else []
    if isinstance(reply, Mapping):
        lists = [str(name) for name, value in reply.items() if isinstance(value, list | str)]
    for path in lists:
        (hits,) = reached(reply, path)
        for hit in hits if isinstance(hits, list) else [hits]:
            if isinstance(hit, str) and CANARY.word in hit:
                return {"items": path}
            if isinstance(hit, Mapping) and any(CANARY.word in str(hit.get(name)) for name in KNOWN["results"]["text"]):
                known = KNOWN["results"].items()
                fields = {field: next((name for name in names if name in hit), "") for field, names in known}
                return {"items": path, **fields, "time": fields["time"] if dated else ""}
    return None

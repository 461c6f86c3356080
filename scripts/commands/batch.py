"""Export and import batch files by hand: `python -m scripts batch export FILE | import FILE | status | forget ID`.

For a GPU without a network: run any command with `endpoint.mode=collect`, which stores the calls instead of sending them; `export` writes
them as JSONL for `vllm run-batch`; copy the file over, run it, and `import` its output. The same command then continues from there: answers
first, judgements in the next round. `status` shows the journal of `endpoint.mode=batch`, with the open batches. `forget`
drops a batch that the provider no longer has; the next run sends its calls again and pays for them again.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from eval.files.store import RunError, replace_file
from eval.report.counted import counted
from memsys.jsons import decoded
from memsys.llm.batching.endpoint import best, replies_of
from memsys.llm.batching.journal import Journal
from scripts.setup.arguments import verb_parser

GROUP = "data"


def main(arguments: Sequence[str]) -> int:
    """Run the command line; the exit code is 1 when there is nothing to export or a file holds failed calls."""
    parser = verb_parser("batch", __doc__)
    parser.add_argument("--cache", type=Path, default=Path("results/cache.sqlite"), help="the cache file")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("export", help="write the collected calls").add_argument("file", type=Path)
    commands.add_parser("import", help="take the replies to them").add_argument("file", type=Path)
    commands.add_parser("status", help="count open calls, batches under way and replies")
    commands.add_parser("forget", help="drop a batch; its calls are sent again by the next run").add_argument(
        "batch", metavar="ID"
    )
    options = parser.parse_args(arguments)
    if not options.cache.is_file():
        raise RunError(
            f"{options.cache} does not exist: name the cache with --cache, or run with endpoint.mode=collect"
        )
    with closing(Journal(options.cache)) as journal:
        if options.command == "status":
            for name, count in journal.counts().items():
                print(f"{name:<28}{count:>9}")
            for batch in journal.under_way():
                at = time.localtime(batch.begun)
                begun = "" if batch.begun is None else f" begun {time.strftime('%Y-%m-%d %H:%M', at)}"
                print(f"under way: {batch.at_provider or batch.id + ' (not sent yet)'}{begun}")
            return 0
        if options.command == "forget":
            return forget(journal, options.batch)
        return (export if options.command == "export" else take)(journal, options.file)


def export(journal: Journal, file: Path) -> int:
    """Write the open calls as a batch file, one model after the other."""
    calls = journal.open_calls()
    if not calls:
        print("no call is open: run with endpoint.mode=collect first")
        return 1
    models = Counter(str(decoded(call.body).get("model")) for call in calls)
    replace_file(file, b"".join(call.line() for call in calls).decode())
    listed = ", ".join(f"{count} for {model}" for model, count in sorted(models.items()))
    print(f"written: {file}, {counted(len(calls), 'call')} ({listed})")
    return 0


def take(journal: Journal, file: Path) -> int:
    """Store the replies of a file; failed calls stay open."""
    if not file.is_file():
        raise RunError(f"{file} does not exist")
    with file.open(encoding="utf-8", errors="surrogateescape") as lines:
        replies = best(replies_of(lines))
    if not replies:
        raise RunError(
            f"{file} holds no reply: expected the output of `vllm run-batch`, lines with custom_id and response"
        )
    open_names = {call.name for call in journal.open_calls()}
    good = {name: reply for name, reply in replies.items() if name in open_names and reply[0] == 200}
    failed = [name for name, (status, _) in replies.items() if status != 200]
    unknown = replies.keys() - open_names
    journal.keep(good)
    print(
        f"{counted(len(good), 'reply')} kept, {counted(len(failed), 'call')} failed (still open), {len(unknown)} are not open here, "
        f"{len(open_names) - len(good)} open calls are left"
    )
    return 1 if failed else 0


def forget(journal: Journal, batch: str) -> int:
    """Drop a batch with the calls it holds. Raises RunError if no open batch has this name, or a running command is working on it."""
    try:
        calls = journal.drop(batch)
    except KeyError:
        raise RunError(
            f"no batch {batch} is under way: `python -m scripts batch status` lists those that are"
        ) from None
    except BlockingIOError:
        raise RunError(f"a running command waits for batch {batch}; stop it first") from None
    print(
        f"batch {batch} is forgotten; its {counted(calls, 'call')} will be sent again by the next run that needs them"
    )
    return 0

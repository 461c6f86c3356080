"""Measure a memory system under many concurrent users: `python -m scripts load memory=bm25 users=[1,10,100]`.

Every user has a memory of their own (for a service: a namespace), writes units of a history, each with a value of this user, and reads.
The command prints p50, p95 and p99 of write, consolidation, read and of the lag from a write until its value is recalled, operations per
second, errors, CPU and bytes; every read is searched for values of other users (`eval.analysis.load`). A CSV goes to `results/load/`.
Only this machine is reached, unless `network=true`. A level of users ends after `seconds`, once the open calls have returned.
Exit codes: 0 measured, 1 a read leaked or too many operations failed (`max_unscored`), 2 wrong input.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from eval.analysis.load import Level, Plan
    from scripts.settings.schema import Load

GROUP = "run"
CONFIG = "load"
WORDS = "memory dataset"
CAUSES = 5
"""Maximum number of printed kinds of failure, and of printed leaks."""


def main(cfg: Load) -> int:
    from eval.analysis.load import Plan, as_csv, load_file, measure
    from eval.files.store import RunError, replace_file
    from eval.running.loop import clear_up
    from scripts.assembly.readiness import check_endpoint
    from scripts.lab.lab import Lab
    from scripts.setup.progress import progress_line

    if cfg.replay:
        raise RunError("replay=true: load measures the memory itself, not the cache; leave replay=true out")
    if cfg.memory.get("control"):
        raise RunError(f"{cfg.memory['name']} is made of the answer key; it is no memory for users")
    plan = Plan(tuple(cfg.users), cfg.writes, cfg.reads, cfg.write_rate, cfg.read_rate, cfg.patience, cfg.seconds)
    lab = Lab(cfg=cfg)
    dataset = lab.load()
    run = lab.run(lab.memory(), dataset)
    check_endpoint(cfg, lab.models)
    clear_up([run])
    path = load_file(run, dataset.name, plan)
    levels: list[Level] = []
    with progress_line("load", len(plan.users), traffic=lab.models.traffic) as progress:
        for level in measure(run, plan):
            levels.append(level)
            # The file is written after each level, so a failure of the next level loses nothing.
            replace_file(path, as_csv(run.name, dataset.name, levels))
            progress.step()
    print("\n".join(lines(f"{cfg.memory['title']} on {dataset.title}", plan, levels)))
    if filled := lab.models.stand_ins:
        print(f"STAND-IN: {', '.join(filled)} filled by offline engines; these are not the times of models.")
    print(f"written: {path}")
    sent = sum(level.tally.sent.total() for level in levels)
    errors = sum(level.tally.errors.total() for level in levels)
    return int(any(level.tally.leaks for level in levels) or errors > cfg.missing_limit * sent)


def lines(title: str, plan: Plan, levels: Sequence[Level]) -> Iterator[str]:
    """The table as Markdown, with its subject, failures and leaks."""
    from eval.analysis.load import PERCENTILES, PHASES, writes
    from eval.report.counted import counted
    from eval.report.rendering import grid
    from memsys.inert import visible

    yield f"## Load: {visible(title)}"
    yield ""
    header = ["users", "writes", "reads", "errors", "not sent", "leaks", "recalled", "never"]
    rows = []
    for level in levels:
        tally = level.tally
        counts = [level.users, writes(tally.sent), tally.sent["read"], tally.errors.total(), tally.unsent.total()]
        counts += [tally.leaks, tally.recalled, tally.lost]
        seconds = ([level.percentile(phase, percent) for percent in PERCENTILES] for phase in PHASES)
        milliseconds = (" / ".join("–" if one is None else f"{1000 * one:.1f}" for one in own) for own in seconds)
        totals = [f"{level.rate:.1f}", f"{level.cpu:.2f}", f"{level.bytes:,}"]
        rows.append([*map(str, counts), *milliseconds, *totals])
    yield grid([*header, *(f"{phase} ms" for phase in PHASES), "ops/s", "CPU s", "bytes"], rows)
    yield ""
    yield (
        f"- Each user: {plan.writes} writes at {plan.write_rate:g}/s, a read after each, {plan.reads} more at {plan.read_rate:g}/s, "
        f"and those that ask again for up to {plan.patience:g} s."
    )
    yield "- ms are p50 / p95 / p99 of what returned; lag is from the start of a write until a read recalls its value, with consolidation."
    if any(level.tally.lost for level in levels):
        yield "- Values that were never recalled have no lag: with them, its percentiles would be higher."
    if few := sorted(
        {phase for level in levels for phase in PHASES if 0 < len(level.tally.seconds[phase]) < 100}, key=PHASES.index
    ):
        yield f"- p99 of fewer than 100 operations, and p95 of fewer than 20, is the slowest one: somewhere in {', '.join(few)}."
    yield "- behind: how late an operation began because the one before it took long; it is in no other column."
    yield "- first: the first write of each user, before the rates begin; it starts processes and clients, and is in no other column."
    yield "- CPU and bytes (growth) are of this process and those that it started for memories; a service elsewhere is not in them."
    for level in levels:
        for cause, count in level.tally.causes.most_common(CAUSES):
            yield f"- {counted(level.users, 'user')}: {count} × {visible(cause)}"
        if (further := len(level.tally.causes) - CAUSES) > 0:
            yield f"- {counted(level.users, 'user')}: and failures of {further} other kinds"
        if level.tally.calls:
            yield f"- {counted(level.users, 'user')}: {level.tally.calls.total()} model calls failed or could not be parsed"
        for leaked in level.tally.leaked[:CAUSES]:
            yield f"- LEAK at {counted(level.users, 'user')}: {visible(leaked)}"

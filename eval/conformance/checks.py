"""The conformance checks: write, read, write to another case, read again and delete; and the names of the faults."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from data_loaders.schema import Case
from eval.conformance.canaries import CANARIES, HISTORY, LAST, LATER, OTHER, OTHERS, SUBJECT, Canary, asked, shows_date
from eval.running.failures import described, raise_fatal, raise_if_stopped
from eval.running.work import write_history
from memsys.interface import MemorySystem, Recall, tuned
from memsys.llm.meter import metering

FAULTS = {
    "a step failed": "a write, a search or a deletion raised an error",
    "empties": "nothing, or text that is blank, is recalled",
    "index late": "what was written is found only some time after the memory says that it is ready",
    "own text not stored": "what the assistant said is not found",
    "failures reported as success": "a write raised no error, and what it wrote is not found",
    "forgets": "what was found is no longer found after more was written",
    "dates dropped": "recalled text does not say when it was said",
    "speaker lost": "recalled text does not say who said it",
    "order lost": "turns are recalled in another order than they were spoken",
    "ids repeated": "hits have the id of another hit, and only the first of them is recalled",
    "k ignored": "a search returns more items than asked for",
    "search changes state": "the same question recalls something else the second time",
    "tenants leak": "one case recalls what another was told",
    "deletions kept": "what was deleted is still found",
    "subject kept": "what `delete(subject)` was asked to forget is still found, or comes back with the next consolidation",
    "subject takes more": "`delete(subject)` took facts along that it was not asked to forget",
}
"""Names of the faults, in the order in which they are looked for."""
FEW = 2
"""A `k` that the history exceeds."""

Make = Callable[[Case], MemorySystem]


@dataclass(slots=True)
class ConformanceResult:
    """Results of the checks of one memory."""

    faults: dict[str, str] = field(default_factory=dict)
    """The observation that shows a fault, by the fault's name."""
    unchecked: dict[str, str] = field(default_factory=dict)
    """The reason why a check does not apply, by the fault's name."""

    def unwaived(self, waived: Iterable[str]) -> list[str]:
        """Faults for which the memory is refused."""
        return [name for name in FAULTS if name in self.faults and name not in set(waived)]


def examine(make: Make, unit: Mapping[str, object], patience: float = 10.0) -> ConformanceResult:
    """Write the canaries through a memory's own interface, with its unit rule, and check what it returns.

    Args:
        make: builds a fresh memory for a case.
        patience: seconds to wait for another program's late index, to distinguish a late canary from one that was never stored.

    Raises:
        EndOfRun: no further call can be made.
    """
    verdict = ConformanceResult()
    memories: list[MemorySystem] = []
    try:
        memories.append(first := make(HISTORY))
        write_history(first, HISTORY, unit)
        _look_into(first, verdict, patience)
        _look_for_forgetting(first, unit, verdict)
        memories.append(second := make(OTHER))
        write_history(second, OTHER, unit)
        if leaked := [*_found(second, CANARIES), *_found(first, OTHERS)]:
            verdict.faults["tenants leak"] = f"told to another case: {', '.join(leaked)}"
        _look_for_subject(first, verdict)
        _look_for_remains(first, second, verdict)
    except BaseException as error:
        raise_if_stopped(error)
        verdict.faults["a step failed"] = described(error)
    finally:
        for memory in memories:
            try:
                memory.close()
            except BaseException as error:
                raise_fatal(error)
                verdict.faults.setdefault("a step failed", f"close: {described(error)}")
    return verdict


# --- one case ---------------------------------------------------------------------------------------------------------


def _look_into(memory: MemorySystem, verdict: ConformanceResult, patience: float) -> None:
    with metering() as ledger:
        recalls = _ask(memory, CANARIES)
    if ledger.notes["service.blank"] or any(not text.strip() for text in _texts(recalls.values())):
        verdict.faults["empties"] = "items without text are recalled"
    if repeated := ledger.notes["service.repeated"]:
        verdict.faults["ids repeated"] = f"{repeated} hits are left out"
    if not memory.REHEARSED:
        recalls = _later(memory, recalls, patience, verdict)
    else:
        verdict.unchecked["index late"] = "it lives in this process, and a write is done when it returns"
    _name_losses(recalls, verdict)
    _look_at_texts(recalls, verdict)
    _look_for_changes(memory, recalls, verdict)
    _look_at_k(memory, verdict)


def _ask(memory: MemorySystem, canaries: Sequence[Canary]) -> dict[str, Recall]:
    """The recall for the question about each canary, by the canary's word."""
    return {canary.word: memory.read(asked(canary)) for canary in canaries}


def _later(
    memory: MemorySystem, recalls: dict[str, Recall], patience: float, verdict: ConformanceResult
) -> dict[str, Recall]:
    """The recalls once no further canary appears. A canary that is recalled only now was not indexed in time."""
    started, first = time.monotonic(), _unanswered(recalls)
    while _unanswered(recalls) and time.monotonic() - started < patience:
        time.sleep(min(0.2, patience / 5))
        recalls = _ask(memory, CANARIES)
    if late := [canary for canary in first if canary not in _unanswered(recalls)]:
        after = f"{time.monotonic() - started:.1f} s after the memory was ready"
        verdict.faults["index late"] = f"found {after}: {_words(late)}"
    return recalls


def _unanswered(recalls: Mapping[str, Recall]) -> list[Canary]:
    """Canaries that are missing from the recall for their own question."""
    return [canary for canary in CANARIES if not any(canary.word in text for text in _texts([recalls[canary.word]]))]


def _name_losses(recalls: Mapping[str, Recall], verdict: ConformanceResult) -> None:
    shown = "\n".join(_texts(recalls.values()))
    lost = [canary for canary in CANARIES if canary.word not in shown]
    if not any(recall.items or recall.answer for recall in recalls.values()):
        verdict.faults.setdefault("empties", "nothing is recalled for any question")
    elif lost and "empties" not in verdict.faults:
        own = lost == [canary for canary in CANARIES if canary.own]
        name = "own text not stored" if own else "failures reported as success"
        verdict.faults[name] = f"never found: {_words(lost)}"


def _look_at_texts(recalls: Mapping[str, Recall], verdict: ConformanceResult) -> None:
    """Check dates, speakers and order of the canaries that are shown."""
    texts = _texts(recalls.values())
    shown = [(canary, [text for text in texts if canary.word in text]) for canary in CANARIES]
    if undated := [canary for canary, own in shown if own and not any(shows_date(text, canary) for text in own)]:
        verdict.faults["dates dropped"] = f"without a date: {_words(undated)}"
    if unnamed := [canary for canary, own in shown if own and not any(canary.speaker in text for text in own)]:
        verdict.faults["speaker lost"] = f"without a speaker: {_words(unnamed)}"
    together = 0
    for text in texts:
        for session in HISTORY.sessions:
            said = {turn.id for turn in session.turns}
            places = [text.index(canary.word) for canary in CANARIES if canary.turn in said and canary.word in text]
            together = max(together, len(places))
            if places != sorted(places):
                verdict.faults["order lost"] = f"another order than spoken: {text[:160]!r}"
    if together < 2:
        verdict.unchecked["order lost"] = "no recalled text holds two turns of a session"


def _look_for_changes(memory: MemorySystem, recalls: Mapping[str, Recall], verdict: ConformanceResult) -> None:
    again = _ask(memory, CANARIES[::-1])
    changed = [word for word, recall in recalls.items() if _ids(recall) != _ids(again[word])]
    shown = {word: " ".join(item.text for item in recall.items) for word, recall in again.items()}
    repeated = [word for word, text in shown.items() if any(canary.question in text for canary in CANARIES)]
    if changed:
        verdict.faults["search changes state"] = f"recalled otherwise the second time: about {', '.join(changed)}"
    elif repeated:
        verdict.faults["search changes state"] = f"a question itself is recalled: about {', '.join(repeated)}"


def _look_at_k(memory: MemorySystem, verdict: ConformanceResult) -> None:
    if "k" not in memory.READ_KNOBS or memory.PAST_K:
        verdict.unchecked["k ignored"] = memory.PAST_K or "it has no k"
        return
    few = tuned(memory, {"k": FEW})
    with metering() as ledger:
        most = max(len(few.read(asked(canary)).items) for canary in CANARIES)
    if most > FEW or any(note.endswith(".more_than_k") for note in ledger.notes):
        verdict.faults["k ignored"] = f"asked for {FEW} items, more came" + (f": {most}" if most > FEW else "")


def _look_for_forgetting(memory: MemorySystem, unit: Mapping[str, object], verdict: ConformanceResult) -> None:
    """Write more: what was found before is still found, and so is what was written last."""
    if memory.REHEARSED:
        verdict.unchecked["forgets"] = "it lives in this process, and what it keeps is part of its method"
        return
    before = set(_found(memory, CANARIES))
    if len(before) < len(CANARIES) or "index late" in verdict.faults:
        verdict.unchecked["forgets"] = "not all was found before more was written"
        return
    write_history(memory, LATER, unit)
    if gone := sorted(before - set(_found(memory, CANARIES))):
        verdict.faults["forgets"] = f"no longer found: {', '.join(gone)}"
    if not _found(memory, LAST):
        verdict.faults["failures reported as success"] = f"never found: {_words(LAST)}"


# --- two cases --------------------------------------------------------------------------------------------------------


def _look_for_subject(memory: MemorySystem, verdict: ConformanceResult) -> None:
    """Let a memory that offers `delete(subject)` delete one canary: it must be gone and stay gone, and the others must stay."""
    delete = getattr(memory, "delete", None)
    if not callable(delete):
        verdict.unchecked |= dict.fromkeys(("subject kept", "subject takes more"), "it offers no delete(subject)")
        return
    gone = CANARIES[0]
    before = set(_found(memory, CANARIES))
    delete(SUBJECT)
    after = set(_found(memory, CANARIES))
    memory.consolidate()
    end = set(_found(memory, CANARIES))
    if gone.word in after | end:
        when = "after the deletion" if gone.word in after else "after the next consolidation"
        verdict.faults["subject kept"] = f"{gone.word} is found {when}"
    if lost := sorted(before - after - {gone.word}):
        verdict.faults["subject takes more"] = f"no longer found: {', '.join(lost)}"


def _look_for_remains(first: MemorySystem, second: MemorySystem, verdict: ConformanceResult) -> None:
    """Delete both cases: one by `reset`, if the memory has it, the other by closing the memory."""
    if first.REHEARSED:
        verdict.unchecked["deletions kept"] = "it lives in this process and is forgotten with it"
        return
    remains = []
    if getattr(second, "can_reset", False):
        second.reset()  # type: ignore[attr-defined]  # services have one
        remains += _found(second, OTHERS)
    first.close()
    try:
        remains += _found(first, CANARIES)
    except BaseException as error:
        raise_fatal(error)
        # A memory that refuses to be read after it was closed holds nothing that could be recalled.
    if remains:
        verdict.faults["deletions kept"] = f"still found: {', '.join(remains)}"


def _found(memory: MemorySystem, canaries: Sequence[Canary]) -> list[str]:
    """Words of the canaries that the memory recalls for any of the questions about them."""
    text = "\n".join(_texts(_ask(memory, canaries).values()))
    return [canary.word for canary in canaries if canary.word in text]


def _texts(recalls: Iterable[Recall]) -> list[str]:
    """Recalled texts, and the answers of memories that answer questions themselves."""
    shown = ((*(item.text for item in recall.items), *filter(None, [recall.answer])) for recall in recalls)
    return [text for own in shown for text in own]


def _ids(recall: Recall) -> list[tuple[str, str]]:
    return [(item.id, item.text) for item in recall.items]


def _words(canaries: Sequence[Canary]) -> str:
    return ", ".join(canary.word for canary in canaries)

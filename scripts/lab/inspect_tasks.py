"""Our data sets as tasks of Inspect (`inspect_ai`) and our memories as solvers; docs/inspect.md shows how to use them.

A history is written and read exactly as in the run loop: unit by unit, consolidated and read where questions are due. This is done
once for each case, when the first of its questions comes, and a memory sees only the question, never the target. Scores are those of our
lexical metrics; an answer that cannot be scored is unscored, and a failed build or read is an error of its samples.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from typing import Any, Literal

from inspect_ai import Task, task
from inspect_ai.dataset import MemoryDataset, Sample
from inspect_ai.model import ChatMessageAssistant, ChatMessageSystem, ChatMessageUser, ModelOutput
from inspect_ai.scorer import Score, metric, scorer
from inspect_ai.solver import generate, solver

from data_loaders.schema import Case, Question
from data_loaders.units import make_units
from eval.files.records import Prediction
from eval.files.store import RunError
from eval.report.cell import Column
from eval.running.case import schedule
from eval.running.reader import render
from eval.running.run import Run, build_memory
from eval.running.work import write_unit
from memsys.interface import Recall
from memsys.llm.replies import why_none
from memsys.tokens import count_tokens
from scripts.assembly.datasets import Data
from scripts.assembly.steps import metrics
from scripts.lab.lab import Lab
from scripts.setup.options import options

MESSAGES = {"system": ChatMessageSystem, "user": ChatMessageUser, "assistant": ChatMessageAssistant}
OUTCOME = "memsys_outcome"
"""Key of a sample's outcome, which our metrics read."""


class Histories:
    """The recalls of one memory on the histories of one data set; each history is written and read once."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self._cases = {case.id: case for case in run.cases}
        self._locks = {name: threading.Lock() for name in self._cases}
        self._recalls: dict[str, dict[str, Recall | Exception]] = {}

    def recall(self, case_id: str, question_id: str) -> Recall:
        """The memory's recall for a question.

        Raises:
            Exception: the error of the build or of the read; a failed build fails all questions of its case.
        """
        with self._locks[case_id]:
            if case_id not in self._recalls:
                self._recalls[case_id] = self._lived(self._cases[case_id])
        found = self._recalls[case_id][question_id]
        if isinstance(found, Exception):
            raise found
        return found

    def question(self, case_id: str, question_id: str) -> Question:
        """The question in the form for a memory."""
        return next(each for each, _ in self._cases[case_id].questions if each.id == question_id)

    def _lived(self, case: Case) -> dict[str, Recall | Exception]:
        questions = [question for question, _ in case.questions]
        recalls: dict[str, Recall | Exception] = {}
        memory = None
        try:
            units = make_units(case.sessions, count=count_tokens, **self.run.unit).units
            due = schedule(case, units, questions)
            memory = build_memory(self.run, case)
            for position in range(len(units) + 1):
                if position in due:
                    memory.consolidate()
                    recalls |= {question.id: _tried(memory.read, question) for question in due[position]}
                if position < len(units):
                    write_unit(memory, units, position)
        except Exception as error:
            recalls = {question.id: recalls.get(question.id, error) for question in questions}
        finally:
            if memory is not None:
                memory.close()
        return recalls


def _tried(read: Callable[[Question], Recall], question: Question) -> Recall | Exception:
    try:
        return read(question)
    except Exception as error:
        return error


def _remember(
    memory: str = "bm25",
    dataset: str = "locomo",
    reader: Literal["inspect", "ours"] = "inspect",
    settings: Sequence[str] = (),
) -> Any:
    """A solver that replaces a sample's messages by the prompt of the data set's reader with the memory's recall.

    Args:
        memory: a file of conf/memory, or a YAML file of the user.
        dataset: a file of conf/dataset; samples are those of its task.
        reader: `inspect` leaves the answer to the solvers that follow; `ours` answers with the reader of the settings.
        settings: settings of `memsys-bench run`.
    """
    if reader not in ("inspect", "ours"):
        raise RunError(f"reader must be inspect or ours, found {reader!r}")
    lab = Lab(*settings, probe=reader == "ours")
    lab.ask_to_spend()
    option = lab.memory(memory)
    if option.get("control"):
        raise RunError(f"{option['name']} is made of the answer key, which no solver may see")
    histories = Histories(lab.run(option, lab.load(dataset)))

    async def solve(state: Any, generate: Any) -> Any:
        key = state.metadata["case"], state.metadata["question"]
        recall = await asyncio.to_thread(histories.recall, *key)
        if recall.answer is not None or recall.aborted:
            state.store.set(OUTCOME, "aborted" if recall.aborted else "answered")
            return _answered(state, recall.answer or "")
        run = histories.run
        request = render(run.reader, run.services.prompts, histories.question(*key), recall).request
        state.messages = [MESSAGES[role](content=text) for role, text in request.messages]
        if reader == "ours":
            reply = await asyncio.wrap_future(run.services.reader.submit(request))
            if not reply.usable and reply.stopped != "empty":
                raise RunError(why_none(reply))
            return _answered(state, reply.text)
        return state

    return solve


def _answered(state: Any, text: str) -> Any:
    state.output = ModelOutput.from_content("memsys-bench", text)
    state.completed = True
    return state


remember = solver("remember")(_remember)


def samples(dataset: Data) -> MemoryDataset:
    """A sample for each question: its text, the gold answers as target, and in its metadata `case`, `question` and `category`."""
    return MemoryDataset(
        [
            Sample(
                input=question.text,
                target=list(gold.answers) or "",
                id=f"{case.id}/{question.id}",
                metadata={"case": case.id, "question": question.id, "category": gold.category},
            )
            for case in dataset.cases
            for question, gold in case.questions
        ],
        name=dataset.name,
    )


def _weighted(dataset: Data) -> Any:
    """The mean as in our tables, with the data set's weighting."""
    column = Column.of(dataset.config, "", dataset.questions)

    def weighted_mean() -> Any:
        def compute(scores: Sequence[Any]) -> float:
            known = {
                (each.sample_metadata["case"], each.sample_metadata["question"]): each.score.as_float()
                for each in scores
            }
            return column.mean(column.questions, known)

        return compute

    return metric(weighted_mean)()


def _scorer(name: str, dataset: Data) -> Any:
    """The scorer of a metric of conf/metrics.yaml."""
    (own,) = metrics([name])
    golds = {(case.id, question.id): (question, gold) for case in dataset.cases for question, gold in case.questions}

    def scored() -> Any:
        async def score(state: Any, target: Any) -> Any:
            key = state.metadata["case"], state.metadata["question"]
            answer = state.output.completion.strip()
            outcome = state.store.get(OUTCOME, "answered")
            found = own.score(*golds[key], Prediction(*key, answer, (), (), outcome))
            if found.value is None:
                return Score.unscored(answer=answer, explanation=found.why)
            return Score(value=found.value, answer=answer, metadata=dict(found.detail))

        return score

    return scorer(metrics=[_weighted(dataset)], name=name)(scored)()


def _task_of(name: str) -> Any:
    def build(
        memory: str = "bm25", reader: Literal["inspect", "ours"] = "inspect", settings: str = "", agent: Any = None
    ) -> Any:
        """A data set with a memory.

        Args:
            memory, reader: as for `remember`.
            settings: settings of `memsys-bench run`, separated by spaces, such as `data.source=real data.root=…`.
            agent: a solver that answers instead of one call of the model.
        """
        given = settings.split()
        dataset = Lab(*given, probe=False).load(name)
        return Task(
            dataset=samples(dataset),
            solver=[remember(memory, name, reader, given), generate() if agent is None else agent],
            scorer=[_scorer(each, dataset) for each in dataset.config["metrics"]] or None,
            fail_on_error=False,  # a failed sample is counted, and the others continue
            name=name,
        )

    build.__name__ = build.__qualname__ = name
    return task(name=name)(build)


TASKS: dict[str, Callable[..., Any]] = {name: _task_of(name) for name in options("dataset")}
"""A task for each file of conf/dataset."""
globals().update(TASKS)

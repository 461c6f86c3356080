"""Show one question of a run, from the recall to the verdicts: `python -m scripts inspect RUN QUESTION [--case CASE] [--data ROOT]`.

`--prompt` adds the prompt as it was sent. `inspect RUN --wrong [--metric NAME]` lists the questions with wrong answers.
`inspect RUN --worked NAME` shows a worked example of a paper (`conf/worked.yaml`; without NAME: the list of examples).
`inspect RUN --ask TEXT [settings of the run's command]` shows the memory's recall for a text that is no question of the data set, such as
the queries of MemTree Tables A.5-A.7 and A.9 on MultiHop-RAG; the memory is built again, from the cache.
`inspect RUN --design OTHER` compares the trees of two runs component by component, as SegTreeMem Table 9 does.

The layout is that of MemTree Tables A.5-A.9: index, score, depth, ancestors, content. The score is the memory's own, which is not always a
similarity, and items are in the order in which the memory returned them. Question and gold are not in the run folder: they are read from
the data set that `run.json` names; if this fails, the reason is printed instead.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from data_loaders.schema import DataError, Gold, Question
from data_loaders.units import make_units
from eval.files.imported import described
from eval.files.records import Prediction
from eval.files.run_folder import RunFolder, RunRecord, judged_by, metric_of, read_efforts, read_items, read_predictions
from eval.files.store import RunError
from eval.judging.agreement import RIGHT
from eval.judging.score_files import graded_files, mean_values, score_lines
from eval.report.counted import counted
from eval.report.sent_prompt import sent_prompt
from eval.running import failures
from eval.running.reader import Reader
from eval.running.run import Run, build_memory
from eval.running.work import write_unit
from eval.structure.tree import Tree, ancestors, depths, read_tree, top_down
from memsys.inert import visible
from memsys.jsons import fields_of
from memsys.llm.meter import metering
from memsys.systems.segtree.reading import TreeMemory
from memsys.tokens import count_tokens
from scripts.assembly.run_folders import data_of, trees_of
from scripts.assembly.runs import check_known, memory_run, recipe_of
from scripts.lab.lab import Lab
from scripts.settings.checking import nearest_or_all
from scripts.setup.arguments import add_data_folder, verb_parser, whole
from scripts.setup.options import CONF
from scripts.setup.printing import cut

GROUP = "look"

ASKED = "asked"
"""Id of the question; no data set has it."""


def _same_run(run_folder: Path, root: Path | None, settings: Sequence[str]) -> Run:
    """Describe the folder's run from its record and the settings; `RunError` if these make another run."""
    record = RunFolder(run_folder).record()
    if record.imported:
        raise RunError("the answers are imported: there is no memory to ask")
    check_known(record.memory["build"])
    seed, replicate = record.seed
    built = [f"build.seed={seed}", f"build.rebuild_every={record.rebuild_every}"]
    lab = Lab(*settings, *built)
    name = str(record.name)
    run = memory_run(
        lab.cfg,
        lab.models,
        data_of(record, root or lab.cfg.data.folder),
        recipe_of({**record.memory, "name": name, "title": name}),
        Reader(**record.reader),
        unit=record.unit,
        replicate=replicate,
    )
    if run.folder.name != run_folder.resolve().name:
        differing = [
            part
            for part in ("models", "dataset", "prompts", "source", "unit")
            if getattr(run.record, part) != getattr(record, part)
        ]
        raise RunError(
            f"these settings make another run ({run.folder.name}), different in {', '.join(differing) or 'versions of libraries'}; "
            "give those of its command, such as profile=paper models.memory=…"
        )
    return run


ANNOTATION = ("annotate", "summary_tokens")
"""Settings of the annotations, next to the prompt and the model."""


def span_counts(tree: Tree, turns: Sequence[str]) -> tuple[int, int]:
    """Count the nodes of several units whose units are consecutive in the history, and all nodes of several units.

    Args:
        turns: ids of the history's turns, in order. A leaf has the position of its first turn.
    """
    place = {turn: number for number, turn in enumerate(turns)}
    below = tree.children
    leaves = [node for node, under in enumerate(below) if not under]
    leaves.sort(key=lambda node: min(place[turn] for turn in tree.sources[node]))
    held = [set[int]() for _ in below]
    for number, leaf in enumerate(leaves):
        held[leaf] = {number}
    for node in reversed(top_down(tree)):
        held[node] = held[node].union(*(held[child] for child in below[node]))
    several = [units for units in held if len(units) > 1]
    return sum(max(units) - min(units) + 1 == len(units) for units in several), len(several)


def design_lines(run_folder: Path, other: Path, root: Path | None) -> list[str]:
    """Two runs' trees compared component by component, as SegTreeMem Table 9 compares its tree with the non-temporal control.

    There is one line per component and run; a component in which both agree has one line. `conf/designs.yaml` describes how each tree
    places a unit, with the run's own settings. Units, annotation and reading are compared as the runs recorded them, and the order in time
    is counted in the saved trees (`span_counts`).

    Args:
        root: folder of the raw files, which give the order of turns for the spans; None takes the default one.

    Raises:
        RunError: a folder is no run, its memory has no tree or no description, or the runs are on different data.
        DataError: the files are missing.
    """
    runs = [(folder, RunFolder(folder).record()) for folder in (run_folder, other)]
    first, second = (record.dataset for _, record in runs)
    if first != second:
        raise RunError(f"{run_folder} and {other} are not on the same data: {first['name']} and {second['name']}")
    designs = [_design(folder, record, root) for folder, record in runs]
    names = [str(record.name) for _, record in runs]
    width = max(map(len, (*names, "both")))
    lines = [f"{' and '.join(names)} on {first['name']}, in the components of SegTreeMem Table 9"]
    for component, text in designs[0].items():
        texts = [text, designs[1][component]]
        lines += ["", component]
        same = [("both", text)] if texts[0] == texts[1] else list(zip(names, texts, strict=True))
        lines += [f"  {name:<{width}}  {each}" for name, each in same]
    return lines


def _design(folder: Path, record: RunRecord, root: Path | None) -> dict[str, str]:
    """The components of one run."""
    settings = dict(record.memory["build"])
    known = yaml.safe_load((CONF / "designs.yaml").read_text(encoding="utf-8"))
    target = settings["_target_"]
    if target not in known:
        raise RunError(f"{folder}: conf/designs.yaml has no {target}; there are: {', '.join(known)}")
    placing = {name: _filled(text, settings) for name, text in known[target].items()}
    turns = {case.id: [turn.id for turn in case.turns] for case in data_of(record, root).cases}
    counts = [span_counts(tree, turns[tree.case_id]) for tree in trees_of(folder, record)]
    ordered, several = map(sum, zip(*counts, strict=True))
    prompt = str(record.prompts["segtree/annotate"])[:12]
    models = record.models
    return {
        "Memory unit": _listed(record.unit),
        "Candidates for a new unit": placing["candidates"],
        "Criterion": placing["criterion"],
        "Where no candidate fits": placing["no candidate fits"],
        "Order in time": f"{ordered} of {several} nodes of several units cover consecutive units ({counted(len(counts), 'tree')})",
        "Leaves": placing["later units"],
        "Annotation": f"prompt segtree/annotate {prompt}, model {_model(models['memory'])}, "
        + _listed({name: settings[name] for name in ANNOTATION}),
        "Reading": f"embedder {_model(models['embedder'])}, "
        + _listed({name: settings[name] for name in TreeMemory.READ_KNOBS}),
    }


def _filled(text: str | Mapping[str, str], settings: Mapping[str, Any]) -> str:
    """A description with the run's settings filled in; a mapping has a description for each value of the setting that it names."""
    chosen = text if isinstance(text, str) else text[str(settings[text["setting"]])]
    return chosen.format_map(settings)


def _model(record: Mapping[str, Any]) -> str:
    return str(record.get("model", record.get("engine")))


def _listed(settings: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in settings.items())


NAMED = 3
"""Maximum number of named ancestors at one depth; soft clusters can have dozens."""


def find_prediction(run_folder: Path, question_id: str, case_id: str | None) -> tuple[Path, Prediction]:
    """The folder of the case and the line of the question.

    Raises:
        RunError: no case, or more than one, answered a question with this id.
    """
    found = []
    for folder in RunFolder(run_folder).cases():
        one = read_predictions(folder).get(question_id)
        if one is not None and case_id in (None, one.case_id):
            found.append((folder, one))
    if not found:
        where = "" if case_id is None else f" of case {case_id}"
        raise RunError(f"{run_folder}: no answer to a question {question_id!r}{where}")
    if len(found) > 1:
        cases = ", ".join(one.case_id for _, one in found)
        raise RunError(f"{question_id!r} is a question of several cases; name one with --case: {cases}")
    return found[0]


def question_of(record: RunRecord, prediction: Prediction, root: Path | None) -> tuple[Question, Gold, dict[str, str]]:
    """The question, its gold and the texts of the history's turns.

    Raises:
        DataError, RunError: the data cannot be loaded again, or no longer hold the question.
    """
    cases = data_of(record, root).cases
    if prediction.case_id in cases.ids:
        case = cases[cases.ids.index(prediction.case_id)]
        for question, gold in case.questions:
            if question.id == prediction.question_id:
                return question, gold, {turn.id: f"{turn.speaker}: {turn.text}" for turn in case.turns}
    raise RunError(f"the data have no question {prediction.question_id!r} in case {prediction.case_id!r}")


def question_lines(record: RunRecord, prediction: Prediction, root: Path | None) -> tuple[list[str], tuple[str, ...]]:
    """The question with its gold, and the evidence's turns; or the reason why they cannot be shown, and no turns."""
    try:
        question, gold, turns = question_of(record, prediction, root)
    except (DataError, RunError) as error:
        return [f"Query     not shown: {error}", "Gold      not shown, for the same reason"], ()
    lines = [f"Query     {question.text}"]
    lines += [f"  ({chr(65 + number)}) {option}" for number, option in enumerate(question.options)]
    lines += [f"Asked     {question.time_text}"] if question.time_text else []
    lines += [f"Asked by  {question.asker.text}"] if question.asker is not None else []
    lines += [f"Category  {gold.category or '–'}{'' if gold.answerable else ' (unanswerable)'}"]
    lines += [f"Gold      {' | '.join(gold.answers) or '–'}"]
    lines += [f"Evidence  {turn}  {cut(turns.get(turn, 'no such turn'), 100)}" for turn in gold.evidence]
    return lines, gold.evidence


def reader_lines(case_folder: Path, prediction: Prediction) -> list[str]:
    """The part of the recall that was shown to the reader; empty if the memory answered itself, or if no reader was asked."""
    asked = [
        line
        for line in read_efforts(case_folder, "subject", "context_tokens")
        if (line["phase"], line["subject"]) == ("answer", prediction.question_id) and line["context_tokens"]
    ]
    return [
        f"Reader    shown {counted(line['context_tokens'], 'token')} of recall, {counted(line['dropped_items'], 'item')} left out"
        for line in asked[-1:]
    ]


def recall_lines(
    case_folder: Path, prediction: Prediction, tree: Tree | None, width: int, evidence: Sequence[str] = ()
) -> list[str]:
    """The recalled items, in the order in which the memory returned them; items that hold evidence turns name them."""
    items = read_items(case_folder)
    recalled = [(items[key], score) for key, score in zip(prediction.items, prediction.scores, strict=True)]
    return item_lines(recalled, tree, width, evidence)


def item_lines(
    recalled: Sequence[tuple[Mapping[str, Any], float]], tree: Tree | None, width: int, evidence: Sequence[str] = ()
) -> list[str]:
    """Items with their scores, in this order, and the evidence turns that they hold; nodes of the tree also with depth and ancestors."""
    place = {} if tree is None else {node: number for number, node in enumerate(tree.ids)}
    deep, above = ([], []) if tree is None else (depths(tree), ancestors(tree))
    lines = ["Index  Score    Level  Depth  Ancestors"]
    for number, (item, score) in enumerate(recalled, 1):
        depth, line = "–", "–"
        if tree is not None and (node := place.get(item["id"])) is not None:
            depth = str(deep[node])
            line = _ancestry(tree, deep, above[node])
        lines.append(f"{number:>5}  {score:<7.4f}  {item['level']:>5}  {depth:>5}  {line}")
        held = ", ".join(turn for turn in evidence if turn in item["sources"])
        lines.append(f"       {item['id']}  {f'(evidence {held})  ' if held else ''}{cut(item['text'], width)}")
    return lines if recalled else ["nothing was recalled"]


def _ancestry(tree: Tree, deep: Sequence[int], above: frozenset[int]) -> str:
    """Ancestors from the root down, grouped by depth."""
    levels: dict[int, list[str]] = {}
    for node in sorted(above, key=lambda one: (deep[one], one)):
        levels.setdefault(deep[node], []).append(tree.ids[node])
    parts = []
    for depth, names in levels.items():
        more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
        parts.append(f"Depth {depth}: {', '.join(names[:NAMED])}{more}")
    return "  ".join(parts) or "(topmost)"


def verdict_lines(run_folder: Path, prediction: Prediction) -> list[str]:
    """Every score of the answer, by metric and repeat."""
    lines = []
    for path in RunFolder(run_folder).score_files():
        for line in score_lines(path, "repeat", "detail", "why"):
            if (line["case_id"], line["question_id"]) == (prediction.case_id, prediction.question_id):
                value = "no verdict" if line["value"] is None else f"{line['value']:.4f}"
                detail = "".join(f"  {name}={found}" for name, found in line["detail"].items())
                why = f"  ({cut(line['why'], 200)})" if line["why"] else ""
                lines.append(f"  {path.stem}  #{line['repeat']}  {value}{why}{detail}")
    return lines or ["  not scored"]


def inspect(
    run_folder: Path, question_id: str, case_id: str | None = None, root: Path | None = None, width: int = 160
) -> list[str]:
    """The whole page on one question. Raises RunError if the folder is no run, or the question was not asked in it."""
    record = RunFolder(run_folder).record()
    folder, prediction = find_prediction(run_folder, question_id, case_id)
    asked, evidence = question_lines(record, prediction, root)
    if record.imported:
        recall = [f"Imported  {described(record.imported)}", "Recall    not recorded"]
    else:
        recall = recall_lines(folder, prediction, read_tree(folder), width, evidence)
    ended = "" if prediction.outcome == "answered" else f"  [{prediction.outcome}: {prediction.error}]"
    page = [
        f"Run       {record.name} on {record.dataset['name']} ({record.data_status} data), case {prediction.case_id}, "
        f"question {prediction.question_id}",
        *asked,
        *reader_lines(folder, prediction),
        f"Answer    {prediction.answer}{ended}",
        "Verdicts",
        *verdict_lines(run_folder, prediction),
        "",
        *recall,
    ]
    return [visible(line) for line in page]


def prompt_lines(run_folder: Path, question_id: str, case_id: str | None, root: Path | None) -> list[str]:
    """The prompt as it was sent, or the reason why it cannot be shown."""
    record = RunFolder(run_folder).record()
    folder, prediction = find_prediction(run_folder, question_id, case_id)
    try:
        if record.imported:
            raise RunError("the answers were imported without their prompts")
        messages = sent_prompt(record, folder, prediction, question_of(record, prediction, root)[0])
    except (DataError, RunError) as error:
        return ["", f"Prompt    not shown: {visible(str(error))}"]
    return [line for role, text in messages for line in ("", f"Prompt    [{role}]", visible(text))]


def wrong_lines(run_folder: Path, metric: str | None, root: Path | None, width: int) -> list[str]:
    """The wrong and the unscored answers of a run with question and gold; failed questions with their errors.

    Raises:
        RunError: the folder is no run, or has no scores of the metric.
    """
    record = RunFolder(run_folder).record()
    scores = score_file(run_folder, metric)
    means, lines, count = mean_values(scores), [], 0
    every = (line for folder in RunFolder(run_folder).cases() for line in read_predictions(folder).values())
    for prediction in every:
        score = means.get((prediction.case_id, prediction.question_id))
        if score is not None and score >= RIGHT:
            continue
        count += 1
        ended = "" if prediction.outcome == "answered" else f"  [{prediction.outcome}: {cut(prediction.error, width)}]"
        shown = "–" if score is None else f"{score:.2f}"
        lines.append(f"{shown:<5} {prediction.case_id}  {prediction.question_id}{ended}")
        lines += [
            f"      {cut(line, width)}" for line in question_lines(record, prediction, root)[0] if line[:5] in SHOWN
        ]
        lines.append(f"      Answer    {cut(prediction.answer, width)}")
    lines.append(f"{counted(count, 'answer')} wrong or without a score, by {scores.stem}")
    return [visible(line) for line in lines]


def worked_questions() -> dict[str, dict[str, str]]:
    """The worked examples of papers, by name: subject, data set, case if it is named, question id."""
    return dict(yaml.safe_load((CONF / "worked.yaml").read_text(encoding="utf-8")))


def worked_lines(run_folder: Path, name: str, root: Path | None, width: int) -> list[str]:
    """The page of a worked example in a run, below a line about the paper's use of it.

    Raises:
        RunError: the name is unknown, or the run is of another data set or did not ask the question.
    """
    known = worked_questions()
    if name not in known:
        raise RunError(f"no worked question {name!r}{nearest_or_all(name, known)}")
    entry, dataset = known[name], str(RunFolder(run_folder).record().dataset["name"])
    if dataset != entry["dataset"]:
        raise RunError(f"{name} is a question of {entry['dataset']}; this run is on {dataset}")
    return [f"Shows     {entry['shows']}", *inspect(run_folder, entry["question"], entry.get("case"), root, width)]


def asked_lines(
    run_folder: Path, text: str, case_id: str | None, root: Path | None, width: int, settings: Sequence[str]
) -> list[str]:
    """The recall of a case's memory for a text of the user once the whole history is written.

    A run folder holds no memory that could be read, so the memory is built again with the recorded settings; the cache answers every call
    of the first build. The models are those of the given settings; if these settings make another run, nothing is built.

    Args:
        case_id: None takes the first case.
        settings: the settings of the run's command line: `profile=paper`, `endpoint.base_url=…`, `models.memory=…`.

    Raises:
        DataError: the data cannot be loaded.
        RunError: the run has no memory, no such case, or other settings than these.
    """
    run = _same_run(run_folder, root, settings)
    ids = [case.id for case in run.cases]
    if case_id is not None and case_id not in ids:
        raise RunError(
            f"the data have no case {case_id!r}; there are {', '.join(ids[:5])}{' …' if len(ids) > 5 else ''}"
        )
    case = run.cases[0 if case_id is None else ids.index(case_id)]
    units = make_units(case.sessions, count=count_tokens, **run.unit).units
    memory = build_memory(run, case)
    try:
        with metering():
            for place in range(len(units)):
                write_unit(memory, units, place)
            memory.consolidate()
            recall = memory.read(Question(ASKED, text))
    except failures.EXITS as error:
        raise RunError(f"the memory cannot be asked: {failures.described(error)}") from error
    finally:
        try:
            memory.close()
        except BaseException as error:
            failures.raise_fatal(error)
            print(f"note: the memory failed to close ({failures.described(error)})", file=sys.stderr)
    folder = RunFolder(run_folder).case(case.id)
    page = [
        f"Run       {RunFolder(run_folder).record().name}, case {case.id}; built again, no question of the data set",
        f"Query     {text}",
        *([f"Answer    {recall.answer}"] if recall.answer is not None else []),
        *([f"Aborted   {recall.aborted}"] if recall.aborted else []),
        *item_lines([(fields_of(item), item.score) for item in recall.items], read_tree(folder), width),
    ]
    return [visible(line) for line in page]


SHOWN = ("Query", "Categ", "Gold ")
"""Beginnings of the lines about a question that the list of wrong answers shows."""


def main(arguments: Sequence[str]) -> int:
    parser = verb_parser("inspect", __doc__)
    parser.add_argument("run", type=Path, help="a folder below results/runs")
    parser.add_argument("question", nargs="?", help="id of the question; left out with --wrong")
    parser.add_argument("--wrong", action="store_true", help="list the questions that were answered wrong")
    parser.add_argument(
        "--worked", nargs="?", const="", help="show a question that a paper works through; alone: list them"
    )
    parser.add_argument("--ask", metavar="TEXT", help="show what the memory recalls for any text")
    parser.add_argument("--design", type=Path, metavar="OTHER", help="compare two runs' trees (SegTreeMem Table 9)")
    parser.add_argument("--metric", help="with --wrong: judge_<name> or a metric (default: a judge, else the first)")
    parser.add_argument("--prompt", action="store_true", help="show the prompt as it was sent")
    parser.add_argument("--case", help="id of the case, where several have a question of that id")
    add_data_folder(parser)
    parser.add_argument("--width", type=whole(1), default=160, help="characters of each text shown")
    args, settings = parser.parse_known_args(arguments)
    if args.ask is not None and args.question is not None and "=" in args.question:
        args.question, settings = None, [args.question, *settings]
    if wrong := [one for one in settings if args.ask is None or one.startswith("-") or "=" not in one]:
        parser.error(f"unrecognized arguments: {' '.join(wrong)}")
    if sum(one not in (None, False) for one in (args.question, args.wrong, args.worked, args.ask, args.design)) != 1:
        parser.error("name a question, or give --wrong, --worked, --ask or --design")
    if args.worked == "":
        lines = [f"{name:<15}{entry['dataset']:<14}{entry['shows']}" for name, entry in worked_questions().items()]
    elif args.worked is not None:
        lines = worked_lines(args.run, args.worked, args.data, args.width)
    elif args.design is not None:
        lines = [visible(line) for line in design_lines(args.run, args.design, args.data)]
    elif args.ask is not None:
        lines = asked_lines(args.run, args.ask, args.case, args.data, args.width, settings)
    elif args.wrong:
        lines = wrong_lines(args.run, args.metric, args.data, args.width)
    else:
        lines = inspect(args.run, args.question, args.case, args.data, args.width)
        lines += prompt_lines(args.run, args.question, args.case, args.data) if args.prompt else []
    print("\n".join(lines))
    return 0


def score_file(run_folder: Path, metric: str | None) -> Path:
    """The newest score file of a metric; for None, of a judge, else of the first metric by name.

    Raises:
        RunError: there is no such file.
    """
    files = graded_files(run_folder)
    names = sorted({metric_of(path) for path in files}, key=lambda name: (judged_by(name) is None, name))
    wanted = metric or (names[0] if names else "a metric")
    fitting = [path for path in files if metric_of(path) == wanted]
    if not fitting:
        raise RunError(f"{run_folder} has no scores of {wanted}; there are: {', '.join(names) or 'none'}")
    return max(fitting, key=lambda path: path.stat().st_mtime)

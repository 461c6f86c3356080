from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from memsys.prompts import Option, Prompt, PromptError, Prompts, UndeclaredPrompt

Write = Callable[[dict[str, str]], Prompts]
FULL = """---
kind: choose
max_tokens: 40
temperature: 0.7
labels: [MERGE, "NO"]
logprobs: true
---
You sort notes.
===
Note: $query
$options
"""


def only(prompts: Write, text: str) -> Prompt:
    return prompts({"tree/step": text})["tree/step"]


def test_front_matter_and_body_become_a_prompt(prompts: Write) -> None:
    prompt = only(prompts, FULL)
    assert replace(prompt, digest="") == Prompt(
        name="tree/step",
        kind="choose",
        system="You sort notes.",
        user="Note: $query\n$options",
        max_tokens=40,
        temperature=0.7,
        schema=None,
        labels=("MERGE", "NO"),
        logprobs=True,
    )


HEADER = 'source: "A paper, appendix B"\nknown: "it is printed"\ntext: described\n'


def test_a_header_reaches_no_model_and_changes_no_digest(prompts: Write) -> None:
    def read(text: str) -> tuple[Prompt, dict[str, str]]:
        written = prompts({"tree/step": text})  # the next text replaces this one
        return written["tree/step"], written.digest(["tree"])

    bare, digest = read(FULL)
    headed, same = read(FULL.replace("---\n", f"---\n{HEADER}", 1))
    _, other = read(FULL.replace("Note:", "text: the body may say so\nNote:"))
    assert (headed.source, headed.known, headed.text) == ("A paper, appendix B", "it is printed", "described")
    fields = {"query": "a", "options": [Option("MERGE", "b")]}
    assert headed.render(fields) == bare.render(fields)
    assert same == digest
    assert other != digest


def test_a_header_says_whose_words_a_prompt_has(prompts: Write) -> None:
    with pytest.raises(PromptError, match="text must be one of ours, described, lost, theirs, found 'mine'"):
        only(prompts, "---\ntext: mine\nkind: answer\n---\nJust $question")


def test_only_the_kind_is_required(prompts: Write) -> None:
    prompt = only(prompts, "---\nkind: answer\n---\nJust $question")
    assert (prompt.system, prompt.user) == ("", "Just $question")
    assert (prompt.max_tokens, prompt.temperature) == (512, 0.0)
    assert (prompt.schema, prompt.labels, prompt.logprobs) == (None, (), False)


def test_a_rendered_request_carries_settings_and_raw_fields(prompts: Write) -> None:
    options = [Option("1", "tea"), Option("2", "coffee")]
    request = only(prompts, FULL).render({"query": "drink", "options": options})
    assert request.messages == (("system", "You sort notes."), ("user", "Note: drink\n[1] tea\n[2] coffee"))
    assert (request.purpose, request.kind) == ("tree.step", "choose")
    assert (request.max_tokens, request.temperature, request.logprobs) == (40, 0.7, True)
    assert request.fields == {"query": "drink", "options": options, "labels": ("MERGE", "NO")}


def test_without_a_separator_there_is_no_system_message(prompts: Write) -> None:
    request = only(prompts, "---\nkind: answer\n---\n$question").render({"question": "Why?"})
    assert request.messages == (("user", "Why?"),)


def test_dollars_in_field_values_are_left_alone(prompts: Write) -> None:
    request = only(prompts, "---\nkind: answer\n---\n$question costs $$9").render({"question": "$text ${memories} $$"})
    assert request.messages == (("user", "$text ${memories} $$ costs $9"),)


def test_sequences_nest_and_numbers_are_written_out(prompts: Write) -> None:
    prompt = only(prompts, "---\nkind: answer\n---\n$texts/$n")
    request = prompt.render({"texts": ("a", ["b", Option("x", "c")]), "n": 3})
    assert request.messages == (("user", "a\nb\n[x] c/3"),)


def test_a_labels_field_overrides_the_files(prompts: Write) -> None:
    prompt = only(prompts, FULL)
    request = prompt.render({"query": "", "options": "", "labels": ["A", "B"]})
    assert request.fields["labels"] == ("A", "B")


def test_a_missing_field_names_prompt_and_field(prompts: Write) -> None:
    with pytest.raises(PromptError, match=r"tree/step.*options"):
        only(prompts, FULL).render({"query": "drink"})


def test_a_lone_dollar_in_the_template_is_an_error(prompts: Write) -> None:
    with pytest.raises(PromptError, match="tree/step"):
        only(prompts, "---\nkind: answer\n---\ncosts $5").render({})


def test_a_wrong_file_is_refused_by_name(prompts: Write, subtests: pytest.Subtests) -> None:
    for text, complaint in [
        ("kind: answer\n---\nx", "no front matter"),
        ("---\nkind: answer\nx", "no front matter"),
        ("---\nkind: [answer\n---\nx", "not YAML"),
        ("---\n- kind\n---\nx", "key: value"),
        ("---\n# nothing\n---\nx", "key: value"),
        ("---\nkind: answer\nmaxtokens: 5\n---\nx", "maxtokens"),
        ("---\nmax_tokens: 5\n---\nx", "kind must be one of"),
        ("---\nkind: decide\n---\nx", "decide"),
        ("---\nkind: choose\nlabels: [yes, no]\n---\nx", "quote yes and no"),
        ("---\nkind: choose\nlabels: MERGE\n---\nx", "list of strings"),
    ]:
        with subtests.test(text=text, complaint=complaint):
            with pytest.raises(PromptError, match=complaint) as caught:
                only(prompts, text)
            assert "tree/step" in str(caught.value)


def test_a_missing_prompt_names_the_folders_searched(tmp_path: Path) -> None:
    with pytest.raises(PromptError, match=str(tmp_path)):
        Prompts(tmp_path)["tree/none"]


def test_an_overlay_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PromptError, match="does not exist"):
        Prompts(tmp_path / "typo")


@pytest.fixture
def layered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Prompts:
    """Shipped tree/join and tree/split, an overlay with its own tree/join."""
    shipped, overlay = tmp_path / "shipped", tmp_path / "overlay"
    for folder, step, text in ((shipped, "join", "old"), (shipped, "split", "cut"), (overlay, "join", "new")):
        (folder / "tree").mkdir(parents=True, exist_ok=True)
        (folder / "tree" / f"{step}.md").write_text(f"---\nkind: answer\n---\n{text}")
    monkeypatch.setattr("memsys.prompts.SHIPPED", shipped)
    return Prompts(overlay)


def test_the_overlay_wins_and_the_rest_stays(layered: Prompts) -> None:
    assert (layered["tree/join"].user, layered["tree/split"].user) == ("new", "cut")


def test_the_digest_is_of_the_files_that_win(layered: Prompts) -> None:
    digest = {name: hashlib.sha256(f"---\nkind: answer\n---\n{text}".encode()).hexdigest()
              for name, text in (("tree/join", "new"), ("tree/split", "cut"))}  # fmt: skip
    assert layered.digest(["tree"]) == digest
    assert layered.digest(name for name in ["tree/join", "tree"]) == digest
    assert layered.digest(["tree/split"]) == {"tree/split": digest["tree/split"]}


def test_a_digest_of_nothing_is_refused(layered: Prompts) -> None:
    with pytest.raises(PromptError, match="tres"):
        layered.digest(["tree", "tres"])


def test_a_view_reads_declared_prompts_only(prompts: Write) -> None:
    files = {"tree/step": FULL, "tree/other": FULL, "wood/step": FULL}
    every = prompts(files)
    view = every.only(["tree", "wood/step"])
    assert all(view[name].kind == "choose" for name in files)
    narrow = every.only(["wood/step"])
    assert narrow["wood/step"].kind == "choose"
    for name in ("tree/step", "wood/other"):
        with pytest.raises(UndeclaredPrompt, match=f"the prompt {name} is read but not declared"):
            narrow[name]
    with pytest.raises(UndeclaredPrompt, match="declared: none"):
        every.only([])["tree/step"]
    assert every["tree/step"].kind == "choose"


def test_a_digest_is_of_the_text_that_was_read_whatever_the_file_holds_since(prompts: Write) -> None:
    used = prompts({"tree/step": FULL})
    read = used["tree/step"]
    prompts({"tree/step": FULL.replace("Note:", "Text:")})
    assert used.digest(["tree"]) == {"tree/step": read.digest}


def test_a_file_that_is_no_prompt_is_refused_with_the_digest_of_its_folder(prompts: Write) -> None:
    with pytest.raises(PromptError, match="tree/join: no front matter"):
        prompts({"tree/step": FULL, "tree/join": "Join them."}).digest(["tree"])

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from subprocess import run

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from data_loaders.schema import Gold, Question
from eval.files.records import Prediction, Score
from eval.metrics import lexical
from memsys.lean import hide_modules
from scripts.assembly.steps import metric_title, metrics
from scripts.setup.options import metric_options

with hide_modules(*lexical.NOT_OF_NLTK):  # all of it takes four seconds to import
    import nltk

QUESTION = Question("q1", "Which one?")

MEASURES: dict[str, Callable[[str, str], float]] = {
    "locomo_token_f1": lexical.locomo_token_f1,
    "locomo_multi_answer_f1": lexical.locomo_multi_answer_f1,
    "locomo_rouge_1": lexical.locomo_rouge_1,
    "locomo_rouge_l": lexical.locomo_rouge_l,
    "mem0_set_f1": lexical.mem0_set_f1,
    "mem0_exact_match": lexical.mem0_exact_match,
    "squad_token_f1": lexical.squad_token_f1,
    "squad_exact_match": lexical.squad_exact_match,
    "nltk_bleu": lexical.nltk_bleu,
    "sacre_bleu / 100": lambda prediction, gold: lexical.sacre_bleu(prediction, gold) / 100,
    "rouge1": lambda prediction, gold: lexical.rouge(prediction, gold, "rouge1").fmeasure,
    "rougeL stemmed": lambda prediction, gold: lexical.rouge(prediction, gold, "rougeL", stemmer=True).fmeasure,
}
SYMMETRIC = ("locomo_token_f1", "locomo_rouge_1", "mem0_set_f1", "squad_token_f1", "squad_exact_match", "rouge1")
METRICS = metrics(
    [
        *("locomo_stem_f1", "locomo_stem_rouge_1", "locomo_stem_rouge_l", "mem0_f1", "mem0_em", "squad_f1", "squad_em"),
        *("bleu1_mem0", "bleu1_sacre", "rouge_1_f", "rouge_2_f", "rouge_l_f", "rouge_l_recall"),
    ]
)

texts = st.text(max_size=30) | st.sampled_from(["", "the", "No.", "7 May 2023", "a, b", "self-care, and rest; maybe"])
# Words that every normal form keeps, so that a text of them has tokens under every rule.
plain_texts = st.lists(st.sampled_from("river stone 2023 lamp seven dog".split()), min_size=2, max_size=8).map(" ".join)


def answered(answer: str) -> Prediction:
    return Prediction("c1", "q1", answer, items=(), scores=(), outcome="answered")


@pytest.mark.slow
@pytest.mark.parametrize("name", MEASURES)
@settings(max_examples=60)
@given(prediction=texts, gold=texts)
def test_every_measure_stays_between_0_and_1(name: str, prediction: str, gold: str) -> None:
    assert 0 <= MEASURES[name](prediction, gold) <= 1 + 1e-9


@pytest.mark.parametrize("name", MEASURES)
@settings(max_examples=20)
@given(text=plain_texts)
def test_a_text_of_plain_words_matches_itself(name: str, text: str) -> None:
    assert MEASURES[name](text, text) == pytest.approx(1, abs=1e-7)


@pytest.mark.parametrize("name", SYMMETRIC)
@settings(max_examples=40)
@given(one=texts | plain_texts, other=texts | plain_texts)
def test_swapping_answer_and_gold_changes_nothing(name: str, one: str, other: str) -> None:
    assert MEASURES[name](one, other) == pytest.approx(MEASURES[name](other, one))


@settings(max_examples=40)
@given(prediction=plain_texts, gold=plain_texts)
def test_rouge_precision_and_recall_swap_with_the_texts(prediction: str, gold: str) -> None:
    forth, back = lexical.rouge(prediction, gold, "rougeL"), lexical.rouge(gold, prediction, "rougeL")
    assert (forth.precision, forth.recall) == (back.recall, back.precision)


def test_implementations_of_token_f1_disagree() -> None:
    prediction, gold = "Cats, and the dogs, and the birds", "cats and dogs"
    scores = {name: round(MEASURES[name](prediction, gold), 3) for name in MEASURES if name.endswith("f1")}
    assert scores == {
        "locomo_token_f1": 0.8,  # cat dog bird against cat dog
        "locomo_multi_answer_f1": 0.667,  # best part against "cat dog" is one of two stems
        "mem0_set_f1": 0.75,  # cats and the dogs birds against cats and dogs
        "squad_token_f1": 0.75,  # cats and dogs and birds against cats and dogs
    }


def test_locomo_normalising_glues_words_and_drops_and() -> None:
    assert lexical.locomo_normalise("Self-care, and  the U.S. Band") == "selfcare us band"


def test_locomo_word_boundaries_count_combining_marks() -> None:
    decomposed = "a\u0301 la carte"
    assert lexical.locomo_normalise(decomposed) == decomposed
    assert lexical.squad_normalise(decomposed) == "\u0301 la carte"


def test_squad_counts_repeated_words_and_mem0_does_not() -> None:
    assert lexical.squad_token_f1("dog dog", "dog") == pytest.approx(2 / 3)
    assert lexical.mem0_set_f1("dog dog", "dog") == 1


def test_the_rougel_of_locomo_s_scorer_is_rouge_1_over_stems_each_counted_once() -> None:
    """Its function `rougel_score` returns `rouge-1`: the order of the words does not matter, unlike in ROUGE-L."""
    assert lexical.locomo_rouge_1("The garden, painting and dogs", "dog paints gardens") == 1
    assert lexical.rouge(
        "garden painting dogs", "dog paints gardens", "rougeL", stemmer=True
    ).fmeasure == pytest.approx(1 / 3)
    assert lexical.locomo_rouge_1("dog dog", "dog") == 1
    assert lexical.locomo_token_f1("dog dog", "dog") == pytest.approx(2 / 3)
    assert lexical.locomo_rouge_1("the", "a") == 0


def test_the_rougel_that_timem_s_release_runs_keeps_the_order_and_counts_each_word_once() -> None:
    assert lexical.locomo_rouge_l("dogs paint the garden", "dog paints gardens") == 1
    assert lexical.locomo_rouge_l("The garden, painting and dogs", "dog paints gardens") == pytest.approx(1 / 3)
    assert lexical.locomo_rouge_l("a dog, a cat, a dog", "dog dog") == pytest.approx(2 / 3)
    assert lexical.locomo_rouge_l("the", "dog") == 0


def test_texts_that_normalise_to_nothing_match_exactly_but_have_no_f1() -> None:
    assert lexical.squad_exact_match("the", "a")
    assert lexical.squad_token_f1("the", "a") == 0


def test_mem0_exact_match_ignores_case_and_outer_space_only() -> None:
    assert lexical.mem0_exact_match(" Paris\n", "paris")
    assert not lexical.mem0_exact_match("Paris.", "paris")
    assert not lexical.mem0_exact_match("", "")


def test_multi_answer_f1_finds_each_part_of_the_gold_in_any_part_of_the_answer() -> None:
    assert lexical.locomo_multi_answer_f1("hiking, pottery, chess", "pottery, swimming") == 0.5
    assert lexical.locomo_multi_answer_f1("swimming,pottery", "pottery, swimming") == 1


def test_words_are_tokenized_sentence_by_sentence() -> None:
    assert lexical.word_tokenize("i like it. he does.") == ["i", "like", "it", ".", "he", "does", "."]
    assert (
        lexical.word_tokenize("dr. smith lives in the u.s. now.", "abbreviations")
        == "dr. smith lives in the u.s. now .".split()
    )


PARTS = [*"red X1 7 cannot gonna wanna more dr u.s - -- / , 'n . ?".split(), " ", ", ", "  "]


@pytest.mark.slow
@example("gonna see self-made, red X1 and/or cannot go.")
@given(st.lists(st.sampled_from(PARTS), max_size=8).map("".join))
def test_tokens_of_plain_texts_are_those_of_all_rules(text: str) -> None:
    sentences = lexical._sentence_tokenizer("abbreviations").tokenize(text)
    by_all_rules = [token for sentence in sentences for token in lexical._word_tokenizer().tokenize(sentence)]
    assert lexical.word_tokenize(text, "abbreviations") == by_all_rules


@pytest.fixture
def punkt_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A punkt model that knows one abbreviation, where NLTK looks for it."""
    folder = tmp_path / "tokenizers" / "punkt_tab" / "english"
    folder.mkdir(parents=True)
    for name in ("collocations.tab", "sent_starters.txt", "ortho_context.tab"):
        (folder / name).write_text("")
    (folder / "abbrev_types.txt").write_text("j.k\n")
    monkeypatch.setattr(nltk.data, "path", [str(tmp_path)])
    caches = (lexical._has_punkt, lexical._sentence_tokenizer, nltk.tokenize._get_punkt_tokenizer)
    for cache in caches:
        cache.cache_clear()
    yield
    for cache in caches:
        cache.cache_clear()


@pytest.mark.usefixtures("punkt_data")
def test_sentences_are_split_by_punkt_where_its_data_is_installed() -> None:
    assert lexical.splitter() == "punkt"
    assert lexical.word_tokenize("j.k. rowling.") == ["j.k.", "rowling", "."] == nltk.word_tokenize("j.k. rowling.")
    assert lexical.word_tokenize("j.k. rowling.", "abbreviations") == ["j.k", ".", "rowling", "."]
    assert lexical.nltk_bleu("J.K. Rowling.", "J.K. Rowling") == pytest.approx(2 / 3)
    assert lexical.nltk_bleu("J.K. Rowling.", "J.K. Rowling", sentences="abbreviations") == pytest.approx(3 / 4)


@pytest.mark.usefixtures("punkt_data")
def test_what_split_the_sentences_stands_in_the_settings_of_the_metric_and_in_its_title() -> None:
    (metric,) = metrics(["bleu1_mem0"])
    assert metric.settings == {"sentences": "punkt", "nltk": nltk.__version__}
    assert metric_title("bleu1_mem0") == "BLEU-1 (nltk method1), sentences by punkt"


def test_without_the_data_of_punkt_the_settings_say_so_and_punkt_cannot_be_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(lexical, "_has_punkt", lambda: False)
    (metric,) = metrics(["bleu1_mem0"])
    assert metric.settings == {"sentences": "abbreviations", "nltk": nltk.__version__}
    assert metric_title("bleu1_mem0") == "BLEU-1 (nltk method1)"
    with pytest.raises(ValueError, match=r"nltk\.downloader punkt_tab"):
        lexical.splitter("punkt")
    with pytest.raises(ValueError, match="sentences must be auto, punkt or abbreviations, found 'commas'"):
        lexical.splitter("commas")


def test_short_bleu_pays_for_brevity() -> None:
    # Both words match; the gold has four tokens, so exp(1 - 4/2) remains.
    assert lexical.nltk_bleu("red lamp", "the red lamp there") == pytest.approx(2.718281828 ** (1 - 4 / 2))


def test_sacre_bleu_minds_case_unless_told_otherwise() -> None:
    assert lexical.sacre_bleu("PARIS", "Paris") == 0
    assert lexical.sacre_bleu("PARIS", "Paris", lowercase=True) == pytest.approx(100)


def test_rouge_sees_only_ascii_letters_and_digits() -> None:
    assert lexical.rouge("\u6771\u4eac", "\u6771\u4eac", "rouge1") == (0, 0, 0)


def test_the_stemmer_of_rouge_is_off_for_recall_and_on_for_f() -> None:
    texts = "a three mile walk", "Three miles!", "rougeL"
    assert lexical.rouge_recall(*texts) == 0.5
    assert lexical.rouge_recall(*texts, stemmer=True) == 1
    assert lexical.rouge_f(*texts) == pytest.approx(2 / 3)
    assert lexical.rouge_f(*texts, stemmer=False) == pytest.approx(1 / 3)


def test_the_best_of_several_gold_answers_counts(subtests: pytest.Subtests) -> None:
    for metric in METRICS:
        with subtests.test(metric.name):
            gold = Gold(("something else entirely", "seven river stones"))
            assert metric.score(QUESTION, gold, answered("seven river stones")).value == pytest.approx(1)


def test_an_empty_answer_scores_0(subtests: pytest.Subtests) -> None:
    for metric in METRICS:
        with subtests.test(metric.name):
            for gold in (Gold(("the",)), Gold(("",)), Gold(("Paris",))):
                assert metric.score(QUESTION, gold, answered(" \n")).value == 0


def test_a_failed_call_has_no_score_and_an_aborted_search_scores_0(subtests: pytest.Subtests) -> None:
    for metric in METRICS:
        with subtests.test(metric.name):
            failed = Prediction("c1", "q1", "Paris", items=(), scores=(), outcome="error", error="timeout after 60 s")
            assert metric.score(QUESTION, Gold(("Paris",)), failed) == Score(None, why="error: timeout after 60 s")
            aborted = Prediction("c1", "q1", "", items=(), scores=(), outcome="aborted")
            assert metric.score(QUESTION, Gold(("Paris",)), aborted) == Score(0.0, why="aborted")


NO_REPLY = {"personamem_longest", "beam_refusal"}
"""Controls that look at no reply."""


@pytest.mark.parametrize(
    "name",
    sorted(
        name
        for name, option in metric_options().items()
        if name not in NO_REPLY and not name.startswith("gatemem_") and "joint" not in option
    ),
)
def test_an_empty_reply_scores_0_with_every_metric(name: str) -> None:
    """As in every official scorer; but for GateMem's, where 0 would say that nothing leaked, and for joint ones, which give no verdict."""
    detail = {"category_id": 5, "letter": "(a)", "right_letters": ["(a)"], "gold_label": 1, "difficult": False}
    detail |= {"eval_function": "norm_phrase_set_match"}
    question = Question("q1", "Which one?", options=("Paris", "Rome"))
    (metric,) = metrics([name])
    assert metric.score(question, Gold(("Paris",), detail=detail), answered(" \n")).value == 0


def test_a_question_without_gold_has_no_score(subtests: pytest.Subtests) -> None:
    for metric in METRICS:
        with subtests.test(metric.name):
            score = metric.score(QUESTION, Gold(()), answered("Paris"))
            assert score.value is None
            assert "no gold" in score.why


def test_sacre_bleu_as_a_metric_is_on_the_scale_of_the_others() -> None:
    assert lexical.sacre_share("...", "...") == 1
    assert lexical.sacre_share("a blue lemon", "lemon a blue") == 1, "BLEU-1: the order of words does not count"
    assert lexical.sacre_share("PARIS", "Paris") == 0
    assert lexical.sacre_share("PARIS", "Paris", lowercase=True) == 1


def test_importing_the_module_loads_no_heavy_library() -> None:
    code = "import sys, eval.metrics.lexical; print({'nltk', 'rouge_score', 'sacrebleu', 'regex'} & set(sys.modules))"
    assert run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "set()"


@pytest.mark.slow
def test_rouge_leaves_the_standard_error_open_that_it_was_first_used_with() -> None:
    """absl, which rouge-score loads, closes its stream when logging is configured again, as Hydra does for each job of a multirun."""
    code = """if True:
        import io, logging, sys
        from eval.metrics.lexical import rouge
        sys.stderr = before = io.StringIO()
        rouge("a b", "a b", "rougeL")
        sys.stderr = sys.__stderr__
        logging.shutdown()
        print(before.closed)
    """
    assert run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "False"

"""Prices given on the command line and in a file."""

from __future__ import annotations

from pathlib import Path

import pytest

from eval.files.store import RunError
from scripts.assembly.models import build_models
from scripts.settings.types import priced
from tests.scripts.commands import composed

pytestmark = pytest.mark.slow

GIVEN = {"usd_per_million_in": 0.5, "usd_per_million_out": 2.0}


def prices(*overrides: str) -> dict[str, dict[str, float]]:
    return composed("config", list(overrides)).prices


def test_a_price_is_given_on_the_command_line_by_the_name_of_the_model() -> None:
    assert prices("prices={gpt-5.4-mini: {in: 0.5, out: 2}}") == {"gpt-5.4-mini": GIVEN}


def test_a_price_under_the_name_of_a_models_file_stands_above_that_of_the_model() -> None:
    given = {"acme/m": {"usd_per_million_in": 1.0}, "mine": {"usd_per_million_in": 2.0}}
    of = {name: priced({"model": "acme/m"}, given, name).usd_per_million_in for name in ("mine", "other")}
    assert of == {"mine": 2.0, "other": 1.0}


def test_prices_are_read_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "prices.yaml"
    file.write_text("Qwen/Qwen3-8B: {in: 0.5, out: 2}\nlocal: {in: 0, cached: 0, out: 0}\n")
    assert prices(f"prices={file}")["Qwen/Qwen3-8B"] == GIVEN
    assert prices(f"prices={file}")["local"]["usd_per_million_cached"] == 0.0
    file.write_text("- Qwen/Qwen3-8B\n")
    with pytest.raises(RunError, match="expected lines such as"):
        prices(f"prices={file}")


def test_a_price_that_is_none_is_one_line(subtests: pytest.Subtests) -> None:
    for given, said in [
        ("{m: {input: 1}}", "no price called 'input'; there are: in, cached, out"),
        ("{m: {in: -1}}", "found -1"),
        ("{m: {in: nan}}", "found nan"),
        ("{m: {in: cheap}}", "found 'cheap'"),
        ("{m: {in: 1, cached: 2}}", r"a cached token \(2.0\) cannot cost more than another one \(1.0\)"),
        ("{m: 3}", "expected {in: …, out: …} or free, found 3"),
        ("/nonexistent.yaml", "cannot be read"),
    ]:
        with subtests.test(given=given, said=said), pytest.raises(RunError, match=said):
            prices(f"prices={given}")


def test_a_wrong_price_is_named_together_with_the_other_faults_of_the_command() -> None:
    said = "prices.m.in: expected a number of USD per million tokens, found 'cheap'; threads must be a whole number"
    with pytest.raises(RunError, match=said):
        prices("prices={m: {in: cheap}}", "threads=few")


def test_a_given_price_is_that_of_the_model_in_each_role_and_changes_no_identity(tmp_path: Path) -> None:
    models = [
        "network=true",
        "models.reader=gpt-5.4-mini",
        "models.judge=qwen3-8b",
        "models.embedder=qwen3-embedding-0.6b",
    ]
    given = "prices={gpt-5.4-mini: {in: 0.5, out: 2}, Qwen/Qwen3-8B: {in: 1, out: 1}, qwen3-embedding-0.6b: {in: 3}}"
    plain = build_models(composed("config", [f"results={tmp_path}/a", *models]))
    given_models = build_models(composed("config", [f"results={tmp_path}/b", *models, given]))
    assert given_models.reader.prices is not None
    assert given_models.reader.prices.cost(10**6, 10**6) == 2.5
    assert given_models.judge.prices is not None
    assert given_models.judge.prices.cost(10**6, 0) == 1.0
    assert given_models.embedder.prices is not None
    assert given_models.embedder.prices.cost(10**6, 0) == 3.0
    assert (given_models.reader.settings, given_models.judge.settings) == (plain.reader.settings, plain.judge.settings)

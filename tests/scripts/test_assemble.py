"""From configuration to objects: what is taken when the official release is not there."""

from __future__ import annotations

from pathlib import Path

from scripts.assemble import _held, load_option, metric_title, metrics, options


def test_a_held_part_is_taken_only_while_the_official_file_is_missing(tmp_path: Path) -> None:
    config = load_option("dataset", "longmemeval_mab")
    assert _held(config, tmp_path) == config
    part = tmp_path / config["instead"]["file"]
    part.parent.mkdir(parents=True)
    part.write_text("[]")
    assert _held(config, tmp_path)["file"] == config["instead"]["file"]
    official = tmp_path / config["file"]
    official.parent.mkdir(parents=True)
    official.write_text("[]")
    assert _held(config, tmp_path) == config


def test_parts_may_need_other_choices_of_the_loader(tmp_path: Path) -> None:
    config = load_option("dataset", "multihop_rag")
    (tmp_path / "multihop_rag").mkdir()
    assert _held(config, tmp_path)["load"]["corpus"] == "corpus.surrogate.json"
    (tmp_path / "multihop_rag" / "corpus.json").write_text("[]")
    assert _held(config, tmp_path)["load"]["corpus"] == "corpus.json"


def test_every_metric_of_every_data_set_exists_and_has_a_title() -> None:
    for name in options("dataset"):
        config = load_option("dataset", name)
        assert len(metrics(config["metrics"])) == len(config["metrics"])
        assert all(metric_title(metric) for metric in config["metrics"])
        assert all(judge in options("judge") for judge in config["judges"])
        assert config["reader"] in options("reader")

"""Prices that the user sets, on the command line or in a file: by model, in USD per million tokens."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eval.store import RunError

if TYPE_CHECKING:
    from omegaconf import DictConfig

FIELDS = {"in": "usd_per_million_in", "cached": "usd_per_million_cached", "out": "usd_per_million_out"}


def given_prices(prices: DictConfig | str | None) -> dict[str, dict[str, float]]:
    """Price settings of each model, from `prices={model: {in: …, out: …}}` or a YAML file with such lines.

    Raises:
        RunError: the file cannot be read, a price is not a number of at least 0, or its name is not one of in, cached, out.
    """
    from omegaconf import OmegaConf

    if prices is None:
        return {}
    if isinstance(prices, str):
        return dict(_by_model(_file(Path(prices).expanduser())))
    plain: dict[str, Any] = dict(OmegaConf.to_container(prices, resolve=True))  # type: ignore[arg-type]
    return dict(_by_model(plain))


def how_to_give(model: str) -> str:
    """The setting to add to a command so that a model's price is known."""
    return f"prices='{{{model}: {{in: USD, out: USD}}}}' (per million tokens; with make PRICES=…), or prices=file.yaml"


def _file(path: Path) -> dict[str, Any]:
    import yaml

    try:
        read = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise RunError(f"prices={path}: cannot be read ({error})") from error
    if not isinstance(read, dict):
        raise RunError(f"prices={path}: expected lines such as `my-model: {{in: 0.15, out: 0.60}}`")
    return read


def _by_model(prices: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, float]]]:
    for model, own in prices.items():
        if not isinstance(own, Mapping) or not own:
            raise RunError(f"prices.{model}: expected {{in: …, out: …}}, found {own!r}")
        yield str(model), {_field(model, word): _amount(model, word, usd) for word, usd in own.items()}


def _field(model: str, word: str) -> str:
    if word not in FIELDS:
        raise RunError(f"prices.{model}: no price called {word!r}; there are: {', '.join(FIELDS)}")
    return FIELDS[word]


def _amount(model: str, word: str, usd: Any) -> float:
    if isinstance(usd, bool) or not isinstance(usd, int | float) or not 0 <= usd < float("inf"):
        raise RunError(f"prices.{model}.{word}: expected a number of USD per million tokens, found {usd!r}")
    return float(usd)

"""Prices that the user sets, on the command line or in a file: by model, in USD per million tokens."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from eval.files.store import RunError

FREE = "free"
"""Value in place of a model's prices: its calls cost nothing."""
FIELDS = {"in": "usd_per_million_in", "cached": "usd_per_million_cached", "out": "usd_per_million_out"}
NOTHING = dict.fromkeys(FIELDS.values(), 0.0)
"""The price settings of a model whose calls cost nothing."""


def given_prices(prices: Mapping[str, Any] | str | None) -> dict[str, dict[str, float]]:
    """Return the price settings of each model, from `prices={model: {in: …, out: …}}` or a YAML file with such lines.

    Raises:
        RunError: the file cannot be read, a price is not a number of at least 0, or its name is not one of in, cached, out.
    """
    if prices is None:
        return {}
    if isinstance(prices, str):
        return dict(_by_model(_file(Path(prices).expanduser())))
    return dict(_by_model(prices))


def laid_over(prices: Mapping[str, Mapping[str, float]], model: str, name: str) -> dict[str, float]:
    """The user's prices of a model: those of the model's own name, overridden by those of its file's name."""
    return {**prices.get(model, {}), **prices.get(name, {})}


def how_to_give(*models: str) -> str:
    """The setting that adds prices to a command, for messages."""
    lines = ", ".join(f"{model}: {{in: USD, out: USD}}" for model in models)
    return (
        f"prices='{{{lines}}}' (per million tokens; `{models[0]}: free` for a server of your own), or the same lines in a file: "
        "prices=file.yaml (make … PRICES=file.yaml)"
    )


def _file(path: Path) -> dict[str, Any]:
    import yaml

    try:
        prices = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise RunError(f"prices={path}: cannot be read ({error})") from error
    if not isinstance(prices, dict):
        raise RunError(f"prices={path}: expected lines such as `my-model: {{in: 0.15, out: 0.60}}`")
    return prices


def _by_model(prices: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, float]]]:
    for model, fields in prices.items():
        if fields == FREE:
            yield str(model), dict(NOTHING)
            continue
        if not isinstance(fields, Mapping) or not fields:
            raise RunError(f"prices.{model}: expected {{in: …, out: …}} or {FREE}, found {fields!r}")
        amounts = {_field(model, name): _amount(model, name, usd) for name, usd in fields.items()}
        cached, plain = amounts.get("usd_per_million_cached"), amounts.get("usd_per_million_in")
        if cached is not None and plain is not None and cached > plain:
            raise RunError(f"prices.{model}: a cached token ({cached}) cannot cost more than another one ({plain})")
        yield str(model), amounts


def _field(model: str, name: str) -> str:
    if name not in FIELDS:
        raise RunError(f"prices.{model}: no price called {name!r}; there are: {', '.join(FIELDS)}")
    return FIELDS[name]


def _amount(model: str, name: str, usd: Any) -> float:
    if isinstance(usd, bool) or not isinstance(usd, int | float) or not 0 <= usd < float("inf"):
        raise RunError(f"prices.{model}.{name}: expected a number of USD per million tokens, found {usd!r}")
    return float(usd)

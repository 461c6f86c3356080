"""The report finds the data of each run in the first folder that has them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from data_loaders.schema import DataError
from scripts.tables import html_report


def test_public_data_and_ones_own_may_lie_in_different_folders(monkeypatch: pytest.MonkeyPatch) -> None:
    def data_of(record: Any, root: Path | None) -> list[str]:
        if root != Path("mine"):
            raise DataError(f"not in {root}")
        return ["case"]

    monkeypatch.setattr(html_report, "data_of", data_of)
    assert list(html_report._cases_of({}, (Path("public"), Path("mine")))) == ["case"]
    with pytest.raises(DataError, match="not in public"):
        html_report._cases_of({}, (Path("mine2"), Path("public")))

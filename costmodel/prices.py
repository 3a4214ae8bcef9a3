"""Prices of GPUs, from a table of the user's own: a name and a price per hour of one GPU, in any one currency."""

from __future__ import annotations

import csv
import io
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from costmodel.checks import positive
from costmodel.hardware.catalog import load_gpu
from costmodel.hardware.errors import InputError, shown
from costmodel.hardware.reading import read_text, shown_path

MOST_PRICE = 1e9
"""Per hour; more is a slip of the keyboard."""


def read_prices(path: str | Path) -> dict[str, float]:
    """Return price per hour by canonical GPU name, from a table.

    CSV: a header line with ``name`` and ``price_per_hour``, then a line per GPU. TOML: a table ``[prices]`` with a number for each name.

    Raises:
        InputError: no such file, neither of the two forms, an unknown GPU, one that is there twice, or a price that is no number above 0.
    """
    file = Path(path).expanduser()
    where = f"price table {shown_path(file)}"
    text = read_text(file, "price table")
    pairs = _toml(text, where) if file.suffix.lower() == ".toml" else _csv(text, where)
    return _resolved(pairs, where)


def check_prices(prices: Mapping[str, float] | str | Path | None) -> dict[str, float]:
    """Return prices by canonical GPU name, from a mapping by any name of a GPU, or from a table; nothing for None.

    Raises:
        InputError: as in :func:`read_prices`.
    """
    if prices is None:
        return {}
    if isinstance(prices, Mapping):
        return _resolved(prices.items(), "prices")
    return read_prices(prices)


def _resolved(pairs: Iterable[tuple[Any, Any]], where: str) -> dict[str, float]:
    found: dict[str, float] = {}
    for name, price in pairs:
        try:
            gpu = load_gpu(str(name))[1].name
            if isinstance(price, bool):
                raise InputError(f"price of {gpu} must be a number, not {price}")
            value = positive(price, f"price of {gpu}", MOST_PRICE)
        except InputError as error:
            raise InputError(f"{where}: {error}") from None
        if gpu in found:
            raise InputError(f"{where}: {gpu} is there twice")
        found[gpu] = value
    if not found:
        raise InputError(f"{where}: it has no prices")
    return found


def _csv(text: str, where: str) -> list[tuple[str, str]]:
    rows = [row for row in csv.reader(io.StringIO(text.removeprefix("\ufeff"))) if any(cell.strip() for cell in row)]
    header = [cell.strip().casefold() for cell in rows[0]] if rows else []
    if "name" not in header or "price_per_hour" not in header:
        raise InputError(f"{where}: the first line must name the columns `name` and `price_per_hour`")
    name, price = header.index("name"), header.index("price_per_hour")
    short = next((row for row in rows[1:] if len(row) <= max(name, price)), None)
    if short is not None:
        raise InputError(f"{where}: the line {shown(','.join(short))} lacks a column")
    return [(row[name].strip(), row[price].strip()) for row in rows[1:]]


def _toml(text: str, where: str) -> list[tuple[str, Any]]:
    try:
        content = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"{where}: {error}") from None
    prices = content.pop("prices", None)
    if content or not isinstance(prices, dict):
        raise InputError(f"{where}: it must have one table, [prices], with a number for each GPU")
    return list(prices.items())

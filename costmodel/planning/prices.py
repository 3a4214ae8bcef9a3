"""Prices of GPUs that the user supplies: a CSV or TOML file, or a mapping. None are shipped: they differ by the day and by the customer."""

from __future__ import annotations

import csv
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from costmodel.checks import positive
from costmodel.hardware.catalog import resolve_gpu
from costmodel.hardware.errors import InputError, shown

GPU_COLUMNS, PRICE_COLUMNS = ("gpu", "name"), ("price_per_hour", "price", "price per hour")
MOST_BYTES = 1 << 20
"""A larger file is no table of prices."""


@dataclass(frozen=True, slots=True)
class Prices:
    """Price of one GPU for an hour, by the canonical name of the part, in the user's currency."""

    per_hour: Mapping[str, float]
    currency: str | None = None


def read_prices(source: str | Path | Mapping[str, float] | Prices) -> Prices:
    """Return prices.

    A CSV has the columns ``gpu`` (or ``name``) and ``price_per_hour`` (or ``price``); a TOML file names parts and prices, at the top or in
    a table ``[prices]``, and may have ``currency``:

        currency = "EUR"
        [prices]
        h100 = 2.49

    Args:
        source: file, or a mapping of names to prices.

    Raises:
        InputError: the file cannot be read; an unknown part, with the nearest; a price that is no number above zero; a part twice.
    """
    if isinstance(source, Prices):
        return source
    if isinstance(source, Mapping):
        return Prices(_checked(("prices", name, value) for name, value in source.items()))
    path = Path(source).expanduser()
    try:
        if path.stat().st_size > MOST_BYTES:
            raise InputError(f"{path} is too large for a table of prices")
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "no UTF-8 text"
        raise InputError(f"cannot read the prices {path}: {reason}") from None
    return _toml(path, text) if path.suffix.casefold() == ".toml" else _csv(path, text)


def _toml(path: Path, text: str) -> Prices:
    try:
        table: dict[str, Any] = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"{path} is no TOML: {error}") from None
    currency = table.pop("currency", None)
    if currency is not None and not isinstance(currency, str):
        raise InputError(f'{path}: currency must be a word, such as "EUR", not {shown(currency)}')
    rows = table.pop("prices", None) if isinstance(table.get("prices"), Mapping) else None
    if rows is not None and table:
        raise InputError(f"{path}: unknown key {shown(next(iter(table)))} beside [prices]; known: currency, prices")
    return Prices(
        _checked((str(path), name, value) for name, value in (table if rows is None else rows).items()), currency
    )


def _csv(path: Path, text: str) -> Prices:
    reader = csv.DictReader(text.splitlines(), skipinitialspace=True)
    header = [(name or "").strip().casefold() for name in reader.fieldnames or ()]
    reader.fieldnames = header
    gpu = next((name for name in GPU_COLUMNS if name in header), None)
    price = next((name for name in PRICE_COLUMNS if name in header), None)
    if gpu is None or price is None:
        raise InputError(
            f"{path}: the first line must name the columns gpu and price_per_hour, not {shown(','.join(header))}"
        )
    unknown = [name for name in header if name not in (gpu, price, "currency")]
    if unknown:
        raise InputError(f"{path}: unknown column {shown(unknown[0])}; known: gpu, price_per_hour, currency")
    rows, currencies = [], set()
    for row in reader:
        where = f"{path}, line {reader.line_num}"
        if None in row or row[price] is None:
            raise InputError(f"{where}: {len(header)} columns are wanted")
        rows.append((where, row[gpu].strip(), row[price].strip()))
        if row.get("currency"):
            currencies.add(row["currency"].strip())
    if len(currencies) > 1:
        raise InputError(f"{path}: prices in one currency, not in {', '.join(sorted(currencies))}")
    return Prices(_checked(rows), currencies.pop() if currencies else None)


def _checked(rows: Iterable[tuple[str, str, Any]]) -> dict[str, float]:
    found: dict[str, float] = {}
    for where, name, value in rows:
        try:
            part = resolve_gpu(str(name)).name
            number = positive(value, f"price of {name}")
        except InputError as error:
            raise InputError(f"{where}: {error}") from None
        if part in found:
            raise InputError(f"{where}: {name} has a price already (it is {part})")
        found[part] = number
    if not found:
        raise InputError("a table of prices needs at least one part")
    return found

"""Prices of GPUs that the user supplies: a CSV or TOML file, or a mapping. None are shipped: they differ by the day and by the customer."""

from __future__ import annotations

import csv
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from costmodel.checks import positive
from costmodel.hardware.catalog import is_path, load_gpu
from costmodel.hardware.errors import InputError, shown
from costmodel.hardware.reading import read_text, shown_path

GPU_COLUMNS, PRICE_COLUMNS = ("gpu", "name"), ("price_per_hour", "price", "price per hour")
MOST_BYTES = 1 << 20
"""A larger file is no table of prices."""
MOST_PRICE = 1e9
"""Per hour; more is a slip of the keyboard."""


@dataclass(frozen=True, slots=True)
class Prices:
    """Price of one GPU for an hour, by the canonical name of the part or the path of a profile, in the user's currency."""

    per_hour: Mapping[str, float]
    currency: str | None = None

    def of(self, gpu: str) -> float | None:
        """Return the price of a part, by its canonical name or a path of its profile; None where there is none."""
        if not is_path(gpu):
            return self.per_hour.get(gpu)
        return {_resolved(name): price for name, price in self.per_hour.items()}.get(_resolved(gpu))


def _resolved(name: str) -> str:
    return str(Path(name).resolve()) if is_path(name) else name


def read_prices(source: str | Path | Mapping[str, float] | Prices) -> Prices:
    """Return prices.

    A CSV has the columns ``gpu`` (or ``name``) and ``price_per_hour`` (or ``price``); a TOML file names parts and prices, at the top or in
    a table ``[prices]``, and may have ``currency``:

        currency = "EUR"
        [prices]
        h100 = 2.49

    Args:
        source: file, or a mapping of names (or paths of profiles) to prices.

    Raises:
        InputError: the file cannot be read; an unknown part, with the nearest; a price that is no number above zero; a part twice.
    """
    if isinstance(source, Prices):
        return source
    if isinstance(source, Mapping):
        return Prices(_checked(("prices", name, value) for name, value in source.items()))
    path = Path(source).expanduser()
    text = read_text(path, "table of prices", MOST_BYTES).removeprefix("\ufeff")
    where = f"table of prices {shown_path(path)}"
    return _toml(where, text) if path.suffix.casefold() == ".toml" else _csv(where, text)


def _toml(where: str, text: str) -> Prices:
    try:
        table: dict[str, Any] = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"{where} is no TOML: {error}") from None
    currency = table.pop("currency", None)
    if currency is not None and not isinstance(currency, str):
        raise InputError(f'{where}: currency must be a word, such as "EUR", not {shown(currency)}')
    rows = table.pop("prices", None) if isinstance(table.get("prices"), Mapping) else None
    if rows is not None and table:
        raise InputError(f"{where}: unknown key {shown(next(iter(table)))} beside [prices]; known: currency, prices")
    return Prices(_checked((where, name, value) for name, value in (table if rows is None else rows).items()), currency)


def _csv(where: str, text: str) -> Prices:
    reader = csv.DictReader(text.splitlines(), skipinitialspace=True)
    try:
        header = [(name or "").strip().casefold() for name in reader.fieldnames or ()]
    except csv.Error as error:
        raise InputError(f"{where}, line 1: {error}") from None
    reader.fieldnames = header
    gpu = next((name for name in GPU_COLUMNS if name in header), None)
    price = next((name for name in PRICE_COLUMNS if name in header), None)
    if gpu is None or price is None:
        raise InputError(
            f"{where}: the first line must name the columns gpu and price_per_hour, not {shown(','.join(header))}"
        )
    unknown = [name for name in header if name not in (gpu, price, "currency")]
    if unknown:
        raise InputError(f"{where}: unknown column {shown(unknown[0])}; known: gpu, price_per_hour, currency")
    rows, currencies = [], set()
    try:
        for row in reader:
            line = f"{where}, line {reader.line_num}"
            if None in row or None in row.values():
                raise InputError(f"{line}: {len(header)} columns are wanted")
            rows.append((line, row[gpu].strip(), row[price].strip()))
            if row.get("currency"):
                currencies.add(row["currency"].strip())
    except csv.Error as error:
        raise InputError(f"{where}, line {reader.line_num}: {error}") from None
    if len(currencies) > 1:
        raise InputError(f"{where}: prices in one currency, not in {', '.join(sorted(currencies))}")
    return Prices(_checked(rows), currencies.pop() if currencies else None)


def _checked(rows: Iterable[tuple[str, str, Any]]) -> dict[str, float]:
    found: dict[str, float] = {}
    parts: set[str] = set()
    for where, name, value in rows:
        try:
            part = load_gpu(name)[1].name
            part = name if is_path(name) else part
            if isinstance(value, bool):
                raise InputError(f"price of {name} must be a number, not {shown(value)}")
            number = positive(value, f"price of {name}", MOST_PRICE)
        except InputError as error:
            raise InputError(f"{where}: {error}") from None
        if _resolved(part) in parts:
            raise InputError(f"{where}: {name} has a price already (it is {part})")
        parts.add(_resolved(part))
        found[part] = number
    if not found:
        raise InputError("a table of prices needs at least one part")
    return found

"""Write the table of measured start-ups into ``planning.md``: `python docs/make_planning_table.py`; a test compares it with the file."""

from __future__ import annotations

import re
import statistics
from pathlib import Path

from costmodel.engine import GIB
from costmodel.validation.datasets.memory_starts import COLUMNS, SOURCES, errors, measured_starts

PAGE = Path(__file__).with_name("planning.md")
BEGIN, END = "<!-- measured starts -->", "<!-- end of measured starts -->"
WHAT = {
    "weights": "weights after loading",
    "activation": "activation peak",
    "non_torch": "memory outside PyTorch",
    "available": "available KV cache",
}


def table() -> str:
    """Return the summary of errors and the table of start-ups."""
    lines = ["| what | start-ups held out | median error | worst error |", "|---|---|---|---|"]
    for column in COLUMNS:
        found = [(abs(predicted - measured), measured, usable) for _, measured, predicted, usable in errors(column)]
        base = [measured if column == "weights" else usable for _, measured, usable in found]
        shares = [100 * error / whole for (error, _, _), whole in zip(found, base, strict=True)]
        gib = [error / GIB for error, _, _ in found]
        lines.append(
            f"| {WHAT[column]} | {len(found)} | {statistics.median(gib):.3f} GiB, {statistics.median(shares):.2f} % "
            f"| {max(gib):.2f} GiB, {max(shares):.2f} % |"
        )
    lines += [
        "",
        "| model | GPU | vLLM | TP, PP | fraction | M | R | weights | activations | not PyTorch | KV cache | source |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for start in measured_starts():
        predicted = start.predicted()
        cells = [_cell(start.figures[column], predicted[column], column in start.fitted) for column in COLUMNS]
        model = start.model + (f", {start.dtype}" if start.dtype else "")
        lines.append(
            f"| {model} | {start.gpu} | {start.version} | {start.tp}, {start.pp} | {start.utilisation:g} | {start.tokens:,} "
            f"| {start.sequences:,} | {' | '.join(cells)} | [{start.source}]({SOURCES[start.source]}) |"
        )
    return "\n".join(lines)


def _cell(measured: float | None, predicted: float, fitted: bool) -> str:
    if measured is None:
        return f"– ({predicted / GIB:.2f})"
    return f"{measured / GIB:.2f} ({predicted / GIB:.2f})" + ("*" if fitted else "")


def text() -> str:
    """Return the page with the table as it is now."""
    page = PAGE.read_text(encoding="utf-8")
    return re.sub(f"{BEGIN}.*{END}", lambda _: f"{BEGIN}\n{table()}\n{END}", page, flags=re.DOTALL)


if __name__ == "__main__":
    PAGE.write_text(text(), encoding="utf-8")

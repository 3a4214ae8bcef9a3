"""Runs of a benchmark client beside a simulation of the same requests."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

from costmodel.hardware.errors import InputError
from costmodel.simulation.quantiles import nearest_rank
from costmodel.simulation.requests import Request
from costmodel.simulation.results import Percentiles, Result
from costmodel.simulation.simulating import run_requests
from costmodel.simulation.stepping import Progress
from costmodel.validation.checking.asking import Asked
from costmodel.validation.checking.benchmarks import ServedRun
from costmodel.validation.checking.documents import CheckedFile, Kind, Row, make_row

LADDER: Final = (("p50", 0.5, 1), ("p90", 0.9, 10), ("p99", 0.99, 100), ("p99.9", 0.999, 1000), ("max", 1.0, 1))
"""Percentiles that are compared, and how many values each needs to mean something."""


def check_run(
    path: Path, run: ServedRun, asked: Asked, progress: Callable[[Progress], None] | None = None
) -> tuple[CheckedFile, Sequence[Row]]:
    """Simulate the requests of a run, and return its percentiles beside those that were measured.

    Requests are sent when the client sent them, and each gets as many tokens as it got.

    Args:
        path: of the file.
        run: what was measured.
        asked: model, GPU and flags of the server.
        progress: called now and then.

    Raises:
        InputError: no request was answered, no model or GPU, or a simulation that cannot be.
    """
    if not run.requests:
        raise InputError(f"no request of {run.client} was answered")
    options = asked.server()
    for name in ("gpu", "model"):
        if name not in options:
            raise InputError(f"a result of {run.client} does not say enough of the server; give --gpu and --model")
    first = run.requests[0].sent
    requests = [Request(each.sent - first, max(each.prompt, 1), max(each.output, 1)) for each in run.requests]
    simulated = run_requests(requests, {"kind": "requests", "requests": len(requests)}, options, progress=progress)
    document = simulated.document
    if document.interrupted:
        raise KeyboardInterrupt
    if document.result is None:
        raise InputError(f"nothing was simulated of {run.client}")
    info = document.server
    file = CheckedFile(
        file=path.name,
        form=" ".join(filter(None, (f"{run.client},", run.name, f"{len(requests):,} requests"))),
        model=info.model,
        gpu=info.gpu,
        engine=options.get("engine", "vllm"),
        rung=info.rung,
        calibration=info.calibration,
        notes=(*run.notes, *document.warnings),
    )
    prefix = f"{run.name}: " if run.name else ""
    return file, list(_rows(run, document.result, prefix))


def _rows(run: ServedRun, result: Result, prefix: str) -> Iterator[Row]:
    gaps = [gap for each in run.requests for gap in each.gaps or ()]
    ttfts = [each.ttft for each in run.requests]
    tpots = [each.tpot for each in run.requests if each.tpot is not None]
    kinds: tuple[tuple[Kind, list[float], Percentiles | None], ...] = (
        ("itl", gaps, result.itl),
        ("ttft", ttfts, result.ttft),
        ("tpot", tpots, result.tpot),
    )
    for kind, measured, predicted in kinds:
        yield from compare(f"{prefix}{kind.upper()}", kind, predicted, measured)


def compare(what: str, kind: Kind, predicted: Percentiles | None, measured: Sequence[float]) -> Iterator[Row]:
    """Yield the percentiles of a simulation beside those of measured values [s]."""
    if predicted is None or not measured:
        return
    found = predicted.model_dump(by_alias=True)
    values = nearest_rank(measured, [share for _, share, _ in LADDER])
    for (name, _, needed), value in zip(LADDER, values, strict=True):
        if len(measured) >= needed and value > 0:
            yield make_row(f"{what} {name}", kind, found[f"{name}_s"], value)

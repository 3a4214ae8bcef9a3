"""The overhead of a step from a recorded run: known ones come back, and the real run is met."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from costmodel.errors import InputError
from costmodel.simulation.settings import Settings
from costmodel.validation.datasets.rtx4090 import RequestTable
from costmodel.validation.datasets.served_runs import Served, ServedRun, Ticks, read_run
from costmodel.validation.fitting.run_overhead import OverheadFit, first_to_finish, fit_overhead
from costmodel.validation.fitting.served_ticks import decode_seconds, step_between, tick_offset
from costmodel.validation.fitting.simulated_run import RunServer, server_of, simulate_run

SETTINGS = Settings(token_budget=2048, max_num_seqs=64, kv_blocks=1200, max_model_len=8192)


def served_by(gpu: str = "NVIDIA GeForce RTX 4090", tp: int = 1, settings: Settings = SETTINGS) -> Served:
    """Return a server of Llama-3.1-8B."""
    return Served("meta-llama/Llama-3.1-8B", gpu, "vLLM 0.19.0", tp, 1, 1, "bf16", None, settings, ())


def recorded(server: RunServer, overhead: float, count: int = 90, rate: float = 4.0) -> RequestTable:
    """Return what a server with a known overhead would have recorded."""
    generator = np.random.default_rng(3)
    arrival = np.cumsum(generator.exponential(1 / rate, count))
    lengths = generator.integers(50, 900, count).astype(float), generator.integers(20, 400, count).astype(float)
    sent = RequestTable(*lengths, arrival, arrival, arrival, arrival, arrival)
    run = simulate_run(sent, server, overhead)
    return replace(sent, scheduled=run.scheduled, first_token=run.first, last_token=run.last)


@pytest.mark.parametrize("overhead", [-4e-4, 0.0, 2e-3])
def test_a_known_overhead_is_recovered(overhead: float) -> None:
    server = server_of(served_by())
    requests = recorded(server, overhead)
    chosen = first_to_finish(requests, 40)
    fit = fit_overhead(requests, server, chosen)
    assert fit.seconds == pytest.approx(overhead, abs=1.5e-4)
    assert fit.standard_error < 4e-4
    assert fit.by_tpot == pytest.approx(overhead, abs=1e-4)
    assert fit.ttft_per_second > 0
    assert not fit.at_bound
    assert fit.requests == 40
    # The times of the others are not looked at.
    blind = replace(requests, first_token=np.where(chosen, requests.first_token, requests.arrival + 1.0))
    blind = replace(blind, last_token=np.where(chosen, requests.last_token, requests.arrival + 900.0))
    assert fit_overhead(blind, server, chosen) == fit


def test_more_overhead_makes_everything_longer_and_zero_is_the_calibration_itself() -> None:
    server = server_of(served_by())
    assert server.calibration is not None
    assert server.with_overhead(0.0) == server.parameters
    requests = recorded(server, 0.0)
    assert np.array_equal(simulate_run(requests, server).last, requests.last_token)
    slower = simulate_run(requests, server, 1e-3)
    assert np.all(slower.last > requests.last_token)
    assert 0 < server.launches < 3e-3


def test_arrivals_in_any_order_give_the_same() -> None:
    server = server_of(served_by())
    requests = recorded(server, 0.0)
    order = np.random.default_rng(1).permutation(len(requests))
    shuffled = RequestTable(*(getattr(requests, name)[order] for name in RequestTable.__dataclass_fields__))
    assert np.array_equal(simulate_run(shuffled, server).last, requests.last_token[order])


def test_too_few_requests_are_refused() -> None:
    server = server_of(served_by())
    requests = recorded(server, 0.0)
    with pytest.raises(InputError, match="19 requests of two tokens or more cannot tell"):
        fit_overhead(requests, server, first_to_finish(requests, 19))


def test_gpus_are_found_by_the_name_that_the_driver_gives() -> None:
    server = server_of(served_by("NVIDIA H100 80GB HBM3", tp=2))
    assert server.deployment.gpu == "h100-sxm"
    assert server.deployment.gpus == 2
    assert server.calibration is not None
    bare = server_of(served_by("NVIDIA GeForce RTX 3090"))
    assert bare.calibration is None
    assert any("no calibration of rtx-3090" in note for note in bare.notes)
    assert bare.launches == 0
    with pytest.raises(InputError, match="unknown GPU 'NVIDIA Abacus'"):
        server_of(served_by("NVIDIA Abacus"))


def test_requests_that_the_engine_would_refuse_are_told() -> None:
    server = server_of(served_by(settings=replace(SETTINGS, max_model_len=300)))
    requests = RequestTable(*(np.full(3, value) for value in (500.0, 5.0, 0.0, 0.0, 0.0, 0.0, 0.0)))
    with pytest.raises(InputError, match=r"would refuse .*max_model_len"):
        simulate_run(requests, server)


# --- decode steps by the tokens of a second -----------------------------------------------------------------------------


def steady_run(step: float, shift: float) -> tuple[RequestTable, Ticks]:
    """Return ten requests that decode together and end one after another, and ticks that come ``shift`` seconds early."""
    tokens = 200.0 + 100 * np.arange(10)
    arrival = np.zeros(10)
    first = np.full(10, 1.0)
    last = first + (tokens - 1) * step
    times = np.arange(1.0, 25.0)

    def given(now: float) -> float:
        return float(np.clip((now - first) / step, 0, tokens - 1).sum())

    seconds = times - shift
    generated = np.array([given(now) - given(now - 1) for now in seconds])
    running = np.array([(last > now).sum() for now in seconds], dtype=float)
    nothing = np.zeros(len(times))
    return (
        RequestTable(nothing[:10] + 400, tokens, arrival, arrival, arrival, first, last),
        Ticks(times, generated, nothing, running, nothing, nothing),
    )


def test_decode_steps_are_counted_by_tokens() -> None:
    requests, ticks = steady_run(0.02, 0.3)
    assert tick_offset(requests, ticks) == pytest.approx(-0.3, abs=0.3)
    found = decode_seconds(requests, ticks, server_of(served_by()).parameters)
    assert len(found) > 8
    for second in found:
        assert second.measured == pytest.approx(0.02, rel=0.05)  # when exactly ticks were is not known
        assert 0.015 < second.predicted < 0.03
    assert found[0].sequences > found[-1].sequences
    start, end = float(requests.last_token[2]), float(requests.last_token[5])
    assert step_between(requests, ticks, start, end) == pytest.approx(0.02, rel=0.03)


# --- the real run -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def real(shared_folder: Path) -> ServedRun:
    return read_run(shared_folder / "data" / "rtx4090-llama-3.1-8b")


@pytest.fixture(scope="module")
def fitted(real: ServedRun) -> tuple[RunServer, OverheadFit]:
    server = server_of(real.served)
    return server, fit_overhead(real.requests, server, first_to_finish(real.requests, 100))


def test_the_real_run_is_met(real: ServedRun, fitted: tuple[RunServer, OverheadFit]) -> None:
    """Fitted to the first 100 requests that finished, held against the 200 others."""
    (server, fit), requests = fitted, real.requests
    assert abs(fit.seconds) < 5e-4
    assert fit.standard_error < 3e-4
    run, others = simulate_run(requests, server, fit.seconds), ~first_to_finish(requests, 100)
    pairs = {
        "ttft": (run.first - requests.arrival, requests.first_token - requests.arrival, 0.02, 0.04),
        "tpot": ((run.last - run.first) / (requests.output_tokens - 1), requests.tpot, 0.015, 0.03),
    }
    for made, found, mean, quantile in pairs.values():
        assert made[others].mean() == pytest.approx(found[others].mean(), rel=mean)
        for share in (0.5, 0.9, 0.99):
            ours, theirs = (np.quantile(values[others], share, method="inverted_cdf") for values in (made, found))
            assert ours == pytest.approx(theirs, rel=quantile)


def test_its_decode_steps_are_met(real: ServedRun, fitted: tuple[RunServer, OverheadFit]) -> None:
    assert real.ticks is not None
    server, fit = fitted
    assert -0.12 < tick_offset(real.requests, real.ticks) < -0.09
    by_size: dict[int, list[float]] = {}
    for second in decode_seconds(real.requests, real.ticks, server.with_overhead(fit.seconds)):
        by_size.setdefault(-(-round(second.sequences) // 8), []).append(second.predicted / second.measured - 1)
    assert len(by_size) >= 3
    assert all(abs(float(np.mean(errors))) < 0.05 for errors in by_size.values())

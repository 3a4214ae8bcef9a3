"""A row of a sweep of steps is what ``predict`` and ``closed_loop`` say of its configuration."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import costmodel
from costmodel.sweeping import asking
from costmodel.sweeping.loops import find_roots
from tests.strategies import PRESETS, examples

PARTS = ("h100", "h200", "a100", "l40s", "rtx-4090", "b200", "mi300x", "h100-pcie")


@st.composite
def grids(draw: st.DrawFn) -> dict[str, Any]:
    """Small grids of all axes."""

    def several(values: st.SearchStrategy[Any], most: int = 2) -> Any:
        return draw(st.lists(values, min_size=1, max_size=most, unique=True))

    return {
        "model": draw(st.sampled_from(PRESETS)),
        "gpu": draw(st.sampled_from(PARTS)),
        "tp": draw(st.sampled_from([1, 2, 4, 8])),
        "dtype": draw(st.sampled_from([None, "fp8", "int4"])),
        "chunk": several(st.sampled_from([None, "engine", 64, 512, 2048, 10_000]), 3),
        "rate": several(st.sampled_from([None, 0.02, 0.3, 4.0])),
        "prompt": several(st.integers(1, 20_000)),
        "streams": several(st.integers(1, 300) | st.just(1)),
        "context": several(st.integers(0, 9000)),
        "output": several(
            st.none() | st.integers(8, 3000)
        ),  # for shorter ones a loop may have two roots near each other
    }


def close(row: float | None, expected: float) -> bool:
    return row is not None and math.isclose(row, expected, rel_tol=1e-12)


def check_row(row: costmodel.StepRow, asked: dict[str, Any]) -> None:
    try:
        answer = costmodel.predict(**{**asked, "every": 1 / row.rate_per_s if row.rate_per_s else 10.0})
    except costmodel.InputError:
        assert row.problem is not None
        assert row.decode_step_s is row.spike_s is row.tpot_s is None
        return
    assert row.kv_tokens == answer.memory.kv_tokens
    assert close(row.kv_available_bytes, answer.memory.kv_available_bytes)
    assert close(row.kv_needed_bytes, answer.memory.kv_needed_bytes)
    assert row.fits == answer.memory.fits
    if not answer.memory.fits or any("tokens are more than the" in warning for warning in answer.warnings):
        assert row.problem is not None
        assert row.decode_step_s is row.tpot_s is None
        return
    assert row.rung == answer.headline
    assert row.chunk_tokens == answer.workload.chunk_tokens
    assert row.gpus == answer.gpu.count
    assert close(row.decode_step_s, answer.best.decode_step_s)
    assert close(row.prefill_s, answer.best.prefill_s)
    assert close(row.spike_s, answer.spike.height_s)
    assert close(row.spike_ratio, answer.best.spike_ratio)
    assert close(row.mixed_s, answer.spike.duration_s)
    assert row.chunks == answer.spike.chunks
    if row.rate_per_s is None:
        assert row.fraction_of_gaps is row.overload is None
    else:
        assert close(row.fraction_of_gaps, answer.spike.fraction_of_gaps)
        assert row.overload == answer.spike.overload


def check_loop(row: costmodel.StepRow, asked: dict[str, Any], tolerance: float) -> None:
    if row.decode_step_s is None or row.output_tokens is None:
        assert row.tpot_s is row.ttft_s is row.output_tokens_per_s is None
        return
    loop = costmodel.closed_loop(
        clients=row.streams or 0,
        output=row.output_tokens,
        budget=row.chunk_tokens or row.prompt_tokens + (row.streams or 0),
        **{name: asked[name] for name in ("model", "gpu", "tp", "dtype", "prompt")},
    )
    queued = any("would queue" in warning for warning in loop.warnings)
    limit = costmodel.load_model(asked["model"])[0].max_positions or math.inf
    if queued or row.prompt_tokens + row.output_tokens > limit:
        assert row.problem is not None
        assert row.problem.startswith("no closed loop")
        assert row.tpot_s is None
        return
    assert row.problem is None
    for name in ("ttft_s", "tpot_s", "output_tokens_per_s"):
        assert getattr(row, name) == pytest.approx(getattr(loop, name), rel=tolerance), name
    assert close(row.output_tokens_per_s_per_gpu, (row.output_tokens_per_s or 0) / loop.gpus)


@pytest.mark.parametrize(
    ("prompt", "streams", "output"), [(142, 17, 1), (500, 40, 2), (2000, 17, 3), (2000, 40, 8), (8000, 17, 32)]
)
def test_loops_that_could_also_stay_empty_fill_up(prompt: int, streams: int, output: int) -> None:
    asked: dict[str, Any] = {"model": "Mixtral-8x7B-v0.1", "gpu": "h100", "dtype": "fp8", "prompt": prompt}
    [row] = costmodel.sweep(**asked, chunk=64, streams=streams, output=output).rows
    check_loop(row, {**asked, "tp": 1}, 1e-12)
    assert (row.tpot_s or 0) > 2 * (row.decode_step_s or 1)


@examples(60)
@given(grids())
def test_rows_are_predictions(grid: dict[str, Any]) -> None:
    found = costmodel.sweep(**grid)
    rows = iter(found.rows)
    for chunk in grid["chunk"]:
        for rate in grid["rate"]:
            for prompt in grid["prompt"]:
                for streams in grid["streams"]:
                    for context in grid["context"]:
                        for output in grid["output"]:
                            row = next(rows)
                            assert isinstance(row, costmodel.StepRow)
                            assert (row.rate_per_s, row.output_tokens) == (rate, output)
                            asked = {name: grid[name] for name in ("model", "gpu", "tp", "dtype")}
                            asked |= {"chunk": chunk, "prompt": prompt, "streams": streams, "context": context}
                            check_row(row, asked)
                            # tiles of rows make steps of the RTX 4090 jump, and a loop may stop on either side of a jump
                            check_loop(row, asked, 1e-2 if grid["gpu"] == "rtx-4090" else 1e-12)
    assert next(rows, None) is None


def test_invalid_combinations_are_rows_with_the_reason() -> None:
    found = costmodel.sweep(
        model=["Llama-3.1-8B", "Llama-3.1-405B"],
        gpu=["h100", "a100"],
        tp=[1, 3],
        dtype=[None, "nvfp4"],
        chunk=[16, 2048],
    )
    assert len(found) == 32
    reasons = {row.problem for row in found.rows}
    assert any(reason and reason.startswith("tp 3 does not divide") for reason in reasons)
    assert "does not fit: weights and activations leave no room for a KV cache" in reasons
    assert any(reason and "leaves no room for a prompt beside the streams" in reason for reason in reasons)
    assert None in reasons
    for row in found.rows:
        assert (row.problem is None) == (row.tpot_s is not None)
        assert row.model
        assert row.gpu


@pytest.mark.parametrize("simulate", [None, "load"])
def test_all_attention_replicas_count(simulate: str | None) -> None:
    """With EP wider than TP each replica has the streams of the row, and all of them use its GPUs."""
    asked: dict[str, Any] = {
        "model": "Mixtral-8x7B", "dtype": "fp8", "tp": 2, "streams": 4, "prompt": 100, "output": 20, "simulate": simulate,
        "workers": 1 if simulate else None,
    }  # fmt: skip
    found = costmodel.sweep(**asked, ep=8)
    [row], [alone] = found.rows, costmodel.sweep(**asked, ep=2).rows
    assert (row.gpus, alone.gpus) == (8, 2)
    assert any("4 attention replicas of 2 GPUs share the experts" in note for note in found.notes)
    assert row.output_tokens_per_s_per_gpu == pytest.approx((row.output_tokens_per_s or 0) / 8)
    # each replica reads as many bytes at most: not a quarter of the tokens, as one replica's over the GPUs of four would be
    assert (row.output_tokens_per_s_per_gpu or 0) > 0.6 * (alone.output_tokens_per_s_per_gpu or 0)
    if simulate is None:
        loop = costmodel.closed_loop(4, prompt=100, output=20, model="Mixtral-8x7B", dtype="fp8", tp=2, ep=8)
        assert row.output_tokens_per_s == pytest.approx(4 * loop.output_tokens_per_s)


def test_a_prompt_of_too_many_steps_and_one_that_the_model_does_not_allow() -> None:
    [many] = costmodel.sweep(prompt=300_000, chunk=33, model="Llama-3.1-8B").rows
    assert many.problem == "the prompt takes more than 200,000 steps: use a larger chunk"
    [long] = costmodel.sweep(prompt=200_000).rows
    assert long.problem == "prompt or context are longer than the 131,072 tokens that Llama-3.1-8B allows"


def test_a_million_rows_cost_no_million_objects() -> None:
    found = costmodel.sweep(prompt=range(1, 1001), streams=np.arange(1, 101), output=None)
    assert len(found) == 100_000
    assert found.rows[-1] == found.rows[99_999]
    assert (found.rows[123].prompt_tokens, found.rows[123].streams) == (2, 24)
    assert [row.streams for row in found.rows[98:101]] == [99, 100, 1]
    assert np.all(np.diff(found.numbers("spike_s").reshape(1000, 100), axis=1) > 0)


def test_more_rows_than_there_is_memory_for_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    grid: dict[str, Any] = {"prompt": range(1, 2001), "streams": range(1, 1001)}
    monkeypatch.setattr(asking, "free_memory", lambda: 10**8)
    with pytest.raises(
        costmodel.InputError, match=r"2,000,000 rows take about 0\.5 GB of memory, of which 0\.1 GB are free"
    ):
        costmodel.sweep(**grid)

    def full(*_: Any) -> None:
        raise MemoryError

    monkeypatch.setattr(asking, "free_memory", lambda: None)
    monkeypatch.setattr(asking, "_step_rows", full)
    with pytest.raises(costmodel.InputError, match=r"2,000,000 rows take about 0\.5 GB of memory; sweep fewer"):
        costmodel.sweep(**grid)


@examples(100)
@given(st.lists(st.floats(0.01, 0.99), min_size=1, max_size=8), st.sampled_from([1, 2, 5]))
def test_roots_are_found(roots: list[float], power: int) -> None:
    wanted = np.array(roots) * 50

    def excess(points: np.ndarray, numbers: np.ndarray) -> np.ndarray:
        away = wanted[numbers] - points
        return np.asarray(away * (1 + np.abs(away)) ** (power - 1))

    found = find_roots(excess, np.full(len(roots), 50.0))
    assert found == pytest.approx(wanted, rel=1e-11)

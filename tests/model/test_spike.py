"""The spike: mixed steps, the longest of them, and who sees it."""

from __future__ import annotations

import math

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import costmodel
from costmodel.architecture.families import architecture_from_config
from costmodel.building import build_parameters, build_textbook, roofline_parameters
from costmodel.deployment import Deployment, deploy, deploy_architecture
from costmodel.equations.rates import CalibratedRates
from costmodel.equations.work import Chunk
from costmodel.errors import InputError
from costmodel.hardware.calibration import Calibration
from costmodel.prediction import predict
from costmodel.rungs import MAX_STEPS, Load, longest_step, mixed_seconds, textbook_seconds, textbook_spike
from costmodel.spike import (
    PERCENTILES,
    chunk_room,
    longest,
    mixed_steps,
    mixed_work,
    tallest_candidates,
    visibility,
)
from tests.architecture.mixed_configs import MIXED
from tests.strategies import calibrations, deployments, examples

# --- mixed steps ------------------------------------------------------------------------------------------------------


@examples(300)
@given(st.integers(1, 200), st.integers(1, 6), st.integers(1, 400))
def test_mixed_steps_cover_every_token_once_in_order(prompt: int, prompts: int, room: int) -> None:
    steps = list(mixed_steps(prompt, prompts, room))
    covered = [(chunk.cached + offset) for chunks in steps for chunk in chunks for offset in range(int(chunk.tokens))]
    # First come, first served: all tokens of the first prompt in order, then all of the second …
    assert covered == list(range(prompt)) * prompts
    sizes = [sum(chunk.tokens for chunk in chunks) for chunks in steps]
    # Every step but the last is full.
    assert sizes[:-1] == [room] * (len(sizes) - 1)
    assert 0 < sizes[-1] <= room
    assert all(chunk.tokens > 0 for chunks in steps for chunk in chunks)


def test_without_a_budget_all_prompts_share_one_step() -> None:
    assert list(mixed_steps(8000, 3, None)) == [[Chunk(8000)] * 3]


def test_a_budget_of_2048_beside_32_streams() -> None:
    # Room 2016: 8000 = 3·2016 + 1952.
    room = chunk_room(2048, 32)
    assert list(mixed_steps(8000, 1, room)) == [
        [Chunk(2016, 0)],
        [Chunk(2016, 2016)],
        [Chunk(2016, 4032)],
        [Chunk(1952, 6048)],
    ]


def test_a_step_may_finish_one_prompt_and_begin_the_next() -> None:
    assert list(mixed_steps(5, 3, 4)) == [
        [Chunk(4, 0)],
        [Chunk(1, 4), Chunk(3, 0)],
        [Chunk(2, 3), Chunk(2, 0)],
        [Chunk(3, 2)],
    ]


@pytest.mark.parametrize(("budget", "streams", "room"), [(None, 32, None), (33, 32, 1), (8192, 32, 8160)])
def test_room_is_the_budget_without_the_streams(budget: int | None, streams: int, room: int | None) -> None:
    # m − D: every stream takes one token of the budget.
    assert chunk_room(budget, streams) == room


@pytest.mark.parametrize("budget", [1, 31, 32])
def test_a_budget_without_room_is_refused(budget: int) -> None:
    with pytest.raises(InputError) as refused:
        chunk_room(budget, 32)
    message = str(refused.value)
    assert "\n" not in message
    for part in (f"budget of {budget} ", "32 running streams", "at least 33"):
        assert part in message


def test_more_steps_than_anyone_means_are_refused() -> None:
    assert predict(MAX_STEPS, streams=1, chunk=2).spike.chunks == MAX_STEPS
    with pytest.raises(InputError, match="larger chunk"):
        predict(MAX_STEPS + 1, streams=1, chunk=2)


# --- the longest step --------------------------------------------------------------------------------------------------


@examples(120)
@given(
    deployments(),
    st.none() | calibrations(),
    st.integers(1, 3000),
    st.integers(1, 3),
    st.integers(40, 3500),
    st.integers(1, 500),
    st.integers(0, 9000),
)
def test_the_longest_step_is_among_the_candidates(
    deployment: Deployment,
    calibration: Calibration | None,
    prompt: int,
    prompts: int,
    room: int,
    streams: int,
    context: int,
) -> None:
    parameters = build_parameters(deployment, CalibratedRates(calibration) if calibration else None)
    load = Load(prompt, prompts, streams, context, room + streams, 10.0)
    exhaustive = max(mixed_seconds(parameters, load, chunks) for chunks in mixed_steps(prompt, prompts, room))
    chunks, seconds = longest(
        load.candidates(parameters.windows), lambda chunks: mixed_seconds(parameters, load, chunks)
    )
    assert seconds == pytest.approx(exhaustive, rel=1e-12)
    assert seconds == mixed_seconds(parameters, load, chunks)
    textbook = build_textbook(deployment)
    exhaustive = max(textbook_seconds(textbook, chunks) for chunks in mixed_steps(prompt, prompts, room))
    _, seconds = longest(load.candidates(), lambda chunks: textbook_seconds(textbook, chunks))
    assert seconds == pytest.approx(exhaustive, rel=1e-12)


@examples(40)
@given(st.integers(1, 700), st.integers(1, 3), st.integers(3, 130), st.integers(0, 500))
def test_where_local_chunks_begin_steps_are_shorter_again(prompt: int, prompts: int, room: int, cached: int) -> None:
    config = {**MIXED["llama-4"], "text_config": {**MIXED["llama-4"]["text_config"], "attention_chunk_size": 40}}
    deployment = deploy_architecture(architecture_from_config(config, "llama-4"), "b200", tp=8)
    parameters, textbook = roofline_parameters(deployment), build_textbook(deployment)
    cached = min(cached, prompt - 1)
    load = Load(prompt, prompts, 4, 100, room + 4, 10.0, cached)
    steps = list(mixed_steps(prompt, prompts, room, cached))
    assert longest_step(parameters, load)[1] == max(mixed_seconds(parameters, load, chunks) for chunks in steps)
    assert textbook_spike(textbook, load)[1] == max(textbook_seconds(textbook, chunks) for chunks in steps)


def test_the_longest_step_of_llama_4_is_the_last_before_a_chunk_begins() -> None:
    deployment = deploy("Llama-4-Scout-17B-16E-Instruct", "b200", tp=8)
    load = Load(18_432, 1, 8, 500, 2056, 10.0)
    chunks, _ = longest_step(roofline_parameters(deployment), load)
    assert chunks == [Chunk(2048, 14_336)]  # the two after it begin the third chunk of 8,192
    document = costmodel.predict(18_432, "b200", "Llama-4-Scout-17B-16E-Instruct", tp=8, streams=8, chunk=2056)
    [row] = costmodel.sweep(
        model="Llama-4-Scout-17B-16E-Instruct", gpu="b200", tp=8, prompt=18_432, streams=8, chunk=2056
    ).rows
    assert row.spike_s == pytest.approx(document.spike.height_s, rel=1e-12)
    for rung in ("textbook", "roofline", "calibrated"):
        formula = costmodel.formula(deployment, "spike", rung, prompt=18_432, streams=8, chunk=2056)
        assert formula.evaluate() == pytest.approx(getattr(document.rungs, rung).spike_s, rel=1e-12)


def test_one_prompt_needs_two_candidates_at_most() -> None:
    assert tallest_candidates(8000, 1, 2016) == [[Chunk(2016, 4032)], [Chunk(1952, 6048)]]
    assert tallest_candidates(4032, 1, 2016) == [[Chunk(2016, 0)], [Chunk(2016, 2016)]]
    assert tallest_candidates(100, 1, 2016) == [[Chunk(100, 0)]]


def test_the_first_of_equal_steps_is_the_longest() -> None:
    steps = [[Chunk(1, 0)], [Chunk(1, 1)], [Chunk(1, 2)]]
    assert longest(steps, lambda chunks: 1.0) == ([Chunk(1, 0)], 1.0)


def test_mixed_work_is_chunks_and_one_token_per_stream() -> None:
    work = mixed_work([Chunk(2016, 4032)], 32, 500, (None, 128))
    assert (work.tokens, work.rows, work.prefills, work.decodes) == (2048, 33, 1, 32)
    assert work.decode_kv == {None: 32 * 501, 128: 32 * 128}


# --- who sees it -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("every", "decode", "fraction", "p99", "p999"),
    [
        # The lesson's spike of 146.4 ms, G = (τ − T_mixed)/T_dec + 1 gaps:
        (10.0, 10e-3, 0.0010138, False, True),  # 9.8536/0.010 + 1 = 986.4 gaps: p99 flat, p99.9 just moves
        (1.0, 10e-3, 0.0115799, True, True),  # 0.8536/0.010 + 1 = 86.4 gaps: p99 jumps
        (10.0, 5e-3, 0.0005072, False, False),  # 9.8536/0.005 + 1 = 1971.7 gaps: p99.9 flat too
    ],
)
def test_visibility_in_the_lesson(every: float, decode: float, fraction: float, p99: bool, p999: bool) -> None:
    seen = visibility(146.4e-3, 1, decode, every)
    assert seen.gaps == pytest.approx((every - 146.4e-3) / decode + 1)
    assert seen.fraction == pytest.approx(fraction, rel=1e-3)
    assert seen.moves == {"p50": False, "p99": p99, "p99.9": p999, "max": True}
    assert not seen.overload


def test_the_lessons_forty_seconds() -> None:
    # Four injections in 40 s at about 10 ms: about 3,940 gaps and 4 spikes, 0.1 %.
    seen = visibility(146.4e-3, 1, 10e-3, 10.0)
    assert 4 * seen.gaps == pytest.approx(3945, abs=1)
    assert 4 * seen.gaps * seen.fraction == pytest.approx(4)


@pytest.mark.parametrize("mixed", [1.0, 1.5, 100.0])
def test_steps_that_fill_the_period_are_overload(mixed: float) -> None:
    # Σ T_mixed ≥ τ: every gap is a mixed step.
    seen = visibility(mixed, 7, 10e-3, 1.0)
    assert seen.overload
    assert (seen.gaps, seen.fraction) == (7.0, 1.0)
    assert all(seen.moves.values())
    assert not visibility(0.999, 7, 10e-3, 1.0).overload


def nearest_rank(values: list[tuple[float, float]], q: float) -> float:
    """Return the weighted nearest-rank percentile of (value, weight): the smallest x with F(x) ≥ q."""
    total, below = math.fsum(weight for _, weight in values), 0.0
    for value, weight in sorted(values):
        below += weight
        if below / total >= q / 100:
            return value
    return max(values)[0]


@examples(300)
@given(st.floats(1e-3, 2.0), st.integers(1, 50), st.floats(1e-4, 0.1), st.floats(0.1, 100.0))
def test_a_percentile_moves_if_the_weighted_nearest_rank_is_a_spike(
    spike: float, steps: int, decode: float, every: float
) -> None:
    spike += decode
    seen = visibility(spike * steps, steps, decode, every)
    if seen.overload:
        return
    gaps = [(decode, (every - spike * steps) / decode), (spike, float(steps))]
    assert seen.gaps == pytest.approx(sum(weight for _, weight in gaps))
    assert seen.fraction == pytest.approx(steps / seen.gaps)
    assert seen.moves["max"]
    for name, q in PERCENTILES.items():
        assume(abs(seen.fraction - (1 - q / 100)) > 1e-9)  # a tie is decided by rounding
        assert seen.moves[name] == (nearest_rank(gaps, q) == spike)


@examples(200)
@given(st.integers(1, 30), st.integers(0, 3000))
def test_moves_of_whole_numbers_of_gaps(steps: int, decodes: int) -> None:
    # The same with a list of gaps that can be counted.
    seen = visibility(1.0 * steps, steps, 0.01, steps + 0.01 * decodes + 1e-9)
    gaps = sorted([0.01] * decodes + [1.0] * steps)
    for name, q in PERCENTILES.items():
        if abs(steps / len(gaps) - (1 - q / 100)) < 1e-6:
            continue
        assert seen.moves[name] == (gaps[math.ceil(q / 100 * len(gaps) - 1e-9) - 1] == 1.0)

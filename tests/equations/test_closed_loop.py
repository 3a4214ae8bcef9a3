"""The closed loop: anchors solved by hand, limits, directions, and that the answer satisfies its own equations."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import sympy
from hypothesis import given
from hypothesis import strategies as st

from costmodel.equations.closed_loop import (
    Clients,
    Loop,
    running_requests,
    solve_loop,
    time_per_output_token,
    time_to_first_token,
)
from tests.strategies import examples

D, M, BURST = 0.01, 0.05, 0.06
"""A decode step, a mixed step and a step of the first burst [s]."""


def solve_constant(clients: Clients, decode: float = D, mixed: float = M, burst: float = M, **extra: float) -> Loop:
    """Solve with steps that take the same time however many requests run."""
    return solve_loop(clients, lambda _: decode, lambda _: mixed, burst, **extra)


# --- anchors by hand ----------------------------------------------------------------------------------------------------


def test_one_client_alone() -> None:
    # Nobody else's prefill: TPOT = t_dec. With w = 0: TTFT = t_F + (1 − 2θ)·t_mix + 2θ·t_burst, θ = 0.05.
    loop = solve_constant(Clients(1, 100), burst=BURST, request=0.02, steps_waited=0.0)
    assert loop.tpot == pytest.approx(D, rel=1e-12)
    assert loop.ttft == pytest.approx(0.02 + 0.9 * 0.05 + 0.1 * 0.06, rel=1e-12)
    assert loop.running == pytest.approx(1.0 / (1.0 + 0.071), rel=1e-9)  # 100·10 ms of a life of that and TTFT


def test_five_clients_of_constant_steps() -> None:
    # θ = w = 0: TTFT = t_mix = 50 ms. Four of five decode: TPOT = 10 ms + 3/8·40 ms = 25 ms, an answer takes 8·25 ms = 200 ms,
    # and 5·200/(50 + 200) = 4.
    loop = solve_constant(Clients(5, 8, burst_share=0.0), steps_waited=0.0)
    assert (loop.ttft, loop.tpot, loop.running) == pytest.approx((0.05, 0.025, 4.0), rel=1e-12)


def test_first_token_with_everything_in_it() -> None:
    clients = Clients(8, 100, burst_share=0.05, burst_prompts=2, wait_steps=20, queued=1)
    # ρ = 5·30/(100·20) = 0.075, so a step under way takes 0.925·10 + 0.075·30 = 11.5 ms. λN = 5/100·20 = 1: h = 20·1.5/2 = 15 steps.
    # Then 0.9·(11.5/2 + 150 + 30) + 0.1·50·(8/2 + 1)/2 + 100·20/8 ms.
    found = time_to_first_token(clients, running=5.0, decode=0.01, mixed=0.03, burst=0.05, tpot=0.02, steps_waited=0.5)
    assert found == pytest.approx(0.429675, rel=1e-12)


@pytest.mark.parametrize(
    ("running", "output", "held"),
    [
        (1e-9, 1000, 20.0),  # a lone prompt waits all of it
        (4.0, 921.6, 19.2),  # 4 clients of InferenceX at 1,024 output tokens
        (50.0, 1000, 15.0),  # one other prompt comes within the window
        (1e9, 1000, 10.0),  # they come all the time: half of it on average
    ],
)
def test_prompts_are_held_back_for_a_part_of_the_window(running: float, output: float, held: float) -> None:
    clients = Clients(running, output, burst_share=0.0, wait_steps=20)
    waiting, at_once = (
        time_to_first_token(each, running, D, 0.0, 0.0, 1.0, 0.0)
        for each in (clients, Clients(running, output, burst_share=0.0))
    )
    assert (waiting - at_once) / D == pytest.approx(held, abs=0.05)


# --- limits -------------------------------------------------------------------------------------------------------------


def test_free_prefills_cost_only_the_step_that_carries_them() -> None:
    loop = solve_constant(Clients(64, 200), mixed=D, burst=D, steps_waited=0.5)
    assert loop.tpot == pytest.approx(D, rel=1e-12)
    assert loop.ttft == pytest.approx(0.9 * 1.5 * D + 0.1 * D * 65 / 2, rel=1e-12)


def test_long_answers_leave_the_decode_step() -> None:
    loop = solve_constant(Clients(32, 1e9))
    assert loop.tpot == pytest.approx(D, rel=1e-6)
    assert loop.running == pytest.approx(32, rel=1e-6)


def test_one_prompt_per_client_is_the_burst_alone() -> None:
    # θ = ½: the prompts come together, two at a time, and the mean one waits for 3 of 5 steps.
    loop = solve_constant(Clients(10, 1000, burst_share=0.5, burst_prompts=2), burst=BURST)
    assert loop.ttft == pytest.approx(3 * BURST, rel=1e-12)
    assert loop.tpot == pytest.approx(D + 0.5 * (loop.running - 1) / 1000 * (M - D), rel=1e-9)


def test_who_has_no_place_waits_for_an_answer_to_end() -> None:
    with_place, without = (solve_constant(Clients(8, 100, queued=queued)) for queued in (0, 1))
    assert without.running < with_place.running
    # All else equal, it would be 1/8 of an answer; the fewer running ones make each step's share of prefill smaller.
    assert without.ttft - with_place.ttft == pytest.approx(100 * without.tpot / 8, rel=0.01)


# --- properties ---------------------------------------------------------------------------------------------------------


@st.composite
def loads(draw: st.DrawFn) -> tuple[Clients, tuple[float, float, float, float, float]]:
    """Clients with at least 10 prompts each, and t_dec = a + b·C_d, t_mix = t_dec + p, the request's own time and steps waited."""
    count = draw(st.integers(1, 512))
    clients = Clients(
        float(count),
        float(draw(st.integers(64, 8192))),
        draw(st.floats(0.0, 0.05)),
        float(draw(st.integers(1, count))),
        float(draw(st.sampled_from([0, 20]))),
        float(draw(st.integers(0, 1))),
    )
    seconds = (
        st.floats(1e-3, 5e-2),
        st.floats(0.0, 2e-4),
        st.floats(0.0, 1.0),
        st.floats(0.0, 0.1),
        st.floats(0.0, 3.0),
    )
    return clients, tuple(draw(each) for each in seconds)  # type: ignore[return-value]


def solve_drawn(clients: Clients, times: tuple[float, float, float, float, float]) -> Loop:
    base, each, prompt, request, waited = times
    return solve_loop(
        clients,
        lambda running: base + each * running,
        lambda running: base + each * running + prompt,
        prompt * clients.burst_prompts + base,
        request,
        waited,
    )


@given(loads())
@examples(200)
def test_the_answer_satisfies_the_equations(
    load: tuple[Clients, tuple[float, float, float, float, float]],
) -> None:
    clients, (base, each, prompt, request, waited) = load
    loop = solve_drawn(*load)
    decode = base + each * loop.running
    burst = prompt * clients.burst_prompts + base
    tpot = time_per_output_token(clients, loop.running, decode, decode + prompt)
    ttft = request + time_to_first_token(clients, loop.running, decode, decode + prompt, burst, tpot, waited)
    assert running_requests(clients, ttft, tpot) == pytest.approx(loop.running, rel=1e-9)
    assert (ttft, tpot) == pytest.approx((loop.ttft, loop.tpot), rel=1e-9)
    assert 0 < loop.running <= clients.count
    assert loop.tpot >= decode


@given(loads(), st.floats(1.01, 3.0))
@examples(200)
def test_dearer_prompts_slow_everyone_down(
    load: tuple[Clients, tuple[float, float, float, float, float]], factor: float
) -> None:
    clients, (base, each, prompt, request, waited) = load
    cheap = solve_drawn(*load)
    dear = solve_drawn(clients, (base, each, factor * prompt, request, waited))
    assert dear.ttft >= cheap.ttft * (1 - 1e-9)
    assert dear.ttft + clients.output_tokens * dear.tpot >= (cheap.ttft + clients.output_tokens * cheap.tpot) * (
        1 - 1e-9
    )


@pytest.mark.parametrize("prompt", [0.0, 0.01, 0.2])
def test_more_clients_slow_everyone_down_and_ask_more(prompt: float) -> None:
    loops = [
        solve_drawn(Clients(float(count), 1000.0), (0.01, 1e-4, prompt, 0.01, 0.5)) for count in (1, 2, 4, 16, 64, 256)
    ]
    for name in Loop.__slots__:
        values = [getattr(loop, name) for loop in loops]
        assert values == sorted(values), name
        assert values[0] < values[-1], name


def test_short_answers_to_a_burst_satisfy_them_too() -> None:
    # One prompt per client, one token each: nearly all of a request's life is the wait for the first burst.
    loop = solve_constant(Clients(512, 1, burst_share=0.5), decode=0.005, mixed=0.13, burst=0.125)
    tpot = 0.005 + 0.5 * max(loop.running - 1, 0) * 0.125
    assert 512 * tpot / (0.125 * 513 / 2 + tpot) == pytest.approx(loop.running, rel=1e-9)


# --- floats, arrays and symbols -----------------------------------------------------------------------------------------


def test_arrays_give_what_floats_give() -> None:
    counts, outputs = np.array([1.0, 8.0, 64.0, 256.0]), np.array([100.0, 1000.0, 1000.0, 64.0])
    whole = solve_drawn(Clients(counts, outputs, 0.05, 1.0, 20.0, 1.0), (0.01, 1e-4, 0.05, 0.02, 0.7))
    for index, (count, output) in enumerate(zip(counts.tolist(), outputs.tolist(), strict=True)):
        one = solve_drawn(Clients(count, output, 0.05, 1.0, 20.0, 1.0), (0.01, 1e-4, 0.05, 0.02, 0.7))
        assert [getattr(whole, name)[index] for name in Loop.__slots__] == pytest.approx(
            [one.ttft, one.tpot, one.running], rel=1e-14
        )


def test_symbols_give_what_floats_give() -> None:
    names = ("running", "decode", "mixed", "burst", "waited", *Clients.__slots__)
    symbols = {name: sympy.Symbol(name, positive=True) for name in names}
    values = {"running": 5.0, "decode": 0.01, "mixed": 0.03, "burst": 0.05, "waited": 0.5, "count": 8.0}
    values |= {
        "output_tokens": 100.0,
        "burst_share": 0.05,
        "burst_prompts": 2.0,
        "wait_steps": 20.0,
        "queued": 1.0,
        "prompt_steps": 2.0,
    }
    at = {symbols[name]: value for name, value in values.items()}

    def equations(by: Mapping[str, Any]) -> tuple[Any, Any, Any]:
        clients = Clients(**{name: by[name] for name in Clients.__slots__})
        tpot = time_per_output_token(clients, by["running"], by["decode"], by["mixed"])
        ttft = time_to_first_token(clients, by["running"], by["decode"], by["mixed"], by["burst"], tpot, by["waited"])
        return tpot, ttft, running_requests(clients, ttft, tpot)

    for formula, number in zip(equations(symbols), equations(values), strict=True):
        assert isinstance(formula, sympy.Expr)
        assert math.isclose(float(formula.subs(at)), number, rel_tol=1e-12)

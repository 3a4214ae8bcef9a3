"""Mean TTFT and TPOT of C clients that each send their next prompt when their last answer ends: a closed form around two step times.

With t_dec(C_d) a decode step of the C_d running requests, t_mix(C_d) the k steps that carry a prompt beside them, and θ the part of a
request's life that falls into the first burst, θ = 1/(2·prompts per client)::

    TPOT = t_dec + (1 − θ)·(C_d − 1)/osl·(t_mix − k·t_dec)
    ρ    = min(1, C_d·t_mix/(osl·TPOT))                     share of the time spent in mixed steps
    TTFT = t_F + (1 − 2θ)·[w·((1 − ρ)·t_dec + ρ·t_mix) + h·t_dec + t_mix] + 2θ·t_burst·(C/b + 1)/2 + z·osl·TPOT/C
    C_d  = C·osl·TPOT/(TTFT + osl·TPOT)

Every running request sees the prefills of the others spread over its own osl tokens. A prompt waits w steps of those under way and then
takes its mixed step. The first C prompts come together and are prefilled b at a time. h is the time that an engine holds prompts back
to prefill several together (TensorRT-LLM's ``batch_wait_timeout_iters`` N): the first waits N decode steps, and those that come
within the window half of it, h = (N + λN²/2)/(1 + λN), λ = C_d/osl prompts per step. z requests wait for a place among those that run
(an engine with C − z places): each for the next answer to end, which takes osl·TPOT/C.

All functions take floats, arrays or symbols.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from costmodel.equations.numerics import Value, maximum, minimum

ITERATIONS = 60
"""Halvings of the interval that the running requests are in, [0, C]."""


@dataclass(frozen=True, slots=True)
class Clients:
    """Who asks, and what.

    Attributes:
        count: C, clients.
        output_tokens: osl, mean length of an answer [tokens].
        burst_share: θ.
        burst_prompts: b, prompts that one step takes in the first burst.
        wait_steps: N, decode steps for which the engine holds a prompt back; 0 for none.
        queued: z, clients for which the engine has no place.
        prompt_steps: k, steps that a prompt takes under the token budget.
    """

    count: Value
    output_tokens: Value
    burst_share: Value = 0.05
    burst_prompts: Value = 1
    wait_steps: Value = 0
    queued: Value = 0
    prompt_steps: Value = 1


@dataclass(frozen=True, slots=True)
class Loop:
    """What the clients see.

    Attributes:
        ttft: mean time to first token [s].
        tpot: mean time per output token after it [s].
        running: C_d, mean number of requests that are decoding.
    """

    ttft: Value
    tpot: Value
    running: Value


def time_per_output_token(clients: Clients, running: Value, decode: Value, mixed: Value) -> Value:
    """Return TPOT [s] from the step times [s] at ``running`` requests."""
    others = maximum(running - 1, 0) / clients.output_tokens
    return decode + (1 - clients.burst_share) * others * maximum(mixed - clients.prompt_steps * decode, 0)


def time_to_first_token(
    clients: Clients, running: Value, decode: Value, mixed: Value, burst: Value, tpot: Value, steps_waited: Value
) -> Value:
    """Return TTFT without t_F [s].

    Args:
        clients: who asks.
        running: C_d.
        decode, mixed: step times at ``running`` requests [s].
        burst: a step that prefills ``burst_prompts`` prompts and nothing else [s].
        tpot: what :func:`time_per_output_token` gave [s].
        steps_waited: w.
    """
    share = minimum(running * mixed / (clients.output_tokens * tpot), 1)
    under_way = (1 - share) * decode + share * mixed
    window = clients.wait_steps
    arriving = running / clients.output_tokens * window
    held = window * (1 + arriving / 2) / (1 + arriving) * decode
    steady = steps_waited * under_way + held + mixed
    first = burst * (clients.count / clients.burst_prompts + 1) / 2
    queue = clients.queued * clients.output_tokens * tpot / clients.count
    return (1 - 2 * clients.burst_share) * steady + 2 * clients.burst_share * first + queue


def running_requests(clients: Clients, ttft: Value, tpot: Value) -> Value:
    """Return C_d: the share of a request's life in which it decodes, times the clients."""
    decoding = clients.output_tokens * tpot
    return clients.count * decoding / (ttft + decoding)


def solve_loop(
    clients: Clients,
    decode: Callable[[Value], Value],
    mixed: Callable[[Value], Value],
    burst: Value,
    request: Value = 0,
    steps_waited: Value = 0.5,
) -> Loop:
    """Find the C_d at which the four equations agree, by bisection (floats and arrays).

    What the equations give for C_d less C_d itself changes sign once in [0, C], but for a small token budget with short answers: there
    it is also 0 near C_d = 0, a loop that never fills up. Halving from C takes the other, as all clients begin together.

    Args:
        clients: who asks.
        decode, mixed: a decode step, and all k steps of a prompt, as functions of the running requests [s].
        burst: step of the first burst [s].
        request: t_F, time of a request outside the steps [s].
        steps_waited: w.
    """
    low, width = clients.count * 0.0, clients.count * 1.0
    loop = Loop(low, low, low)
    for _ in range(ITERATIONS):
        width = width / 2
        loop = loop_at(clients, low + width, decode, mixed, burst, request, steps_waited)
        more = running_requests(clients, loop.ttft, loop.tpot) > loop.running
        low = low + width * more
    return loop


def loop_at(
    clients: Clients,
    running: Value,
    decode: Callable[[Value], Value],
    mixed: Callable[[Value], Value],
    burst: Value,
    request: Value,
    steps_waited: Value,
) -> Loop:
    """Return TTFT and TPOT if ``running`` requests decode; arguments as of :func:`solve_loop`."""
    decoding, mixing = decode(running), mixed(running)
    tpot = time_per_output_token(clients, running, decoding, mixing)
    ttft = request + time_to_first_token(clients, running, decoding, mixing, burst, tpot, steps_waited)
    return Loop(ttft, tpot, running)

"""The closed form of one server under a steady rate: how many requests it answers within limits on means, before anything is simulated.

With B requests decoding, each of o tokens, a request is answered every o·TPOT/B seconds and brings a prompt, which B − 1 others wait for:

    TPOT(B) = t_dec(B) + (B − 1)/o · (t_mix(B) − k·t_dec(B))        TTFT(B) = t_F + t_dec/2 + t_mix(B)        rate(B) = B/((o − 1)·TPOT(B))

with t_mix the k steps of a prompt beside B − 1 others and t_F the time before the engine has a request; the terms of
:mod:`costmodel.equations.closed_loop` without the burst of the beginning. Queueing is left to the simulation.
"""

from __future__ import annotations

import math

from costmodel.planning.answering import last_that
from costmodel.planning.documents import ClosedForm, Slo
from costmodel.planning.steady import Steady, decode_s, drain_s
from costmodel.simulation.server import Server
from costmodel.spike import step_count


def closed_form(server: Server, slo: Slo, rate: float, prompt: int, output: int, apart: bool = False) -> ClosedForm:
    """Return the rate that one server answers, and how many it takes for ``rate``.

    Args:
        server: its step times and flags.
        slo: limits on TTFT and TPOT, held against means; an ITL limit is left to the simulation.
        rate: of all requests [requests/s].
        prompt, output: mean lengths [tokens].
        apart: servers that only decode.
    """
    settings, context = server.settings, prompt + output // 2
    most = min(settings.max_num_seqs, settings.token_budget - 1)
    if settings.usable_blocks is not None:
        most = min(most, settings.usable_blocks // settings.blocks_of(prompt + output))
    if slo.tpot_s is None:
        most = min(most, MOST_WITHOUT_LIMIT)

    def times(running: int) -> tuple[float, float]:
        decode = decode_s(server.clock, Steady(running, context))
        if apart:
            return decode, 0.0
        others = Steady(max(running - 1, 0), context, prompt, 1)
        mixed = drain_s(server.clock, others, settings.token_budget)
        steps = step_count(prompt, 1, settings.token_budget - others.streams)
        ttft = server.delay[0] + server.delay[1] * prompt + decode / 2 + mixed
        return decode + (running - 1) / output * max(mixed - steps * decode, 0.0), ttft

    def holds(running: int) -> bool:
        tpot, ttft = times(running)
        return (slo.tpot_s is None or tpot <= slo.tpot_s) and (slo.ttft_s is None or ttft <= slo.ttft_s)

    running = last_that(holds, 1, max(most, 1)) or 1
    tpot, ttft = times(running)
    # Who asks for one token decodes nothing: one prompt after another, or of servers that only decode, a step each.
    answered = running / ((output - 1) * tpot) if output > 1 else 1 / (ttft or tpot)
    return ClosedForm(
        rate_per_server=answered, running=running, tpot_s=tpot, ttft_s=ttft, servers=max(math.ceil(rate / answered), 1)
    )


MOST_WITHOUT_LIMIT = 256
"""Requests at once of a server for which there is no limit on the TPOT: where to begin, as the simulation decides."""

"""Names of options: those there are, and the nearest one for those there are not."""

from __future__ import annotations

from typing import Any, get_type_hints

import pytest

from costmodel.hardware.errors import InputError
from costmodel.simulation.interfering import simulate_interference
from costmodel.simulation.options import ELSEWHERE, OPTIONS, TRUTHS, ServerOptions, check_options
from costmodel.simulation.pools import Pools
from costmodel.simulation.simulating import simulate_load, simulate_trace

FIXED: Any = {"decode_s": 0.01, "prefill_s": 0.1}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_num_batched_tokens": 512}, "no option 'max_num_batched_tokens' here: use chunk"),
        ({"async_scheduling": False}, "use asynchronous"),
        ({"enable_prefix_caching": False}, "use prefix_caching"),
        ({"block_size": 32}, "use block_tokens"),
        ({"decode_ms": 10}, "use decode_s, in seconds"),
        ({"pp": 2}, "pipeline stages are not simulated"),
        ({"prefill_gpus": 2}, "use pools=costmodel.Pools("),
        ({"stall_ms": 2}, "use limits=costmodel.Limits("),
        ({"modle": "Llama-3.1-8B"}, "no option 'modle'; did you mean model"),
        ({"kv_token": 100}, "did you mean kv_tokens"),
        ({"steams": 3}, "did you mean streams"),
        ({"qqqqq": 3}, "known: prompt, streams,"),
        ({"rung": "calibratd"}, "unknown rung 'calibratd'; did you mean calibrated?"),
        ({"asynchronous": "no"}, "asynchronous must be True or False, not 'no'"),
        ({"engine": "x", **FIXED}, "unknown engine 'x'"),
        ({"scheduler": "disagregated"}, "did you mean disaggregated"),
    ],
)
def test_what_there_is_not_is_refused_with_what_is_meant(options: Any, message: str) -> None:
    with pytest.raises(InputError) as caught:
        simulate_interference(8000, 32, **options)
    assert message in str(caught.value)


def test_every_function_refuses() -> None:
    options: Any = {"chunks": 512}
    for call in (lambda: simulate_load(2, **options), lambda: simulate_trace("missing.csv", **options)):
        with pytest.raises(InputError, match="did you mean chunk"):
            call()


def test_names_of_others_are_none_of_these() -> None:
    assert not set(ELSEWHERE) & set(OPTIONS)
    truths = {name for name, kind in get_type_hints(ServerOptions).items() if kind is bool}
    assert truths == set(TRUTHS)
    check_options(dict.fromkeys(TRUTHS, True))


def test_disaggregated_is_a_scheduler_as_on_the_command_line() -> None:
    options: Any = {"rate": 4.0, "requests": 20, "prompt": 500, "output": 20, **FIXED}
    found = simulate_load(scheduler="disaggregated", **options)
    assert found == simulate_load(pools=Pools(), **options)
    assert found.server.scheduler == "disaggregated"
    assert found.server.pools is not None
    three = simulate_load(scheduler="disaggregated", pools=Pools(1, 2), **options).server
    assert three.gpus == 3
    assert three.pools is not None
    assert three.pools.gpus_per_server == 1


def test_one_step_is_a_budget_of_interference() -> None:
    assert simulate_interference(chunk="one-step", **FIXED) == simulate_interference(**FIXED)
    with pytest.raises(InputError, match="chunk must be a whole number or 'engine'"):
        simulate_load(2, chunk="one-step", **FIXED)


def test_numbers_that_are_whole_may_be_floats() -> None:
    whole: Any = {"prompt": 8000.0, "streams": 32.0, "context": 500.0, "prompts": 1.0, "injected_output": 1.0}
    assert simulate_interference(**whole, **FIXED) == simulate_interference(8000, 32, 500, **FIXED)
    loaded: Any = {"clients": 3.0, "requests": 6.0, "prompt": 100.0, "output": 9.0}
    assert simulate_load(**loaded, **FIXED) == simulate_load(3, requests=6, prompt=100, output=9, **FIXED)

"""From flags to a server: defaults, what follows from what, and one line for everything that cannot be."""

from __future__ import annotations

from typing import Any

import pytest

from costmodel.engine import default_max_num_seqs, default_token_budget
from costmodel.hardware.errors import InputError
from costmodel.memory import memory_of
from costmodel.memory.planning import plan_memory
from costmodel.simulation.cache import Background
from costmodel.simulation.clock import FixedClock, StepClock
from costmodel.simulation.options import ServerOptions
from costmodel.simulation.server import (
    FIXED_BUDGET,
    FIXED_SEQS,
    SARATHI_BUDGET,
    Server,
    Step,
    make_server,
)

FIXED: Any = {"decode_s": 0.01, "prefill_s": 0.1}


def made(prompt: int = 1000, budget: int | None = None, background: Background | None = None, **options: Any) -> Server:
    return make_server(ServerOptions(**options), prompt, budget, background)


def test_defaults_are_those_of_vllm_on_this_gpu() -> None:
    server = made(gpu="h100")
    assert server.deployment is not None
    assert isinstance(server.clock, StepClock)
    settings = server.settings
    assert settings.token_budget == default_token_budget(server.deployment)
    assert settings.max_num_seqs == default_max_num_seqs(server.deployment)
    memory = memory_of(server.deployment, 1, 1, 1, 1, settings.token_budget)
    assert settings.kv_blocks == memory.kv_tokens // 16
    assert settings.usable_blocks == settings.kv_blocks - 1  # the null block is never given out
    assert server.info.kv_tokens == memory.kv_tokens  # as vLLM's log and `predict` print it
    assert settings.max_model_len == server.deployment.architecture.max_positions
    assert (server.info.rung, server.info.model, server.info.gpus) == ("calibrated", "Llama-3.1-8B", 1)
    assert server.delay == (0.0, 0.0)
    assert not server.warnings


def test_the_way_to_the_engine_is_that_of_the_calibration() -> None:
    steps: list[float] = []

    def typical(step: Step) -> float:
        steps.append(step(8.2, 100.0))
        return steps[-1]

    server = make_server(ServerOptions(gpu="h100"), 1000, typical=typical)
    assert steps in ([], [server.clock.decode(8, [8 * 101.0])])
    assert server.delay[0] > 0
    assert server.delay == (server.info.request_overhead_s, server.info.request_overhead_per_prompt_token_s)
    assert make_server(ServerOptions(gpu="h100", rung="roofline"), 1000, typical=typical).delay == (0.0, 0.0)
    assert make_server(ServerOptions(**FIXED), 1000, typical=typical).delay == (0.0, 0.0)


def test_no_more_requests_are_typical_than_run_at_once() -> None:
    steps: list[float] = []

    def typical(step: Step) -> float:
        steps.extend([step(8.0, 100.0), step(1e9, 100.0), step(0.0, 100.0)])
        return steps[-1]

    server = make_server(ServerOptions(gpu="h100", max_num_seqs=8), 1000, typical=typical)
    assert steps[0] == steps[1] > steps[2] == server.clock.decode(1, [101.0])


def test_fixed_step_times_have_no_model_no_memory_and_no_delay() -> None:
    server = made(**FIXED)
    assert isinstance(server.clock, FixedClock)
    assert server.deployment is None
    assert (server.delay, server.info.rung) == ((0.0, 0.0), "fixed")
    assert (server.info.model, server.info.kv_tokens) == (None, None)
    assert (server.settings.token_budget, server.settings.max_num_seqs) == (FIXED_BUDGET, FIXED_SEQS)
    assert server.clock.mixed([(1000, 0)], 3, [1.0]) == pytest.approx(0.1)


def test_without_a_calibration_steps_are_a_floor_and_it_is_said() -> None:
    for options in ({"gpu": "h100", "rung": "roofline"}, {"gpu": "t4", "model": "Llama-3.2-1B"}):
        server = made(**options)
        assert server.info.rung == "roofline"
        assert server.info.calibration is None
        assert server.delay == (0.0, 0.0)
        assert any("datasheet" in warning for warning in server.warnings)


def test_flags_reach_the_settings_and_the_document() -> None:
    options: dict[str, Any] = {
        "chunk": 512, "max_num_seqs": 100, "kv_tokens": 1000, "block_tokens": 32, "max_model_len": 900, "chunked_prefill": True,
        "long_prefill_token_threshold": 64, "prefix_caching": False, "asynchronous": False, "policy": "priority",
        "reserve_full_prompt": False, "watermark": 0.01, "scheduler": "sarathi",
    }  # fmt: skip
    server = made(**options, **FIXED)
    settings, info = server.settings, server.info.model_dump()
    assert (settings.token_budget, settings.kv_blocks, settings.usable_blocks) == (512, 32, 31)
    for name, value in options.items():
        if hasattr(settings, name):
            assert getattr(settings, name) == value
        if name in info and name != "kv_tokens":
            assert info[name] == value
    assert (info["token_budget"], info["kv_tokens"]) == (512, 31 * 32)


@pytest.mark.parametrize(
    ("options", "budget", "expected"),
    [
        ({"chunk": 700}, 5000, 700),
        ({}, 5000, 5000),
        ({"chunk": "engine"}, 5000, FIXED_BUDGET),
        ({"scheduler": "sarathi"}, 5000, SARATHI_BUDGET),
        ({"scheduler": "sarathi", "chunk": 99}, None, 99),
    ],
)
def test_whose_token_budget_counts(options: dict[str, Any], budget: int | None, expected: int) -> None:
    server = made(budget=budget, **options, **FIXED)
    assert server.settings.token_budget == expected
    assert server.settings.max_num_seqs == min(FIXED_SEQS, expected)


@pytest.mark.parametrize("gpu", ["h100", "a100", "l40s", "t4"])
def test_sequences_fit_into_the_engines_budget_where_neither_is_given(gpu: str) -> None:
    server = make_server(
        ServerOptions(gpu=gpu, model="Llama-3.2-1B", chunk="engine"), 100, 10**6, Background(100_000, 1, 1, 1)
    )
    assert server.settings.max_num_seqs == server.settings.token_budget


def test_places_are_vllms_default_or_what_streams_and_prompts_take() -> None:
    """1,024 on an H100, whose memory is that of ``plan_memory`` with the same flags."""
    few = made(gpu="h100", budget=8032, background=Background(32, 500, 1, 8000))
    assert (few.settings.token_budget, few.settings.max_num_seqs) == (8032, 1024)
    plan = plan_memory("Llama-3.1-8B", "h100", max_num_batched_tokens=8032, max_num_seqs=1024)
    assert few.info.kv_tokens == plan.memory.kv_tokens
    assert made(gpu="h100", budget=9200, background=Background(1200, 500, 1, 8000)).settings.max_num_seqs == 1201
    assert made(budget=9200, background=Background(1200, 500, 1, 8000), **FIXED).settings.max_num_seqs == 1201


def test_weights_that_leave_no_room() -> None:
    server = made(model="Llama-3.1-405B")
    assert server.settings.kv_blocks is None
    assert any("no room for a KV cache" in warning for warning in server.warnings)


def test_what_does_not_fit_is_simulated_as_if_it_did_where_that_is_asked_for() -> None:
    small = make_server(ServerOptions(), 100, background=Background(1, 1000, 0, 0))
    assert small.settings.kv_blocks is not None
    large = make_server(ServerOptions(), 100, background=Background(10_000, 9_999, 0, 0))
    assert large.settings.kv_blocks is None
    assert any("does not fit: 6,250,000 KV blocks" in warning for warning in large.warnings)
    assert large.settings.max_model_len is None


def test_without_chunks_no_sequence_is_longer_than_the_budget() -> None:
    """vLLM does not start otherwise; who is preempted starts again in one step, the answer so far included."""
    server = made(chunked_prefill=False, chunk=2048, **FIXED)
    assert server.settings.max_model_len == 2048
    assert any("answers end at 2,048 tokens" in warning for warning in server.warnings)
    assert made(chunked_prefill=False, chunk=2048, max_model_len=1000, **FIXED).settings.max_model_len == 1000
    assert made(chunked_prefill=False, chunk=2048, scheduler="separate", **FIXED).settings.max_model_len is None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"decode_s": 0.01}, "decode-ms and prefill-ms go together"),
        ({"prefill_s": 0.01}, "decode-ms and prefill-ms go together"),
        ({"decode_s": 0.0, "prefill_s": 0.1}, "decode_s (--decode-ms) must be a finite number above zero, not 0"),
        (
            {"decode_s": 0.1, "prefill_s": float("nan")},
            "prefill_s (--prefill-ms) must be a finite number above zero, not nan",
        ),
        ({"scheduler": "saratoga"}, "sarathi"),
        ({"policy": "fifo"}, "known: fcfs, priority"),
        ({"model": "Llama-3.1-8C"}, "Llama-3.1-8B"),
        ({"gpu": "h101"}, "h10"),
        ({"chunk": 0, **FIXED}, "chunk must be at least 1, not 0"),
        ({"chunk": 1.5, **FIXED}, "chunk must be a whole number, not 1.5"),
        ({"chunk": "motor", **FIXED}, "chunk must be a whole number or 'engine', not 'motor'"),
        ({"max_num_seqs": 0, **FIXED}, "max-num-seqs must be at least 1, not 0"),
        ({"max_num_seqs": "many", **FIXED}, "max-num-seqs must be a whole number, not 'many'"),
        ({"max_num_seqs": 100, "chunk": 99, **FIXED}, "use --chunk 100 or more, or --max-num-seqs 99 or fewer"),
        ({"max_num_seqs": 600, "scheduler": "sarathi", **FIXED}, "a token budget of 512 is less than 600 sequences"),
        (
            {"decode_s": 1e-300, "prefill_s": 0.1},
            "decode_s (--decode-ms) must be from 1e-06 to 1e+06 s (0.001 to 1e+09 ms)",
        ),
        ({"decode_s": 0.1, "prefill_s": 1e300}, "prefill_s (--prefill-ms) must be from 1e-06 to 1e+06 s"),
        ({"chunk": "one-step", **FIXED}, "chunk must be a whole number or 'engine', not 'one-step'"),
        (
            {"chunked_prefill": False, "chunk": 2048, "max_model_len": 4096, **FIXED},
            "max-model-len 4096 needs a token budget as large",
        ),
        ({"kv_tokens": 0, **FIXED}, "kv-tokens must be at least 1, not 0"),
        ({"block_tokens": 0, **FIXED}, "block-size must be at least 1, not 0"),
        ({"block_tokens": 65537, **FIXED}, "block-size must be at most 65536"),
        ({"max_model_len": 0, **FIXED}, "max-model-len must be at least 1, not 0"),
        ({"long_prefill_token_threshold": -1, **FIXED}, "long-prefill-token-threshold must be at least 0, not -1"),
        ({"watermark": 1, **FIXED}, "watermark must be a share of the KV cache from 0 to below 1, not 1"),
        ({"watermark": -0.1, **FIXED}, "watermark must be a share"),
        ({"watermark": float("nan"), **FIXED}, "watermark must be a share"),
        ({"watermark": "low", **FIXED}, "watermark must be a share"),
        ({"gpu": "t4", "model": "Llama-3.2-1B", "rung": "calibrated"}, "no calibration of t4"),
        ({"chunked_prefill": False, "scheduler": "sarathi", **FIXED}, "use --scheduler vllm"),
        ({"chunked_prefill": False, "chunk": 2048, "max_model_len": 4096, **FIXED}, "use --chunk 4096 or more"),
    ],
)
def test_one_line_says_what_is_wrong(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as caught:
        made(**options)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("scheduler", ["prefill-first", "separate"])
def test_a_budget_below_the_sequences_is_no_fault_where_decodes_have_steps_of_their_own(scheduler: str) -> None:
    assert made(scheduler=scheduler, chunk=64, max_num_seqs=512, **FIXED).settings.max_num_seqs == 512

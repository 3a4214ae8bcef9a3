"""Predictions, sweeps, plans and simulations answer alike whether a workload fits: the same number of streams is the last."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import costmodel
from costmodel.deployment import deploy
from costmodel.memory import memory_of
from costmodel.memory.blocks import kv_groups, sequence_blocks
from costmodel.memory.engines import default_settings
from costmodel.memory.pool import pool_of
from costmodel.planning.fitting_in import fits, needed_blocks
from costmodel.planning.serving import make_site, room
from costmodel.planning.steady import Steady
from costmodel.simulation.cache import Background
from costmodel.simulation.interfering import simulate_interference
from costmodel.simulation.options import ServerOptions
from costmodel.simulation.server import make_server
from costmodel.sweeping.fitting import room_of

LOADS = [
    ("Llama-3.1-8B", "h100", 4000, 1000, 111),  # 32 layers of 8·128: 7,054 blocks; 251 a stream, 63 the prompt
    ("gemma-3-27b-it", "h100", 500, 1000, None),
    ("gemma-3-27b-it", "h100", 8000, 1000, None),
    ("gemma-3-27b-it", "h100", 1000, 8000, None),
    ("gpt-oss-20b", "h100", 500, 1000, None),
    ("gpt-oss-20b", "h100", 32_000, 16_000, None),
    ("gpt-oss-120b", "h200", 2000, 2000, None),
    ("Mistral-7B-v0.1", "a100", 2000, 1000, None),  # all layers with a window of 4,096
    ("Mistral-7B-v0.1", "a100", 16_000, 1000, None),
    ("DeepSeek-V2-Lite", "h100", 4000, 2000, None),  # latent attention
    ("Qwen3-0.6B", "rtx-4090", 8000, 3000, None),
]


def last(fitting: Callable[[int], bool]) -> int:
    """Return the largest number that fits, found by halving."""
    low, high = 0, 1 << 14
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fitting(middle) else (low, middle - 1)
    return low


@pytest.mark.parametrize(("model", "gpu", "context", "prompt", "expected"), LOADS)
def test_all_answers_have_the_same_last_stream(
    model: str, gpu: str, context: int, prompt: int, expected: int | None
) -> None:
    deployment = deploy(model, gpu)
    predicted = last(lambda streams: memory_of(deployment, streams, context, prompt, 1, prompt + streams).fits)
    assert predicted == (expected or predicted) > 0
    around = np.arange(max(predicted - 2, 1), predicted + 3, dtype=np.float64)
    held = room_of(deployment, around, prompt + around)
    assert held.holds(held.needed_blocks(around, context, prompt)).tolist() == (around <= predicted).tolist()

    site = make_site({"model": model, "gpu": gpu}, prompt)
    seats = max(site.default_seqs, predicted + 2)

    def planned(streams: int) -> bool:
        return fits(site, Steady(streams, context, prompt, 1, 1.0), prompt + streams, max(seats, streams + 1))

    def simulated(streams: int) -> bool:
        load = Background(streams, context, 1, prompt)
        server = make_server(ServerOptions(model=model, gpu=gpu), prompt, prompt + streams, load)
        blocks = server.settings.usable_blocks
        return blocks is not None and load.blocks(server.settings.seats, server.settings.block_tokens) <= blocks

    for answer in (planned, simulated):
        assert [answer(streams) for streams in (predicted, predicted + 1)] == [True, False]


def test_one_million_workloads_are_looked_at_at_once() -> None:
    deployment = deploy("gemma-3-27b-it", "h100")
    streams = np.arange(1.0, 1001.0).reshape(1000, 1)
    context = np.linspace(100, 30_000, 1000).round()
    held = room_of(deployment, streams, 1000 + streams)
    holds = held.holds(held.needed_blocks(streams, context, 1000.0))
    assert holds.shape == (1000, 1000)
    for row, column in ((0, 0), (30, 500), (50, 20), (999, 999)):
        memory = memory_of(deployment, row + 1, int(context[column]), 1000, 1, 1001 + row)
        assert bool(holds[row, column]) == memory.fits


def test_streams_hold_their_window_and_prompts_a_budget_beside_it() -> None:
    # gpt-oss-20b: 12 layers of window 128; 4,001 tokens are 251 blocks, a window with 2 tokens in flight ⌈129/16⌉ + 1 = 10
    deployment = deploy("gpt-oss-20b", "h100")
    pool = pool_of(deployment, default_settings(deployment))
    assert pool.stream(4000) == 251 + 10
    assert pool.prompt(4000) == 251 + 251 + 1
    assert pool.prompt(100_000) == 6251 + -(-(127 + 2 * 8192) // 16) + 1
    site = make_site({"model": "gpt-oss-20b", "gpu": "h100"}, 1)
    assert needed_blocks(room(site, 8192, 1024), Steady(600, 4000)) == 600 * 261


@pytest.mark.parametrize("model", ["gemma-3-27b-it", "gpt-oss-20b"])
def test_a_simulated_sequence_takes_at_least_what_it_would(model: str) -> None:
    server = make_server(ServerOptions(model=model, gpu="h100"), 1000)
    settings, groups = server.settings, kv_groups(deploy(model, "h100"))
    assert any("layers with a window" in note for note in server.notes)
    for total in (10, 500, 1000, 5000, 100_000):
        for tokens in (1, total // 3 + 1, total):
            taken = settings.seats.of(total) + -(-tokens // settings.block_tokens)
            assert taken >= sequence_blocks(groups, tokens, 2)
        assert taken == sequence_blocks(groups, total, 2)


def test_a_window_is_given_back_with_the_rest() -> None:
    found = simulate_interference(
        4000, 20, 3000, every=2.0, first=0.5, duration=6.0, model="gpt-oss-20b", gpu="h100", grow=True
    )
    assert found.injected is not None
    assert found.injected.preemptions == 0
    assert found.injected.requests.done == 3


def test_injected_prompts_take_no_memory_beyond_vllms_places() -> None:
    memory = memory_of(deploy("Llama-3.1-8B", "h100"), 111, 4000, 1000, 1, 1111)
    assert memory.fits
    found = simulate_interference(1000, 111, 4000, every=1.0, first=0.5, duration=1.0, gpu="h100")
    assert found.server.max_num_seqs == 1024  # vLLM's default, as few streams need no more
    assert not any("does not fit" in warning for warning in found.warnings)
    assert found.server.kv_tokens == memory.kv_tokens


@pytest.mark.parametrize("model", ["Llama-3.1-8B", "gpt-oss-120b", "gemma-3-27b-it", "Mistral-7B-v0.1", "Qwen3-32B"])
@pytest.mark.parametrize("gpu", ["h100", "h200"])
def test_all_commands_tell_the_tokens_that_vllm_logs(model: str, gpu: str) -> None:
    """The line "GPU KV cache size" of one server: its defaults."""
    plan = costmodel.plan_memory(model, gpu)
    tokens = plan.memory.kv_tokens
    assert f"GPU KV cache size: {tokens:,} tokens" in plan.log
    assert costmodel.predict(model=model, gpu=gpu, chunk="engine").memory.kv_tokens == tokens
    assert [row.kv_tokens for row in costmodel.sweep(model=model, gpu=gpu).rows] == [tokens]
    assert make_server(ServerOptions(model=model, gpu=gpu), 1000).info.kv_tokens == tokens
    shorter = make_server(ServerOptions(model=model, gpu=gpu, max_model_len=5000), 1000)
    assert shorter.info.kv_tokens == costmodel.plan_memory(model, gpu, max_model_len=5000).memory.kv_tokens

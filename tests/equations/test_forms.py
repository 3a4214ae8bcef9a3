"""The fitted forms of matrices, attention and links, against their formulas worked out by hand."""

import math
from typing import Any

import pytest

from costmodel.building import build_parameters
from costmodel.deployment import deploy
from costmodel.equations.rates import CalibratedRates
from costmodel.equations.step import step_operators
from costmodel.equations.work import Chunk, Decodes, make_work
from tests.strategies import calibration_of

F, W, SM, LINK = 989e12, 3.35e12, 132, 450e9


def seconds(
    operator: str, fit: dict[str, Any], chunks: list[Chunk], decodes: list[Decodes], tp: int = 1
) -> dict[str, float]:
    """Return the seconds of every operator of a Llama-3.1-8B step with one operator fitted."""
    values = {"form": fit.pop("form"), "parameters": {name: {"value": value} for name, value in fit.items()}}
    deployment = deploy("Llama-3.1-8B", "h100-sxm", tp=tp)
    parameters = build_parameters(deployment, CalibratedRates(calibration_of({operator: values})))
    return {
        item.name: item.seconds for item in step_operators(parameters, make_work(chunks, decodes, parameters.windows))
    }


def test_split_gemm() -> None:
    # down_proj: k = 14336 inputs, m = 4096 outputs, 32 layers, N = 100 tokens; p = 3.
    fit = {
        "form": "gemm_split",
        "compute_efficiency": 0.8,
        "bandwidth_efficiency": 0.9,
        "launch_s": 3e-6,
        "sharpness": 3.0,
        "ramp_inputs": 140.0,
    }
    found = seconds("gemm", fit, [Chunk(100)], [])["down_proj"]
    k, m, n = 14336, 4096, 100
    compute = 2 * k * m * n / (0.8 * F) * (1 + 140 / k)
    memory = (2 * k * m + 2 * n * (k + m)) / (0.9 * W)
    expected = 32 * ((compute**3 + memory**3) ** (1 / 3) + 3e-6 * (1 + k / (k + m)))
    assert found == pytest.approx(expected, rel=1e-12)


def test_quantised_gemm() -> None:
    # o_proj: k = m = 4096; the depth alone takes 0.6 ns per input, more than compute or memory of 4 tokens.
    fit = {"form": "gemm_quant", "launch_s": 5e-6, "quantise_efficiency": 0.4, "depth_s": 6e-8}
    found = seconds("gemm", fit, [Chunk(4)], [])["o_proj"]
    k = m = 4096
    slowest = max(2 * k * m * 4 / F, (2 * k * m + 2 * 4 * (k + m)) / W, 6e-8 * k)
    assert slowest == 6e-8 * k
    assert found == pytest.approx(32 * (5e-6 + 3 * 4 * k / (0.4 * W) + slowest), rel=1e-12)


def test_tiled_prefill_attention() -> None:
    # h = 32, h_kv = 8, d_h = 128, L = 32; the longest chunk sees 3000 keys.
    fit = {
        "form": "prefill_tile",
        "compute_efficiency": 0.7,
        "bandwidth_efficiency": 0.8,
        "launch_s": 1e-5,
        "sharpness": 2.0,
        "tile_rows": 64.0,
        "kv_passes": 3.0,
    }
    found = seconds("prefill_attention", fit, [Chunk(1000, 2000), Chunk(500)], [Decodes(7, 100)])["prefill_attention"]
    pairs = 1000 * 2000 + 1000 * 1001 / 2 + 500 * 501 / 2
    compute = 4 * 32 * 128 * pairs * 32 / (0.7 * F)
    moved = 1500 * 32 * 256 * 2 * 32 + 3.0 * (3000 + 500) * 2 * 8 * 128 * 2 * 32
    tile = 4 * 64 * 128 * 3000 * SM * 32 / (0.7 * F)
    expected = math.hypot(compute + moved / (0.8 * W), tile) + 32 * 1e-5
    assert found == pytest.approx(expected, rel=1e-12)


def test_split_decode_attention() -> None:
    # 16 sequences at context 999: 1000 tokens each; r = 100 read in vain; t1 is half reached at 1000 tokens.
    fit = {
        "form": "decode_split",
        "bandwidth_efficiency": 0.9,
        "launch_s": 9e-6,
        "padding_tokens": 100.0,
        "saturation_s": 4e-6,
        "saturation_tokens": 1000.0,
    }
    found = seconds("decode_attention", fit, [], [Decodes(16, 999)])["decode_attention"]
    moved = 16 * 1100 * 2 * 8 * 128 * 2 * 32
    assert found == pytest.approx(32 * (9e-6 + 4e-6 / 2) + moved / (0.9 * W), rel=1e-12)


@pytest.mark.parametrize(("tokens", "once"), [(1, True), (8000, False)])
def test_link_that_switches(tokens: int, once: bool) -> None:
    # t = 4: one shot sends 3 messages, two shots 1.5 and 5 µs; 64 all-reduces of 8192 B per token.
    fit = {
        "form": "link_switch",
        "latency_s": 4e-6,
        "latency_per_log2_s": 1e-6,
        "bandwidth_efficiency": 0.6,
        "two_shot_s": 5e-6,
    }
    found = seconds("all_reduce", fit, [Chunk(tokens)], [], tp=4)["all_reduce"]
    message = 8192 * tokens / (0.6 * LINK)
    ways = (3 * message, 1.5 * message + 5e-6)
    assert (ways[0] < ways[1]) is once
    assert found == pytest.approx(64 * (4e-6 + 2 * 1e-6 + min(ways)), rel=1e-12)

"""The fitted forms of matrices, attention and links, against their formulas worked out by hand."""

import itertools
import math
from typing import Any

import pytest

from costmodel.building import build_parameters
from costmodel.deployment import deploy
from costmodel.equations.rates import CalibratedRates
from costmodel.equations.step import step_operators
from costmodel.equations.work import Chunk, Decodes, make_work
from costmodel.hardware.calibration import OPERATORS
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
        "shared_passes": 3.0,
        "kv_passes": 0.5,
    }
    found = seconds("prefill_attention", fit, [Chunk(1000, 2000), Chunk(500)], [Decodes(7, 100)])["prefill_attention"]
    pairs = 1000 * 2000 + 1000 * 1001 / 2 + 500 * 501 / 2
    compute = 4 * 32 * 128 * pairs * 32 / (0.7 * F)
    # Half a tile per chunk, 2·32 tokens, is far below what they have, and smooths it by a little.
    queries, keys = (1500**4 + 64**4) ** 0.25, (3500**4 + 64**4) ** 0.25
    io, kv = 32 * 256 * 2 * 32, 2 * 8 * 128 * 2 * 32
    moved = queries * (io + 3.0 * math.sqrt(io * kv) + 0.5 * kv) + keys * kv
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


def test_a_short_prompt_moves_half_a_tile() -> None:
    # No compute to speak of, 8 tokens: Q, O, K and V of 64 rows.
    fit = {"form": "prefill_tile", "tile_rows": 128.0, "sharpness": 1e9, "launch_s": 0.0}
    found = seconds("prefill_attention", fit, [Chunk(8)], [])["prefill_attention"]
    tile = 4 * 128 * 128 * 8 * SM * 32 / F
    moved = 64 * (32 * 256 * 2 + 2 * 8 * 128 * 2) * 32 / W
    assert found == pytest.approx(max(tile, moved + 4 * 32 * 128 * 36 * 32 / F), rel=1e-4)


@pytest.mark.parametrize(("sharpness", "tokens"), [(1.0, 1300.0), (2.0, math.hypot(1000, 300))])
def test_padding_adds_to_the_context_or_hides_behind_it(sharpness: float, tokens: float) -> None:
    fit = {"form": "decode_split", "padding_tokens": 300.0, "sharpness": sharpness}
    found = seconds("decode_attention", fit, [], [Decodes(16, 999)])["decode_attention"]
    assert found == pytest.approx(16 * tokens * 2 * 8 * 128 * 2 * 32 / W, rel=1e-12)


BLOCKS = {
    "form": "decode_blocks",
    "bandwidth_efficiency": 0.8,
    "launch_s": 1.2e-5,
    "padding_tokens": 100.0,
    "extra_launch_s": 6e-6,
    "key_s": 2e-8,
}


@pytest.mark.parametrize(
    ("streams", "context", "extra"),
    [(1, 99, 0), (1, 2047, 1), (16, 99, 1), (16, 2047, 2)],
)
def test_decode_by_blocks(streams: int, context: int, extra: int) -> None:
    # h = 32 over h_kv = 8: contexts beyond 128 keys are split, and the queries of several sequences rearranged.
    found = seconds("decode_attention", dict(BLOCKS), [], [Decodes(streams, context)])["decode_attention"]
    moved = streams * max(context + 1, 100) * 2 * 8 * 128 * 2
    assert found == pytest.approx(32 * (1.2e-5 + extra * 6e-6 + moved / (0.8 * W)), rel=1e-12)


@pytest.mark.parametrize(("streams", "limit"), [(1, "one multiprocessor"), (256, "bandwidth")])
def test_contexts_of_heads_that_share_nothing_are_not_split(streams: int, limit: str) -> None:
    # At t = 8 a GPU has 4 query heads and 1 KV head, at t = 32 one of each: nothing is split and nothing rearranged.
    found = seconds("decode_attention", dict(BLOCKS), [], [Decodes(streams, 16383)], tp=32)["decode_attention"]
    alone, moved = 2e-8 * (16384 - 128), streams * 16384 * 2 * 128 * 2 / (0.8 * W)
    assert (alone > moved) is (limit == "one multiprocessor")
    assert found == pytest.approx(32 * (1.2e-5 + max(alone, moved)), rel=1e-12)


def test_blocks_of_a_window_serve_every_query_head_by_itself() -> None:
    # gpt-oss-20b: 64 query heads over 8 KV heads of 64, 12 layers with a window of 128.
    values = {name: {"value": value} for name, value in BLOCKS.items() if name != "form"}
    fit = {"decode_attention": {"form": "decode_blocks", "parameters": values}}
    parameters = build_parameters(deploy("gpt-oss-20b", "h100-sxm"), CalibratedRates(calibration_of(fit)))
    for streams in (1, 256):
        work = make_work([], [Decodes(streams, 5000)], parameters.windows)
        found = {item.name: item.seconds for item in step_operators(parameters, work)}["decode_attention.window_128"]
        moved = 8 * streams * 128 * 2 * 8 * 64 * 2 / (0.8 * W)
        assert found == pytest.approx(12 * (1.2e-5 + max(moved, 128 * 2e-8)), rel=1e-12)


def test_a_partly_empty_wave_doubles_small_products_and_adds_its_length_to_large_ones() -> None:
    fit = {"form": "gemm_split", "wave_s": 2e-5}
    k, m = 14336, 4096
    for tokens in (4000, 40_000):
        compute = 2 * k * m * tokens / F
        found = seconds("gemm", dict(fit), [Chunk(tokens)], [])["down_proj"]
        assert found == pytest.approx(32 * compute * (1 + 2e-5 / (compute + 2e-5)), rel=1e-12)
        assert compute < found / 32 < compute + 2e-5


@pytest.mark.parametrize(
    ("tokens", "rows"), [(1, 64), (64, 64), (65, 128), (129, 256), (256, 256), (257, 512), (1000, 1024)]
)
def test_products_take_whole_tiles(tokens: int, rows: int) -> None:
    # gate_up_proj: k = 4096, m = 28672. Compute is made slow enough to bind.
    fit = {"form": "gemm_quant_tiled", "compute_efficiency": 0.01, "quantise_efficiency": 0.4}
    found = seconds("gemm", fit, [Chunk(tokens)], [])["gate_up_proj"]
    k, m = 4096, 28672
    assert found == pytest.approx(32 * (2 * k * m * rows / (0.01 * F) + 3 * tokens * k / (0.4 * W)), rel=1e-12)


@pytest.mark.parametrize(("tokens", "rows"), [(1, 32), (33, 64), (65, 128), (129, 256), (2000, 2048)])
def test_tiles_without_quantising(tokens: int, rows: int) -> None:
    fit = {"form": "gemm_tiles", "compute_efficiency": 0.01, "slowdown": 0.1}
    found = seconds("gemm", fit, [Chunk(tokens)], [])["gate_up_proj"]
    assert found == pytest.approx(32 * 2 * 4096 * 28672 * rows / (0.01 * F), rel=1e-12)


@pytest.mark.parametrize(("tokens", "factor"), [(1, 1.0), (16, 1.0), (17, 1.1), (40, 1.1)])
def test_another_kernel_takes_over_after_a_few_rows(tokens: int, factor: float) -> None:
    fit = {"form": "gemm_tiles", "bandwidth_efficiency": 0.9, "slowdown": 0.1}
    found = seconds("gemm", fit, [Chunk(tokens)], [])["o_proj"]
    moved = 2 * 4096 * 4096 + 2 * tokens * 8192
    assert found == pytest.approx(32 * factor * moved / (0.9 * W), rel=1e-12)


@pytest.mark.parametrize(("tokens", "share"), [(10, 1 / 4), (100, 1 / 2), (200, 1), (2000, 1)])
def test_the_depth_of_a_part_of_a_tile(tokens: int, share: float) -> None:
    fit = {"form": "gemm_quant_tiled", "depth_s": 1e-6}
    found = seconds("gemm", fit, [Chunk(tokens)], [])["o_proj"]
    assert found == pytest.approx(32 * (4096e-6 * share + 3 * tokens * 4096 / W), rel=1e-12)


def test_one_shot_may_use_links_less_well() -> None:
    fit = {"form": "link_switch", "bandwidth_efficiency": 0.8, "one_shot_efficiency": 0.2, "two_shot_s": 1e-5}
    message = 8192 / LINK
    small = seconds("all_reduce", dict(fit), [Chunk(1)], [], tp=4)["all_reduce"]
    large = seconds("all_reduce", dict(fit), [Chunk(8000)], [], tp=4)["all_reduce"]
    assert small == pytest.approx(64 * 3 * message / 0.2, rel=1e-12)
    assert large == pytest.approx(64 * (1.5 * 8000 * message / 0.8 + 1e-5), rel=1e-12)


def test_large_messages_take_another_library() -> None:
    # 8 MiB of 8192 B per token are 1024 tokens.
    fit = {"form": "link_switch", "large_s": 2e-5}
    times = [seconds("all_reduce", dict(fit), [Chunk(n)], [], tp=2)["all_reduce"] for n in (1023, 1024, 1025)]
    assert times == pytest.approx([64 * (n * 8192 / LINK + (2e-5 if n > 1023 else 0)) for n in (1023, 1024, 1025)])


@pytest.mark.parametrize(("tp", "hops", "small", "large"), [(2, 2, 1.0, 1.0), (4, 6, 1 + 0.75 * 16, 1 + 0.25 * 16)])
def test_a_ring_over_the_bridges_of_a_host(tp: int, hops: int, small: float, large: float) -> None:
    # Two GPUs talk directly. Four share the bridges: 1 + 0.25·4² times as long, small messages 1 + (0.25 + 0.5)·4².
    fit = {
        "form": "link_ring",
        "latency_s": 3e-6,
        "latency_per_hop_s": 2e-6,
        "bandwidth_efficiency": 0.5,
        "sharing": 0.25,
        "sharing_power": 2.0,
        "small_sharing": 0.5,
        "protocol_s": 3e-5,
    }
    later = 0.0 if tp == 2 else 3e-5
    for tokens, slower, extra in ((1, small, 0.0), (8000, large, later)):
        found = seconds("all_reduce", dict(fit), [Chunk(tokens)], [], tp=tp)["all_reduce"]
        sent = 2 * (tp - 1) / tp * 8192 * tokens / (0.5 * LINK)
        assert found == pytest.approx(64 * (3e-6 + hops * 2e-6 + sent * slower + extra), rel=1e-12)


def test_a_ring_of_one_protocol() -> None:
    fit = {"form": "link_ring", "sharing": 0.5, "protocol_s": 1e-3}
    found = seconds("all_reduce", fit, [Chunk(100)], [], tp=8)["all_reduce"]
    assert found == pytest.approx(64 * 2 * 7 / 8 * 8192 * 100 * (1 + 0.5 * 8) / LINK, rel=1e-12)


FITTED: list[tuple[str, dict[str, Any]]] = [
    ("decode_attention", BLOCKS),
    ("decode_attention", {"form": "decode_split", "padding_tokens": 200.0, "saturation_s": 5e-6, "sharpness": 2.0}),
    ("prefill_attention", {"form": "prefill_tile", "tile_rows": 100.0, "shared_passes": 1.5, "sharpness": 2.0}),
    ("gemm", {"form": "gemm_quant_tiled", "compute_efficiency": 0.6, "quantise_efficiency": 0.4, "depth_s": 2e-9}),
    ("gemm", {"form": "gemm_split", "wave_s": 2e-5, "ramp_inputs": 100.0, "sharpness": 3.0}),
    ("gemm", {"form": "gemm_tiles", "slowdown": 0.1, "sharpness": 8.0}),
    (
        "all_reduce",
        {"form": "link_switch", "latency_s": 4e-6, "two_shot_s": 4e-6, "large_s": 1e-5, "one_shot_efficiency": 0.3},
    ),
    (
        "all_reduce",
        {"form": "link_ring", "latency_per_hop_s": 2e-6, "sharing": 0.1, "small_sharing": 0.5, "protocol_s": 3e-5},
    ),
]


@pytest.mark.parametrize(("operator", "fit"), FITTED, ids=[fit["form"] for _, fit in FITTED])
def test_more_tokens_never_take_less_time_and_nothing_beats_the_roofline(operator: str, fit: dict[str, Any]) -> None:
    lengths = [*range(1, 20), *range(20, 600, 7), *range(600, 9000, 211)]
    steps: list[tuple[list[Chunk], list[Decodes]]] = [([Chunk(n)], []) for n in lengths]
    if operator == "decode_attention":
        nothing: list[Chunk] = []
        groups = [Decodes(n, 700) for n in lengths] + [Decodes(3, 20 * n) for n in lengths]
        steps = [(nothing, [group]) for group in groups]
    fitted = [sum(seconds(operator, dict(fit), chunks, decodes, tp=4).values()) for chunks, decodes in steps]
    plain = [
        sum(seconds(operator, {"form": OPERATORS[operator]}, chunks, decodes, tp=4).values())
        for chunks, decodes in steps
    ]
    assert all(here >= floor * (1 - 1e-12) for here, floor in zip(fitted, plain, strict=True))
    half = len(lengths) if operator == "decode_attention" else len(steps)
    for group in (fitted[:half], fitted[half:]):
        assert all(later >= earlier * (1 - 1e-12) for earlier, later in itertools.pairwise(group))


def test_attention_is_looked_up_by_heads_cache_and_window() -> None:
    names = ("bf16", "bf16.d64", "bf16.d64.w128", "kv-fp8", "kv-fp8.d64")
    launches = {name: 1e-3 * number for number, name in enumerate(names, 1)}
    fits = {
        f"{operator}.{name}": {"form": "smooth_roofline", "parameters": {"launch_s": {"value": value}}}
        for operator in ("prefill_attention", "decode_attention")
        for name, value in launches.items()
    }

    def found(model: str, kv_dtype: str) -> list[str]:
        parameters = build_parameters(
            deploy(model, "h100-sxm", kv_dtype=kv_dtype), CalibratedRates(calibration_of(fits))
        )
        return [kernel.decode_rate.calibrated_by.partition(".")[2] for kernel in parameters.attention]

    assert found("Llama-3.1-8B", "bf16") == ["bf16"]
    assert found("Llama-3.1-8B", "fp8") == ["kv-fp8"]
    assert sorted(found("gpt-oss-20b", "bf16")) == ["bf16.d64", "bf16.d64.w128"]
    assert found("gpt-oss-20b", "fp8") == ["kv-fp8.d64", "kv-fp8.d64"]


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

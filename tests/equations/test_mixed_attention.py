"""Attention of a step with prefill as one kernel of tiles: its formula worked out by hand, and what must hold of any such kernel."""

from typing import Any

import numpy as np
import pytest

from costmodel.building import build_parameters
from costmodel.deployment import deploy
from costmodel.equations.parameters import Parameters
from costmodel.equations.rates import CalibratedRates
from costmodel.equations.step import step_operators
from costmodel.equations.work import Chunk, Decodes, make_work
from tests.strategies import calibration_of

# Llama-3.1-8B on an RTX 4090: h = 32 heads of d_h = 128 on 128 multiprocessors, L = 32 layers.
TAU = 4 * 64 * 128 * 128 / (0.8 * 165.2e12)
"""Seconds of one key of a tile of 64 rows on one multiprocessor."""
LAUNCH, TILE, EMPTY = 8e-6, 4.5e-6, 4e-7
MIXED = {"compute_efficiency": 0.8, "launch_s": LAUNCH, "tile_s": TILE, "empty_tile_s": EMPTY}
DECODE = {"bandwidth_efficiency": 0.9, "launch_s": 1e-5, "padding_tokens": 50.0}


def parameters_of(model: str = "Llama-3.1-8B", gpu: str = "rtx-4090") -> Parameters:
    """Return parameters with both kernels fitted."""
    fitted: dict[str, Any] = {"prefill_attention": ("mixed_tiles", MIXED), "decode_attention": ("decode_split", DECODE)}
    operators = {
        name: {"form": form, "parameters": {key: {"value": value} for key, value in values.items()}}
        for name, (form, values) in fitted.items()
    }
    return build_parameters(deploy(model, gpu), CalibratedRates(calibration_of(operators)))


PARAMETERS = parameters_of()


def seconds(chunks: list[Chunk], decodes: list[Decodes], parameters: Parameters = PARAMETERS) -> dict[str, Any]:
    """Return the seconds of the attention operators of a step."""
    operators = step_operators(parameters, make_work(chunks, decodes, parameters.windows))
    return {item.name: item.seconds for item in operators if item.group == "attention"}


@pytest.mark.parametrize(
    ("q", "c", "keys"),
    [
        (
            16,
            4096,
            4096 + 16,
        ),  # one tile of 64 rows per head: a quarter of the multiprocessors is busy, for one tile's keys
        (128, 4096, 4096 + 128),
        (256, 0, 256.5),  # one wave: the longest tile; half of it, and the tail of half a wave, come to the same
        (1024, 0, 4 * 512.5 + 1024),  # four waves of mean length, and the triangle's tail
        (2048, 512, 8 * (512 + 1024.5) + 2048),
    ],
)
def test_a_chunk_alone(q: int, c: int, keys: float) -> None:
    assert seconds([Chunk(q, c)], []) == {"prefill_attention": pytest.approx(32 * (LAUNCH + TAU * keys), rel=1e-12)}


def test_several_chunks_share_the_gpu() -> None:
    # Eight prompts of 512: 2 waves of 256.5 keys each, and the tail of one.
    found = seconds([Chunk(512)] * 8, [])["prefill_attention"]
    assert found == pytest.approx(32 * (LAUNCH + TAU * (8 * 2 * 256.5 + 512)), rel=1e-12)


def test_sequences_beside_a_chunk() -> None:
    # q = 512 after c = 1024: u = 2 waves, tiles start scattered; 16 sequences take 4 tiles per multiprocessor, 7 empty ones each.
    found = seconds([Chunk(512, 1024)], [Decodes(16, 999)])
    chunk = TAU * (2 * (1024 + 256.5) + 512)
    scattered = TAU * 1024 * (2 + 1 / 3 - 2)
    served = 4 * (TILE + 7 * EMPTY) + TAU * 4 * 1000
    assert TAU * 4 * 1000 > 16 * 1000 * 4 * 8 * 128 / 1008e9  # their KV cache is read meanwhile
    assert found["prefill_attention"] == pytest.approx(32 * (LAUNCH + chunk), rel=1e-12)
    assert found["decode_attention"] == pytest.approx(32 * (scattered + served), rel=1e-12)


def test_one_long_sequence_outlasts_a_short_chunk() -> None:
    found = seconds([Chunk(16)], [Decodes(1, 16383)])
    assert sum(found.values()) == pytest.approx(32 * (LAUNCH + TAU * 16384), rel=1e-12)


def test_steps_without_prefill_run_the_decode_kernel() -> None:
    found = seconds([], [Decodes(16, 999)])
    assert found == {"decode_attention": pytest.approx(32 * (1e-5 + 16 * 1050 * 4096 / (0.9 * 1008e9)), rel=1e-12)}
    # Also where an array leaves open which steps have prefill.
    both = seconds([Chunk(np.array([0.0, 512.0]), 1024.0)], [Decodes(16.0, 999.0)])
    mixed = seconds([Chunk(512.0, 1024.0)], [Decodes(16.0, 999.0)])
    assert both["decode_attention"] == pytest.approx([found["decode_attention"], mixed["decode_attention"]], rel=1e-12)
    assert both["prefill_attention"] == pytest.approx([0.0, mixed["prefill_attention"]], rel=1e-12)


@pytest.mark.parametrize("model", ["Llama-3.1-8B", "gemma-3-12b-it", "gpt-oss-20b"])
def test_it_grows_with_all_that_a_step_serves_and_stays_above_the_floor(model: str) -> None:
    parameters, floor = parameters_of(model), build_parameters(deploy(model, "rtx-4090"))
    sizes = (0.0, 1.0, 16.0, 65.0, 200.0, 256.0, 1000.0, 2048.0, 9000.0)
    q, c, count, context = np.meshgrid((2.0, *sizes[2:]), sizes, (1.0, 3.0, 4.0, 33.0, 256.0), sizes, indexing="ij")
    step = ([Chunk(q, c)], [Decodes(count, context)])
    found, least = seconds(*step, parameters), seconds(*step, floor)
    for name, values in found.items():
        assert np.all(values >= least[name] * (1 - 1e-12))
    whole = sum(found.values())
    for axis in range(4):
        assert np.all(np.diff(whole, axis=axis) >= -1e-12 * whole.max())
    assert np.all(whole >= sum(seconds(step[0], [], parameters).values()))

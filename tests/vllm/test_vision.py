"""Images in vLLM's engine: rates that were fitted to the decoder's prompts predict how long the encoder takes.

A tiny PaliGemma with random weights on a CPU; its engine is the only one with images that starts without torchvision, which vLLM's CPU
build cannot have beside it. Two rates, of matrices and of attention, are fitted to prompts of five lengths; nothing is fitted to images.
On a CPU the encoder's attention is another kernel (torch's, not vLLM's), about half as fast: at 224 pixels it is a tenth of the work, at
448 pixels, where it is a third, the same prediction comes out 31 % too short.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from costmodel.architecture.families import architecture_from_config
from costmodel.building import roofline_parameters
from costmodel.deployment import Deployment, deploy_architecture
from costmodel.encoder import encoder_operators, encoder_parameters, make_images
from costmodel.equations.step import OperatorTime, step_operators
from costmodel.equations.work import Chunk, make_work
from tests.vllm import vision_check

pytestmark = pytest.mark.vllm

LIMIT = 0.25
"""Of the error of every number of images; measured: 10 to 17 %."""


def flops(operators: list[OperatorTime[Any]]) -> list[float]:
    """Return the FLOPs of matrices but lm_head, and of attention."""
    return [sum(item.flops for item in operators if item.group == group) for group in ("linear", "attention")]


@pytest.fixture(scope="module")
def deployment() -> Deployment:
    return deploy_architecture(architecture_from_config(vision_check.CONFIG, "tiny"), "h100")


def test_images_take_as_long_as_the_decoder_predicts(
    deployment: Deployment, environment: dict[str, str], tmp_path: Path
) -> None:
    done = subprocess.run(
        [sys.executable, vision_check.__file__, str(tmp_path / "model")],
        env=environment | {"VLLM_ENABLE_V1_MULTIPROCESSING": "0"},
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    parameters, encoder = roofline_parameters(deployment), encoder_parameters(deployment)
    prompts = [
        flops(step_operators(parameters, make_work([Chunk(int(tokens))], windows=parameters.windows)))
        for tokens in found["prompts"]
    ]
    seconds = np.array(list(found["prompts"].values()))
    # Relative errors count: each row is divided by its time.
    per_flop, *_ = np.linalg.lstsq(np.array(prompts) / seconds[:, None], np.ones(len(seconds)), rcond=None)
    assert (per_flop > 0).all()
    for number, measured in found["images"].items():
        images = make_images(deployment, int(number), (224, 224))
        assert images is not None
        assert images.each.features == found["tokens"]
        predicted = float(np.dot(flops(encoder_operators(encoder, images.work(images.count))), per_flop))
        print(f"{number} images: {1e3 * predicted:.1f} ms predicted, {1e3 * measured:.1f} measured")
        assert abs(predicted / measured - 1) <= LIMIT

"""Run by a test in a process of its own: vLLM's scheduler on requests with images, and the simulator's beside it.

The executor computes nothing. The model has no tower: the scheduler gets the two limits and the flag that a tower would give it, and each
request the places of its images. Images have as many features as tokens.
"""

from __future__ import annotations

import json
import logging
import os
import random
import sys
import tempfile
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

from costmodel.architecture.images import EncodedImage
from costmodel.encoder import ImageLoad
from costmodel.simulation.encoding import Encoding
from costmodel.validation.backends import vllm_scheduler
from costmodel.validation.backends.recordings import Arrival, Settings
from costmodel.validation.backends.scheduler_workloads import Workload, arrivals
from tests.simulation.replaying import Images, differences


def draw(seed: int) -> tuple[Workload, Encoding, list[int]]:
    """Return requests, most of which begin with images, the limits of the encoder, and how many images each has."""
    rng = random.Random(seed)
    block, tokens = rng.choice([4, 16]), rng.choice([3, 10, 16, 40])
    settings = Settings(
        token_budget=rng.choice([24, 48, 96, 256]),
        max_num_seqs=rng.choice([3, 8, 16]),
        kv_blocks=rng.choice([30, 60, 200]) * 16 // block,
        block_tokens=block,
        prefix_caching=rng.random() < 0.6,
        policy=rng.choice(["fcfs", "fcfs", "priority"]),
        async_scheduling=rng.random() < 0.5,
        max_model_len=400,
        long_prefill_token_threshold=rng.choice([0, 0, 0, 20]),
        chunked_prefill=rng.random() < 0.9,
    )
    if not settings.chunked_prefill:
        settings = replace(settings, token_budget=max(settings.token_budget, 400))
    requests = arrivals(rng, rng.randint(4, 20), (4, 250), (1, 60), 20)
    if settings.policy == "priority":
        requests = tuple(replace(each, priority=rng.randint(0, 2)) for each in requests)
    counts = [rng.randint(0, min((each.prompt - 1) // tokens, 6)) if rng.random() < 0.8 else 0 for each in requests]
    image = EncodedImage(1, 1, (1,), tokens, tokens)
    encoding = Encoding(ImageLoad(9, 1, 1, image, undivided=rng.random() < 0.4), rng.choice([1, 2, 3, 8]), float)
    return Workload(f"seed {seed}", settings, requests), encoding, counts


def limited(engine: Any, encoding: Encoding) -> list[int]:
    """Give an engine's scheduler an encoder; return the list in which it notes how many images every call encodes."""
    from vllm.v1.core.encoder_cache_manager import EncoderCacheManager

    scheduler, size = engine.scheduler, encoding.most * encoding.images.each.features
    scheduler.max_num_encoder_input_tokens = size
    scheduler.encoder_cache_manager = EncoderCacheManager(cache_size=size)
    scheduler.scheduler_config.disable_chunked_mm_input = encoding.images.undivided
    encoded: list[int] = []
    schedule = scheduler.schedule

    def noted(*arguments: Any, **named: Any) -> Any:
        output = schedule(*arguments, **named)
        encoded.append(sum(map(len, output.scheduled_encoder_inputs.values())))
        return output

    scheduler.schedule = noted
    return encoded


def main() -> None:
    """Compare so many workloads, the first of them with this seed; print what differs and what happened."""
    from vllm.multimodal.inputs import MultiModalFeatureSpec, PlaceholderRange

    count, seed = int(sys.argv[1]), int(sys.argv[2])
    os.environ.update(vllm_scheduler.ENVIRONMENT)
    logging.getLogger("vllm").addHandler(logging.NullHandler())
    faults, happened, plain = [], Counter[str](), vllm_scheduler.make_request
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "config.json").write_text(json.dumps(vllm_scheduler.MODEL), encoding="utf-8")
        for number in range(seed, seed + count):
            workload, encoding, counts = draw(number)
            each = encoding.images.each.tokens

            def pictured(arrival: Arrival, *arguments: Any, counts: list[int] = counts, each: int = each) -> Any:
                request = plain(arrival, *arguments)
                request.mm_features = [
                    MultiModalFeatureSpec(None, "image", f"{arrival.id} {index}", PlaceholderRange(index * each, each))
                    for index in range(counts[arrival.id])
                ]
                return request

            vllm_scheduler.make_request = pictured
            engine = vllm_scheduler.make_engine(workload.settings, Path(folder))
            encoded = limited(engine, encoding)
            recording = vllm_scheduler.run(workload, engine)
            fault = next(differences(recording, Images(encoding, counts, encoded)), None)
            if fault:
                faults.append(f"seed {number}: {fault}")
            happened["images"] += sum(counts)
            happened["again"] += sum(encoded) - sum(counts)
            happened["preemptions"] += sum(map(len, recording.preempted))
            happened["cut"] += sum(
                (computed + tokens) % each == 0 and computed + tokens < counts[request] * each
                for step in recording.steps
                for request, tokens, computed in step
                if sum(item[1] for item in step) < workload.settings.token_budget
            )
    sys.stdout.write(json.dumps({"faults": faults, "happened": happened}) + "\n")


if __name__ == "__main__":
    main()

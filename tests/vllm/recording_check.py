"""Run by a test in a process of its own: what the recorder says of steps whose composition is known, and vLLM's counters beside it."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path

from costmodel.validation.backends.asked import Asked
from costmodel.validation.backends.vllm_engine import VllmEngine
from costmodel.validation.measurements.plan import Point

POINTS = [
    Point("prefill", (300, 0)),
    Point("decode", None, 5, 129),
    Point("chunk", (40, 256)),
    Point("mixed", (70, 128), 3, 257, held_out=True),
    Point("mixed", (200, 0), 7, 129, held_out=True),
]


def main() -> None:
    """Print, as JSON, the samples of each point, and tokens by the recorder and by vLLM."""
    engine = VllmEngine(
        Asked(
            sys.argv[1],
            random_weights=True,
            dtype="fp32",
            enforce_eager=True,
            max_num_batched_tokens=1024,
            max_model_len=1024,
        )
    )
    tokens = {"prompts": 0, "answers": 0}
    plain = engine.driver.recorder.update

    def update(scheduled, output):  # type: ignore[no-untyped-def]
        """Count what every step computes, also those that the plan does not keep."""
        before = len(engine.driver.recorder.steps)
        result = plain(scheduled, output)
        for step in engine.driver.recorder.steps[before:]:
            tokens["prompts"] += sum(new for new, _ in step.chunks)
            tokens["answers"] += len(step.decodes) + len(step.chunks)  # no prompt here needs more than one step
        return result

    engine._core.scheduler.update_from_output = update
    engine.warm_up()
    found = [
        [
            {"chunks": each.chunks, "decodes": each.decodes, "seconds": each.cpu_seconds}
            for each in engine.driver.run(point, 4, math.inf)
        ]
        for point in POINTS
    ]
    counters = engine.counters()
    scheduler = type(engine._core.scheduler).__name__
    engine.close()
    Path(sys.argv[2]).write_text(
        json.dumps({"found": found, "tokens": tokens, "counters": counters, "scheduler": scheduler})
    )


if __name__ == "__main__":
    main()

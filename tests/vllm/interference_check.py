"""Run by a test in a process of its own: streams that decode in an engine, and prompts that are injected among them.

The engine's own steps are what is written down, one after the other; streams get a token at the end of each.
"""

from __future__ import annotations

import json
import random
import sys
from dataclasses import asdict
from pathlib import Path

from costmodel.validation.backends.asked import Asked
from costmodel.validation.backends.vllm_engine import VllmEngine
from tests.vllm.conftest import VOCABULARY

STREAMS = 8
CONTEXT = 400
"""Tokens of a stream's prompt; the context grows by one with every step."""
PROMPT = 1024
"""Tokens of an injected prompt."""
INJECTIONS = 20
BETWEEN = 12
"""Steps of decodes alone after the last one of an injected prompt."""


def main() -> None:
    """Write, as JSON, the steps of the engine, and how many there were when each prompt came."""
    folder, budget, out = sys.argv[1], int(sys.argv[2]), Path(sys.argv[3])
    engine = VllmEngine(
        Asked(
            folder,
            random_weights=True,
            dtype="fp32",
            enforce_eager=True,
            max_num_batched_tokens=budget,
            max_model_len=4096,
        )
    )
    engine.warm_up()
    steps, chance = engine.driver.recorder.steps, random.Random(1)

    def add(name: str, tokens: int, answer: int) -> None:
        engine._add(name, chance.choices(range(16, VOCABULARY), k=tokens), answer)

    def decode(count: int) -> None:
        """Go on until so many steps of decodes alone have ended, one after the other."""
        alone = 0
        while alone < count:
            engine._engine.step()
            alone = 0 if steps[-1].chunks or len(steps[-1].decodes) < STREAMS else alone + 1

    for stream in range(STREAMS):
        add(f"stream {stream}", CONTEXT, 4000 - CONTEXT)
    decode(BETWEEN)
    add("not counted", PROMPT, 1)
    decode(BETWEEN)
    first, injected = len(steps), []
    decode(5 * BETWEEN)
    for injection in range(INJECTIONS):
        injected.append(len(steps) - first)
        add(f"injection {injection}", PROMPT, 1)
        decode(BETWEEN)
    found = [asdict(each) for each in steps[first:]]
    engine.close()
    out.write_text(json.dumps({"injected": injected, "steps": found}))


if __name__ == "__main__":
    main()

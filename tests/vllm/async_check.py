"""Run by a test in a process of its own: the driver on vLLM's asynchronous scheduler, with an executor that computes nothing.

A CPU engine never schedules asynchronously, a GPU always does; the scheduler and the engine's loop are the same.
"""

from __future__ import annotations

import json
import math
import os
import sys
import time
from pathlib import Path

from costmodel.validation.backends.recordings import Settings
from costmodel.validation.backends.vllm_driver import Calls, Driver
from costmodel.validation.backends.vllm_scheduler import ENVIRONMENT, MODEL, Executor, make_engine
from costmodel.validation.measurements.plan import Limits
from tests.vllm.recording_check import POINTS

STEP_SECONDS = 0.005
BLOCK = 16


def main() -> None:
    """Print, as JSON, the samples of each point."""
    os.environ.update(ENVIRONMENT)
    from vllm.sampling_params import SamplingParams
    from vllm.v1.request import Request

    (Path(sys.argv[1]) / "config.json").write_text(json.dumps(MODEL), encoding="utf-8")
    settings = Settings(1024, 16, 2000, BLOCK, prefix_caching=True, async_scheduling=True, max_model_len=1024)
    core = make_engine(settings, Path(sys.argv[1]))
    plain = Executor.sample

    def sample(self: Executor, scheduled: object) -> object:
        """Take a step's time, and draw tokens as the executor does."""
        time.sleep(STEP_SECONDS)
        return plain(self, scheduled)

    Executor.sample = sample  # type: ignore[method-assign]

    def add(name: str, tokens: list[int], answer: int) -> str:
        request = Request(
            request_id=name,
            prompt_token_ids=tokens,
            sampling_params=SamplingParams(max_tokens=answer, ignore_eos=True, detokenize=False),
            pooling_params=None,
            block_hasher=core.request_block_hasher,
        )
        core.scheduler.add_request(request)
        return name

    def abort(names: list[str]) -> None:
        from vllm.v1.request import RequestStatus

        core.scheduler.finish_requests(names, RequestStatus.FINISHED_ABORTED)

    driver = Driver(core, Calls(add, core.step_fn, abort), Limits(1024, 16, 1024, 2000 * BLOCK, BLOCK), 128, 0)
    driver.warm_up()
    found = [
        [
            {"chunks": each.chunks, "decodes": each.decodes, "seconds": each.wall_seconds}
            for each in driver.run(point, 4, math.inf)
        ]
        for point in POINTS
    ]
    scheduler = type(core.scheduler).__name__
    Path(sys.argv[2]).write_text(
        json.dumps({"found": found, "scheduler": scheduler, "queue": core.batch_queue is not None})
    )


if __name__ == "__main__":
    main()

"""Random workloads for the two engines, and what differs between what they make of them."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache

from costmodel.architecture.families import architecture_from_config
from costmodel.building import build_parameters
from costmodel.certainty import find_calibration
from costmodel.deployment import deploy, deploy_architecture
from costmodel.equations.rates import CalibratedRates
from costmodel.simulation.clock import Clock, FixedClock, StepClock
from costmodel.simulation.jumping import JumpingEngine
from costmodel.simulation.requests import ClosedLoop, Listed, Request, Source
from costmodel.simulation.settings import Settings
from costmodel.simulation.stepping import Engine
from costmodel.simulation.tally import Served, Tally
from tests.architecture.mixed_configs import MIXED

CLOCKS = (
    ("Llama-3.1-8B", "h100", True),
    ("Llama-3.1-8B", "h100", False),
    ("gpt-oss-20b", "h100", True),
    ("gpt-oss-20b", "h100", False),
    ("gemma-3-4b-it", "a100", True),
    ("gemma-3-4b-it", "a100", False),
    None,
    ("llama-4", "b200", False),
    ("nemotron-3", "b200", False),
)
"""Dense, mixture with windows, windows; calibrated and at datasheet rates; fixed step times; local chunks, recurrent layers."""
LOCAL_CHUNKS = 40
"""Tokens of a local chunk of that Llama 4, so that short requests cross some."""
SAME_S = 1e-9
"""Times that differ by less are equal [s]."""


@cache
def clock_of(which: tuple[str, str, bool] | None) -> Clock:
    """Return one of the clocks."""
    if which is None:
        return FixedClock(0.0100371, 0.1, 500)
    model, gpu, calibrated = which
    if model in MIXED:
        config = MIXED[model]
        if model == "llama-4":
            config = {**config, "text_config": {**config["text_config"], "attention_chunk_size": LOCAL_CHUNKS}}
        return StepClock(build_parameters(deploy_architecture(architecture_from_config(config, model), gpu, tp=8)))
    deployment = deploy(model, gpu)
    rates = CalibratedRates(find_calibration(None, deployment)) if calibrated else None
    return StepClock(build_parameters(deployment, rates))


@dataclass(frozen=True, slots=True)
class Workload:
    """What both engines get.

    ``clients`` 0 is an open loop; otherwise requests are sent by so many clients in turn, whatever their arrivals.
    """

    settings: Settings
    clock: Clock
    requests: Sequence[Request]
    clients: int = 0
    think: float = 0.0
    delay: float = 0.0
    until: float = math.inf

    def source(self) -> Source:
        """Return the requests' source, as new."""
        if not self.clients:
            return Listed(self.requests)
        following = iter(self.requests)

        def make(time: float) -> Request | None:
            request = next(following, None)
            return None if request is None else replace(request, arrival=time)

        return ClosedLoop(self.clients, make, self.think)


def run(engine: type[Engine], workload: Workload) -> tuple[Engine, Tally]:
    """Run a workload to its end."""
    tally = Tally(keep_steps=True)
    made = engine(
        workload.settings,
        workload.clock,
        workload.source(),
        tally,
        delay=(workload.delay, workload.delay / 1e3),
        until=workload.until,
    )
    made.run()
    return made, tally


def all_gaps(tally: Tally, clock: Clock) -> list[float]:
    """Return every gap that a tally has counted, those of segments one by one, in order [s]."""
    found = [gap for gap, weight in tally.gaps.items() for _ in range(weight)]
    windows = len(clock.windows)
    width = 3 + 2 * windows
    for start in range(0, len(tally.segments), width):
        weight, decodes, steps, *sums = tally.segments[start : start + width]
        reads, growth = sums[:windows], sums[windows:]
        for step in range(int(steps)):
            gap = clock.decode(int(decodes), [r + g * step for r, g in zip(reads, growth, strict=True)])
            found += [gap] * int(weight)
    return sorted(found)


def differences(plain: Tally, jumped: Tally, clock: Clock) -> list[str]:
    """Return what differs between what the plain and the jumping engine counted: nothing, if all is well."""
    found = [
        f"{name}: {getattr(plain, name)} and {getattr(jumped, name)}"
        for name in ("preemptions", "steps", "refused")
        if getattr(plain, name) != getattr(jumped, name)
    ]
    if len(plain.served) != len(jumped.served):
        return [*found, f"requests: {len(plain.served)} and {len(jumped.served)}"]
    for index, (a, b) in enumerate(zip(plain.served, jumped.served, strict=True)):
        if _plain_facts(a) != _plain_facts(b) or abs(a.request.arrival - b.request.arrival) > SAME_S:
            found.append(f"request {index}: {a} and {b}")
        if a.tokens != b.tokens:
            found.append(f"request {index} tokens: {a.tokens} and {b.tokens}")
        if a.request.standing:
            if abs(a.last - b.last) > SAME_S:
                found.append(f"stream {index} last: {a.last} and {b.last}")
            continue
        names = ["first", *(["last"] if a.tokens else []), *(["scheduled"] if not math.isnan(a.first) else [])]
        for name in names:  # a step that does not end in time may have been scheduled or not
            here, there = getattr(a, name), getattr(b, name)
            if not (math.isnan(here) and math.isnan(there)) and not abs(here - there) <= SAME_S:
                found.append(f"request {index} {name}: {here} and {there}")
    first, second = all_gaps(plain, clock), all_gaps(jumped, clock)
    if len(first) != len(second):
        found.append(f"gaps: {len(first)} and {len(second)}")
    elif any(abs(a - b) > SAME_S for a, b in zip(first, second, strict=True)):
        found.append("lengths of gaps")
    if abs(plain.busy - jumped.busy) > 10 * SAME_S:
        found.append(f"busy: {plain.busy} and {jumped.busy}")
    if abs(plain.end - jumped.end) > SAME_S:
        found.append(f"end: {plain.end} and {jumped.end}")
    return found


def _plain_facts(served: Served) -> tuple[object, ...]:
    """Return what must be the same to the letter; a closed loop's arrivals are times like all others."""
    return replace(served.request, arrival=0.0), served.done, served.preemptions, served.cached, served.refused


def compare(workload: Workload) -> tuple[Tally, Tally]:
    """Run both engines on a workload; say what differs and what the workload was."""
    _, plain = run(Engine, workload)
    _, jumped = run(JumpingEngine, workload)
    found = differences(plain, jumped, workload.clock)
    assert not found, f"{found[:4]} of {workload}"
    return plain, jumped


def random_workload(seed: int) -> Workload:
    """Return a workload that is likely to fill memory, share prefixes, and end several requests at once."""
    draw = random.Random(seed)
    block = draw.choice([1, 4, 16, 16, 64])
    blocks = draw.choice([None, draw.randint(20, 200), draw.randint(8, 60)])
    budget = draw.choice([1, 8, 32, 64, 256, 2048, 8192])
    settings = Settings(
        token_budget=budget,
        max_num_seqs=min(budget, draw.choice([1, 3, 8, 64])),
        kv_blocks=blocks,
        block_tokens=block,
        max_model_len=draw.choice([None, None, 100, 700]),
        chunked_prefill=draw.random() < 0.9,
        prefix_caching=draw.random() < 0.6,
        asynchronous=draw.random() < 0.5,
        reserve_full_prompt=draw.random() < 0.5,
        watermark=draw.choice([0, 0, 0.05, 0.3]),
        hold_steps=random.Random(-1 - seed).choice([0, 0, 0, 0, 0, 0, 0, 1, 5]),
    )
    scale = draw.choice([0.0, 0.001, 0.02, 0.2, 30.0])
    prompts = draw.choice([[1], [1, 17, 300], list(range(1, 50)), list(range(1, 600))])
    outputs = draw.choice([[1], [1, 2], [5, 20], list(range(1, 40)), list(range(1, 300))])
    time, requests = 0.0, []
    for _ in range(draw.randint(1, 60)):
        time += draw.choice([0.0, scale * draw.expovariate(1)])
        prefix = tuple(draw.choice([1, 1, 2]) for _ in range(draw.choice([0, 0, 1, 3, 8])))
        prompt = draw.choice(prompts)
        prefilled = max(time - draw.random(), 0.0) if draw.random() < 0.05 else None
        requests.append(
            Request(
                time, prompt, draw.choice(outputs), "r", 0, prefix, draw.choice([block, 2 * block, 3, 7]),
                prefilled=prefilled,
            )
        )  # fmt: skip
    streams = []
    if settings.max_num_seqs > 1 and settings.max_model_len is None and draw.random() < 0.25:
        held = draw.choice([True, False, None])
        context = draw.randint(1, 100)
        streams = [
            Request(
                0.0, context, 1, "s", standing=True, held=draw.random() < 0.5 if held is None else held
            )
            for _ in range(draw.randint(1, min(5, settings.max_num_seqs - 1)))
        ]  # fmt: skip
        if blocks is not None and len(streams) * (context // block + 1) > blocks - 1:
            streams = []
    clients = 0 if streams or draw.random() < 0.6 else draw.randint(1, 12)
    return Workload(
        settings,
        # Clients who pause come at whole numbers of fixed steps after one another, where rounding decides.
        clock_of(draw.choice(CLOCKS[:-1] if clients else CLOCKS)),
        streams + requests,
        clients=clients,
        think=draw.choice([0.0, 0.0, 0.0107, 2.97]),
        delay=draw.choice([0.0, 0.003, 0.5]) * (not streams),  # streams are there from the beginning
        until=draw.choice([1.0037, 2.9971]) if streams else draw.choice([math.inf, math.inf, 2.0037, 0.5037, 0.0041]),
    )


def crowded_workload(seed: int) -> Workload:
    """Return a workload of many alike in little memory."""
    draw = random.Random(seed)
    block, blocks = draw.choice([1, 2, 4, 16]), draw.randint(12, 60)
    budget = draw.choice([16, 64, 512])
    settings = Settings(
        token_budget=budget,
        max_num_seqs=min(budget, draw.choice([4, 8, 16])),
        kv_blocks=blocks,
        block_tokens=block,
        asynchronous=draw.random() < 0.5,
        reserve_full_prompt=draw.random() < 0.5,
        watermark=draw.choice([0, 0, 0.1]),
    )
    tokens = (blocks - 1) * block
    outputs = draw.sample(range(1, max(tokens // 2, 3)), draw.randint(1, 2))
    time, requests = 0.0, []
    for _ in range(draw.randint(10, 80)):
        time += draw.choice([0, 0, 0, draw.choice([0.01, 0.1]) * draw.expovariate(1)])
        prompt = requests[-1].prompt if requests and draw.random() < 0.3 else draw.randint(1, max(2, tokens // 3))
        prefix = tuple(draw.choice([1, 1, 1, 2]) for _ in range(draw.choice([0, 2, 5, 10, 20])))
        requests.append(Request(time, prompt, draw.choice(outputs), "r", 0, prefix, block))
    return Workload(
        settings,
        clock_of(draw.choice(CLOCKS)),
        requests,
        clients=draw.choice([0, 0, 3, 10]),
        until=draw.choice([math.inf, math.inf, 0.5037]),
    )

"""Closed forms held against the simulator: the same load, run."""

from __future__ import annotations

from typing import Any

from costmodel.hardware.errors import InputError
from costmodel.planning.documents import Checked
from costmodel.planning.serving import ENDLESS, Site
from costmodel.planning.steady import Steady, before_engine_s, decode_s
from costmodel.simulation.interfering import simulate_interference

PERIODS = 3
"""Injections that are simulated."""
STEPS = 50
"""Decode steps that are simulated of a load without prompts, at least."""


def interference_numbers(site: Site, load: Steady, budget: int | None) -> dict[str, Any]:
    """Return what the streams and prompts of a load see when they are simulated; nothing where they cannot be.

    Args:
        site: model, GPU and flags.
        load: streams and prompts; without prompts, the baseline counts.
        budget: token budget; None for one that is large enough.
    """
    decode = decode_s(site.clock, load)
    pictures: dict[str, Any] = {}
    if load.encoding is not None:
        images = load.encoding.images
        pictures = {"images": images.count, "image_size": (images.width, images.height)}
    every = load.every if load.prompts else STEPS * decode
    try:
        found = simulate_interference(
            load.prompt - load.image_tokens if load.prompts else 1,
            load.streams,
            load.context,
            every=every,
            first=every / 2,
            duration=PERIODS * every,
            prompts=load.prompts or 1,
            cached_prefix=load.cached if load.prompts else 0,
            **pictures,
            **site.simulated(chunk=budget, max_num_seqs=None, kv_tokens=site.options.get("kv_tokens") or ENDLESS),
        )
    except InputError:  # a load that the server does not even take
        return {}
    if found.interrupted:
        raise KeyboardInterrupt
    result = found.injected if load.prompts else found.baseline
    if result is None or result.itl is None:
        return {}
    if load.prompts and result.ttft is None:  # gaps without a prompt among them confirm nothing
        return {"simulated_prompts": 0}
    numbers: dict[str, Any] = {"simulated_itl_s": result.itl.max_s, "simulated_tpot_s": result.itl.mean_s}
    if load.prompts and result.ttft is not None:
        ttft = before_engine_s(site, load) + result.ttft.max_s
        numbers |= {"simulated_ttft_s": ttft, "simulated_prompts": result.requests.done}
    return numbers


def unserved(*checks: Checked | None) -> tuple[str, ...]:
    """Return a warning if a simulation served no prompt, and so confirms nothing; nothing otherwise."""
    values = [f"{check.value:,}" for check in checks if check is not None and check.simulated_prompts == 0]
    return (f"not confirmed: no prompt was served in the simulation at {' and '.join(values)}",) if values else ()

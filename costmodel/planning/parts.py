"""``plan_gpu``: for each part the fewest GPUs that serve a load within limits, and the cheapest of them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Unpack

from costmodel.architecture.source import load_model
from costmodel.checks import whole
from costmodel.deployment import divides
from costmodel.hardware.catalog import gpu_names, load_gpu, resolve_gpu
from costmodel.hardware.errors import InputError
from costmodel.planning.answering import limits_of, ms, nearest_limit, over
from costmodel.planning.documents import Advice, GpuOption, GpuPlan, Nearest, Slo
from costmodel.planning.fitting_in import needed_blocks
from costmodel.planning.serving import PlanOptions, Site, make_site, room
from costmodel.planning.steady import Steady, checked, longest_gap_s, mean_gap_s, ttft_s
from costmodel.prices import Prices, read_prices

MEASURES = {"itl": longest_gap_s, "ttft": ttft_s, "tpot": mean_gap_s}


def plan_gpu(
    prompt: int = 8000,
    streams: int = 32,
    context: int = 500,
    *,
    itl: float | None = None,
    ttft: float | None = None,
    tpot: float | None = None,
    every: float = 10.0,
    chunk: int | str = "engine",
    gpus: Sequence[str] | None = None,
    prices: str | Path | Mapping[str, float] | Prices | None = None,
    most: int | None = None,
    **server: Unpack[PlanOptions],
) -> GpuPlan:
    """Return the cheapest GPUs that serve a load within limits: for each part the smallest tensor-parallel size that does.

    The load is that of :func:`costmodel.plan_chunk`: streams at a context, a prompt every so often. Sizes are the powers of two within a
    node that divide the model. A part is out if the load does not fit at any size, or a limit does not hold. A part without a calibration
    is judged by the roofline, a floor: its no is certain, its yes is not, and it is advised only where no calibrated part will do.

    Args:
        prompt, every, streams, context: of the load.
        itl, ttft, tpot: limits on the longest gap, on the TTFT at the worst moment and on the mean gap [s]; at least one.
        chunk: token budget; ``"engine"`` for vLLM's default on each part.
        gpus: parts; None for those with a price, or without prices for all.
        prices: of one GPU for an hour, in a currency of your own: a CSV or TOML file, or a mapping (:func:`read_prices`).
        most: GPUs at most; None for a node.
        server: model and flags (:class:`~costmodel.planning.serving.PlanOptions`), without ``gpu``, ``tp``, ``kv_tokens`` and fixed times.

    Returns:
        The frozen document ``costmodel.plan/1``.

    Raises:
        InputError: a name, number or combination that cannot be, or no limit.
    """
    slo = limits_of(True, itl=itl, ttft=ttft, tpot=tpot)
    load = checked(streams, context, prompt, 1, every)
    for name in ("gpu", "tp", "kv_tokens", "decode_s", "prefill_s"):
        if server.get(name) is not None:
            raise InputError(
                f"{name} is what is asked for, or differs by part: leave it out"
                + (" and use gpus" if name == "gpu" else "")
            )
    if chunk != "engine":
        if isinstance(chunk, str):
            raise InputError(f"chunk must be a whole number or 'engine', not {chunk!r}")
        if whole(chunk, "chunk", 1) <= load.streams:
            raise InputError(
                f"a token budget of {chunk} leaves no room for a prompt beside {load.streams} streams; use at least {load.streams + 1}"
            )
    table = None if prices is None else read_prices(prices)
    names = _parts(gpus, table)
    largest = None if most is None else whole(most, "most", 1)
    tried = [option for name in names for option in _sizes(name, load, slo, chunk, server, table, largest)]
    options = _ranked(names, tried)
    good = [option for option in options if option.meets]
    best = min(good, key=lambda option: (option.rung == "roofline", *_rank(option))) if good else None
    calibration = (
        None if best is None else make_site({**server, "gpu": best.gpu, "tp": best.gpus}, load.prompt).info.calibration
    )
    common: dict[str, Any] = {
        "model": load_model(server.get("model", "Llama-3.1-8B"))[0].name,
        "gpu": None if best is None else best.name,
        "gpus": None if best is None else best.gpus,
        "rung": None if best is None else best.rung,
        "calibration": calibration,
        "workload": {
            "kind": "interference", "prompt_tokens": load.prompt, "streams": load.streams, "context_tokens": load.context,
            "every_s": load.every, "chunk_tokens": chunk,
        },
        "limits": slo,
        "options": tuple(options),
        "tried": tuple(tried),
        "currency": table.currency if table else None,
        "notes": () if table else ("no prices were given (--prices): sorted by the number of GPUs",),
    }  # fmt: skip
    if best is None:
        binding, binds, near = _refusal(tried, slo)
        if binding == "kv_memory":
            near = _that_holds(load, chunk, server)
        return GpuPlan(**common, feasible=False, binding=binding, binds=binds, nearest=near)
    warnings: tuple[str, ...] = ()
    if best.rung == "roofline":
        warnings = (
            "no part with a calibration will do: the advice rests on datasheet rates, a floor; measured steps take longer",
        )
    what = "cheapest" if table else "fewest GPUs"
    smaller = [each for each in tried if each.gpu == best.gpu and each.gpus < best.gpus]
    binding = _binding(smaller[-1], slo) if smaller else "price" if table else "gpus"
    binds = f"{what}: {best.gpus} × {best.name}"
    if smaller:
        binds += f"; with {smaller[-1].gpus}, {smaller[-1].why}"
    return GpuPlan(
        **common,
        feasible=True,
        binding=binding,
        binds=binds,
        advice=Advice(
            gpu=best.gpu,
            gpus=best.gpus,
            tensor_parallel=best.gpus,
            binding={"gpu": what, "gpus": binding, "tensor_parallel": binding},
        ),
        warnings=warnings,
    )


def _parts(gpus: Sequence[str] | None, prices: Prices | None) -> list[str]:
    if gpus is None:
        return (
            list(prices.per_hour)
            if prices
            else [name for name in gpu_names() if load_gpu(name)[0].architecture != "cpu"]
        )
    if isinstance(gpus, str) or not gpus:
        raise InputError("gpus must be a list of parts, e.g. ['h100', 'l40s']")
    names = list(dict.fromkeys(resolve_gpu(name).name for name in gpus))
    missing = [name for name in names if prices and name not in prices.per_hour]
    if missing:
        raise InputError(f"no price for {', '.join(missing)} in the table; add it, or leave the part out")
    return names


def _sizes(
    name: str, load: Steady, slo: Slo, chunk: int | str, server: PlanOptions, prices: Prices | None, most: int | None
) -> Iterable[GpuOption]:
    """Yield a part with 1, 2, 4 … GPUs, up to a node."""
    profile, _ = load_gpu(name)
    price = prices.per_hour[name] if prices else None
    try:
        whole_model = make_site({**server, "gpu": name}, load.prompt)
    except InputError as error:
        yield GpuOption(gpu=name, name=profile.name, gpus=1, meets=False, why=str(error))
        return
    deployment = whole_model.deployment
    assert deployment is not None  # no fixed step times
    size, limit = 1, most or int(profile.link.gpus_per_node.value)
    while size <= limit:
        if divides(deployment.architecture, size, deployment.ep):
            site = whole_model if size == 1 else make_site({**server, "gpu": name, "tp": size}, load.prompt)
            yield _option(site, name, profile.name, size, load, slo, chunk, price)
        size *= 2


def _option(
    site: Site, name: str, title: str, size: int, load: Steady, slo: Slo, chunk: int | str, price: float | None
) -> GpuOption:
    """Return one part with one number of GPUs, and whether it will do."""
    budget = site.default_budget if isinstance(chunk, str) else chunk
    cost = None if price is None else price * site.info.gpus
    common: dict[str, Any] = {
        "gpu": name,
        "name": title,
        "gpus": site.info.gpus,
        "rung": site.info.rung,
        "cost_per_hour": cost,
    }
    if budget <= load.streams:
        why = (
            f"its default token budget of {budget:,} has no room for a prompt beside {load.streams:,} streams (--chunk)"
        )
        return GpuOption(**common, meets=False, why=why)
    seats = max(min(site.default_seqs, budget), load.streams + 1)
    free = room(site, budget, seats)
    if free.blocks is not None and (needed := needed_blocks(free, load)) > free.blocks:
        why = (
            "the weights leave no room for a KV cache"
            if not free.blocks
            else f"KV cache: {needed:,} blocks are needed, {free.blocks:,} free"
        )
        return GpuOption(**common, meets=False, why=why)
    values = {key: measure(site.clock, load, budget) for key, measure in MEASURES.items()}
    missed = [
        f"{key.upper()} {over(values[key], limit) if values[key] < math.inf else 'without end: prompts come faster than they are taken'}"
        for key in MEASURES
        if (limit := getattr(slo, f"{key}_s")) is not None and values[key] > limit
    ]
    if values["tpot"] == math.inf and not missed:
        missed = ["prompts come faster than they are taken"]
    told: dict[str, Any] = {f"{key}_s": value for key, value in values.items() if value < math.inf}
    closest = max(
        ((values[key] / limit, key, limit) for key in MEASURES if (limit := getattr(slo, f"{key}_s")) is not None),
        default=None,
    )
    tokens = load.streams / values["tpot"] if values["tpot"] < math.inf else 0.0
    why = "; ".join(missed)
    if not missed and closest is not None:
        why = f"{closest[1].upper()} {ms(values[closest[1]])} of {ms(closest[2])}"
    return GpuOption(
        **common, meets=not missed, why=why, **told,
        cost_per_million_tokens=cost / (tokens * 3600) * 1e6 if cost is not None and tokens else None,
    )  # fmt: skip


def _that_holds(load: Steady, chunk: int | str, server: PlanOptions) -> tuple[Nearest, ...]:
    """Return the part, of all that are known, that holds a load with the fewest GPUs."""
    every = [option for name in _parts(None, None) for option in _sizes(name, load, Slo(), chunk, server, None, None)]
    holding = [option for option in every if option.tpot_s is not None]
    if not holding:
        return ()
    best = min(holding, key=lambda option: (option.gpus, option.rung == "roofline", option.tpot_s))
    return (
        Nearest(change="--gpu", value=best.gpus, text=f"{best.gpus} × {best.name} (--gpu {best.gpu}), which hold it"),
    )


def _rank(option: GpuOption) -> tuple[float, float, float]:
    """Return what options are sorted by: cost where it is known, GPUs, TPOT."""
    return option.cost_per_hour or 0.0, option.gpus, option.tpot_s or math.inf


def _ranked(names: Sequence[str], tried: Sequence[GpuOption]) -> list[GpuOption]:
    """Return one row per part: the fewest GPUs that will do, else the most that were tried; those that will do first."""
    rows = []
    for name in names:
        own = [option for option in tried if option.gpu == name]
        if own:
            rows.append(next((option for option in own if option.meets), own[-1]))
    return sorted(rows, key=lambda option: (not option.meets, *_rank(option)))


def _binding(option: GpuOption, slo: Slo) -> str:
    """Return the limit that an option misses."""
    if option.tpot_s is None and option.itl_s is None:
        return "kv_memory"
    for name in MEASURES:
        limit, value = getattr(slo, f"{name}_s"), getattr(option, f"{name}_s")
        if limit is not None and (value is None or value > limit):
            return name
    return "load"


def _refusal(tried: Sequence[GpuOption], slo: Slo) -> tuple[str, str, tuple[Nearest, ...]]:
    """Return which limit no part holds, in a sentence, and the nearest limits that one does."""
    running = [option for option in tried if option.tpot_s is not None]
    if not running:
        last = max(tried, key=lambda option: option.gpus)
        return "kv_memory", f"no part of those asked about holds the load, even with {last.gpus} GPUs: {last.why}", ()

    def excess(option: GpuOption) -> float:
        limits: dict[str, float] = {name: getattr(slo, f"{name}_s") for name in MEASURES}
        return max(float(getattr(option, f"{name}_s")) / limit for name, limit in limits.items() if limit is not None)

    best = min(running, key=excess)
    missed = [
        name
        for name in MEASURES
        if (limit := getattr(slo, f"{name}_s")) is not None and getattr(best, f"{name}_s") > limit
    ]
    what = f"with {best.gpus} × {best.name}" + (", together with the others" if len(missed) > 1 else "")
    near = [
        nearest_limit(name, getattr(best, f"{name}_s"), what).model_copy(update={"enough": len(missed) == 1})
        for name in missed
    ]
    binding = _binding(best, slo)
    return binding, f"no part holds the limits; the closest is {best.gpus} × {best.name}: {best.why}", tuple(near)

"""``plan_gpu``: for each part the fewest GPUs that serve a load within limits, and the cheapest of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from operator import attrgetter
from pathlib import Path
from typing import Any, Unpack

from costmodel.architecture.source import load_model
from costmodel.checks import whole
from costmodel.hardware.catalog import gpu_names, is_path, load_gpu
from costmodel.hardware.errors import InputError
from costmodel.planning.answering import counted, limits_of, ms, nearest_limit, sent, too_long, up, verified
from costmodel.planning.documents import Advice, GpuOption, GpuPlan, Nearest
from costmodel.planning.fitting_in import fewer_streams, seats, to_start
from costmodel.planning.part_sizes import Wanted, closest, rank, ranked, sizes, starting, taken
from costmodel.planning.serving import PlanOptions
from costmodel.planning.steady import MEASURES, checked
from costmodel.prices import Prices, read_prices

MOST_DOUBLINGS = 8
"""Of an expert-parallel size that is too small; beyond, nodes are not that large."""


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
        itl, ttft, tpot: limits on the longest gap, on the TTFT at the worst moment, from when the prompt is sent, and on the mean gap [s];
            at least one.
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
                f"a token budget of {chunk} leaves no room for a prompt beside {counted(load.streams, 'stream')}; "
                f"use at least {load.streams + 1}"
            )
    table = None if prices is None else read_prices(prices)
    parts = _parts(gpus, table)
    wanted = Wanted(load, slo, chunk, server, None if most is None else whole(most, "most", 1))
    plan = _plan(parts, wanted, table)
    if plan.feasible or not plan.nearest:
        return plan

    def again(name: str, value: Any) -> GpuPlan:
        if name in ("every", "prompt", "context", "streams"):
            return _plan(parts, replace(wanted, load=replace(load, **{name: value})), table)
        if name in MEASURES:
            return _plan(parts, replace(wanted, slo=slo.model_copy(update={f"{name}_s": value})), table)
        if name in ("chunk", "most"):
            return _plan(parts, replace(wanted, **{name: value}), table)
        changed: Any = {**server, name: value}
        return _plan(parts, replace(wanted, server=changed), table)

    other = [each for each in plan.nearest if each.gpu is not None]  # was tried to be found
    tried = verified(
        plan.model_copy(update={"nearest": tuple(each for each in plan.nearest if each.gpu is None)}), again
    )
    return tried.model_copy(update={"nearest": (*other, *tried.nearest)})


def _plan(parts: Mapping[str, str], wanted: Wanted, table: Prices | None) -> GpuPlan:
    """Answer :func:`plan_gpu`; ``parts``: canonical name → name or path of the profile."""
    load = wanted.load
    tried = [
        option
        for name, part in parts.items()
        for option in sizes(part, table.of(part if is_path(part) else name) if table else None, wanted)
    ]
    if all(
        option.missed == ("part",) for option in tried
    ):  # not the parts are to blame: a name, a number, or their combination
        raise InputError(tried[0].why)
    options = ranked(tried, wanted)
    good = [option for option in options if option.meets]
    best = min(good, key=lambda option: (option.rung == "roofline", *rank(option))) if good else None
    site = None if best is None else wanted.site(parts[best.gpu], best.tensor_parallel)
    notes: tuple[str, ...] = () if table else ("no prices were given (--prices): sorted by the number of GPUs",)
    if site is not None:  # several attention replicas: the load is that of each
        notes += tuple(note for note in site.notes if "attention replicas" in note)
    common: dict[str, Any] = {
        "model": load_model(wanted.server.get("model", "Llama-3.1-8B"))[0].name,
        "gpu": None if best is None else best.name,
        "gpus": None if best is None else best.gpus,
        "rung": None if best is None else best.rung,
        "calibration": None if site is None else site.info.calibration,
        "workload": {
            "kind": "interference", "prompt_tokens": load.prompt, "streams": load.streams, "context_tokens": load.context,
            "every_s": load.every, "chunk_tokens": wanted.chunk,
        },
        "limits": wanted.slo,
        "options": tuple(options),
        "tried": tuple(tried),
        "currency": table.currency if table else None,
        "notes": notes,
    }  # fmt: skip
    if best is None:
        binding, binds, near = _refusal(parts, tried, wanted)
        if (near_by := closest(tried, wanted)).ttft_s is not None:
            near_site = wanted.site(parts[near_by.gpu], near_by.tensor_parallel)
            common["notes"] += sent(near_site, load, f" on {near_by.name}")
        return GpuPlan(**common, feasible=False, binding=binding, binds=binds, nearest=near)
    warnings: tuple[str, ...] = ()
    if best.rung == "roofline":
        warnings = (
            "no part with a calibration will do: the advice rests on datasheet rates, a floor; measured steps take longer",
        )
    assert site is not None
    budget, starts = wanted.budget(site), best.max_model_len
    warnings += (*to_start(site, budget, seats(site, load, budget))[1], *best.warnings)
    common["notes"] += tuple(note for note in site.notes if note.startswith("calibration "))
    common["notes"] += sent(site, load, f" on {best.name}")
    what = "cheapest" if table else "fewest GPUs"
    smaller = [each for each in tried if each.gpu == best.gpu and each.tensor_parallel < best.tensor_parallel]
    binding = smaller[-1].missed[0] if smaller else "price" if table else "gpus"
    binds = f"{what}: {best.gpus} × {best.name}"
    alike = [each.gpu + starting(each) for each in good if (each.rung, rank(each)[:2]) == (best.rung, rank(best)[:2])]
    if len(alike) > 1:
        binds = f"{what}: {best.gpus} of any of {', '.join(alike)}; of these {best.name} has the least TPOT"
    if smaller:
        fewer = (
            f"{smaller[-1].gpus}"
            if smaller[-1].gpus < best.gpus
            else f"tensor-parallel size {smaller[-1].tensor_parallel}"
        )
        binds += f"; with {fewer}, {smaller[-1].why}"
    return GpuPlan(
        **common,
        feasible=True,
        binding=binding,
        binds=binds,
        advice=Advice(
            gpu=best.gpu,
            gpus=best.gpus,
            tensor_parallel=best.tensor_parallel,
            max_model_len=starts,
            binding={"gpu": what, "gpus": binding, "tensor_parallel": binding}
            | ({"max_model_len": "kv_memory"} if starts else {}),
        ),
        warnings=warnings,
    )


def _parts(gpus: Sequence[str] | None, table: Prices | None) -> dict[str, str]:
    """Return canonical name → name or path of the profile, of the parts to choose from.

    Raises:
        InputError: unknown parts, two of one name, or one without a price.
    """
    if gpus is None and table is None:
        return {name: name for name in gpu_names() if load_gpu(name)[0].architecture != "cpu"}
    if isinstance(gpus, str) or (gpus is not None and not gpus):
        raise InputError("gpus must be a list of parts, e.g. ['h100', 'l40s']")
    found: dict[str, str] = {}
    for part in table.per_hour if gpus is None and table else gpus or ():
        profile, choice = load_gpu(part)
        other = found.setdefault(choice.name, part)
        if load_gpu(other)[0] != profile:
            raise InputError(f"{other} and {part} have one name, {choice.name}: give one of the files another")
    missing = [name for name, part in found.items() if table and table.of(part if is_path(part) else name) is None]
    if missing:
        raise InputError(f"no price for {', '.join(missing)} in the table; add it, or leave the part out")
    return found


def _refusal(
    parts: Mapping[str, str], tried: Sequence[GpuOption], wanted: Wanted
) -> tuple[str, str, tuple[Nearest, ...]]:
    """Return which limit no part holds, in a sentence, and the nearest changes after which one does."""
    running = [option for option in tried if option.ttft_s is not None]
    if not running:
        last = max((option for option in tried if option.missed != ("part",)), key=lambda option: option.gpus)
        text = f"no part of those asked about holds the load, even with {last.gpus} GPUs: {last.why}"
        return last.missed[0], text, _that_holds(parts, last, wanted)
    best = closest(running, wanted)
    near = []
    for name in dict.fromkeys(name for option in running for name in option.missed):
        only = [option for option in running if option.missed == (name,)]
        if not only and name not in best.missed:
            continue
        measure = taken if name == "load" else attrgetter(f"{name}_s")
        reached = min(only, key=measure) if only else best
        value = measure(reached)
        what = f"with {reached.gpus} × {reached.name}"
        near.append(
            Nearest(change="--every", value=up(value), text=f"a prompt every {ms(up(value))} ({what})")
            if name == "load"
            else nearest_limit(name, value, what)
        )
    text = f"no part holds the limits; the closest is {best.gpus} × {best.name}: {best.why}"
    return best.missed[0], text, tuple(near)


def _that_holds(parts: Mapping[str, str], last: GpuOption, wanted: Wanted) -> tuple[Nearest, ...]:
    """Return what could be changed where the load runs on none of the parts: a flag, the load, or the part."""
    if last.missed == ("max_gpus",):
        return (Nearest(change="--max-gpus", value=last.gpus, text=f"--max-gpus {last.gpus}"),)
    if last.missed == ("token_budget",):
        return (Nearest(change="--chunk", value=wanted.load.one_step, text=f"--chunk {wanted.load.one_step}"),)
    site = wanted.site(parts[last.gpu], last.tensor_parallel)
    if last.missed == ("max_model_len",):
        longer = too_long(site, wanted.load)
        return tuple(longer[1]) if longer else ()
    options = [option for name in gpu_names() for option in sizes(name, None, replace(wanted, most=None))]
    fitting = [option for option in options if option.ttft_s is not None]
    if not fitting:
        budget = wanted.budget(site)
        fewer = fewer_streams(site, wanted.load, budget, seats(site, wanted.load, budget))
        return tuple(each for each in (_more_experts(parts, wanted), fewer) if each is not None)
    best = min(
        fitting, key=lambda option: (not option.meets, option.gpus, option.rung == "roofline", option.tpot_s or 0.0)
    )
    text = f"{best.gpus} × {best.name} (--gpu {best.gpu}){starting(best)}"
    if not best.meets:
        text += f", which hold it; not enough by itself, as then {best.why}"
    spread = _more_experts(parts, wanted)
    other = Nearest(change="--gpu", value=best.gpus, gpu=best.gpu, text=text, enough=best.meets)
    return (other, spread) if spread else (other,)


def _more_experts(parts: Mapping[str, str], wanted: Wanted) -> Nearest | None:
    """Return the first of 2, 4, 8 … times ``ep`` with which the load runs on one of the parts, where experts are spread already."""
    ep = int(wanted.server.get("ep", 1))
    for power in range(1, MOST_DOUBLINGS + 1 if ep > 1 else 1):
        size = ep * 2**power
        spread = replace(wanted, server={**wanted.server, "ep": size})
        options = [option for part in parts.values() for option in sizes(part, None, spread)]
        if any(option.ttft_s is not None for option in options):
            return Nearest(change="--ep", value=size, text=f"expert-parallel size {size}")
        if all(option.missed in (("part",), ("max_gpus",)) for option in options):
            break
    return None

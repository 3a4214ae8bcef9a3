"""From names and flags to a simulated server: its clock, its settings, and what has to be said about them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from costmodel.building import build_parameters
from costmodel.calibrations import choose_calibration
from costmodel.certainty import arrival_overheads, calibration_notes, rate_warnings
from costmodel.checks import choice, positive, whole
from costmodel.deployment import Deployment, deploy
from costmodel.encoder import ImageLoad, with_encoder, with_states
from costmodel.engine import default_max_num_seqs, default_token_budget
from costmodel.equations.rates import CalibratedRates
from costmodel.hardware.calibration import Calibration
from costmodel.hardware.errors import InputError, shown
from costmodel.image_documents import image_notes
from costmodel.memory import NOTHING
from costmodel.memory.blocks import BLOCK_TOKENS
from costmodel.memory.engines import default_settings
from costmodel.simulation import hints
from costmodel.simulation.cache import Background, cache_of
from costmodel.simulation.clock import Clock, FixedClock, StepClock, decode_alike
from costmodel.simulation.drafts import drafted
from costmodel.simulation.encoding import encoding_of
from costmodel.simulation.options import ONE_STEP, ServerOptions
from costmodel.simulation.ranges import Fitted
from costmodel.simulation.results import ServerInfo
from costmodel.simulation.settings import POLICIES, SCHEDULERS, Settings

Step = Callable[[float, float], float]
"""Sequences, tokens that each has in the cache → time of their decode step [s]."""


@dataclass(frozen=True, slots=True)
class Server:
    """A server that can be simulated.

    Attributes:
        clock: how long its steps take.
        settings: its flags.
        delay: between a request being sent and the engine having it: a time, and a time per token of its prompt [s].
        info: what is told of it.
        deployment: model and GPUs; None with fixed step times.
        notes, warnings: what has to be said.
        starts: largest ``max_model_len`` with which vLLM starts, where it does not start with the one that it has; None where it does.
        fitted: the calibration of the step times; None where they have none.
        pool_blocks: KV blocks in all, those that no request can have included; None where they are not worked out.
    """

    clock: Clock
    settings: Settings
    delay: tuple[float, float]
    info: ServerInfo
    deployment: Deployment | None
    notes: tuple[str, ...]
    warnings: tuple[str, ...]
    starts: int | None = None
    fitted: Fitted | None = None
    pool_blocks: int | None = None


def make_server(
    options: ServerOptions,
    prompt: int,
    budget: int | None = None,
    background: Background | None = None,
    typical: Callable[[Step], float] | None = None,
    images: ImageLoad | None = None,
) -> Server:
    """Build a server.

    Args:
        options: what the user set.
        prompt: tokens of the longest prompt, that ``prefill_s`` is the time of.
        budget: token budget where the options say nothing; None for vLLM's default [tokens].
        background: what the KV cache must hold, or else it is taken to be unlimited, and a warning says so. Where ``max_num_seqs`` is not
            set, it is vLLM's default, or as many as this takes.
        typical: returns the time of a typical decode step, given what returns that of any; None for requests that are
            with the engine as soon as they are sent.
        images: that prompts begin with, as :func:`~costmodel.simulation.encoding.images_of` gives them.

    Raises:
        InputError: an option is out of range, or they contradict each other.
    """
    usual = "prefill-first" if options.get("engine") == "sglang" and options.get("decode_s") is None else "vllm"
    scheduler = choice(options.get("scheduler") or usual, SCHEDULERS, "scheduler")
    policy = choice(options.get("policy", "fcfs"), POLICIES, "policy")
    decode, prefill = options.get("decode_s"), options.get("prefill_s")
    if (decode is None) != (prefill is None):
        raise InputError(
            "decode-ms and prefill-ms go together: the time of a decode step, and of a step with the prompt"
        )
    deployment: Deployment | None = None
    warnings: list[str] = []
    notes: list[str] = []
    clock: Clock
    fitted, trusted, rung, rates = None, None, "fixed", None
    if decode is not None and prefill is not None:
        clock = FixedClock(_step_time(decode, "decode"), _step_time(prefill, "prefill"), prompt)
    else:
        deployment = deploy(
            options.get("model", "Llama-3.1-8B"),
            options.get("gpu", "h100"),
            tp=options.get("tp", 1),
            ep=options.get("ep", 1),
            dtype=options.get("dtype"),
            kv_dtype=options.get("kv_dtype"),
            compute_dtype=options.get("compute_dtype"),
            lora=options.get("lora"),
        )
        notes += [*deployment.notes, *hints.stand_in(options.get("engine", "vllm"), options.get("scheduler"))]
        if options.get("rung") != "roofline":
            fitted = choose_calibration(
                options.get("calibration"),
                deployment,
                options.get("engine", "vllm"),
                options.get("assume_efficiency", False),
            )
        if fitted is None and options.get("rung") == "calibrated":
            raise InputError(
                f"no calibration of {deployment.gpu}; give one (--calibration FILE) or take --rung roofline"
            )
        if fitted is None:
            warnings.append("no calibration in use: steps at datasheet rates, a floor; measured ones take longer")
        rates = CalibratedRates(fitted) if fitted else None
        deployment = with_states(deployment, images)
        parameters = with_encoder(build_parameters(deployment, rates), deployment, images, rates)
        clock = StepClock(parameters)
        if rates is not None:
            trusted = Fitted(rates, parameters, deployment)
            notes += calibration_notes(fitted, options.get("engine", "vllm"))
            warnings += rate_warnings(rates)
        rung = "calibrated" if fitted else "roofline"
    settings = _settings(options, deployment, budget, background, scheduler, policy)
    if deployment is not None and images is not None and isinstance(clock, StepClock):
        settings = replace(settings, encoding=encoding_of(clock.parameters, images, settings))
        notes += image_notes(deployment, images, fitted)
    speculative = drafted(options, deployment, rates, clock)
    if speculative is not None:
        settings = replace(settings, drafting=speculative.drafting, asynchronous=False)
        notes += speculative.notes
        warnings += speculative.warnings
    cache = cache_of(options, deployment, settings, prompt, background, speculative.beside if speculative else NOTHING)
    settings = cache.settings
    warnings += cache.warnings
    notes += cache.notes
    delay = _delay(fitted, clock, settings.max_num_seqs, typical if deployment else None)
    info = ServerInfo(
        model=deployment.architecture.name if deployment else None,
        gpu=deployment.profile.name if deployment else None,
        gpus=deployment.gpus if deployment else 1,
        rung=rung,  # type: ignore[arg-type]
        calibration=fitted.name if fitted else None,
        token_budget=settings.token_budget,
        max_num_seqs=settings.max_num_seqs,
        kv_tokens=cache.tokens,
        block_tokens=settings.block_tokens,
        max_model_len=settings.max_model_len,
        scheduler=settings.scheduler,
        policy=settings.policy,
        chunked_prefill=settings.chunked_prefill,
        long_prefill_token_threshold=settings.long_prefill_token_threshold,
        prefix_caching=settings.prefix_caching,
        asynchronous=settings.asynchronous,
        request_overhead_s=delay[0],
        request_overhead_per_prompt_token_s=delay[1],
        speculation=speculative.info if speculative else None,
    )
    told = tuple(notes), tuple(warnings)
    return Server(clock, settings, delay, info, deployment, *told, cache.starts, trusted, cache.pool)


def _step_time(seconds: float, name: str) -> float:
    """Return a fixed step time that a simulation can go through [s]."""
    time = positive(seconds, f"{name}_s (--{name}-ms)")
    if not SHORTEST_STEP <= time <= LONGEST_STEP:
        raise InputError(
            f"{name}_s (--{name}-ms) must be from {SHORTEST_STEP:g} to {LONGEST_STEP:g} s "
            f"({SHORTEST_STEP * 1e3:g} to {LONGEST_STEP * 1e3:g} ms), not {time:g} s"
        )
    return time


SHORTEST_STEP, LONGEST_STEP = 1e-6, 1e6
"""Fixed step times [s]."""


def _delay(
    fitted: Calibration | None, clock: Clock, most: int, typical: Callable[[Step], float] | None
) -> tuple[float, float]:
    """Return the time of a request on its way to the engine, and per token of its prompt [s]; at most ``most`` requests run at once."""
    if typical is None:
        return 0.0, 0.0
    fixed, per_token, steps = arrival_overheads(fitted)

    def step(sequences: float, context: float) -> float:
        return decode_alike(clock, min(max(round(sequences), 1), most), context)

    return fixed + (steps * typical(step) if steps else 0.0), per_token


SARATHI_BUDGET = 512
"""Token budget of the Sarathi-style scheduler where none is given: the chunk size of the paper's figures (Agrawal et al., OSDI '24)."""


def _settings(
    options: ServerOptions,
    deployment: Deployment | None,
    budget: int | None,
    background: Background | None,
    scheduler: str,
    policy: str,
) -> Settings:
    chunk = options.get("chunk")
    if isinstance(chunk, str) and chunk in ONE_STEP and budget is not None:
        chunk = budget
    if isinstance(chunk, str) and chunk != "engine":
        words = "'engine'" if budget is None else "'engine' or 'one-step'"
        raise InputError(f"chunk must be a whole number or {words}, not {shown(chunk)}")
    if chunk is None and scheduler == "sarathi":
        chunk = SARATHI_BUDGET
    if chunk is None and budget is not None:
        chunk = budget
    if chunk is None or isinstance(chunk, str):
        chunk = default_token_budget(deployment) if deployment else FIXED_BUDGET
    chunk = whole(chunk, "chunk", 1)
    seqs = options.get("max_num_seqs")
    if seqs is None:
        seqs = default_max_num_seqs(deployment) if deployment else FIXED_SEQS
        if background is not None:
            seqs = max(seqs, background.streams + background.prompts)
        seqs = min(seqs, chunk)
    if scheduler == "sarathi" and not options.get("chunked_prefill", True):
        raise InputError(
            "the scheduler sarathi cuts prompts into chunks: it takes no --no-enable-chunked-prefill; use --scheduler vllm"
        )
    watermark = options.get("watermark", 0.0)
    if not isinstance(watermark, (int, float)) or not 0 <= watermark < 1:
        raise InputError(f"watermark must be a share of the KV cache from 0 to below 1, not {shown(watermark)}")
    settings = Settings(
        token_budget=chunk,
        max_num_seqs=whole(seqs, "max-num-seqs", 1, 1_000_000),
        block_tokens=whole(_block_tokens(options, deployment), "block-size", 1, 65536),
        chunked_prefill=bool(options.get("chunked_prefill", True)),
        long_prefill_token_threshold=whole(
            options.get("long_prefill_token_threshold", 0), "long-prefill-token-threshold"
        ),
        prefix_caching=bool(options.get("prefix_caching", True)),
        asynchronous=bool(options.get("asynchronous", True)),
        policy=policy,  # type: ignore[arg-type]
        reserve_full_prompt=bool(options.get("reserve_full_prompt", True)),
        watermark=float(watermark),
        scheduler=scheduler,  # type: ignore[arg-type]
    )
    if scheduler in ("vllm", "sarathi") and settings.token_budget < settings.max_num_seqs:
        raise InputError(
            f"a token budget of {settings.token_budget} is less than {settings.max_num_seqs} sequences that each take a token of it; "
            f"use --chunk {settings.max_num_seqs} or more, or --max-num-seqs {settings.token_budget} or fewer"
        )
    return settings


def _block_tokens(options: ServerOptions, deployment: Deployment | None) -> object:
    """Return the tokens of a KV block as they are asked for, or else vLLM's."""
    usual = default_settings(deployment).block_tokens if deployment else BLOCK_TOKENS
    return options.get("block_tokens", usual)


FIXED_BUDGET, FIXED_SEQS = 8192, 1024
"""Token budget and sequences with fixed step times: vLLM's defaults on an 80 GB part."""

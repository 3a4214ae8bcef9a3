"""The user's own model, GPU and load: what the numbers of every explanation are computed from."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from costmodel.architecture.types import Architecture
from costmodel.building import build_parameters, roofline_parameters
from costmodel.calibrations import choose_calibration
from costmodel.checks import whole
from costmodel.deployment import Deployment, deploy
from costmodel.engine import default_token_budget
from costmodel.equations.parameters import Parameters
from costmodel.equations.rates import CalibratedRates
from costmodel.equations.step import OperatorTime, step_operators
from costmodel.equations.work import Chunk, Decodes, make_work
from costmodel.hardware.calibration import Calibration
from costmodel.memory.engines import NOTHING, Beside
from costmodel.memory.pool import Pool, pool_of, workload_settings
from costmodel.solving import largest
from costmodel.speculation.asking import Speculation

Operators = Sequence[OperatorTime[float]]
MOST_STREAMS = 1_000_000


@dataclass(frozen=True, slots=True, eq=False)
class Scene:
    """A deployment under a load.

    Attributes:
        deployment: model and GPUs.
        fitted: the calibration in use; None on the roofline.
        parameters: of the headline rung.
        floor: of the roofline.
        context: tokens of a prompt, and of each stream in the KV cache.
        streams: sequences that decode together.
        output: tokens of an answer.
        cached: leading tokens of a prompt that were sent before; None where nothing is said.
        speculation: that is asked for; None where nothing is said.
    """

    deployment: Deployment
    fitted: Calibration | None
    parameters: Parameters
    floor: Parameters
    context: int
    streams: int
    output: int
    cached: int | None = None
    speculation: Speculation | None = None

    @property
    def architecture(self) -> Architecture:
        """The model."""
        return self.deployment.architecture

    @property
    def rung(self) -> str:
        """``calibrated`` where there is a calibration, else ``roofline``."""
        return "calibrated" if self.fitted else "roofline"

    def decode(self, streams: float, context: float, floor: bool = False) -> Operators:
        """Return the operators of a decode step of ``streams`` sequences with ``context`` tokens in the cache."""
        parameters = self.floor if floor else self.parameters
        return step_operators(parameters, make_work([], [Decodes(streams, context)], parameters.windows))

    def prefill(self, tokens: float, cached: float = 0, floor: bool = False) -> Operators:
        """Return the operators of a step that prefills ``tokens`` after ``cached`` ones, whole and alone."""
        parameters = self.floor if floor else self.parameters
        return step_operators(parameters, make_work([Chunk(tokens, cached)], [], parameters.windows))

    def changed(self, **fields: Any) -> Scene:
        """Return the scene with another architecture or hardware: fields of :class:`~costmodel.deployment.Deployment`."""
        return _scene(replace(self.deployment, **fields), self.fitted, self.context, self.streams, self.output)

    def pool(self, streams: int = 1, beside: Beside = NOTHING) -> Pool:
        """Return the KV cache of a vLLM server as it starts by default: that of :func:`costmodel.plan_memory` and of predictions.

        Args:
            streams: for which there must be places: more than vLLM has by default take a larger ``max_num_seqs``.
            beside: what is held beside the model: a draft.
        """
        budget = max(default_token_budget(self.deployment), streams)
        settings = workload_settings(self.deployment, budget, streams)
        return pool_of(self.deployment, replace(settings, beside=beside))

    @property
    def longest_start(self) -> int:
        """Largest ``max_model_len`` up to the model's own with which vLLM starts; 0 for none, or where the model's own is not known."""
        return self.pool(self.streams).longest(self.architecture.max_positions)

    @property
    def block_tokens(self) -> int:
        """Tokens of a KV block of the layers that keep all tokens: more than usual where states are to fit into a block."""
        groups = self.pool().groups
        return min(group.block_tokens for group in ([group for group in groups if group.keeps_all] or groups))

    def most_streams(self, context: int, beside: Beside = NOTHING) -> int:
        """Return how many sequences of ``context`` tokens the KV cache holds while they decode; 0 if not one."""

        def missing(streams: int) -> float:
            pool = self.pool(streams, beside)
            return float(streams * pool.stream(context) - pool.usable)

        return largest(missing, 0.0, 1, MOST_STREAMS) or 0


def make_scene(
    model: str = "Llama-3.1-8B",
    gpu: str = "h100",
    *,
    context: int = 8000,
    streams: int = 32,
    output: int = 500,
    tp: int = 1,
    pp: int = 1,
    ep: int = 1,
    dtype: str | None = None,
    kv_dtype: str | None = None,
    compute_dtype: str | None = None,
    lora: object = None,
    engine: str = "vllm",
    calibration: str | Path | Calibration | None = None,
    assume_efficiency: bool = False,
    cached_prefix: int | None = None,
    speculation: Speculation | None = None,
) -> Scene:
    """Resolve names and numbers into a :class:`Scene`; arguments as in :func:`costmodel.explain`.

    Raises:
        InputError: a name, number or combination that cannot be.
    """
    formats: dict[str, Any] = {"dtype": dtype, "kv_dtype": kv_dtype, "compute_dtype": compute_dtype}
    deployment = deploy(model, gpu, tp=tp, pp=pp, ep=ep, **formats, lora=lora)
    context, streams = whole(context, "context", 1), whole(streams, "streams", 1, MOST_STREAMS)
    output = whole(output, "output", 1)
    made = _scene(
        deployment, choose_calibration(calibration, deployment, engine, assume_efficiency), context, streams, output
    )
    return replace(made, cached=cached_prefix, speculation=speculation)


def _scene(deployment: Deployment, fitted: Calibration | None, context: int, streams: int, output: int) -> Scene:
    floor = roofline_parameters(deployment)
    parameters = build_parameters(deployment, CalibratedRates(fitted)) if fitted else floor
    return Scene(deployment, fitted, parameters, floor, context, streams, output)


MATRICES = ("linear", "experts", "lm_head")
"""Groups of operators that multiply with weights."""


STATES = ("gdn", "kda", "mamba2")
"""What recurrent layers are called in the names of operators."""


def of(operators: Operators, groups: Iterable[str]) -> Operators:
    """Return the operators of some groups: those of a step, or ``states``, recurrent layers, which are no ``attention`` here."""
    chosen = tuple(groups)
    return [item for item in operators if _group_of(item) in chosen]


def no_indexer(operators: Operators) -> Operators:
    """Return operators without those of an indexer, which chooses what attention looks at and is none itself."""
    return [item for item in operators if not item.name.partition("_")[2].startswith("indexer")]


def _group_of(item: OperatorTime[float]) -> str:
    kind = item.name.partition("_")[2].partition(".")[0]
    return "states" if kind in STATES else item.group


def time_of(operators: Operators) -> float:
    """Return the time of operators, which run one after the other [s]."""
    return float(sum(item.seconds for item in operators))


def flops_of(operators: Operators) -> float:
    """Return their FLOPs on one GPU."""
    return float(sum(item.flops for item in operators))


def bytes_of(operators: Operators) -> float:
    """Return the bytes that they move from and to the memory of one GPU; what goes over a link is left out."""
    return float(sum(item.bytes for item in operators if item.group != "communication"))


def lengths(first: int, last: int, *also: int) -> list[int]:
    """Return powers of two from ``first`` to ``last``, and ``last`` and the others that are given, in order."""
    found = {last, *(each for each in also if each >= 1)}
    while first < last:
        found.add(first)
        first *= 2
    return sorted(found)

"""One model on one set of GPUs: parallelism, number formats, and the parameters of the equations that follow from them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache

from costmodel.adapters import Lora, asked_lora, make_lora
from costmodel.architecture.families import ASSUMED_DTYPES
from costmodel.architecture.formats import ELEMENT_BITS, WeightFormat
from costmodel.architecture.source import load_model
from costmodel.architecture.types import Architecture
from costmodel.checks import text, whole
from costmodel.dtypes import choose_compute_dtype, choose_dtypes, choose_kv_dtype, layer_formats, main_format
from costmodel.equations.numerics import Value
from costmodel.hardware.catalog import load_gpu
from costmodel.hardware.errors import InputError, UnsupportedError
from costmodel.hardware.profile import GpuProfile


class PoolingError(InputError):
    """A model that pools, where one that writes text is needed."""


@dataclass(frozen=True, slots=True)
class Hardware:
    """The datasheet numbers that the equations use, per GPU."""

    peaks: Mapping[str, Value]
    """F by compute dtype [FLOP/s]."""
    bandwidth: Value
    """W [B/s]."""
    link_bandwidth: Value
    """B_link, per direction [B/s]."""
    units: Value = 1
    """SM, multiprocessors or compute units; 1 where the profile does not say."""


@dataclass(frozen=True, slots=True, eq=False)
class Deployment:
    """A model as it runs: which GPUs, how it is divided, which number formats. Compared by identity, so that results can be cached.

    Attributes:
        architecture: the model, its weight formats already those that are served.
        profile: the GPU part.
        gpu: canonical name of the part, or the path of the user's own profile.
        hardware: numbers of the part (or symbols).
        tp, pp, ep: tensor-, pipeline- and expert-parallel sizes.
        dtype: weight dtype as shown to people (``bf16``, ``fp8`` …; ``mxfp4`` for a checkpoint whose experts are mxfp4).
        activation_dtype: dtype of activations.
        kv_dtype: dtype of the KV cache.
        compute_dtype: forced compute dtype of weight kernels, None to follow each weight format.
        activation_bytes, kv_bytes: b_a and b_kv [B].
        format_bytes: b_w per weight format, scales included [B].
        layer_counts: layers of each kind of the architecture.
        lora: adapters as the engine holds them, their targets kernels; None without.
        notes: choices that were made for the user.
        siblings: other parts that the name given for the GPU may mean, canonical names.
        encoder_states: E, states of an encoder that every sequence attends to in layers of cross-attention; 0 for none.
    """

    architecture: Architecture
    profile: GpuProfile
    gpu: str
    hardware: Hardware
    tp: int
    pp: int
    ep: int
    dtype: str
    activation_dtype: str
    kv_dtype: str
    compute_dtype: str | None
    activation_bytes: Value
    kv_bytes: Value
    format_bytes: Mapping[WeightFormat, Value]
    layer_counts: tuple[Value, ...]
    lora: Lora | None = None
    notes: tuple[str, ...] = ()
    siblings: tuple[str, ...] = ()
    encoder_states: Value = 0

    @property
    def gpus(self) -> int:
        """GPUs in all: p·max(t, e)."""
        return self.pp * max(self.tp, self.ep)

    @property
    def replicas(self) -> int:
        """Attention replicas that share one set of experts: e/t, at least 1."""
        return max(self.ep // self.tp, 1)

    @property
    def attention_dtype(self) -> str:
        """Dtype that attention multiplies in: the activations', or fp8 with an fp8 cache on a part that can.

        FlashAttention-3 and FlashInfer multiply in 8 bits then, and the floor must allow it.
        """
        if self.kv_dtype == "fp8" and "fp8" in self.hardware.peaks:
            return "fp8"
        return self.activation_dtype

    def compute_dtype_of(self, fmt: WeightFormat) -> str:
        """Return the dtype that products with weights of ``fmt`` are computed in on this part."""
        return choose_compute_dtype(fmt, self.activation_dtype, self.compute_dtype, self.hardware.peaks)


def deploy(
    model: str = "Llama-3.1-8B",
    gpu: str = "h100",
    *,
    tp: int = 1,
    pp: int = 1,
    ep: int = 1,
    dtype: str | None = None,
    kv_dtype: str | None = None,
    compute_dtype: str | None = None,
    lora: object = None,
    pooling: bool = False,
    encoder: bool = False,
) -> Deployment:
    """Resolve names and options into a :class:`Deployment`.

    Args:
        model: preset, ``config.json``, folder, or name in the local Hugging Face cache.
        gpu: name or alias of a part, or the path of a profile.
        tp, pp, ep: parallel sizes; ``ep`` is 1 or a multiple of ``tp``. With ep > tp, ep/tp attention replicas share the experts, and a
            workload is that of each replica.
        dtype: weight dtype; None for the checkpoint's.
        kv_dtype: KV-cache dtype; None for the activations', or fp8 where the checkpoint carries KV scales.
        compute_dtype: dtype of the products; None for the best that weights and part allow.
        lora: LoRA adapters (:class:`~costmodel.adapters.Lora`, its fields by name, or the path of one); None for none.
        pooling: whether a model that pools is taken, which has no decode steps.
        encoder: the caller counts what an encoder that serves every request takes (Whisper's); models that have one are refused else.

    Raises:
        InputError: unknown names, sizes that do not divide the model, a dtype that the part cannot compute in, or a model that pools
            where one that writes text is needed.
    """
    model, gpu = text(model, "model"), text(gpu, "gpu")
    sizes = [whole(size, name, 1) for name, size in (("tp", tp), ("pp", pp), ("ep", ep))]
    formats = [
        None if value is None else text(value, name)
        for name, value in (("dtype", dtype), ("kv_dtype", kv_dtype), ("compute_dtype", compute_dtype))
    ]
    made = _deploy(model, gpu, *sizes, *formats, *asked_lora(lora), _stamp(model), _stamp(gpu))
    if made.architecture.bidirectional and kv_dtype not in (None, "auto"):
        raise InputError(
            f"{made.architecture.name} keeps no KV cache, since every token sees both ways; leave --kv-dtype out"
        )
    if made.architecture.pooling and not pooling:
        raise PoolingError(
            f"{made.architecture.name} pools: it embeds or classifies documents and writes no text, so it has no decode steps, TPOT or "
            "streams; `costmodel predict` (in Python `costmodel.predict_embedding`), `plan memory` and `formula prefill` take it"
        )
    if not encoder and made.architecture.vision is not None and made.architecture.vision.frames is not None:
        raise UnsupportedError(
            f"{made.architecture.name} encodes audio for every request, which only `costmodel predict` counts so far"
        )
    return made


def _stamp(name: str) -> float:
    """Return the modification time of a file or folder, so that the cache forgets one that changed; 0.0 for plain names."""
    try:
        latest = os.stat(os.path.expanduser(name) if name.startswith("~") else name).st_mtime
    except (OSError, ValueError):
        return 0.0
    folder = os.path.dirname(name) if name.endswith(".json") else name
    for path in (f"{folder}/config.json", f"{folder}/hf_quant_config.json"):
        with suppress(OSError, ValueError):
            latest = max(latest, os.stat(os.path.expanduser(path)).st_mtime)
    return latest


@lru_cache(maxsize=256)
def _deploy(
    model: str,
    gpu: str,
    tp: int,
    pp: int,
    ep: int,
    dtype: str | None,
    kv_dtype: str | None,
    compute_dtype: str | None,
    lora: Lora | None,
    lora_notes: tuple[str, ...],
    *_stamps: float,
) -> Deployment:
    architecture, model_note = load_model(model)
    return deploy_architecture(
        architecture,
        gpu,
        tp=tp,
        pp=pp,
        ep=ep,
        dtype=dtype,
        kv_dtype=kv_dtype,
        compute_dtype=compute_dtype,
        lora=lora,
        note=model_note,
        lora_notes=lora_notes,
    )


def _check_adapted(architecture: Architecture) -> None:
    """Refuse adapters of a model whose adapters have no equations here."""
    if architecture.pooling:
        raise UnsupportedError(f"{architecture.name} pools; LoRA adapters of models that pool have no equations here")
    if any(kind.attention.shared_kv for kind in architecture.kinds):
        raise UnsupportedError(
            f"{architecture.name}: LoRA adapters of attention whose key is its value have no equations here"
        )
    if any(kind.cross is not None for kind in architecture.kinds):
        raise UnsupportedError(
            f"{architecture.name} has cross-attention; LoRA adapters beside it have no equations here"
        )


def deploy_architecture(
    architecture: Architecture,
    gpu: str,
    *,
    tp: int = 1,
    pp: int = 1,
    ep: int = 1,
    dtype: str | None = None,
    kv_dtype: str | None = None,
    compute_dtype: str | None = None,
    lora: Lora | None = None,
    note: str = "",
    lora_notes: tuple[str, ...] = (),
) -> Deployment:
    """Resolve as :func:`deploy` does, for an architecture that is in no file, such as that of a measurement.

    Args:
        architecture: of the model.
        gpu, tp, pp, ep, dtype, kv_dtype, compute_dtype: as in :func:`deploy`.
        lora: adapters, as :func:`~costmodel.adapters.asked_lora` gives them.
        note: where the architecture comes from.
        lora_notes: what should be said of them.

    Raises:
        InputError: as in :func:`deploy`.
    """
    profile, choice = load_gpu(gpu)
    said = architecture.notes if dtype is None else [text for text in architecture.notes if text not in ASSUMED_DTYPES]
    notes = [text for text in (choice.note, note, *said) if text]
    activation, architecture, forced = choose_dtypes(architecture, profile, dtype, choice.name)
    notes += [forced] if forced else []
    check_parallelism(architecture, tp, pp, ep)
    if compute_dtype is not None and compute_dtype not in profile.peak_flops:
        known = ", ".join(profile.peak_flops)
        raise InputError(f"{profile.name} cannot compute in {compute_dtype!r}; it has {known}")
    adapters = None
    if lora is not None:
        _check_adapted(architecture)
        adapters, more = make_lora(lora, architecture, tp, ep)
        notes += [*lora_notes, *more]
    cache_dtype = choose_kv_dtype(kv_dtype, architecture, activation)
    formats = {fmt for kind in architecture.kinds for fmt in layer_formats(kind)}
    formats |= {architecture.lm_head_format, architecture.embedding_format}
    hardware = Hardware(
        {name: figure.value for name, figure in profile.peak_flops.items()},
        profile.memory_bandwidth.value,
        profile.link.bandwidth_per_direction.value,
        1.0 if profile.compute_units is None else profile.compute_units.value,
    )
    if ep > tp:
        notes.append(
            f"{ep // tp} attention replicas of {tp} GPU{'s' if tp > 1 else ''} share the experts; "
            "streams and prompts are those of each replica"
        )
    per_stage = max(tp, ep)
    if per_stage > profile.link.gpus_per_node.value:
        notes.append(
            f"{per_stage} GPUs per pipeline stage are more than one node of {profile.link.gpus_per_node.value:g}: "
            "the link between nodes is not in the profile, the link within a node is used"
        )
    deployment = Deployment(
        architecture=architecture,
        profile=profile,
        gpu=choice.name,
        hardware=hardware,
        tp=tp,
        pp=pp,
        ep=ep,
        dtype=dtype or main_format(architecture).name,
        activation_dtype=activation,
        kv_dtype=cache_dtype,
        compute_dtype=compute_dtype,
        activation_bytes=ELEMENT_BITS[activation] / 8,
        kv_bytes=ELEMENT_BITS[cache_dtype] / 8,
        format_bytes={fmt: fmt.bytes_per_weight for fmt in formats},
        layer_counts=tuple(architecture.pattern.count(index) for index in range(len(architecture.kinds))),
        lora=adapters,
        notes=tuple(notes),
        siblings=choice.also,
    )
    for fmt in formats:
        deployment.compute_dtype_of(fmt)  # refuse now what the part cannot compute
    return deployment


def check_parallelism(architecture: Architecture, tp: int, pp: int, ep: int) -> None:
    """Refuse parallel sizes that the model cannot be divided by.

    Raises:
        InputError: heads, widths or experts not divisible; more stages than layers.
    """
    name = architecture.name
    if not divides(architecture, tp, ep):
        most = most_gpus(architecture)
        possible = [size for size in range(1, most + 1) if divides(architecture, size, ep)]
        raise InputError(
            f"tp {tp} does not divide the heads and feed-forward widths of {name}; possible: {', '.join(map(str, possible))}"
        )
    for kind in architecture.kinds:
        ff = kind.feed_forward
        if ep > 1 and ff.kind == "moe" and ff.experts % ep:
            close = min((n for n in range(1, ff.experts + 1) if ff.experts % n == 0), key=lambda n: abs(n - ep))
            raise InputError(
                f"ep {ep} does not divide the {ff.experts} experts of {name}; the nearest that does is {close}"
            )
    if pp > architecture.layer_count:
        raise InputError(f"pp {pp} is more than the {architecture.layer_count} layers of {name}")
    if ep > 1 and all(kind.feed_forward.kind != "moe" for kind in architecture.kinds):
        raise InputError(f"ep {ep} needs a mixture of experts; {name} is dense, so ep must be 1")
    if ep > 1 and ep % tp:
        raise InputError(f"ep {ep} must be 1 or a multiple of tp {tp}; the nearest is {max(tp, ep // tp * tp)}")


def most_gpus(architecture: Architecture) -> int:
    """Return the largest tensor-parallel size that is worth trying: the heads of the layers with most."""
    heads = [kind.attention.query_heads for kind in architecture.kinds]
    heads += [kind.state.heads for kind in architecture.kinds if kind.state is not None]
    return int(max(heads))


def divides(architecture: Architecture, tp: int, ep: int = 1) -> bool:
    """Tell whether ``tp`` GPUs can share every layer: query heads, KV heads (or copies of them), states and feed-forward widths.

    Recurrent layers divide by their heads and by their key heads or groups; a single group is copied (mamba_mixer2.py of vLLM).
    """
    for kind in architecture.kinds:
        heads, kv_heads, ff = kind.attention.query_heads, kind.attention.kv_heads, kind.feed_forward
        if heads % tp or (kv_heads and tp % kv_heads and kv_heads % tp):
            return False
        if kind.attention.output_groups and kind.attention.output_groups % tp:
            return False
        if kind.cross is not None and (kind.cross.query_heads % tp or kind.cross.kv_heads % tp):
            return False
        if (state := kind.state) is not None and (state.heads % tp or (state.key_heads != 1 and state.key_heads % tp)):
            return False
        widths = [ff.shared_intermediate] if ff.kind == "moe" and ep > 1 else [ff.intermediate, ff.shared_intermediate]
        if any(width % tp for width in widths):
            return False
    return True


def stage_layers(layers: int, stages: int) -> tuple[int, ...]:
    """Return the layers of each pipeline stage, as vLLM divides them: evenly, what is left over one each from the last but one backwards.

    Source: ``get_pp_indices`` in vllm/distributed/utils.py.
    """
    sizes = [layers // stages] * stages
    for index in range(layers % stages):
        sizes[(stages - 2 - index) % stages] += 1
    return tuple(sizes)

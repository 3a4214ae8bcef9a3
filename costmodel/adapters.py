"""LoRA adapters: what is asked of an engine, which matrices have one, and the shapes of A and B on one GPU.

An adapter of rank r adds x·A·B to the product x·W of a matrix (Hu et al., arXiv:2106.09685). An engine keeps the adapters apart from the
weights, so that requests in one batch may use different ones (Punica, Chen et al., arXiv:2310.18547; S-LoRA, Sheng et al.,
arXiv:2311.03285). The rules here are those of vLLM 0.32 (vllm/lora/model_manager.py, vllm/lora/layers):

- every linear layer is wrapped, and in some families the embedding and lm_head; ``--lora-target-modules`` restricts that. A wrapped layer
  runs its kernels whatever the adapter of a request has: missing matrices are zeros;
- matrices fused into one kernel (q, k and v; gate and up) share its wrapping, with an A and a B for each: *slices*;
- buffers and kernels have the rank that the engine is told, ``--max-lora-rank``, one of :data:`RANKS`;
- tensor parallelism divides B of layers divided by columns, and A of those divided by rows; ``--fully-sharded-loras`` the other one too.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from costmodel.architecture.linears import Linear, layer_linears, state_share
from costmodel.architecture.types import Architecture, LayerKind
from costmodel.checks import whole
from costmodel.equations.numerics import Value
from costmodel.hardware.errors import InputError, nearest, shown, suggestion
from costmodel.hardware.reading import read_text, shown_path

RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""Values of ``--max-lora-rank`` (``MaxLoRARanks`` in vllm/config/lora.py); a rank between two takes the larger."""
DEFAULT_RANK = 16
ALL, LINEAR = "all", "all-linear"
"""Targets: all that vLLM wraps unless it is told otherwise; the same without embedding, lm_head and convolutions."""
EMBEDDING, LM_HEAD = "embed_tokens", "lm_head"
BOTH_ENDS = frozenset(
    ("granite", "llama", "llama4_text", "mixtral", "nemotron-nas", "nemotron_h", "phi3", "phimoe", "qwen3", "qwen3_5_moe_text",
     "qwen3_5_text", "qwen3_moe", "qwen3_vl_moe_text", "qwen3_vl_text")
)  # fmt: skip
FIRST_END = frozenset(("cohere", "cohere2", "glm", "gpt_neox", "olmo2", "phi", "smollm3", "starcoder2"))
"""Model types of which vLLM wraps embedding and lm_head as well, and the embedding alone (``embedding_modules`` of their classes)."""
WITHOUT = frozenset(("falcon", "gptj", "mimo_v2_flash"))
"""Model types of which vLLM serves no adapters."""
ROWS = frozenset(("o_proj", "down_proj", "out_proj"))
"""Kernels that tensor parallelism divides by rows."""
WHOLE = frozenset(
    ("q_a_proj", "kv_a_proj", "router", "shared_expert_gate", "wq_b", "wk", "weights_proj", "latent_in_proj", "latent_out_proj")
)  # fmt: skip
"""Kernels that every GPU holds whole; all others are divided by columns."""
EXPERTS, CONVOLUTION = "experts", "conv1d"
KERNELS_OF: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("q_proj", "q"), ("qkv_proj", "q_proj")),
    **dict.fromkeys(("k_proj", "k", "v_proj", "v", "query_key_value"), ("qkv_proj",)),
    "o": ("o_proj",),
    "gate_proj": ("gate_up_proj",),
    "up_proj": ("gate_up_proj", "up_proj"),
    **dict.fromkeys(("q_a_proj", "kv_a_proj", "kv_a_proj_with_mqa", "fused_qkv_a_proj"), ("q_a_proj", "kv_a_proj")),
    **dict.fromkeys(("in_proj_qkvz", "in_proj_qkv", "in_proj_z"), ("in_proj",)),
    **dict.fromkeys(("in_proj_b", "in_proj_a"), ("in_proj_ba",)),
    "gate": ("router",),
}
"""Name of a module in adapters and in vLLM, or its first letter → the kernels of a layer that hold it."""
REFUSED = ("use_dora", "lora_bias", "use_qalora", "use_bdlora", "layer_replication", "alora_invocation_tokens")
"""Features of an adapter with which vLLM does not load it (vllm/lora/peft_helper.py)."""


@dataclass(frozen=True, slots=True)
class Lora:
    """LoRA adapters, as an engine is told of them.

    Attributes:
        rank: r, ``--max-lora-rank``; None for that of ``adapter``, or else vLLM's default, :data:`DEFAULT_RANK`.
        adapters: ``--max-loras``, places for adapters on the GPU, and the most that requests of one step use. Requests are taken to be
            spread over as many, all with an adapter; none is the model without.
        targets: ``"all"``, ``"all-linear"``, or names of modules (``q_proj`` …), as ``--lora-target-modules``.
        fully_sharded: ``--fully-sharded-loras``.
        adapter: path of an adapter, or of its ``adapter_config.json``, whose rank it is.
    """

    rank: Value = None
    adapters: Value = 1
    targets: str | tuple[str, ...] = ALL
    fully_sharded: bool = False
    adapter: str | None = None

    def has(self, kernel: str) -> bool:
        """Tell whether a kernel, by its name without prefix, is among the targets, once they are kernels."""
        return kernel in self.targets


@dataclass(frozen=True, slots=True)
class Adapted:
    """The adapter of one kernel of one layer on one GPU.

    Attributes:
        linear: the kernel.
        slices: matrices fused in it, each with an A and a B.
        a_rank: columns of A on this GPU: r, or r/t.
        rank: r, rows of B.
        outputs: columns of B on this GPU, of all slices together.
        split: how tensor parallelism divides the kernel: ``rows``, ``columns`` or not at all.
        runs: False for the convolution of a recurrent layer, which has buffers and never runs its kernels.
    """

    linear: Linear
    slices: int
    a_rank: Value
    rank: Value
    outputs: Value
    split: str
    runs: bool = True

    @property
    def shrink(self) -> Value:
        """Weights of A: slices·k·r."""
        return self.slices * self.linear.inputs * self.a_rank

    @property
    def expand(self) -> Value:
        """Weights of B: r·m."""
        return self.rank * self.outputs


def adapted_linears(model_type: str, kind: LayerKind, hidden: Value, tp: int, ep: int, lora: Lora) -> list[Adapted]:
    """Return the adapters of one layer on one GPU; those of experts are of one expert, ``linear.copies`` times over."""
    found = []
    if kind.state is not None and lora.has(CONVOLUTION):
        share = state_share(kind.state, tp)
        linear = Linear(CONVOLUTION, "attention", kind.state.conv_kernel, share.conv_width, kind.formats.attention)
        slices, a_rank = 3 if kind.state.kind == "mamba2" else 1, lora.rank / tp if lora.fully_sharded else lora.rank
        found.append(Adapted(linear, slices, a_rank, lora.rank, linear.outputs, "columns", runs=False))
    for linear in layer_linears(kind, hidden, tp, ep):
        name = kernel_name(linear)
        if not lora.has(name) or _bare(kind, linear):
            continue
        base = linear.name.rpartition(".")[2]
        split = "rows" if base in ROWS else "whole" if base in WHOLE else "columns"
        shared = tp if lora.fully_sharded and tp > 1 and split != "whole" else 1
        found.append(
            Adapted(
                linear,
                _slices(model_type, kind, linear),
                lora.rank / shared if split == "columns" and shared > 1 else lora.rank,
                lora.rank,
                linear.outputs / shared if split == "rows" and shared > 1 else linear.outputs,
                split,
            )
        )
    return found


def kernel_name(linear: Linear) -> str:
    """Return by which name a kernel is a target: without prefix; routed experts all together."""
    return EXPERTS if linear.group == EXPERTS else linear.name.rpartition(".")[2]


def _bare(kind: LayerKind, linear: Linear) -> bool:
    """Tell whether a kernel is never wrapped: the router of experts without a gate (``_create_lora_modules``)."""
    return linear.name == "router" and not kind.feed_forward.gated


def _slices(model_type: str, kind: LayerKind, linear: Linear) -> int:
    """Return the matrices fused in a kernel, as ``packed_modules_mapping`` of the model's class has them."""
    base, fused_in_file = linear.name.rpartition(".")[2], model_type == "phi3"
    if base == "qkv_proj" and not fused_in_file:
        return 2 if kind.attention.keys_are_values else 3
    if base == "gate_up_proj" and not fused_in_file:
        stacked = linear.group == EXPERTS and model_type in ("gpt_oss", "qwen3_5_moe_text", "qwen3_vl_moe_text")
        return 1 if stacked else 2
    if base == "in_proj":
        mamba = kind.state is not None and kind.state.kind == "mamba2"
        return 5 if mamba else 1 if model_type == "qwen3_next" else 4
    return 2 if base == "in_proj_ba" and model_type != "qwen3_next" else 1


def targets_of(architecture: Architecture) -> tuple[str, ...]:
    """Return the kernels that may have adapters, embedding and lm_head last where they may."""
    kernels = dict.fromkeys(
        kernel_name(linear)
        for kind in architecture.kinds
        for linear in layer_linears(kind, architecture.hidden)
        if not _bare(kind, linear)
    )
    convolutions = (CONVOLUTION,) if any(kind.state is not None for kind in architecture.kinds) else ()
    model_type = architecture.model_type
    ends = (EMBEDDING, LM_HEAD) if model_type in BOTH_ENDS else (EMBEDDING,) if model_type in FIRST_END else ()
    return (*kernels, *convolutions, *ends)


def asked_lora(asked: object) -> tuple[Lora | None, tuple[str, ...]]:
    """Return the adapters asked for, with a rank, and what should be said of them; None for none.

    Args:
        asked: a :class:`Lora`, its fields by name, or the path of an adapter.

    Raises:
        InputError: it is none of these, or the adapter cannot be read.
    """
    if isinstance(asked, str | os.PathLike):
        asked = Lora(adapter=os.fspath(asked))
    if isinstance(asked, Mapping):
        names = [each.name for each in fields(Lora)]
        for name in asked:
            if name not in names:
                raise InputError(f"lora has no {shown(name)}; it has {', '.join(names)}")
        asked = Lora(**asked)
    if asked is None:
        return None, ()
    if not isinstance(asked, Lora):
        raise InputError(f"lora must be a costmodel.Lora or the path of an adapter, not {shown(asked)}")
    if whole(asked.adapters, "loras", 0, 100_000) == 0:
        return None, ()
    rank, notes = (DEFAULT_RANK, ()) if asked.adapter is None else read_adapter(asked.adapter)
    if asked.rank is not None:
        given = whole(asked.rank, "lora-rank", 1)
        if asked.adapter is not None and given < rank:
            raise InputError(
                f"lora-rank {given} is less than the {rank} of the adapter; use --lora-rank {rank} or more"
            )
        rank = given
    if rank > RANKS[-1]:
        raise InputError(f"lora-rank {rank} is more than vLLM allows; use {RANKS[-1]} or less")
    targets = asked.targets
    if not isinstance(targets, str):
        try:
            targets = tuple(map(str, targets))
        except TypeError:
            raise InputError(f"lora-targets must be names of modules, not {shown(targets)}") from None
    return replace(asked, rank=rank, adapters=int(asked.adapters), targets=targets, adapter=None), notes


def plain(lora: Lora | None) -> dict[str, Any] | None:
    """Return adapters as something that JSON has, which :func:`asked_lora` takes again."""
    return None if lora is None else asdict(lora)


def make_lora(lora: Lora, architecture: Architecture, tp: int, ep: int) -> tuple[Lora, tuple[str, ...]]:
    """Return what an engine makes of adapters: rank as it is allocated, targets as kernels; and what should be said.

    Args:
        lora: as :func:`asked_lora` gives it.
        architecture: of the model.
        tp, ep: parallel sizes.

    Raises:
        InputError: no such target, or full sharding where that cannot be.
    """
    notes: tuple[str, ...] = ()
    if architecture.model_type in WITHOUT:
        notes = (f"vLLM serves no LoRA adapters for {architecture.model_type}",)
    rank = min(size for size in RANKS if size >= lora.rank)
    if rank != lora.rank:
        notes += (f"adapters of rank {lora.rank} take memory and time as of rank {rank}, vLLM's next larger one",)
    if lora.fully_sharded and rank % tp:
        raise InputError(f"fully sharded adapters of rank {rank} are not divided by tp {tp}; use a rank that is")
    if lora.fully_sharded and ep > 1:
        raise InputError("fully sharded adapters do not go with expert parallelism; leave out one of them")
    return replace(lora, rank=rank, targets=_kernels(lora.targets, architecture)), notes


def _kernels(targets: str | tuple[str, ...], architecture: Architecture) -> tuple[str, ...]:
    """Return the kernels that targets name."""
    known = targets_of(architecture)
    names = [name.strip() for name in (targets.split(",") if isinstance(targets, str) else targets)]
    if names == [ALL]:
        return known
    if names == [LINEAR]:
        return tuple(name for name in known if name not in (EMBEDDING, LM_HEAD, CONVOLUTION))
    chosen: set[str] = set()
    for name in names:
        found = [kernel for kernel in KERNELS_OF.get(name, (name,)) if kernel in known]
        if not found:
            close = nearest(name, known)
            hint = suggestion(close) if close else f"use {ALL}, {LINEAR}, or some of {', '.join(known)}"
            raise InputError(f"lora-targets: {architecture.name} has no {shown(name)} that may have an adapter; {hint}")
        chosen |= set(found)
    return tuple(name for name in known if name in chosen)


def read_adapter(path: str | os.PathLike[str]) -> tuple[int, tuple[str, ...]]:
    """Return the rank of an adapter, by its ``adapter_config.json`` (PEFT), and what should be said of it.

    Its ``target_modules`` are told and are no targets: an engine wraps what it is told to, whatever the adapter has. Scaling
    (``lora_alpha``, rsLoRA) is multiplied into B and costs nothing.

    Args:
        path: of the file or its folder.

    Raises:
        InputError: no such file, no LoRA adapter, or one that vLLM does not load.
    """
    file = Path(os.path.expanduser(path))
    file = file / "adapter_config.json" if file.is_dir() else file
    where = f"adapter {shown_path(file)}"
    try:
        config = json.loads(read_text(file, "adapter"))
    except json.JSONDecodeError:
        raise InputError(f"{where}: is not JSON") from None
    if not isinstance(config, dict) or "r" not in config:
        raise InputError(f"{where}: has no rank 'r', so it is no configuration of a LoRA adapter")
    refused = [name for name in REFUSED if config.get(name)]
    refused += ["bias"] if config.get("bias", "none") != "none" else []
    if refused:
        raise InputError(f"{where}: has {', '.join(refused)}, with which vLLM does not load it")
    pattern = config.get("rank_pattern") or {}
    ranks = [config["r"], *(pattern.values() if isinstance(pattern, dict) else ())]
    rank = max(whole(each, f"{where}: rank", 1) for each in ranks)
    modules = config.get("target_modules")
    if not isinstance(modules, list) or not modules:
        return rank, ()
    names = ",".join(sorted(map(str, modules)))
    said = f"the adapter has {names}; vLLM runs the kernels of all layers that it wraps, and wraps these alone with --lora-targets {names}"
    return rank, (said,)

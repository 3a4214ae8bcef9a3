"""The answer of ``costmodel plan memory`` as text."""

from __future__ import annotations

from costmodel.cli.text import adapters, count, gib, percent, plural, size, table, wrapped
from costmodel.memory.documents import MemoryPlan

BAR = 60
"""Characters of the bar of the whole GPU."""
ENGINE_NAMES = {"vllm": "vLLM", "sglang": "SGLang", "trtllm": "TensorRT-LLM"}
FRACTIONS = {"vllm": "gpu_memory_utilization", "sglang": "mem_fraction_static", "trtllm": "free_gpu_memory_fraction"}


def report(plan: MemoryPlan) -> str:
    """Return heading, bar, what uses the memory, the engine's log lines and what binds."""
    parts = [heading(plan), _bar(plan), _uses(plan), _cache(plan)]
    parts.append(f"What {ENGINE_NAMES[plan.engine.name]} logs:\n" + "\n".join(f"  {line}" for line in plan.log))
    if plan.memory.fits:
        parts.append(wrapped(plan.binds[0].upper() + plan.binds[1:] + "."))
    else:
        parts.append(_refusal(plan))
    said = [wrapped(f"note: {note}") for note in plan.notes] + [wrapped(f"warning: {text}") for text in plan.warnings]
    if said:
        parts.append("\n".join(said))
    return "\n\n".join(parts)


def heading(plan: MemoryPlan) -> str:
    """Return what is planned, in one line or two."""
    engine = plan.engine
    name = ENGINE_NAMES[engine.name] + (f" {engine.version}" if engine.version else "")
    where = f"{plan.gpu.count} × {plan.gpu.name}" if plan.gpu.count > 1 else plan.gpu.name
    formats = f"{plan.dtype}, KV {plan.kv_dtype}" if plan.memory.kv_groups else plan.dtype
    formats += f", {adapters(plan.lora)}" if plan.lora else ""
    sizes = f"TP {plan.tensor_parallel}, PP {plan.pipeline_parallel}, EP {plan.expert_parallel}"
    told = (
        f"{FRACTIONS[engine.name]} {engine.memory_fraction:g}, {count(engine.max_num_batched_tokens)} tokens per step, "
        f"{count(engine.max_num_seqs)} sequences, sequences of up to {count(engine.max_model_len)} tokens"
    )
    return f"{plan.model.name} ({formats}) on {where}, {sizes}, {name}\n{told}"


def shares(plan: MemoryPlan) -> list[tuple[str, float, str]]:
    """Return what uses the memory of the fullest GPU: name, bytes and why."""
    memory, engine = plan.memory, plan.engine
    found = [
        ("weights", memory.weights_bytes, _weights(plan)),
        (
            "activations",
            memory.activation_bytes,
            f"peak of {count(engine.max_num_batched_tokens)} tokens"
            + ("" if plan.model.pooling else " or its sampler"),
        ),
        ("outside PyTorch", memory.non_torch_bytes, "context, libraries, NCCL"),
        ("CUDA graphs", memory.cuda_graph_bytes, "estimate at start-up"),
        ("KV cache", max(memory.kv_available_bytes, 0.0), plural(memory.kv_blocks, "block")),
    ]
    used = sum(value for _, value, _ in found)
    return [*found, ("not used", max(memory.total_bytes - used, 0.0), "left to others")]


def _weights(plan: MemoryPlan) -> str:
    by_module: dict[str, float] = {}
    for row in plan.weights:
        by_module[row.module] = by_module.get(row.module, 0.0) + row.bytes
    largest = sorted(by_module.items(), key=lambda item: (item[0] != "LoRA adapters", -item[1]))[:3]
    return ", ".join(f"{module} {gib(value)}" for module, value in largest)


def _bar(plan: MemoryPlan) -> str:
    total = plan.memory.total_bytes
    marks = dict(zip(("weights", "activations", "outside PyTorch", "CUDA graphs", "KV cache"), "█▓#%░", strict=True))
    text, reached = "", 0.0
    for name, value, _ in shares(plan):
        reached += value
        text += marks.get(name, "·") * max(min(round(reached / total * BAR), BAR) - len(text), 0)
    key = "  ".join(f"{mark} {name}" for name, mark in marks.items())
    return f"  [{text}] {gib(total)}\n   {key}  · not used"


def _uses(plan: MemoryPlan) -> str:
    total = plan.memory.total_bytes
    rows = [
        [name, gib(value), percent(value / total) if value else "", why] for name, value, why in shares(plan) if value
    ]
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    lines = [
        f"  {name.ljust(widths[0])}  {value.rjust(widths[1])}  {share.rjust(widths[2])}  {why}".rstrip()
        for name, value, share, why in rows
    ]
    which = "the fullest GPU" if plan.gpu.count > 1 else "the GPU"
    return f"Memory of {which} (GiB = 2³⁰ bytes):\n" + "\n".join(lines)


def _cache(plan: MemoryPlan) -> str:
    memory = plan.memory
    if not memory.kv_groups:
        return "No KV cache: every token sees both ways, so a document takes one step and nothing of it is kept."
    groups = f" of {memory.kv_groups} groups of layers" if memory.kv_groups > 1 else ""
    rows = [
        ["KV cache per token", size(memory.kv_bytes_per_token), ""],
        ["blocks", count(memory.kv_blocks), f"of {plural(memory.kv_block_tokens, 'token')}{groups}"],
        ["tokens", count(memory.kv_tokens), ""],
        ["longest sequence that fits", count(memory.max_model_len), "tokens"],
        [f"sequences of {count(plan.engine.max_model_len)} tokens", f"{memory.max_concurrency:.2f}", "at once"],
    ]
    text = table(rows, left=1)
    if len(plan.stages) > 1:
        stages = [
            [str(number), str(stage.layers), gib(stage.weights_bytes), gib(stage.activation_bytes),
             gib(stage.kv_available_bytes), count(stage.kv_blocks)]
            for number, stage in enumerate(plan.stages)
        ]  # fmt: skip
        header = ["stage", "layers", "weights", "activations", "KV cache", "blocks"]
        text += "\n\nPipeline stages; the pool has as many blocks as the fewest:\n" + table(stages, header)
    return text


def _refusal(plan: MemoryPlan) -> str:
    lines = [wrapped(f"Does not fit: {plan.binds}.")]
    if plan.advice:
        lines.append("It fits with any one of these:")
        rows = []
        for each in plan.advice:
            shorter = f" with --max-model-len {each.max_model_len}" if each.max_model_len else ""
            rows.append([each.change, each.value + shorter, f"{each.max_concurrency:.2f} sequences at once"])
        lines.append(table(rows, left=3))
    else:
        lines.append("No single change of a flag makes it fit; use more GPUs and fewer bytes per weight.")
    return "\n".join(lines)

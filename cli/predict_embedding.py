"""``costmodel predict`` of models that pool: documents instead of streams."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click

from costmodel.cli.options import echo_json, grid
from costmodel.cli.text import count, gib, milliseconds, parameters, percent, plural, seconds, significant, size, table
from costmodel.documents import Operator
from costmodel.embedding import predict_embedding
from costmodel.embedding_documents import Embedding, EmbeddingRung, Embeddings
from costmodel.hardware.errors import InputError

KEPT = ("kv_dtype", "compute_dtype", "ep", "params", "engine", "calibration", "assume_efficiency")
"""Options that mean the same here, beside those that may take several values."""
SEVERAL = ("model", "gpu", "tp", "dtype", "prompt", "chunk")
DOCUMENT_TOKENS = 512
"""Of a document where nobody says."""
POOLED = {"cls": "the first token", "mean": "the mean of all tokens", "last": "the last token"}


def predict_all(values: dict[str, list[Any]], options: dict[str, Any]) -> list[Embedding]:
    """Predict every combination of the options.

    Raises:
        InputError: an option that means nothing for a model that pools.
    """
    context = click.get_current_context()
    meant = {*KEPT, *SEVERAL, "prompts", "as_json", "force"}
    given = [name for name in context.params if name not in meant and _is_given(name, context)]
    if given:
        raise InputError(
            f"{values['model'][0]} pools: it embeds or classifies documents and writes no text, so there are no streams, spikes or "
            f"pipelines; leave --{given[0].replace('_', '-')} out (documents: --prompts, their tokens: --prompt, tokens per step: --chunk)"
        )
    if not _is_given("prompt", context):
        values["prompt"] = [DOCUMENT_TOKENS]
    asked = grid(**{name: values[name] for name in SEVERAL})
    kept = {name: options[name] for name in KEPT}
    return [predict_embedding(**each, **kept, documents=options["prompts"]) for each in asked]


def _is_given(name: str, context: click.Context) -> bool:
    return context.get_parameter_source(name) not in (None, click.core.ParameterSource.DEFAULT)


def show(embedded: Sequence[Embedding], as_json: bool) -> None:
    """Print one report, or a table of several."""
    if as_json:
        echo_json(embedded[0] if len(embedded) == 1 else Embeddings(embeddings=tuple(embedded)))
    elif len(embedded) == 1:
        click.echo(report(embedded[0]))
    else:
        click.echo(comparison(embedded))


def report(item: Embedding) -> str:
    """Return the report of one model on one kind of GPU."""
    remarks = [f"note: {text}" for text in item.notes] + [f"warning: {text}" for text in item.warnings]
    parts = (_heading(item), _rungs(item), _documents(item), _operators(item), _memory(item), "\n".join(remarks))
    return "\n\n".join(part for part in parts if part)


def comparison(items: Sequence[Embedding]) -> str:
    """Return a table of several predictions."""
    header = [
        "model",
        "gpu",
        "tp",
        "dtype",
        "tokens",
        "budget",
        "rung",
        "ms",
        "in a step",
        "step ms",
        "documents/s",
        "tokens/s",
        "fits",
    ]
    rows = []
    for item in items:
        work, rung = item.workload, item.best
        placed = [item.model.name, item.gpu.profile, str(work.tensor_parallel), work.dtype]
        loads = [count(work.prompt_tokens), count(work.chunk_tokens), item.headline]
        times = [milliseconds(rung.latency_s), count(item.steps.full_step_documents), milliseconds(rung.full_step_s)]
        rates = [significant(rung.documents_per_s), count(rung.tokens_per_s), "yes" if item.memory.fits else "no"]
        rows.append(placed + loads + times + rates)
    documents = plural(items[0].workload.documents, "document")
    told = f"ms: {documents} alone; in a step: documents in a full step of the server; fits: in the GPU's memory"
    remarks = dict.fromkeys(f"warning: {item.gpu.profile}: {text}" for item in items for text in item.warnings)
    return "\n".join([table(rows, header, left=2), "", f"  {told}", *remarks])


def _heading(item: Embedding) -> str:
    work, gpu = item.workload, item.gpu
    formats = f"{work.dtype} weights" + (f", {work.compute_dtype} products" if work.compute_dtype != work.dtype else "")
    sizes = f" (TP {work.tensor_parallel})" if work.tensor_parallel > 1 else ""
    documents = f"{plural(work.documents, 'document')} of {plural(work.prompt_tokens, 'token')}"
    return (
        f"{item.model.name} ({parameters(item.model.total_parameters)} parameters; {formats}) on {gpu.count} × {gpu.name}{sizes}\n"
        f"{documents}, at most {count(work.chunk_tokens)} tokens per step; pooled: {POOLED[item.model.pooling or 'last']}"
    )


def _rungs(item: Embedding) -> str:
    names = ["textbook", "roofline"] + (["calibrated"] if item.rungs.calibrated else [])
    rungs: list[EmbeddingRung] = [getattr(item.rungs, name) for name in names]
    steps, full = item.steps.steps, item.steps.full_step_documents

    def row(name: str, value: str) -> list[str]:
        return [name, *(milliseconds(getattr(rung, value)) for rung in rungs)]

    rows = [
        row(f"{plural(item.workload.documents, 'document')}, {plural(steps, 'step')}", "latency_s"),
        row("  layers' matrices", "linear_s"),
        row("  attention", "attention_s"),
    ]
    if any(rung.communication_s for rung in rungs):
        rows.append(row("  communication", "communication_s"))
    several = item.steps.steps_per_document > 1
    rows.append(
        row("longest step of a document" if several else f"full step: {plural(full, 'document')}", "full_step_s")
    )
    text = table(rows, ["milliseconds", *names])
    rates = [
        ["documents", *(significant(rung.documents_per_s) for rung in rungs)],
        ["tokens", *(count(rung.tokens_per_s) for rung in rungs)],
    ]
    return f"{text}\n\n{table(rates, ['per second, steps full', *names])}"


def _documents(item: Embedding) -> str:
    rung, steps, engine = item.best, item.steps, item.engine
    named = f"{item.headline} rung" + (f", {item.calibration}" if item.calibration else "")
    done = "The document is" if item.workload.documents == 1 else f"All {count(item.workload.documents)} documents are"
    lines = [f"{done} done {seconds(rung.latency_s)} after the first step begins, in {plural(steps.steps, 'step')}."]
    full = f"a step takes {plural(steps.full_step_documents, 'document')}"
    if steps.steps_per_document > 1:
        full = f"a document takes {plural(steps.steps_per_document, 'step')}"
    lines.append(
        f"Where more wait, {full}: {significant(rung.documents_per_s)} documents and {count(rung.tokens_per_s)} tokens per second."
    )
    way = "may take several steps" if steps.splits_prompts else "takes one step, so the budget must hold the longest"
    lines.append(
        f"A default {engine.name} server has max_num_batched_tokens {count(engine.max_num_batched_tokens)} and max_num_seqs "
        f"{count(engine.max_num_seqs)} for this model; a document {way}."
    )
    lines.append("It writes no text: no decode steps, no streams, no spikes.")
    return f"Documents ({named})\n" + "\n".join(f"  {line}" for line in lines)


def _operators(item: Embedding) -> str:
    rung = item.best
    asked = {operator.name: operator for operator in rung.operators}
    full = {operator.name: operator for operator in rung.full_step_operators}
    totals = [sum(operator.time_s for operator in found.values()) for found in (asked, full)]
    rows = [
        [
            name,
            *_cells(asked.get(name), totals[0]),
            *_cells(full[name], totals[1]),
            significant(full[name].flops / 1e12, 3),
            size(full[name].bytes),
        ]
        for name in full
        if full[name].time_s
    ]
    header = ["operator", "ms", "share", "bound by", "full ms", "share", "bound by", "TFLOP", "bytes"]
    told = "the longest step of the documents, then a full one (FLOPs and bytes are its own)"
    return f"Where the time goes ({item.headline} rung): {told}\n{table(rows, header)}"


def _cells(operator: Operator | None, total: float) -> list[str]:
    if operator is None:
        return ["", "", ""]
    return [milliseconds(operator.time_s), percent(operator.time_s / total), operator.bound]


def _memory(item: Embedding) -> str:
    memory = item.memory
    verdict = "fits" if memory.fits else "DOES NOT FIT"
    cache = "no KV cache"
    if item.workload.kv_dtype is not None:
        cache = (
            f"KV cache {size(memory.kv_bytes_per_token)} per token, needs {gib(memory.kv_needed_bytes)} of "
            f"{gib(max(memory.kv_available_bytes, 0.0))} free"
        )
    return (
        f"Memory per GPU: weights {gib(memory.weights_bytes)}, activations {gib(memory.activation_bytes)} of {gib(memory.usable_bytes)}; "
        f"{cache}: {verdict}"
    )

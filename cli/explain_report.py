"""Explanations as text for a person: claim, verdict, reason, numbers, formula, source."""

from __future__ import annotations

import re
import textwrap

from costmodel.cli.explain_values import value_text
from costmodel.cli.explain_words import words_in
from costmodel.cli.text import WIDTH, plural, seconds, size, table, wrapped
from costmodel.explaining.documents import Explained, Explanations, RequestExplanation, Stage, Table, Topic

STAGES = {
    "tokenise": "tokenise",
    "queue": "queue",
    "prefill": "prefill",
    "decode": "decode loop",
    "stream": "stream",
    "free": "free or keep",
}
"""Stage → what it is called."""
BOUNDS = {
    "host": "host",
    "queue": "others",
    "compute": "compute",
    "memory": "memory bandwidth",
    "link": "link",
    "latency": "launches",
    "nothing": "nothing",
}


def overview(document: Explanations) -> str:
    """Return the list of all topics with what is true of each."""
    lines = [f"What people say of inference servers, and what is true for {_scene(document)}:", ""]
    wide = max(len(topic.name) for topic in document.topics)
    for topic in document.topics:
        lines.append(f"  {topic.number}  {topic.name:<{wide}}  “{topic.claim}”")
        lines.append(_indented(topic.finding + ".", " " * (wide + 7)))
    lines += [
        "",
        "`costmodel explain gqa` has verdict, reason, numbers, formula and source (with --plot FILE a figure); `costmodel explain all` has",
        "everything; `costmodel explain request` follows one request through the server. All take --model, --gpu, --streams, --context.",
    ]
    text = "\n".join(lines)
    return text + _words(text) + "".join(f"\n{line}" for line in _remarks(document))


def report(document: Explanations) -> str:
    """Return the topics of a document, each in full."""
    text = "\n\n\n".join(_topic(topic, document) for topic in document.topics)
    return text + _words(text) + "".join(f"\n{line}" for line in _remarks(document))


def _words(text: str) -> str:
    """Return the words that a text uses, and what they mean, to end it with."""
    return "\n\nWords\n" + "\n".join(_indented(f"{word}: {meaning}") for word, meaning in words_in(text).items())


def _topic(topic: Topic, document: Explanations) -> str:
    labelled = [
        (topic.labels[key], value_text(key, value)) for key, value in topic.numbers.items() if key in topic.labels
    ]
    parts = [
        f"{topic.number}. {topic.name}: “{topic.claim}”",
        _indented(topic.verdict, ""),
        "Why\n" + "\n".join(_indented(text) for text in topic.reason),
        f"Numbers: {_about(document)}; {load_of(topic, document)}\n" + table(labelled),
        *(f"{item.title}\n{_table(item)}" for item in topic.tables if item.shown),
        "Formula\n" + "\n".join(_indented(text) for text in topic.formulas),
        "Source\n" + "\n".join(_indented(text) for text in topic.sources),
    ]
    return "\n\n".join(parts)


def _table(item: Table) -> str:
    rows = [[value_text(column.key, row[column.key]) for column in item.columns] for row in item.rows]
    return table(rows, [column.label for column in item.columns])


def request_report(document: RequestExplanation) -> str:
    """Return the stages of a request."""
    fewer = f"{document.streams:,} of " if document.streams < document.streams_asked else ""
    heading = (
        f"A request of {plural(document.prompt_tokens, 'token')} with an answer of {document.output_tokens:,}, among "
        f"{fewer}{plural(document.streams_asked, 'stream')} at {plural(document.context_tokens, 'token')}: {_about(document)}."
    )
    tpot = "" if document.tpot_s is None else f", TPOT {seconds(document.tpot_s, 3)}"
    total = f"TTFT {seconds(document.ttft_s, 3)}{tpot}, {seconds(document.e2e_s, 3)} in all"
    blocks = f"{document.kv_blocks:,} KV blocks at its end{_room(document)}; {document.kept_blocks:,} of them stay as a cached prefix"
    parts = [
        _indented(heading, ""),
        request_table(document),
        f"{total}; {blocks}.",
        "\n".join(
            f"{STAGES[stage.name]}\n{_indented(stage.what)}\n{_indented('= ' + stage.formula, '    ')}"
            for stage in document.stages
        ),
        "\n".join(
            [
                *(
                    ["* assumed: nothing was measured or fitted."]
                    if any(each.assumed for each in document.stages)
                    else []
                ),
                "Weights are read once per step for everybody in it; K and V that a stage reads and writes are this request's alone.",
                *(["FLOPs and bytes are those of one GPU."] if document.gpus > 1 else []),
            ]
        ),
    ]
    text = "\n\n".join(parts)
    return text + _words(text) + "".join(f"\n{line}" for line in _remarks(document))


def _room(document: RequestExplanation) -> str:
    """Return how many blocks there are, and what becomes of those that no request can have."""
    own, every = document.kv_blocks_of_server, document.kv_blocks_of_pool
    if own is None:
        return ""
    if every is None or every <= own:
        return f" of {own:,} that requests can have"
    aside = every - own - 1
    more = f", and {aside:,} are set aside for the layers with a window of a prompt being prefilled" if aside else ""
    return f" of {own:,} that requests can have (there are {every:,}: one is vLLM's own{more})"


def request_table(document: RequestExplanation) -> str:
    """Return the table of the stages of a request."""
    rows = [
        [STAGES[stage.name], seconds(stage.start_s, 3), _lasts(stage), str(stage.steps or "–"), BOUNDS[stage.bound],
         _bytes(stage.reads), _bytes(stage.writes)]
        for stage in document.stages
    ]  # fmt: skip
    return table(rows, ("stage", "starts", "lasts", "steps", "waits for", "reads", "writes"))


def _lasts(stage: Stage) -> str:
    if stage.name == "stream":
        return "meanwhile"
    return seconds(stage.duration_s, 3) + ("*" if stage.assumed else "")


def _bytes(moved: dict[str, float]) -> str:
    names = {
        "weights_bytes": "weights",
        "kv_bytes": "K, V",
        "state_bytes": "states",
        "text_bytes": "text",
        "token_bytes": "ids",
    }
    return ", ".join(f"{names[key]} {size(value)}" for key, value in moved.items()) or "–"


def _about(document: Explained) -> str:
    gpus = f"{document.gpus} × " if document.gpus > 1 else ""
    rung = f"calibrated rung ({document.calibration})" if document.calibration else "roofline rung"
    return f"{document.model} ({document.dtype}, KV {document.kv_dtype}) on {gpus}{document.gpu}, {rung}"


def _scene(document: Explanations) -> str:
    return f"{_about(document)}; {load_of(None, document)}"


def load_of(topic: Topic | None, document: Explanations) -> str:
    """Return the load that the numbers of a topic are about: that of the document, but for a topic with a length of its own."""
    if topic is not None and topic.name == "long-context":
        return f"one sequence of {topic.numbers['context_tokens']:,} tokens"
    run = document.streams if topic is None else topic.numbers.get("streams", document.streams)
    fewer = "" if run == document.streams else f"{run:,} of "
    return f"{fewer}{plural(document.streams, 'stream')}, {plural(document.context_tokens, 'token')} of context"


def _indented(text: str, indent: str = "  ") -> str:
    tied = re.sub(r"(?<=\d) (?=\S)", "\N{NO-BREAK SPACE}", text)  # a number stays with its unit
    lines = textwrap.wrap(tied, WIDTH, initial_indent=indent, subsequent_indent=indent)
    return "\n".join(lines).replace("\N{NO-BREAK SPACE}", " ")


def _remarks(document: Explanations | RequestExplanation) -> list[str]:
    said = [*(f"note: {note}" for note in document.notes), *(f"warning: {text}" for text in document.warnings)]
    return ["", *map(wrapped, said)] if said else []

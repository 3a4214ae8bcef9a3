"""Write ``explain.md`` from what `costmodel explain` says: `python docs/make_explain.py`; a test compares it with the file."""

from __future__ import annotations

import textwrap
from pathlib import Path

import costmodel
from costmodel.cli.explain_report import STAGES, request_table
from costmodel.cli.explain_values import value_text
from costmodel.cli.explain_words import WORDS
from costmodel.explaining.documents import Topic

PAGE = Path(__file__).with_name("explain.md")
WIDTH = 140
HEAD = """# What people get wrong, in numbers

`costmodel explain` answers nine misunderstandings about inference servers with the numbers that decide them, for your model, GPU
and load, and follows one request through the server.

```bash
costmodel explain                                        # the list: what people say, and what is true
costmodel explain gqa                                    # claim, verdict, reason, numbers, formula, source
costmodel explain batch-size --model Qwen3-32B --gpu h200 --context 4k --streams 64
costmodel explain quadratic --plot quadratic.png         # one figure for each topic
costmodel explain speculation --draft-model eagle --acceptance 0.6
costmodel explain prefix-cache --cached-prefix 6000
costmodel explain all --json                             # one document, costmodel.explanations/1
costmodel explain request --prompt 8000 --output 200     # a request's way: costmodel.request/1
costmodel explain request --chunk 1024 --plot request.png
```

```python
found = costmodel.explain("gqa", model="Llama-3.1-70B", tp=4)
found.topics[0].verdict, found.topics[0].numbers["kv_bytes_ratio"]
way = costmodel.explain_request(prompt=8000, output=200, streams=32)
[(stage.name, stage.duration_s, stage.bound) for stage in way.stages]
```

`--context` is both the tokens of each stream in the KV cache, where it is about decode, and the length of a prompt, where it is
about prefill; `--output` the length of an answer. Times are those of the calibrated rung where there is a calibration, else of the
roofline, and the answer says so; FLOPs and bytes are exact counts, of one GPU. This page is written by `python
docs/make_explain.py` for the defaults: {about}.

A batch is of `--streams` sequences, or, where fewer fit into the KV cache, of as many as fit, as on a server that lets the others
wait; the answer says so. Not all topics have the same number: a whole request needs room for its answer as well, and speculation
shares the memory with its draft.
"""
REQUEST = """## A request's way

A request of {prompt:,} tokens with an answer of {output:,}, among {streams} streams at {context:,} tokens:

```text
{table}
```

![A request's way: its stages above, the server's steps below, and the KV blocks that it holds](figures/explain-request.png)

{stages}

It is simulated step by step with vLLM's scheduler ([simulate.md](simulate.md)) and comes in the middle of a decode step, so that
what it waits for the step is the mean. The tokenizer is measured where one is installed: the model's own (`tokenizer.json` in its
folder or in the Hugging Face cache), or the one that `mistral_common` brings, which any environment with vLLM has; `--tokenizer`
names another. Without one, the time per prompt token is the one that the calibration has fitted to served requests, or assumed (1
million tokens/s), and the answer says which. Bytes of text are 3.94 per token (English; [Llama 3 Team
2024](https://arxiv.org/abs/2407.21783)).

## Nine misunderstandings

![Shares of a request's GPU time against the length of its prompt: what n² takes, and what the answer takes](figures/explain-quadratic.png)
"""


def text() -> str:
    """Return the page."""
    document = costmodel.explain()
    about = (
        f"{document.model} on {document.gpu}, {document.streams} streams, {document.context_tokens:,} tokens of context"
    )
    way = costmodel.explain_request()
    stages = "\n".join(
        _filled(f"- **{STAGES[stage.name]}**: {stage.what} {stage.formula[0].upper()}{stage.formula[1:]}.")
        for stage in way.stages
    )
    request = REQUEST.format(
        prompt=way.prompt_tokens, output=way.output_tokens, streams=way.streams, context=way.context_tokens,
        table=request_table(way), stages=stages,
    )  # fmt: skip
    words = "\n".join(_filled(f"- **{word}**: {meaning}") for word, (_, meaning) in WORDS.items())
    topics = "\n".join(_topic(topic) for topic in document.topics)
    return HEAD.replace("{about}", about) + f"\n## Words\n\n{words}\n\n" + request + "\n" + topics


def _topic(topic: Topic) -> str:
    """Return the section of a topic; its numbers by the keys that the document has."""
    rows = [f"| `{key}` | {label} | {value_text(key, topic.numbers[key])} |" for key, label in topic.labels.items()]
    lines = [
        f"### {topic.number}. {topic.name}: “{topic.claim}”",
        "",
        *(line for paragraph in (topic.verdict, *topic.reason) for line in (_filled(paragraph), "")),
        "| key | what it is | value |",
        "|---|---|---|",
        *rows,
        "",
        *(f"    {formula}" for formula in topic.formulas),
        "",
        *(f"- {source}" for source in topic.sources),
        "",
    ]
    return "\n".join(lines)


def _filled(paragraph: str) -> str:
    """Return a paragraph in lines of a width that can be read; that of a list is indented."""
    return textwrap.fill(
        paragraph,
        WIDTH,
        subsequent_indent="  " * paragraph.startswith("- "),
        break_long_words=False,
        break_on_hyphens=False,
    )


if __name__ == "__main__":
    PAGE.write_text(text(), encoding="utf-8")

"""``costmodel explain``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from costmodel.cli.options import Values, calibration_options, deployment_options, echo_json, one_value_each, single
from costmodel.cli.speculative_options import speculative_options, take_speculation
from costmodel.explaining.asking import TOPICS, USUAL_DRAFT, explain, topic_names
from costmodel.hardware.errors import InputError, unknown_name

REQUEST, ALL = "request", "all"
SPECULATION, PREFIXES = "speculation", "prefix-cache"
OF_REQUEST = ("prompt", "chunk", "tokenizer", "prefix_caching")
"""Options that only ``explain request`` takes."""
TOPICS_OF_HELP = "\n".join(f"  {name:<16} {claim}" for name, (_, _, claim) in TOPICS.items())


@click.command(
    "explain",
    epilog="\b\nTopics, and what people say:\n" + TOPICS_OF_HELP,
)
@click.argument("topics", nargs=-1, metavar="[TOPIC]…|all|request")
@one_value_each
@deployment_options
@click.option(
    "--streams",
    type=Values("whole", several=False),
    default="32",
    show_default=True,
    help="Sequences that decode together.",
)
@click.option(
    "--context",
    type=Values("tokens", several=False),
    default=None,
    help="Tokens of each stream in the KV cache, and of a prompt.  [default: 8000; of the streams beside a request 500]",
)
@click.option(
    "--output",
    type=Values("tokens", several=False),
    default=None,
    help="Tokens of an answer.  [default: 500; of a request 200]",
)
@click.option(
    "--prompt",
    type=Values("tokens", several=False),
    default=None,
    help="request: tokens of its prompt.  [default: 8000]",
)
@click.option(
    "--chunk",
    "--max-num-batched-tokens",
    "chunk",
    type=Values("chunk", several=False),
    default=None,
    help="request: token budget per step; `one-step` for the prompt in one.  [default: vLLM's on this GPU]",
)
@click.option(
    "--tokenizer",
    type=click.Path(),
    default=None,
    help="request: tokenizer.json, or its folder, to measure.  [default: the model's own, if it is here, or one that is installed]",
)
@click.option(
    "--enable-prefix-caching/--no-enable-prefix-caching",
    "prefix_caching",
    default=None,
    help="request: whether its full blocks are kept when it ends.  [default: they are]",
)
@click.option(
    "--cached-prefix",
    type=Values("tokens", several=False),
    default=None,
    help="prefix-cache, request: tokens of the prompt that the prefix cache has.  [default: 90 % of it; of a request none]",
)
@speculative_options
@calibration_options
@click.option(
    "--assume-efficiency",
    is_flag=True,
    help="For a GPU without a calibration: the efficiencies of its nearest measured relative, if there is one.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document and nothing else.")
@click.option("--plot", type=click.Path(), default=None, help="Draw the topic's figure into this .png, .svg or .pdf.")
@click.option("--force", is_flag=True, help="Overwrite the file that --plot names.")
def command(topics: tuple[str, ...], as_json: bool, plot: str | None, force: bool, **options: Any) -> None:
    """What people get wrong about inference servers, in numbers of your model, GPU and load.

    Without a topic: the list, with what is true of each. With one: claim, verdict, reason, the numbers that decide it, formula and
    source. `explain request` follows one request through the server: tokenise, queue, prefill, decode, stream, free its blocks.
    """
    speculation = take_speculation(options, USUAL_DRAFT)
    taken = {
        name: single(name.replace("_", "-"), value) if isinstance(value, list) else value
        for name, value in options.items()
    }
    if "chunk" in taken and options["chunk"] is not None and taken["chunk"] is None:
        taken["chunk"] = "one-step"
    path = None if plot is None else Path(plot)
    asked = _asked(topics)
    if path is not None:
        if asked != [REQUEST] and len(asked) != 1:
            raise InputError(
                f"--plot draws the figure of one topic, not of {len(asked)}; name one: {', '.join(TOPICS)} or {REQUEST}"
            )
        from costmodel.cli.figures.saving import check_target

        check_target(path, force)
    if asked == [REQUEST]:
        if speculation is not None:
            raise InputError(
                f"`explain {REQUEST}` follows a request without speculation; ask `costmodel explain {SPECULATION}`, or "
                "`costmodel simulate load` with these options"
            )
        _request(taken, as_json, path, force)
        return
    given = next((name for name in OF_REQUEST if taken[name] is not None), None)
    if given is not None:
        flag = "enable-prefix-caching" if given == "prefix_caching" else given
        hint = "; the length of a prompt is --context here" if given == "prompt" else ""
        raise InputError(f"--{flag} is an option of `costmodel explain {REQUEST}`{hint}")
    for option, value, topic in (
        ("--cached-prefix", taken["cached_prefix"], PREFIXES),
        ("speculative decoding (--draft-model, --acceptance …)", speculation, SPECULATION),
    ):
        if value is not None and topic not in asked:
            raise InputError(f"{option} is about {topic}, which is not asked for: `costmodel explain {topic}`")
    _topics(
        asked,
        {name: value for name, value in taken.items() if name not in OF_REQUEST} | {"speculation": speculation},
        not topics,
        as_json,
        path,
        force,
    )


def _asked(topics: tuple[str, ...]) -> list[str]:
    """Return the topics that are asked for, or the request alone."""
    if REQUEST in topics:
        if len(topics) > 1:
            raise InputError(
                f"`explain {REQUEST}` stands alone; ask for {', '.join(name for name in topics if name != REQUEST)} apart"
            )
        return [REQUEST]
    for name in topics:
        if name not in TOPICS and name != ALL:
            known = (*TOPICS, REQUEST, ALL)
            raise unknown_name("topic", name, known, "topics: " + ", ".join(known))
    others = [name for name in dict.fromkeys(topics) if name != ALL]
    if ALL in topics and others:
        raise InputError(
            f"`explain {ALL}` stands alone, since it has every topic; for {', '.join(others)} only: `costmodel explain {' '.join(others)}`"
        )
    return topic_names(others or None)


def _topics(
    asked: list[str], options: dict[str, Any], listed: bool, as_json: bool, path: Path | None, force: bool
) -> None:
    document = explain(asked, **{name: value for name, value in options.items() if value is not None})
    if path is not None:
        from costmodel.cli.explain_figures import draw_topic
        from costmodel.cli.figures.saving import save_figure

        save_figure(draw_topic(document), path, force)
        click.echo(f"wrote {path}", err=True)
    if as_json:
        echo_json(document)
        return
    from costmodel.cli.explain_report import overview, report

    click.echo(overview(document) if listed else report(document))


def _request(options: dict[str, Any], as_json: bool, path: Path | None, force: bool) -> None:
    from costmodel.explaining.request import explain_request
    from costmodel.validation.tokenizing import measure_tokenizer

    if options.pop("pp") != 1:
        raise InputError("pipeline stages are not simulated; divide the model with --tp")
    found = measure_tokenizer(options.pop("tokenizer"), options["model"], options["prompt"] or 8000)
    if found is not None:
        options |= {"tokens_per_s": found.tokens_per_s, "tokenizer": found.name}
    document = explain_request(**{name: value for name, value in options.items() if value is not None})
    if path is not None:
        from costmodel.cli.explain_figures import draw_way
        from costmodel.cli.figures.saving import save_figure

        save_figure(draw_way(document), path, force)
        click.echo(f"wrote {path}", err=True)
    if as_json:
        echo_json(document)
        return
    from costmodel.cli.explain_report import request_report

    click.echo(request_report(document))

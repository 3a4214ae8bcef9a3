"""The options of LoRA adapters: five of the command line, one argument ``lora`` of the functions."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import click

from costmodel.adapters import DEFAULT_RANK, Lora

Command = TypeVar("Command", bound=Callable[..., Any])


def lora_options(command: Command) -> Command:
    """Add the options of LoRA adapters, and hand them on as one argument, ``lora``: None where none of them is given."""

    @functools.wraps(command)
    def with_lora(
        *arguments: Any,
        lora: str | None,
        lora_rank: int | None,
        loras: int | None,
        lora_targets: str | None,
        fully_sharded_loras: bool,
        **options: Any,
    ) -> Any:
        given = {
            "adapter": lora,
            "rank": lora_rank,
            "adapters": loras,
            "targets": lora_targets,
            "fully_sharded": fully_sharded_loras or None,
        }
        chosen: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
        return command(*arguments, lora=Lora(**chosen) if chosen else None, **options)

    made: Any = with_lora
    for option in reversed(
        (
            click.option(
                "--loras",
                "--max-loras",
                "loras",
                type=int,
                default=None,
                help="LoRA adapters that requests of a step use at most; --lora-rank alone means 1.  [default: none]",
            ),
            click.option(
                "--lora-rank",
                "--max-lora-rank",
                "lora_rank",
                type=int,
                default=None,
                help=f"Rank that the engine has for them.  [default: that of --lora, or else {DEFAULT_RANK}]",
            ),
            click.option(
                "--lora-targets",
                "--lora-target-modules",
                "lora_targets",
                default=None,
                help="Modules that it wraps: q_proj,v_proj … (q, k, v, o for short), `all-linear` or `all`.  [default: all, as vLLM]",
            ),
            click.option(
                "--fully-sharded-loras", is_flag=True, help="Divide both matrices of an adapter among the GPUs of --tp."
            ),
            click.option(
                "--lora",
                type=click.Path(),
                default=None,
                help="An adapter: its folder or adapter_config.json, for its rank.",
            ),
        )
    ):
        made = option(made)
    found: Command = made
    return found

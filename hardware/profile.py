"""The type of a GPU profile: datasheet numbers, each with its source. Nothing fitted is ever stored here."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from costmodel.hardware.errors import InputError, nearest, shown, suggestion
from costmodel.hardware.reading import read_text, shown_path

ComputeDtype = Literal["fp32", "tf32", "fp16", "bf16", "fp8", "int8", "fp4", "int4"]
"""Number formats a matrix unit multiplies in."""

LinkKind = Literal["nvlink", "xgmi", "pcie", "c2c", "none"]
"""How GPUs of one node reach each other."""


class Frozen(BaseModel):
    """Base of every document type: immutable, and unknown keys are errors."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", allow_inf_nan=False, defer_build=True, serialize_by_alias=True
    )


Document = TypeVar("Document", bound=Frozen)
Number = Annotated[float, Field(strict=True)]
"""A number in a file: neither text nor true or false."""


class Source(Frozen):
    """Where a number was read; ``measured:`` and by what, where it was not read but measured on the spot."""

    title: str = Field(min_length=3)
    url: str = Field(pattern=r"^(https?://|measured:)")
    note: str = ""


class Figure(Frozen):
    """One datasheet number and the key of its :class:`Source`."""

    value: Annotated[Number, Field(gt=0)]
    source: str = Field(min_length=1)
    note: str = ""


class Link(Frozen):
    """Connection between the GPUs of one node."""

    kind: LinkKind
    bandwidth_per_direction: Figure
    """B/s that one GPU can send, and at the same time receive."""
    gpus_per_node: Figure
    """Largest number of GPUs joined by this link in the usual server."""


class GpuProfile(Frozen):
    """Datasheet of one GPU part, per GPU (a two-die module is one GPU if one process sees it as one).

    All numbers are in SI base units: FLOP/s, B/s, B, W. Peaks are dense, never with structured sparsity.
    """

    schema_: Literal["costmodel.gpu/1"] = Field(alias="schema")
    name: str = Field(min_length=2)
    """Exact part, e.g. ``NVIDIA H100 SXM5 80GB``."""
    vendor: Literal["nvidia", "amd", "intel", "other"]
    architecture: str
    """Family, lower case, e.g. ``hopper``."""
    peak_flops: dict[ComputeDtype, Figure] = Field(min_length=1)
    """Dense peak per compute dtype [FLOP/s]. A dtype that is absent cannot be computed in on this part."""
    memory_bandwidth: Figure
    """Peak bandwidth of device memory [B/s]."""
    memory_nominal: Figure
    """Capacity as marketed [B]; GB is 10⁹ B."""
    memory_visible: Figure
    """Total memory as a process sees it (``torch.cuda.mem_get_info``) [B]."""
    l2_cache: Figure | None = None
    """Last-level on-chip cache [B]."""
    compute_units: Figure | None = None
    """Streaming multiprocessors (NVIDIA) or compute units (AMD)."""
    power: Figure | None = None
    """Board power limit [W]."""
    link: Link
    sources: dict[str, Source] = Field(min_length=1)

    @model_validator(mode="after")
    def _sources_are_complete(self) -> GpuProfile:
        used = {figure.source for figure in self.figures().values()}
        if missing := sorted(used - self.sources.keys()):
            raise ValueError(f"source {missing[0]!r} is not listed under [sources]")
        if unused := sorted(self.sources.keys() - used):
            raise ValueError(f"source {unused[0]!r} is listed but no number uses it")
        return self

    def figures(self) -> dict[str, Figure]:
        """Return every number of the profile by its dotted name."""
        found = {f"peak_flops.{dtype}": figure for dtype, figure in self.peak_flops.items()}
        for name in ("memory_bandwidth", "memory_nominal", "memory_visible", "l2_cache", "compute_units", "power"):
            if (figure := getattr(self, name)) is not None:
                found[name] = figure
        found["link.bandwidth_per_direction"] = self.link.bandwidth_per_direction
        found["link.gpus_per_node"] = self.link.gpus_per_node
        return found


def read_profile(path: Path) -> GpuProfile:
    """Read a GPU profile from a TOML file.

    Raises:
        InputError: the file is missing, unreadable, not TOML, or breaks the schema (first fault named).
    """
    return read_toml(path, GpuProfile, what="GPU profile")


def read_toml(path: Path, kind: type[Document], what: str) -> Document:
    """Read and validate one TOML document; every failure is one :class:`InputError` that names file, place and reason."""
    name = f"{what} {shown_path(path)}"
    try:
        content = tomllib.loads(read_text(path, what))
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"{name}: not valid TOML ({error})") from None
    except RecursionError:
        raise InputError(f"{name}: not valid TOML (nested too deeply)") from None
    try:
        return kind.model_validate(content)
    except ValidationError as error:
        raise InputError(f"{name}: {first_fault(error, kind)}") from None


def first_fault(error: ValidationError, kind: type[BaseModel]) -> str:
    """Return the first fault of a pydantic error as ``place: reason`` in one line; of an unknown key the nearest that ``kind`` has."""
    fault = error.errors(include_url=False, include_input=False)[0]
    place = ".".join(str(part) for part in fault["loc"])
    place = place if place.isprintable() and len(place) <= 200 else shown(place, 200)
    reason = fault["msg"].removeprefix("Value error, ").replace("\n", " ")
    if fault["type"] == "extra_forbidden":
        *above, key = fault["loc"]
        known = _keys(kind, above)
        close = nearest(str(key), known)
        reason = f"this key is not permitted; {suggestion(close) + ' ' if close else ''}(keys: {', '.join(known)})"
    return f"{place}: {reason}" if place else reason


def _keys(kind: Any, place: Sequence[int | str]) -> list[str]:
    """Return the keys of the table at a place of a document of ``kind``."""
    for part in place:
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            kind = next(field.annotation for name, field in kind.model_fields.items() if part in (name, field.alias))
        else:
            kind = get_args(kind)[-1 if get_origin(kind) is dict else 0]
        while get_origin(kind) in (Union, UnionType, Annotated):
            kind = get_args(kind)[0]
    return [field.alias or name for name, field in kind.model_fields.items()]

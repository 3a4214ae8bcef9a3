"""docs/hardware.md says what the code does: its table, its example, its default parts and its fields.

``COSTMODEL_WRITE_DOCS=1 pytest tests/hardware/test_docs.py`` rewrites the table from the profiles.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from costmodel.hardware.catalog import FOLDER, gpu_names, load_gpu, resolve_gpu
from costmodel.hardware.profile import Figure, GpuProfile, Source, read_profile

PAGE = Path(__file__).parents[2] / "docs" / "hardware.md"
BEGIN = "<!-- table: written by `COSTMODEL_WRITE_DOCS=1 pytest tests/hardware/test_docs.py` -->"
END = "<!-- end of table -->"
COLUMNS = ("fp16", "bf16", "fp8", "fp4", "int8")


def shown(figure: Figure | None, unit: float) -> str:
    """One cell: enough digits to tell parts apart, ``~`` for an estimate, a dash for nothing."""
    if figure is None:
        return "–"
    value = figure.value / unit
    text = f"{value:,.1f}" if value >= 1000 else f"{value:.5g}"
    return text.removesuffix(".0") + ("~" if "estimated" in figure.note else "")


def gib(figure: Figure) -> str:
    return f"{figure.value / 2**30:.2f}" + ("~" if "estimated" in figure.note else "")


def row(name: str, profile: GpuProfile) -> str:
    peaks = {str(dtype): figure for dtype, figure in profile.peak_flops.items()}
    cells = [
        f"`{name}`",
        profile.name,
        *(shown(peaks.get(dtype), 1e12) for dtype in COLUMNS),
        shown(profile.memory_bandwidth, 1e9),
        shown(profile.memory_nominal, 1e9),
        gib(profile.memory_visible),
        f"{profile.link.kind} {shown(profile.link.bandwidth_per_direction, 1e9)}",
        shown(profile.link.gpus_per_node, 1),
    ]
    return "| " + " | ".join(cells) + " |"


def table() -> str:
    head = ("name", "part", *COLUMNS, "memory GB/s", "GB", "visible GiB", "link GB/s per direction", "GPUs per node")
    lines = ["| " + " | ".join(head) + " |", "|---|---|" + "--:|" * (len(head) - 4) + "---|--:|"]
    lines += [row(name, read_profile(FOLDER / f"{name}.toml")) for name in gpu_names()]
    return "\n".join(lines)


def page() -> str:
    if not PAGE.exists():
        pytest.skip("docs/hardware.md is not here")
    return PAGE.read_text(encoding="utf-8")


def test_table_is_up_to_date() -> None:
    before, _, rest = page().partition(BEGIN)
    old, _, after = rest.partition(END)
    if os.environ.get("COSTMODEL_WRITE_DOCS"):
        PAGE.write_text(f"{before}{BEGIN}\n\n{table()}\n\n{END}{after}", encoding="utf-8")
        return
    assert old.strip() == table()


def test_example_profile_is_valid_and_shows_every_field(tmp_path: Path) -> None:
    (example,) = re.findall(r"```toml\n(.*?)```", page(), flags=re.DOTALL)
    path = tmp_path / "my-gpu.toml"
    path.write_text(example, encoding="utf-8")
    profile, choice = load_gpu(str(path))
    assert choice.name == "my-gpu"
    assert profile.name == "Example E100 SXM 64GB"
    assert all(getattr(profile, field) is not None for field in GpuProfile.model_fields)


def fields() -> Iterator[str]:
    nested = {"peak_flops": "peak_flops.<dtype>", "sources": "sources.<key>", "schema_": "schema"}
    for field in GpuProfile.model_fields:
        if field == "link":
            yield from ("link.kind", "link.bandwidth_per_direction", "link.gpus_per_node")
        else:
            yield nested.get(field, field)


def test_every_field_is_explained() -> None:
    explained = set(re.findall(r"^\| `([^`]+)` \|.*\|.*\|$", page().partition("| field |")[2], flags=re.MULTILINE))
    assert explained == set(fields())
    assert all(f"`{field}`" in page() or field in {"url", "title"} for field in Source.model_fields)


def test_default_parts_of_short_names() -> None:
    lines = page().partition("| name | part taken | also |")[2].partition("\n\n")[0].splitlines()[2:]
    assert len(lines) == 7
    for line in lines:
        names, taken, _ = line.strip("| ").split(" | ")
        (part,) = re.findall(r"`([^`]+)`", taken)
        for name in re.findall(r"`([^`]+)`", names):
            choice = resolve_gpu(name)
            assert choice.name == part
            assert choice.note

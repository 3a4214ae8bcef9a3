"""A profile file that is wrong is refused in one line that names file, place and reason."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from costmodel.hardware.catalog import FOLDER, load_gpu
from costmodel.hardware.errors import InputError

GOOD = (FOLDER / "l4.toml").read_text(encoding="utf-8")


def refusal(path: Path) -> str:
    with pytest.raises(InputError) as error:
        load_gpu(str(path))
    text = str(error.value)
    assert "\n" not in text
    assert str(path) in text
    assert error.value.exit_code == 2
    return text


def edited(tmp_path: Path, old: str, new: str) -> Path:
    assert old in GOOD
    path = tmp_path / "my.toml"
    path.write_text(GOOD.replace(old, new, 1), encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("old", "new", "place", "reason"),
    [
        (
            'vendor = "nvidia"',
            'vendor = "nvidia"\ncolour = "green"',
            "colour",
            "this key is not permitted; (keys: schema, name",
        ),
        ("memory_bandwidth", "memory_bandwith", "memory_bandwidth", "Field required"),
        ('schema = "costmodel.gpu/1"', 'schema = "costmodel.gpu/2"', "schema", "costmodel.gpu/1"),
        ('vendor = "nvidia"', 'vendor = "acme"', "vendor", "nvidia"),
        ('{ value = 300e9, source = "l4" }', "300e9", "memory_bandwidth", "valid dictionary"),
        ('{ value = 300e9, source = "l4" }', "{ value = 300e9 }", "memory_bandwidth.source", "Field required"),
        ('{ value = 300e9, source = "l4" }', '{ value = 300e9, source = "web" }', "", "source 'web' is not listed"),
        (
            '{ value = 300e9, source = "l4" }',
            '{ value = -1, source = "l4" }',
            "memory_bandwidth.value",
            "greater than 0",
        ),
        (
            '{ value = 300e9, source = "l4" }',
            '{ value = 0, source = "l4" }',
            "memory_bandwidth.value",
            "greater than 0",
        ),
        ('{ value = 300e9, source = "l4" }', '{ value = nan, source = "l4" }', "memory_bandwidth.value", "finite"),
        ('{ value = 300e9, source = "l4" }', '{ value = inf, source = "l4" }', "memory_bandwidth.value", "finite"),
        (
            '{ value = 300e9, source = "l4" }',
            '{ value = "TBD", source = "l4" }',
            "memory_bandwidth.value",
            "valid number",
        ),
        ("[sources]", '[sources]\nspare = { title = "unused", url = "https://example.com" }', "", "source 'spare'"),
        ("https://www.nvidia.com", "www.nvidia.com", "sources.l4.url", "pattern"),
        ('kind = "pcie"', 'kind = "isa"', "link.kind", "nvlink"),
        ("bf16 =", "bf17 =", "peak_flops", "bf16"),
    ],
)
def test_schema_faults(tmp_path: Path, old: str, new: str, place: str, reason: str) -> None:
    text = refusal(edited(tmp_path, old, new))
    assert place in text
    assert reason in text


def test_not_toml(tmp_path: Path) -> None:
    path = tmp_path / "bad.toml"
    path.write_text('name = "x\n', encoding="utf-8")
    assert "not valid TOML" in refusal(path)


def test_not_text(tmp_path: Path) -> None:
    path = tmp_path / "binary.toml"
    path.write_bytes(b"\xff\xfe\x00")
    assert "cannot be read" in refusal(path)


def test_empty_file(tmp_path: Path) -> None:
    path = tmp_path / "empty.toml"
    path.touch()
    assert "schema: Field required" in refusal(path)


def test_missing(tmp_path: Path) -> None:
    assert "no such file" in refusal(tmp_path / "absent.toml")


@pytest.mark.parametrize("name", ["folder", "folder.toml"])
def test_directory(tmp_path: Path, name: str) -> None:
    (tmp_path / name).mkdir()
    assert "is a directory" in refusal(tmp_path / name)


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="needs a user whom permissions bind")
def test_forbidden(tmp_path: Path) -> None:
    path = tmp_path / "secret.toml"
    path.write_text(GOOD, encoding="utf-8")
    path.chmod(0)
    assert "cannot be read" in refusal(path)

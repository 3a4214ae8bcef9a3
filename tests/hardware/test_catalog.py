"""Names of GPUs: what people type, what nvidia-smi prints, what clouds and other tools call them."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from costmodel.hardware import catalog
from costmodel.hardware.catalog import aliases, gpu_names, load_gpu, resolve_gpu
from costmodel.hardware.errors import InputError
from costmodel.hardware.profile import read_profile


def index() -> dict[str, Any]:
    return tomllib.loads((catalog.FOLDER / "index.toml").read_text(encoding="utf-8"))


def profile_files() -> set[str]:
    return {
        path.stem
        for path in catalog.FOLDER.glob("*.toml")
        if tomllib.loads(path.read_text(encoding="utf-8")).get("schema") == "costmodel.gpu/1"
    }


def one_line(error: pytest.ExceptionInfo[InputError]) -> str:
    text = str(error.value)
    assert "\n" not in text
    return text


def test_index_and_files_agree() -> None:
    assert set(gpu_names()) == set(index()["gpus"]) == profile_files()


@pytest.mark.parametrize("name", gpu_names())
def test_index_title_is_the_profiles_name(name: str) -> None:
    assert catalog.title(name) == read_profile(catalog.FOLDER / f"{name}.toml").name


def test_every_spelling_means_one_part() -> None:
    content = index()
    owner: dict[str, str] = {}
    for name, entry in content["gpus"].items():
        for spelling in (name, entry["title"], *entry["aliases"]):
            assert owner.setdefault(catalog._fold_without_vendor(spelling), name) == name, spelling
    for short in content["short"]:
        assert catalog._fold_without_vendor(short) not in owner, short
    exact = [alias for entry in content["gpus"].values() for alias in entry.get("exact", ())]
    assert len(exact) == len(set(exact))


def test_index_refers_to_known_parts_only() -> None:
    content = index()
    for entry in content["short"].values():
        assert {entry["gpu"], *entry["also"]} <= set(content["gpus"])
        assert entry["gpu"] not in entry["also"]
    for entry in content["gpus"].values():
        assert set(entry) <= {"title", "aliases", "exact", "also"}
        assert set(entry.get("also", ())) <= set(content["gpus"])


@pytest.mark.parametrize(
    ("name", "alias"), [(name, alias) for name, others in aliases().items() for alias in (name, *others)]
)
def test_every_alias_resolves(name: str, alias: str) -> None:
    for spelling in (
        alias,
        alias.upper(),
        alias.lower(),
        alias.replace("-", "_"),
        alias.replace("-", " "),
        f" {alias} ",
    ):
        assert resolve_gpu(spelling).name == name


@pytest.mark.parametrize(
    ("printed", "name"),
    [
        ("NVIDIA H100 80GB HBM3", "h100-sxm"),
        ("NVIDIA H100 PCIe", "h100-pcie"),
        ("NVIDIA H100 NVL", "h100-nvl"),
        ("NVIDIA H200 NVL", "h200-nvl"),
        ("NVIDIA H20", "h20"),
        ("NVIDIA H800", "h800"),
        ("NVIDIA GH200 480GB", "gh200"),
        ("NVIDIA GH200 144G HBM3e", "gh200-144gb"),
        ("NVIDIA A100-SXM4-40GB", "a100-40gb-sxm"),
        ("NVIDIA A100-SXM4-80GB", "a100-80gb-sxm"),
        ("NVIDIA A100-PCIE-40GB", "a100-40gb-pcie"),
        ("NVIDIA A100 80GB PCIe", "a100-80gb-pcie"),
        ("NVIDIA A30", "a30"),
        ("NVIDIA A10", "a10"),
        ("NVIDIA A10G", "a10g"),
        ("NVIDIA A40", "a40"),
        ("NVIDIA L4", "l4"),
        ("NVIDIA L40", "l40"),
        ("NVIDIA L40S", "l40s"),
        ("Tesla T4", "t4"),
        ("Tesla V100-SXM2-16GB", "v100-16gb"),
        ("Tesla V100-SXM2-32GB", "v100"),
        ("Tesla V100-PCIE-32GB", "v100-pcie"),
        ("NVIDIA GeForce RTX 3090", "rtx-3090"),
        ("NVIDIA GeForce RTX 4090", "rtx-4090"),
        ("NVIDIA GeForce RTX 5090", "rtx-5090"),
        ("NVIDIA RTX A6000", "rtx-a6000"),
        ("NVIDIA RTX 6000 Ada Generation", "rtx-6000-ada"),
        ("NVIDIA RTX PRO 6000 Blackwell Workstation Edition", "rtx-pro-6000-blackwell"),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "rtx-pro-6000-blackwell-server"),
        ("NVIDIA B200", "b200"),
        ("NVIDIA B300 SXM6 AC", "b300"),
        ("NVIDIA GB200", "gb200"),
        ("NVIDIA GB300", "gb300"),
        ("NVIDIA GB10", "gb10"),
        ("AMD Instinct MI300X", "mi300x"),
        ("AMD Instinct MI325X", "mi325x"),
        ("AMD Instinct MI355X", "mi355x"),
    ],
)
def test_what_tools_print_is_exact(printed: str, name: str) -> None:
    choice = resolve_gpu(printed)
    assert (choice.name, choice.note) == (name, "")


@pytest.mark.parametrize(
    ("typed", "name"),
    [
        ("H100-SXM5-80GB", "h100-sxm"),
        ("rtx4090", "rtx-4090"),
        ("4090", "rtx-4090"),
        ("l40s", "l40s"),
        ("mi300x", "mi300x"),
        ("a6000", "rtx-a6000"),
        # aiconfigurator's system names
        ("h100_sxm", "h100-sxm"),
        ("h200_sxm", "h200"),
        ("b200_sxm", "b200"),
        ("b300_sxm", "b300"),
        ("rtx_pro_6000_server", "rtx-pro-6000-blackwell-server"),
        # Google Cloud accelerator types
        ("nvidia-h100-80gb", "h100-sxm"),
        ("nvidia-h100-mega-80gb", "h100-sxm"),
        ("nvidia-h200-141gb", "h200"),
        ("nvidia-l4", "l4"),
        ("nvidia-tesla-t4", "t4"),
        ("nvidia-tesla-a100", "a100-40gb-sxm"),
        ("nvidia-tesla-v100", "v100-16gb"),
    ],
)
def test_what_people_type_is_exact(typed: str, name: str) -> None:
    choice = resolve_gpu(typed)
    assert (choice.name, choice.note) == (name, "")


@pytest.mark.parametrize(
    ("typed", "name", "others"),
    [
        ("h100", "h100-sxm", ["h100-pcie", "h100-nvl"]),
        ("a100", "a100-80gb-sxm", ["a100-80gb-pcie", "a100-40gb-sxm", "a100-40gb-pcie"]),
        ("a100-80gb", "a100-80gb-sxm", ["a100-80gb-pcie"]),
        ("a100_sxm", "a100-80gb-sxm", ["a100-40gb-sxm"]),
        ("a100_pcie", "a100-80gb-pcie", ["a100-40gb-pcie"]),
        ("v100", "v100", ["v100-16gb", "v100-pcie"]),
        ("gh200", "gh200", ["gh200-144gb"]),
        ("h200", "h200", ["h200-nvl"]),
        ("rtx pro 6000", "rtx-pro-6000-blackwell", ["rtx-pro-6000-blackwell-server"]),
    ],
)
def test_short_names_take_a_documented_part_and_say_so(typed: str, name: str, others: list[str]) -> None:
    # "H100" and "A100" are several parts, with up to 1.7 times different bandwidth:
    # https://github.com/rasbt/LLMs-from-scratch/issues/482
    choice = resolve_gpu(typed)
    assert choice.name == name
    assert choice.note == f"{typed} is taken as {catalog.title(name)}; also {', '.join(others)}"


@pytest.mark.parametrize(
    ("typed", "nearest"),
    [("h1000", "h100"), ("rtx4900", "rtx-4090"), ("l40x", "l40"), ("mi30x", "mi300x"), ("NVIDIA H100 SXM6", "h100")],
)
def test_near_misses_are_suggested(typed: str, nearest: str) -> None:
    with pytest.raises(InputError) as error:
        resolve_gpu(typed)
    text = one_line(error)
    assert typed in text
    assert nearest in text
    assert "costmodel gpus list" in text


@pytest.mark.parametrize("typed", ["zzz", "nvidia", "NVIDIA GeForce", "--", "h100/x", "0", "é"])
def test_unknown_names_are_refused(typed: str) -> None:
    with pytest.raises(InputError) as error:
        load_gpu(typed)
    assert "unknown GPU" in one_line(error)


@pytest.mark.parametrize("typed", ["", " ", "\t"])
def test_empty_name(typed: str) -> None:
    with pytest.raises(InputError) as error:
        resolve_gpu(typed)
    assert one_line(error).startswith("GPU name is empty")


@pytest.mark.parametrize("typed", ["h100\n", "h\x00", "\ud800"])
def test_unprintable_name(typed: str) -> None:
    with pytest.raises(InputError) as error:
        load_gpu(typed)
    assert "cannot be printed" in one_line(error)


def test_title_of_an_unknown_part() -> None:
    with pytest.raises(InputError, match="unknown GPU 'h1000'; did you mean"):
        catalog.title("h1000")


def test_load_by_name() -> None:
    profile, choice = load_gpu("h100")
    assert profile.name == "NVIDIA H100 SXM5 80GB"
    assert choice.name == "h100-sxm"


def test_load_own_profile(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text((catalog.FOLDER / "l4.toml").read_text(encoding="utf-8"), encoding="utf-8")
    profile, choice = load_gpu(str(path))
    assert profile.name == "NVIDIA L4 24GB"
    assert (choice.name, choice.note) == ("mine", f"profile read from {path}")
    other = tmp_path / "no-suffix"
    path.rename(other)
    assert load_gpu(str(other))[0] == profile


def test_a_folder_named_like_a_gpu_does_not_hide_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "h100").mkdir()
    (tmp_path / "results").mkdir()
    monkeypatch.chdir(tmp_path)
    assert load_gpu("h100")[1].name == "h100-sxm"
    with pytest.raises(InputError, match="is a directory"):
        load_gpu("results")


def test_loading_reads_one_profile_and_the_index_only() -> None:
    code = """
import sys, pathlib
opened = []
sys.addaudithook(lambda event, args: opened.append(str(args[0])) if event == "open" else None)
from costmodel.hardware.catalog import load_gpu
load_gpu("h100")
files = [pathlib.Path(name).name for name in opened if name.endswith(".toml")]
assert sorted(files) == ["h100-sxm.toml", "index.toml"], files
assert not {"numpy", "sympy", "scipy", "matplotlib", "click"} & sys.modules.keys()
"""
    subprocess.run([sys.executable, "-c", code], check=True)

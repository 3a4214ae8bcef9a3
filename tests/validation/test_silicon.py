"""Kernel tables of aiconfigurator-core: units, conventions, what is there, and the rules of exclusion."""

from __future__ import annotations

import importlib.util
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from costmodel.errors import InputError
from costmodel.hardware.catalog import gpu_names, load_gpu
from costmodel.validation.datasets import limits as limits_module
from costmodel.validation.datasets import package, silicon
from costmodel.validation.datasets.formats import QUANTISATIONS, quantisation
from costmodel.validation.datasets.limits import (
    all_reduce_floor,
    decode_floor,
    gemm_floor,
    kv_bytes,
    limits,
    prefill_floor,
    weight_bytes,
)
from costmodel.validation.datasets.rules import (
    FLOOR,
    Rule,
    all_reduce_rules,
    apply_rules,
    chosen_kernel,
    count_each,
    decode_rules,
    gemm_rules,
    layers_in_turn,
    prefill_rules,
)
from costmodel.validation.datasets.tables import GemmTable

needs_silicon = pytest.mark.skipif(
    importlib.util.find_spec("aiconfigurator_core") is None,
    reason="aiconfigurator-core is not installed (extra: silicon)",
)


def small_table() -> GemmTable:
    """Return four layers on an H100, in order: fine, narrow, small enough for L2, faster than light."""
    return GemmTable(
        gpu="h100-sxm",
        engine="vllm",
        engine_version="1",
        dtype="bf16",
        source="",
        measured_by=(),
        seconds=np.array([1.0, 1.0, 1.0, 1e-9]),
        kernels=np.array(["a", "b", "c", "d"]),
        tokens=np.full(4, 16.0),
        outputs=np.array([4096.0, 128.0, 256.0, 4096.0]),
        inputs=np.full(4, 4096.0),
    )


@needs_silicon
def test_gemm_is_in_seconds() -> None:
    table = silicon.gemm("h100-sxm")
    (seconds,) = table.seconds[(table.tokens == 8192) & (table.outputs == 8192) & (table.inputs == 8192)]
    ideal = 2 * 8192**3 / 989e12
    assert ideal <= seconds <= 2 * ideal
    assert (table.gpu, table.engine, table.engine_version, table.dtype) == ("h100-sxm", "vllm", "0.24.0", "bf16")
    assert (package.package_folder() / table.source).is_file()
    assert len(table) == 35_742


@needs_silicon
def test_tables_are_float64_and_equally_long() -> None:
    for table in (
        silicon.gemm("b200", dtype="nvfp4"),
        silicon.prefill_attention("a100"),
        silicon.decode_attention("h200", "sglang", kv_dtype="fp8"),
        silicon.all_reduce("gb300"),
        silicon.moe("h100", "trtllm", "mxfp4"),
        silicon.mla_prefill("h100"),
        silicon.mla_decode("h100", "trtllm", linear_dtype=""),
    ):
        columns = table.columns()
        assert len(table) > 0
        assert {len(column) for column in columns.values()} == {len(table)}
        assert {str(columns.pop(name).dtype.kind) for name in ("kernels",)} == {"U"}
        columns.pop("graph", None)
        assert {column.dtype for column in columns.values()} == {np.dtype(np.float64)}
        assert all(np.all(column > -1) for column in columns.values())
        assert 1e-6 < np.median(table.seconds) < 0.1
        assert not table.seconds.flags.writeable


@needs_silicon
def test_prefill_starts_empty_and_full_windows_are_infinite() -> None:
    table = silicon.prefill_attention("h100")
    assert set(table.cached.tolist()) == {0.0}
    assert set(table.window.tolist()) == {128.0, 1024.0, 8192.0, np.inf}
    assert np.all(table.kv_heads >= 1)
    assert np.all(table.query_heads % table.kv_heads == 0)
    assert set(silicon.prefill_attention("a100").window.tolist()) == {np.inf}


@needs_silicon
def test_decode_context_is_one_less_than_a_power_of_two() -> None:
    context = silicon.decode_attention("h100").context
    assert np.all(np.log2(context + 1) % 1 == 0)
    assert (context.min(), context.max()) == (1, 131_071)


@needs_silicon
def test_messages_are_in_bytes() -> None:
    table = silicon.all_reduce("h100")
    assert table.bytes.min() == 2 * 128
    assert table.bytes.max() == 2 * 2**29
    assert set(table.gpus.tolist()) == {2.0, 4.0, 8.0}
    assert np.count_nonzero(table.graph) == 69
    largest = (table.bytes == table.bytes.max()) & (table.gpus == 8)
    rate = table.bytes[largest] * 2 * 7 / 8 / table.seconds[largest]
    assert np.all((rate > 0.4 * 450e9) & (rate < 2 * 450e9))  # would be half of that if elements were taken for bytes
    assert np.all(silicon.all_reduce("h100", "trtllm").graph)


@needs_silicon
def test_experts_say_how_they_are_chosen() -> None:
    table = silicon.moe("h100")
    assert set(table.skew.tolist()) == {0.0, 1.01, 1.2}
    assert table.experts.max() >= 256
    assert np.all(table.top_k <= table.experts)


@needs_silicon
def test_newest_complete_table_is_read() -> None:
    assert silicon.versions("h100", "moe", "trtllm")[-1] == "1.3.0rc23"
    assert silicon.moe("h100", "trtllm").engine_version == "1.3.0rc20"  # the newer one holds one model's experts
    assert silicon.all_reduce("h100", version="0.14.0").engine_version == "0.14.0"


@needs_silicon
def test_rows_tell_who_measured_them() -> None:
    assert silicon.all_reduce("l40s").engine_version == "0.22.0"
    assert silicon.all_reduce("l40s").measured_by == ("vLLM 0.14.0",)
    with pytest.raises(InputError, match="no rows"):  # that file holds TensorRT-LLM's
        silicon.all_reduce("h100", "sglang", version="0.5.6.post2")


@needs_silicon
def test_every_part_with_data_is_a_profile_or_listed() -> None:
    rows = silicon.available()
    assert {row.gpu for row in rows} <= set(gpu_names())
    assert {row.gpu for row in rows if row.operator == "gemm"} == {
        *("a100-80gb-sxm", "h100-sxm", "h200", "b200", "b300", "gb200", "gb300", "l40s"),
        "rtx-pro-6000-blackwell-server",
    }
    assert silicon.unmapped_systems() == ("b60",)
    assert set(package.SYSTEMS.values()) <= set(gpu_names())


@needs_silicon
@pytest.mark.parametrize(
    "gpu", ["a100", "h100", "h200", "b200", "b300", "gb200", "gb300", "l40s", "rtx-pro-6000-blackwell-server"]
)
def test_nothing_stays_below_the_floor(gpu: str) -> None:
    part = limits(gpu)
    matrices, _ = apply_rules(silicon.gemm(gpu), gemm_rules(gpu))
    assert np.all(matrices.seconds >= gemm_floor(matrices, part))
    assert np.all(6 * weight_bytes(matrices) > part.l2)
    prompts, _ = apply_rules(silicon.prefill_attention(gpu), prefill_rules(gpu))
    assert np.all(prompts.seconds >= prefill_floor(prompts, part))
    assert np.all((prompts.tokens >= 64) & (prompts.batch * prompts.tokens <= 32_768))
    decodes, _ = apply_rules(silicon.decode_attention(gpu), decode_rules(gpu))
    assert np.all(decodes.seconds >= decode_floor(decodes, part))
    assert not np.any((kv_bytes(decodes) >= part.l2 / 16) & (kv_bytes(decodes) <= part.l2))
    messages, _ = apply_rules(silicon.all_reduce(gpu), all_reduce_rules(gpu))
    assert np.all(messages.graph & (messages.bytes <= 2**27) & (messages.seconds >= all_reduce_floor(messages, part)))
    assert min(len(matrices), len(prompts), len(decodes)) > 1000
    assert len(messages) >= 40


@needs_silicon
def test_of_two_kernels_the_one_that_the_engine_takes_stays() -> None:
    table = silicon.decode_attention("b200", "sglang")
    table = table.select((table.head_dim == 128) & ~np.isfinite(table.window))
    kept = table.select(chosen_kernel(table, table.context))
    assert set(table.kernels.tolist()) == {"flashinfer", "trtllm_mha"}
    assert set(kept.kernels.tolist()) == {"trtllm_mha"}
    shapes = (kept.batch, kept.query_heads, kept.kv_heads, kept.context)
    assert len(np.unique(np.stack(shapes, axis=1), axis=0)) == len(kept)
    only = silicon.decode_attention("h100")
    assert np.all(chosen_kernel(only, only.context))


@needs_silicon
def test_all_reduces_stay_within_a_host_and_windows_are_full() -> None:
    kept, counts = apply_rules(silicon.all_reduce("gb300"), all_reduce_rules("gb300"))
    assert set(kept.gpus.tolist()) == {2.0, 4.0}
    assert counts["several hosts"] == 46
    windowed, _ = apply_rules(silicon.decode_attention("h100"), decode_rules("h100"))
    windowed = windowed.select(np.isfinite(windowed.window))
    assert len(windowed) > 1000
    assert np.all(windowed.context >= windowed.window)


@needs_silicon
def test_rules_are_counted_and_switchable_on_h100() -> None:
    table, rules = silicon.gemm("h100"), gemm_rules("h100")
    kept, counts = apply_rules(table, rules)
    assert counts == {"narrow": 9_102, "weights in L2": 6_956, FLOOR: 0}
    assert len(kept) == len(table) - sum(counts.values()) == 19_684
    assert count_each(table, rules)[FLOOR] == 49
    everything, none = apply_rules(table, rules, off=[rule.name for rule in rules])
    assert (len(everything), none) == (len(table), {})


def test_each_rule_takes_its_row() -> None:
    kept, counts = apply_rules(small_table(), gemm_rules("h100"))
    assert (kept.kernels.tolist(), counts) == (["a"], {"narrow": 1, "weights in L2": 1, FLOOR: 1})
    kept, counts = apply_rules(small_table(), gemm_rules("h100"), off=(FLOOR,))
    assert (kept.kernels.tolist(), counts) == (["a", "d"], {"narrow": 1, "weights in L2": 1})
    assert all(rule.reason.endswith(".") for rule in gemm_rules("h100"))


def test_layers_that_are_called_in_turn() -> None:
    table = small_table()
    cases = {("vllm", "bf16"): 6, ("vllm", "nvfp4"): 1, ("sglang", "nvfp4"): 6, ("trtllm", "bf16"): 5}
    assert {key: layers_in_turn(replace(table, engine=key[0], dtype=key[1])) for key in cases} == cases


def test_first_rule_counts_a_row_that_two_exclude() -> None:
    twice: list[Rule[GemmTable]] = [Rule(name, "All.", lambda table: table.tokens < 0) for name in ("one", "two")]
    kept, counts = apply_rules(small_table(), twice)
    assert (len(kept), counts) == (0, {"one": 4, "two": 0})
    assert count_each(small_table(), twice) == {"one": 4, "two": 4}


def test_unknown_rules_and_masks_are_refused() -> None:
    with pytest.raises(InputError, match="unknown rule 'narow'; did you mean narrow"):
        apply_rules(small_table(), gemm_rules("h100"), off=("narow",))
    with pytest.raises(InputError, match="not the text"):
        apply_rules(small_table(), gemm_rules("h100"), off="narrow")
    with pytest.raises(InputError, match="4 truth values"):
        small_table().select(np.array([True]))
    with pytest.raises(InputError, match="4 truth values"):
        small_table().select(np.array([0, 1, 2, 3]))  # type: ignore[arg-type]


def test_cache_size_must_be_known(monkeypatch: pytest.MonkeyPatch) -> None:
    profile, choice = load_gpu("h100-sxm")
    bare = profile.model_copy(update={"l2_cache": None})
    monkeypatch.setattr(limits_module, "load_gpu", lambda name: (bare, choice))
    with pytest.raises(InputError, match="h100-sxm: its profile states no l2_cache"):
        gemm_rules("h100-sxm")


def test_a_peak_must_exist() -> None:
    assert limits("h100").peak("fp4", "fp8") == limits("h100").peak_flops["fp8"]
    with pytest.raises(InputError, match="h100-sxm has no peak for fp4"):
        limits("h100").peak("fp4")


def test_columns_must_be_equally_long_and_cannot_be_written() -> None:
    table = small_table()
    fields = {name: getattr(table, name) for name in GemmTable.__dataclass_fields__}
    with pytest.raises(InputError, match="differ in length"):
        GemmTable(**{**fields, "tokens": np.zeros(3)})
    with pytest.raises(ValueError, match="read-only"):
        table.seconds[0] = 0


def test_without_the_package_the_way_out_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"needs aiconfigurator-core: pip install 'llm-costmodel\[silicon\]'"):
        silicon.gemm("h100")


@needs_silicon
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("h100-pcie",), "was not measured on h100-pcie with vllm; measured GPUs: a100-80gb-sxm, b200"),
        (("h100", "vlm"), "unknown engine 'vlm'; did you mean vllm"),
        (("h100", "vllm", "bf61"), "unknown dtype 'bf61'; did you mean bf16"),
        (
            ("h100", "vllm", "nvfp4"),
            "no rows of gemm_dtype nvfp4; newest table has gemm_dtype bfloat16, fp8, fp8_block",
        ),
        (("h100", "vllm", "bf16", "0.1"), "not measured with vllm 0.1, but with 0.24.0"),
        (("h1000",), "unknown GPU 'h1000'"),
    ],
)
def test_what_was_not_measured_is_named(arguments: tuple[str, ...], message: str) -> None:
    with pytest.raises(InputError) as caught:
        silicon.gemm(*arguments)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@needs_silicon
def test_unreadable_table_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "systems/data/h100_sxm/gemm/vllm/1.0/gemm_perf.parquet"
    file.parent.mkdir(parents=True)
    file.write_bytes(b"not parquet")
    monkeypatch.setattr(package, "package_folder", lambda: tmp_path)
    with pytest.raises(InputError, match=r"gemm_perf\.parquet: cannot be read"):
        silicon.gemm("h100")


def test_versions_sort_as_released() -> None:
    order = ["0.1.dev19262+g1", "0.5.9", "0.5.10", "0.14.0", "1.3.0rc9", "1.3.0rc20", "1.3.0", "1.3.0.post2"]
    keys = [package.version_key(version) for version in order]
    assert keys == sorted(keys)
    assert len(set(keys)) == len(keys)


def test_formats_have_the_bytes_of_their_scales() -> None:
    assert quantisation("nvfp4").weights.bytes_per_weight == 9 / 16
    assert quantisation("mxfp4").weights.bytes_per_weight == 17 / 32
    assert {name: kind.activation_bytes for name, kind in QUANTISATIONS.items() if name in ("bf16", "fp8", "int4")} == {
        "bf16": 2,
        "fp8": 1,
        "int4": 2,
    }

"""End-to-end rows of aiconfigurator-core: counts, units, labels, and the rules of exclusion."""

from __future__ import annotations

import importlib.util
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from costmodel.errors import InputError
from costmodel.hardware.catalog import gpu_names
from costmodel.validation.datasets import end_to_end as module
from costmodel.validation.datasets.end_to_end import EndToEndRow, EndToEndTable, end_to_end
from costmodel.validation.datasets.end_to_end_rules import consistent, counted_twice, end_to_end_rules
from costmodel.validation.datasets.formats import QUANTISATIONS
from costmodel.validation.datasets.rules import apply_rules, count_each

needs_silicon = pytest.mark.skipif(
    importlib.util.find_spec("aiconfigurator_core") is None,
    reason="aiconfigurator-core is not installed (extra: silicon)",
)

ROW = EndToEndRow(
    name="row",
    model="openai/gpt-oss-120b",
    family="gpt-oss-120b",
    gpu="h200",
    engine="vllm",
    version="0.11",
    disaggregated=False,
    linear_dtype="bf16",
    expert_dtype="mxfp4",
    tp=2,
    pp=1,
    attention_dp=1,
    moe_tp=2,
    moe_ep=1,
    input_tokens=1024,
    output_tokens=1024,
    batch_size=16,
    concurrency=16,
    ttft_s=0.1,
    tpot_s=0.01,
    source="",
    protocol="InferenceX",
    final_test=False,
)


@pytest.fixture(scope="module")
def table() -> EndToEndTable:
    if importlib.util.find_spec("aiconfigurator_core") is None:
        pytest.skip("aiconfigurator-core is not installed (extra: silicon)")
    return end_to_end()


def test_counts(table: EndToEndTable) -> None:
    served = [row for row in table if not row.disaggregated]
    assert (len(table), len(served)) == (5_221, 3_619)
    counts = Counter((row.family, row.gpu) for row in served)
    for family, gpu, count in (
        ("Llama-3.1-70B", "b200", 264),
        ("Llama-3.1-70B", "h200", 132),
        ("Llama-3.1-70B", "h100-sxm", 45),
        ("Llama-3.1-8B", "h100-sxm", 177),
        ("Llama-3.1-8B", "h200", 67),
        ("Qwen3-32B", "h100-sxm", 357),
    ):
        assert counts[family, gpu] == count
    assert sum(row.model == "Qwen/Qwen3-32B" and row.gpu == "gb200" for row in served) == 18
    assert Counter(row.protocol for row in served) == {"InferenceX": 2_658, "other": 961}
    assert sum(row.final_test for row in served) == 1_396


def test_units_and_labels(table: EndToEndTable) -> None:
    assert 0.01 < np.median(table.tpot_s) < 0.03
    assert 0.1 < np.median(table.ttft_s) < 1
    assert {row.gpu for row in table} <= set(gpu_names())
    assert {row.linear_dtype for row in table} | {row.expert_dtype for row in table} <= set(QUANTISATIONS)
    assert {row.expert_dtype for row in table if row.family == "gpt-oss-120b"} == {"mxfp4"}
    assert all(
        min(row.tp, row.pp, row.attention_dp, row.moe_tp, row.moe_ep) >= 1 for row in table if not row.disaggregated
    )
    assert {row.family for row in table if row.final_test} == set(module.FINAL_TEST)
    lengths = Counter((row.input_tokens, row.output_tokens) for row in table if row.protocol == "InferenceX")
    assert set(lengths) == {(1024, 1024), (1024, 8192), (8192, 1024)}


def test_repetitions_agree(table: EndToEndTable) -> None:
    """The noise floor: rows of one configuration, whatever the day, differ by about 2 % at the 90th percentile."""
    repeated: dict[tuple[str | int, ...], list[float]] = {}
    for row in table:
        if not row.disaggregated and not row.final_test:
            repeated.setdefault(row.configuration, []).append(row.tpot_s)
    spread = [max(values) / min(values) - 1 for values in repeated.values() if len(values) > 1]
    assert len(spread) > 100
    assert np.quantile(spread, 0.9) < 0.05


def test_rules_exclude_less_than_a_sixth_of_what_may_be_fitted(table: EndToEndTable) -> None:
    fittable = table.select(np.array([not row.disaggregated and not row.final_test for row in table]))
    kept, counts = apply_rules(fittable, end_to_end_rules())
    assert len(fittable) == 2_223
    assert counts == {
        "final test": 0,
        "disaggregated": 0,
        "attention DP": 79,
        "pipeline": 0,
        "batch is not concurrency": 32,
        "parallelism": 54,
        "TTFT over 10 s": 38,
        "faster than the datasheet": 0,
    }
    assert len(kept) == 2_020
    assert sum(counts.values()) <= 0.15 * len(fittable)
    assert count_each(table, end_to_end_rules())["disaggregated"] == 1_602


def test_squared_parallelism_runs_on_the_root(table: EndToEndTable) -> None:
    """gpt-oss rows of "tp 4, experts 2 × 2" are as fast as tp 2, and "tp 16, 4 × 4" as tp 4: the same GPUs were counted twice."""
    served = [row for row in table if row.family == "gpt-oss-120b" and row.gpu == "h200" and row.engine == "trtllm"]
    load = {(row.tp, row.moe_ep, row.input_tokens, row.output_tokens, row.concurrency): row.tpot_s for row in served}
    doubled = [key for key in load if key[1] > 1 and key[0] == key[1] ** 2]
    ratios = [load[key] / load[key[1], 1, *key[2:]] for key in doubled if (key[1], 1, *key[2:]) in load]
    assert len(ratios) > 20
    assert np.median(np.abs(np.array(ratios) - 1)) < 0.01


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        ({"final_test": True}, "final test"),
        ({"disaggregated": True, "batch_size": 0}, "disaggregated"),
        ({"attention_dp": 2, "moe_tp": 4}, "attention DP"),
        ({"pp": 2}, "pipeline"),
        ({"batch_size": 8}, "batch is not concurrency"),
        ({"tp": 4, "moe_ep": 2}, "parallelism"),
        ({"tp": 4}, "parallelism"),
        ({"ttft_s": 10.1}, "TTFT over 10 s"),
        ({"tpot_s": 0.001}, "faster than the datasheet"),
    ],
)
def test_each_rule_takes_its_row(change: dict[str, object], rule: str) -> None:
    rows = EndToEndTable((ROW, replace(ROW, **change)))  # type: ignore[arg-type]
    rules = end_to_end_rules(bound=lambda row: 0.002)
    kept, counts = apply_rules(rows, rules)
    assert kept.rows == (ROW,)
    assert {name for name, count in counts.items() if count} == {rule}
    kept, _ = apply_rules(rows, rules, off=(rule,))
    assert len(kept) == 2


def test_bound_may_not_know() -> None:
    kept, _ = apply_rules(EndToEndTable((ROW,)), end_to_end_rules(bound=lambda row: None))
    assert len(kept) == 1


def test_parallelism() -> None:
    assert consistent(ROW)
    assert counted_twice(replace(ROW, tp=16, moe_tp=4, moe_ep=4))
    assert not counted_twice(replace(ROW, tp=4, moe_tp=2, moe_ep=2, protocol="other"))
    assert consistent(replace(ROW, tp=4, moe_tp=2, moe_ep=2, protocol="other"))
    assert consistent(replace(ROW, family="Llama-3.1-8B", tp=8, moe_tp=1))


def test_groups() -> None:
    later = replace(ROW, version="0.12", tpot_s=0.02, name="later")
    assert later.group == ROW.group
    assert later.configuration != ROW.configuration
    assert replace(ROW, concurrency=32).group != ROW.group
    assert replace(ROW, concurrency=32, input_tokens=1).deployment == ROW.deployment


def test_mask_must_fit() -> None:
    with pytest.raises(InputError, match="1 truth values"):
        EndToEndTable((ROW,)).select(np.array([True, False]))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "cannot be read"),
        ("id,mode\nx,agg\n", "missing column 'silicon_data_source'"),
        ("id,mode\nx,both\n", "unknown value or missing column 'both'"),
    ],
)
def test_another_file_is_refused(
    text: str | None, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "systems").mkdir()
    if text is not None:
        (tmp_path / module.FILE).write_text(text, encoding="utf-8")
    monkeypatch.setattr(module, "package_folder", lambda: tmp_path)
    with pytest.raises(InputError, match=message):
        end_to_end()

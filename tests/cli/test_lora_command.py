"""LoRA adapters on the command line: options, documents, reports, one line for what cannot be."""

import json
from pathlib import Path
from typing import Any

import pytest

import costmodel
from costmodel import Lora
from tests.cli.runner import document, printed, refusal

ADAPTED = "--loras 4 --lora-rank 32"


def test_the_documents_are_those_of_the_python_api() -> None:
    lora = Lora(rank=32, adapters=4)
    found = document(f"predict {ADAPTED} --json")
    assert found == costmodel.predict(lora=lora).model_dump(by_alias=True, mode="json")
    assert found["workload"]["lora"]["bytes_per_adapter"] == 2 * 32 * (41_943_040 // 16 + 2 * (128_256 + 4096))
    planned = document(f"plan memory {ADAPTED} --json")
    assert planned == costmodel.plan_memory(lora=lora).model_dump(by_alias=True, mode="json")
    assert planned["lora"] == found["workload"]["lora"]
    assert document("predict --json")["workload"]["lora"] is None


@pytest.mark.parametrize(
    ("options", "lora"),
    [
        ("--loras 2", Lora(adapters=2)),
        ("--max-loras 2 --max-lora-rank 8", Lora(rank=8, adapters=2)),
        ("--lora-rank 64", Lora(rank=64)),
        ("--lora-targets q,v", Lora(targets=("q_proj", "v_proj"))),
        ("--lora-target-modules all-linear", Lora(targets="all-linear")),
        ("--loras 3 --fully-sharded-loras --tp 4", Lora(adapters=3, fully_sharded=True)),
    ],
)
def test_options_are_read_as_they_are_meant(options: str, lora: Lora) -> None:
    tp = 4 if "--tp" in options else 1
    made = costmodel.predict(lora=lora, tp=tp).workload.lora
    assert made is not None
    assert document(f"predict {options} --json")["workload"]["lora"] == made.model_dump(mode="json")


def test_an_adapter_is_read(tmp_path: Path) -> None:
    config = {"peft_type": "LORA", "r": 64, "lora_alpha": 16, "target_modules": ["q_proj", "o_proj"]}
    (tmp_path / "adapter_config.json").write_text(json.dumps(config))
    text = printed(f"predict --lora {tmp_path} --loras 2")
    assert "2 LoRA adapters of rank 64" in text
    assert "--lora-targets o_proj,q_proj" in " ".join(text.split())


def test_reports_and_formulas_have_them() -> None:
    text = printed(f"predict {ADAPTED}")
    for words in ("4 LoRA adapters of rank 32", "lora_shrink", "lora_expand", "at the efficiencies of attention"):
        assert words in text
    assert "LoRA adapters 0.6" in printed(f"plan memory {ADAPTED}")
    formula = printed("formula decode --loras 4")
    for words in ("lora_shrink", "min(D, n_A)", "rank of LoRA adapters"):
        assert words in formula


@pytest.mark.parametrize(
    "command",
    [
        "simulate load --clients 4 --requests 4 --prompt 100 --output 5 --json",
        "plan batch --tpot-ms 30 --json",
        "sweep --streams 8 --json",
        "explain decode-bound --json",
    ],
)
def test_other_commands_take_them(command: str) -> None:
    def numbers(found: Any) -> list[float]:
        if isinstance(found, dict):
            return [number for item in found.values() for number in numbers(item)]
        if isinstance(found, list):
            return [number for item in found for number in numbers(item)]
        return [found] if isinstance(found, float) else []

    without, adapted = document(command), document(f"{command} --loras 8 --lora-rank 128")
    assert numbers(without) != numbers(adapted)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--loras -1", "loras must be at least 0"),
        ("--lora-rank 1000", "use 512 or less"),
        ("--lora-targets experts", "has no 'experts'"),
        ("--lora nowhere", "no such file"),
    ],
)
def test_what_cannot_be_is_one_line(options: str, message: str) -> None:
    assert message in refusal(f"predict {options}")

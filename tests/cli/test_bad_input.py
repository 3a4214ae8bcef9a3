"""Wrong input: one line that names the input, the reason and the nearest valid choice; exit code 2; nothing else."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from costmodel.cli.main import COMMANDS
from tests.cli.runner import check_refusal, refusal, script
from tests.cli.samples import MIXTURE

pytestmark = pytest.mark.usefixtures("mistakes")

MANY = ",".join(map(str, range(1, 2002)))
CASES = (
    # the GPU
    ("predict --gpu h10O", "unknown GPU 'h10O'", "did you mean h100"),
    ("predict --gpu rtx4091", "unknown GPU 'rtx4091'", "rtx-4090"),
    ("predict --gpu tpu-v5", "unknown GPU 'tpu-v5'", "costmodel gpus list"),
    ("predict --gpu ''", "--gpu", "empty"),
    ("predict --gpu ' '", "--gpu", "empty"),
    ("predict --gpu h100,,a100", "--gpu", "'h100,,a100'", "empty"),
    ("predict --gpu h100,mi30x", "unknown GPU 'mi30x'", "mi300x"),
    ("predict --gpu", "--gpu", "argument"),
    ("predict --gpu 'h1\a00'", "cannot be printed", "costmodel gpus list"),
    ("predict --gpu missing.toml", "missing.toml", "no such file"),
    ("predict --gpu dangling.toml", "dangling.toml", "no such file"),
    ("predict --gpu circle.toml", "circle.toml", "cannot be read"),
    ("predict --gpu folder.toml", "folder.toml", "is a directory, not a file"),
    ("predict --gpu ./folder", "folder", "is a directory, not a file"),
    ("predict --gpu file/x.toml", "file/x.toml", "cannot be read"),
    ("predict --gpu noise.toml", "noise.toml", "cannot be read"),
    ("predict --gpu syntax.toml", "syntax.toml", "not valid TOML", "line 1"),
    ("predict --gpu empty.toml", "empty.toml", "schema"),
    ("predict --gpu gpu_key.toml", "gpu_key.toml", "colour", "not permitted"),
    ("predict --gpu gpu_zero.toml", "gpu_zero.toml", "memory_bandwidth.value", "greater than 0"),
    ("predict --gpu gpu_no_bandwidth.toml", "memory_bandwidth", "required"),
    ("predict --gpu fits.toml", "fits.toml", "costmodel.gpu/1"),
    # the model
    ("predict --model Llama-3.1-8C", "unknown model 'Llama-3.1-8C'", "did you mean Llama-3.1-8B"),
    ("predict --model lama-3.1-8b", "unknown model 'lama-3.1-8b'", "Llama-3.1-8B"),
    ("predict --model zzz", "unknown model 'zzz'", "costmodel models list"),
    ("predict --model nobody/nothing", "nobody/nothing", "offline"),
    ("predict --model ''", "--model", "empty"),
    ("predict --model '~nosuchuser/x'", "'~nosuchuser/x'", "no such file"),
    ("predict --model ./missing/config.json", "./missing/config.json", "no such file"),
    ("predict --model folder", "'folder'", "contains no config.json"),
    ("predict --model folder.json", "'folder.json'", "contains no config.json"),
    ("predict --model file", "file", "is not JSON"),
    ("predict --model nothing.json", "nothing.json", "is not JSON"),
    ("predict --model corrupt.json", "corrupt.json", "is not JSON", "line 1"),
    ("predict --model deep.json", "deep.json", "is not JSON"),
    ("predict --model noise.json", "noise.json", "is not JSON"),
    ("predict --model there.png", "there.png", "is not JSON"),
    ("predict --model list.json", "list.json", "JSON list, not an object"),
    ("predict --model number.json", "number.json", "JSON int, not an object"),
    ("predict --model dangling.json", "dangling.json", "no such file"),
    ("predict --model circle.json", "circle.json"),
    ("predict --model no_type.json", "no_type", "model_type is missing"),
    ("predict --model no_hidden.json", "no_hidden", "hidden_size is missing"),
    ("predict --model no_layers.json", "no_layers", "num_hidden_layers is missing"),
    ("predict --model no_heads.json", "num_attention_heads", "not 0"),
    ("predict --model negative_heads.json", "num_attention_heads", "not -32"),
    ("predict --model no_kv_heads.json", "num_key_value_heads", "not 0"),
    ("predict --model negative_kv_heads.json", "num_key_value_heads", "not -8"),
    ("predict --model uneven_heads.json", "32", "5"),
    ("predict --model text_heads.json", "num_attention_heads", "whole number"),
    ("predict --model half_layer.json", "num_hidden_layers", "16.5"),
    ("predict --model huge.json", "hidden_size", "must lie between"),
    ("predict --model infinite.json", "intermediate_size", "whole number"),
    ("predict --model mamba.json", "'mamba' is not covered"),
    ("predict --model unknown.json", "'not-a-model' is not covered", "llama"),
    ("predict --model quant.json", "'homebrew' is not covered", "gptq"),
    ("predict --model quant_list.json", "quantization_config"),
    ("predict --model dtype.json", "complex64", "bfloat16"),
    # the calibration
    ("predict --calibration missing.toml", "missing.toml", "no such file"),
    ("predict --calibration folder", "folder", "is a directory, not a file"),
    ("predict --calibration dangling.toml", "dangling.toml", "no such file"),
    ("predict --calibration circle.toml", "circle.toml", "cannot be read"),
    ("predict --calibration noise.toml", "noise.toml", "cannot be read"),
    ("predict --calibration syntax.toml", "syntax.toml", "not valid TOML"),
    ("predict --calibration fits_key.toml", "colour", "not permitted"),
    ("predict --calibration fits_operator.toml", "'elementwize' is unknown", "elementwise"),
    ("predict --calibration fits_parameter.toml", "'efficiency'", "compute_efficiency"),
    ("predict --calibration fits_above_one.toml", "compute_efficiency = 1.81", "(0, 1]"),
    ("predict --calibration fits_nan.toml", "compute_efficiency", "finite"),
    ("predict --calibration fits.toml --gpu a100", "is for h100-sxm", "a100", "--gpu h100-sxm"),
    ("predict --calibration nome", "nome", "no such file"),
    ("predict --calibration ''", "calibration is empty", "'none'"),
    ("predict --calibration deep.toml", "deep.toml", "nested too deeply"),
    ("predict --gpu deep.toml", "deep.toml", "nested too deeply"),
    ("predict --calibration /dev/zero", "/dev/zero", "not a regular file"),
    ("predict --calibration pipe", "pipe", "not a regular file"),
    ("predict --model /dev/zero", "/dev/zero", "not a regular file"),
    ("predict --gpu pipe.toml", "pipe.toml", "not a regular file"),
    ("gpus check pipe", "pipe", "not a regular file"),
    (f"predict --calibration {'c' * 300}", "calibration", "File name too long"),
    (f"predict --gpu {'g' * 5000}", "unknown GPU 'ggg", "costmodel gpus list"),
    (f"predict --model {'m' * 5000}", "model"),
    ("predict --engine vlm", "--engine", "'vlm'", "'vllm'", "'sglang'", "'trtllm'"),
    ("predict --engine ''", "--engine", "'vllm'"),
    # dividing the model
    ("predict --tp 3", "tp 3", "Llama-3.1-8B", "possible: 1, 2, 4, 8, 16, 32"),
    ("predict --tp 64", "tp 64", "possible: 1, 2, 4, 8, 16, 32"),
    ("predict --tp 0", "tp", "not 0"),
    ("predict --tp -- -2", "-2"),
    ("predict --tp=-2", "tp", "not -2"),
    ("predict --tp 1.5", "--tp", "'1.5' is not a whole number"),
    ("predict --tp 1,2,3", "tp 3", "possible"),
    ("predict --pp 33", "pp 33", "32 layers"),
    ("predict --pp 0", "pp", "not 0"),
    ("predict --pp=-1", "pp", "not -1"),
    ("predict --pp x", "--pp", "'x'"),
    ("predict --ep 2", "ep 2", "dense", "ep must be 1"),
    ("predict --ep 0", "ep", "not 0"),
    (f"predict {MIXTURE} --ep 3", "ep 3", "32 experts"),
    (f"predict {MIXTURE} --tp 4 --ep 2", "ep 2", "multiple of tp 4", "nearest is 4"),
    # number formats
    ("predict --gpu v100 --dtype bf16", "v100 cannot compute in bf16", "use fp16"),
    ("predict --gpu t4 --dtype bf16", "t4 cannot compute in bf16", "use fp16"),
    ("predict --gpu a100 --compute-dtype fp8", "A100", "cannot compute in 'fp8'", "int8"),
    ("predict --gpu a100 --dtype fp8 --compute-dtype fp8", "A100", "cannot compute in 'fp8'", "int8"),
    ("predict --compute-dtype bf61", "'bf61'", "bf16"),
    ("predict --dtype bf61", "unknown dtype 'bf61'", "did you mean bf16"),
    ("predict --dtype ''", "--dtype", "empty"),
    ("predict --kv-dtype fp9", "unknown KV-cache dtype 'fp9'", "did you mean fp8"),
    ("predict --kv-dtype int4", "KV-cache dtype 'int4'", "int8"),
    # the prompt
    ("predict --prompt 0", "prompt must be at least 1", "not 0"),
    ("predict --prompt=-1", "prompt must be at least 1", "not -1"),
    ("predict --prompt 1.5", "--prompt", "'1.5' is not a whole number"),
    ("predict --prompt abc", "'abc' is not a whole number", "chat"),
    ("predict --prompt summarise", "'summarise'", "summarisation"),
    ("predict --prompt nan", "'nan' is not a whole number"),
    ("predict --prompt inf", "'inf' is not a whole number"),
    ("predict --prompt 1e400", "'1e400' is not a whole number"),
    ("predict --prompt 1e9", "prompt must be at most 100000000"),
    (f"predict --prompt {10**30}", "prompt must be at most 100000000"),
    ("predict --prompt ''", "--prompt", "empty"),
    ("predict --prompt 8000,,", "--prompt", "'8000,,'", "empty"),
    ("predict --prompt ,", "--prompt", "empty"),
    ("predict --prompt 8000,0", "prompt must be at least 1", "not 0"),
    ("predict --prompt 8_0_0.5", "'8_0_0.5' is not a whole number"),
    ("predict --prompt 8,000", "--prompt", "'8,000'", "several values", "without a separator: 8000"),
    ("predict --prompt 1,000,000", "'1,000,000'", "without a separator: 1000000"),
    ("predict --streams 1,024", "--streams", "'1,024'", "without a separator: 1024"),
    ("predict --chunk 2,048", "--chunk", "'2,048'", "without a separator: 2048"),
    ("predict --prompt k", "'k' is not a whole number"),
    ("predict --prompt 1.5k", "'1.5k' is not a whole number"),
    ("predict --prompt=-8k", "'-8k' is not a whole number"),
    ("predict --prompt 0k", "prompt must be at least 1", "not 0"),
    (f"predict --prompt {MANY}", "2,001 configurations", "2,000", "step_times"),
    # the rest of the workload
    ("predict --streams 0", "streams must be at least 1", "not 0"),
    ("predict --streams=-32", "streams must be at least 1", "not -32"),
    ("predict --streams 1e9", "streams must be at most 1000000"),
    ("predict --streams many", "--streams", "'many' is not a whole number"),
    ("predict --streams chat", "--streams", "'chat' is not a whole number"),
    ("predict --context=-1", "context must be at least 0", "not -1"),
    ("predict --context 1e12", "context must be at most"),
    ("predict --every 0", "every must be a finite number above zero", "not 0"),
    ("predict --every=-1", "every", "above zero", "-1"),
    ("predict --every nan", "every", "finite", "nan"),
    ("predict --every inf", "every", "finite", "inf"),
    ("predict --every 1e400", "every", "finite"),
    ("predict --every 1e308", "every must be at most 1e+12", "1e+308"),
    ("predict --params 1e308", "params must be at most 1e+18", "1e+308"),
    ("predict --every daily", "--every", "'daily'"),
    ("predict --params nan", "params", "finite", "nan"),
    ("predict --params 0", "params", "above zero", "0"),
    ("predict --params=-8e9", "params", "above zero"),
    ("predict --params inf", "params", "finite"),
    ("predict --params 8B", "--params", "'8B'"),
    ("predict --chunk 32", "token budget of 32", "32 running streams", "at least 33"),
    ("predict --chunk 512 --streams 600", "token budget of 512", "at least 601"),
    ("predict --chunk 0", "chunk must be at least 1", "not 0"),
    ("predict --chunk=-5", "chunk must be at least 1", "not -5"),
    ("predict --chunk engin", "--chunk", "'engin'", "'engine'"),
    ("predict --chunk 33 --prompt 1e8", "100000000 tokens", "larger chunk"),
    ("predict --prompts 0", "prompts must be at least 1", "not 0"),
    ("predict --prompts=-1", "prompts must be at least 1", "not -1"),
    ("predict --prompts 1000000", "prompts must be at most 4096"),
    (f"predict --prompts {10**30}", "prompts must be at most 4096"),
    ("predict --prompts 2.5", "--prompts", "'2.5'"),
    # the command line
    ("predict --promt 8000", "--promt", "--prompt"),
    ("predict extra", "extra"),
    ("predct", "no command 'predct'", "did you mean predict"),
    ("gpu", "no command 'gpu'", "did you mean gpus"),
    ("xyz", "no command 'xyz'", ", ".join(COMMANDS)),
    ("fitt", "no command 'fitt'", "did you mean fit"),
    ("--promt 8000", "--promt"),
    # figures
    ("predict --figure timelin", "'timelin'", "'timeline'"),
    ("predict --plot folder", "'folder'", "no suffix", ".png, .svg or .pdf"),
    ("predict --plot folder.png", "folder.png", "is a folder"),
    ("predict --plot spike.gif", "'spike.gif'", "'.gif'", ".png, .svg or .pdf"),
    ("predict --plot missing/spike.png", "missing/spike.png", "does not exist"),
    ("predict --plot file/spike.png", "file/spike.png", "does not exist"),
    ("predict --plot there.png", "there.png exists", "--force"),
    ("predict --plot ''", "no suffix"),
    (f"predict --plot {'p' * 300}.png", "cannot save", "File name too long"),
    (f"models import Llama-3.1-8B {'f' * 300}", "cannot save", "File name too long"),
    ("predict --figure heights", "--figure heights", "--plot FILE"),
    ("predict --plot spike.png --gpu h100,a100", "--figure timeline", "one configuration", "breakdown"),
    # formulas
    ("formula spik", "'spik'", "'spike'"),
    ("formula --rung roofine", "'roofine'", "'roofline'"),
    ("formula --rung calibrated --calibration none", "no calibration of h100-sxm for vllm", "--calibration FILE"),
    ("formula --rung calibrated --gpu mi300x --engine sglang", "no calibration of mi300x for sglang", "h100-sxm"),
    ("formula --engine vlm", "--engine", "'vlm'", "'vllm'", "'sglang'", "'trtllm'"),
    ("formula --prompts 2", "one prompt", "--solve"),
    ("formula --prompt 1,2", "--prompt takes one value", "2"),
    ("formula --gpu h100,a100", "--gpu takes one value", "2"),
    ("formula --gpu h10O", "unknown GPU 'h10O'", "h100"),
    ("formula --chunk 32", "token budget of 32", "at least 33"),
    ("formula --prompt 0", "prompt must be at least 1"),
    ("formula --spike-ms 50", "--solve prompt"),
    ("formula --solve prompt", "exactly one of --spike-ms"),
    ("formula --solve prompt --spike-ms 50 --ratio 3", "exactly one of --spike-ms"),
    ("formula --solve prompt --spike-ms nan", "finite number above zero", "nan"),
    ("formula --solve prompt --spike-ms inf", "finite number above zero", "inf"),
    ("formula --solve prompt --spike-ms 1e308", "at most 1e+15"),
    ("formula --solve prompt --spike-ms 0", "finite number above zero", "0"),
    ("formula --solve prompt --ratio=-28", "ratio", "above zero", "-28"),
    ("formula --solve prompt --ratio 1e999", "ratio", "finite"),
    ("formula --solve prompt --decode-ms 5", "does not depend on the prompt", "streams"),
    ("formula --solve streams --ratio 5", "ratio does not grow with the streams", "prompt"),
    ("formula --solve streams --spike-ms 50 --chunk 512", "token budget"),
    ("formula --solve promt --spike-ms 50", "'promt'", "'prompt'"),
    ("formula --solve prompt --spike-ms 50 --rung calibrated --calibration none", "no calibration of h100-sxm"),
    ("formula --solve prompt --spike-ms 50 --rung textbook --params 0", "params", "above zero"),
    ("formula --solve prompt --spike-ms 50 --prompts 0", "prompts must be at least 1"),
    ("formula --solve prompt --spike-ms 50 --chunk 32", "token budget of 32", "at least 33"),
    # fits
    ("fit --gpu h100 --without-rule bogus", "unknown rule 'bogus'", "TTFT over 10 s", "weights in L2"),
    ("fit --dataset kernels --gpu h100 --without-rule narow", "unknown rule 'narow'", "did you mean narrow"),
    ("fit --dataset rtx4090 --data folder --without-rule bogus", "'bogus'", "beyond the KV cache"),
    ("fit --dataset rtx4090 --data ''", "--data is empty"),
    ("fit --dataset rtx4090 --data '~/nothing'", "/nothing: no such folder"),
    ("fit --gpu gpu_key.toml", "takes the name of a part that was measured", "'gpu_key.toml'"),
    (f"fit --gpu h100 --output {'o' * 300}", "cannot save", "File name too long"),
    # parts and models
    ("gpus show nope", "unknown GPU 'nope'", "costmodel gpus list"),
    ("gpus show h10", "unknown GPU 'h10'", "did you mean h100"),
    ("gpus show ''", "GPU name is empty", "costmodel gpus list"),
    ("gpus show", "NAME"),
    ("gpus lst", "'lst'"),
    ("gpus list extra", "extra"),
    ("gpus check", "FILES"),
    ("gpus check missing.toml", "missing.toml", "no such file"),
    ("gpus check folder", "folder", "is a directory"),
    ("gpus check noise.toml", "noise.toml", "cannot be read"),
    ("gpus check syntax.toml", "syntax.toml", "not valid TOML"),
    ("gpus check empty.toml", "empty.toml", "schema"),
    ("gpus check gpu_key.toml", "gpu_key.toml", "colour"),
    ("gpus check fits_above_one.toml", "calibration fits_above_one.toml", "compute_efficiency"),
    ("gpus check corrupt.json", "corrupt.json", "not valid TOML"),
    ("models show Llama-3.1-8C", "unknown model 'Llama-3.1-8C'", "Llama-3.1-8B"),
    ("models show corrupt.json", "corrupt.json", "is not JSON"),
    ("models show mamba.json", "'mamba' is not covered"),
    ("models show Llama-3.1-8B --tp 3", "tp 3", "possible: 1, 2, 4"),
    ("models show Llama-3.1-8B --tp 0", "--tp", "0"),
    ("models show Llama-3.1-8B --tp x", "--tp", "'x'"),
    ("models import Llama-3.1-8C new", "unknown model 'Llama-3.1-8C'", "Llama-3.1-8B"),
    ("models import Llama-3.1-8B file", "file"),
    ("models import corrupt.json new", "corrupt.json", "is not JSON"),
    ("models import mamba.json new", "'mamba' is not covered"),
    ("models lits", "'lits'"),
)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case[0][:60])
def test_wrong_input_is_refused_in_one_line(case: tuple[str, ...], own_folder: Path) -> None:
    before = sorted(own_folder.iterdir())
    command, *fragments = case
    message = refusal(command)
    assert len(message) < 500
    for fragment in fragments:
        assert fragment in message
    assert sorted(own_folder.iterdir()) == before
    assert (own_folder / "there.png").read_bytes() == b"precious"


@pytest.mark.parametrize(
    "case",
    [
        ("formula --rung textbook --params nan", "params", "finite"),
        ("formula --rung textbook --params 0", "params", "above zero"),
        ("formula --rung textbook --params=-8e9", "params", "above zero"),
        ("formula prefill --rung textbook --params 1e308", "params", "at most 1e+18"),
    ],
    ids=lambda case: case[0],
)
def test_parameters_of_a_formula_are_checked(case: tuple[str, ...]) -> None:
    command, *fragments = case
    message = refusal(command)
    for fragment in fragments:
        assert fragment in message


def test_a_missing_path_is_said_once() -> None:
    message = refusal("predict --model ./missing/config.json")
    assert message.count("./missing/config.json") == 1


def test_a_file_that_may_not_be_read(own_folder: Path) -> None:
    """As root every file may be read, so the permission itself is only tested for others."""
    if os.geteuid() == 0:
        pytest.skip("root may read every file; broken links stand in for it")
    for name, command in (("corrupt.json", "predict --model"), ("fits.toml", "predict --calibration")):
        (own_folder / name).chmod(0)
        message = refusal(f"{command} {name}")
        assert name in message
        assert "cannot be read" in message


@pytest.mark.parametrize(
    ("command", "fragment"),
    [
        ("predict --gpu h10O", "h100"),
        ("predict --prompt 0 --json", "at least 1"),
        ("predict --calibration folder", "directory"),
        ("predict --plot spike.gif", ".png"),
        ("formula --solve prompt --spike-ms nan", "finite"),
        ("gpus check noise.toml", "cannot be read"),
        ("models show Llama-3.1-8B --tp 3", "possible"),
        ("predct", "predict"),
        ("predict --promt 3", "--prompt"),
    ],
)
def test_the_installed_command_refuses_likewise(command: str, fragment: str) -> None:
    found = script(command)
    assert found.stdout == ""
    assert fragment in check_refusal(found.returncode, found.stderr)


def test_names_that_are_no_text_are_refused_by_the_installed_command() -> None:
    found = script([b"predict", b"--model", b"\xff\xfe.json"])
    assert found.stdout == ""
    check_refusal(found.returncode, found.stderr)

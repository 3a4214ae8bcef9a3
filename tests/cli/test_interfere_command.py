"""``costmodel interfere`` against a real HTTP server that stands in for vLLM."""

import json
import os
import random
import re
import signal
import subprocess
import time
from pathlib import Path

import pytest
from matplotlib.text import Text

from costmodel.cli.interfere_figures import percentiles
from costmodel.validation.checking.telling import tell
from costmodel.validation.interference.reading import read_record
from tests.cli.runner import SCRIPT, parse, refusal, run
from tests.interference.misbehaving import Behaviour, serving

SHORT = "--streams 2 --context 20 --prompt 1000 --every 0.5 --first 0.2 --duration 1.2 --baseline 0.4"
KEY = "sk-open-sesame-4711"


def interfere(address, more="", short=SHORT):
    return run(f"interfere --url {address} {short} {more}")


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """One experiment on a server that behaves: the document, and its record."""
    path = tmp_path_factory.mktemp("record") / "r.jsonl"
    with serving(Behaviour()) as address:
        result = interfere(address, f"--record {path} --json --chunk 1024")
    assert result.exit_code == 0, result.stderr
    assert result.stderr == ""
    return parse(result.stdout), path


def test_document(recorded):
    document, path = recorded
    assert document["schema"] == "costmodel.interference/1"
    assert document["complete"]
    assert document["one_to_one"]
    assert document["one_step"]["verdict"] == "yes"
    assert document["server"] == {
        "url": document["server"]["url"],
        "engine": "vllm",
        "version": "0.32.0",
        "flags": {"max_num_batched_tokens": 1024},
        "started": False,
    }
    assert len(document["injections"]) == len(document["spikes"]) == 2
    assert document["spike_s"] == pytest.approx(0.21, abs=0.03)
    assert document["decode_step_s"] == pytest.approx(0.0105, abs=0.004)
    assert document["baseline"]["itl"]["max_s"] < 0.1
    assert document["injected"]["stalls"] >= 4
    assert document["record"] == path.name


def test_the_page_of_documents_names_every_key(recorded, repo_root):
    document, path = recorded
    text = (repo_root / "docs" / "json.md").read_text(encoding="utf-8")
    page = text.partition("## `costmodel.interference/1`")[2].partition("## The table")[0]
    predicted = parse(run(f"interfere --from {path} --gpu h100 --model Llama-3.1-8B --json").stdout)
    assert predicted.keys() == document.keys()
    own = {*predicted, *predicted["server"], *predicted["workload"], *predicted["one_step"]}
    for part in ("spikes", "injections", "predicted"):
        own |= predicted[part][0].keys()
    own |= predicted["injected"].keys() | predicted["injected"]["lag"].keys()
    assert sorted(key for key in own - {"schema"} if f"`{key}`" not in page) == []


def test_a_prediction_takes_the_model_of_the_record(recorded, own_folder):
    """A record of a server that was started holds the config of its model."""
    _, path = recorded
    config = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 256, "intermediate_size": 512, "vocab_size": 8000,
        "num_hidden_layers": 6, "num_attention_heads": 4, "num_key_value_heads": 2, "torch_dtype": "bfloat16",
    }  # fmt: skip
    header, *lines = path.read_text().splitlines()
    header = json.loads(header) | {"model": {"name": "small", "config": config, "dtype": "bf16"}}
    (own_folder / "own.jsonl").write_text("\n".join([json.dumps(header), *lines, ""]))
    document = parse(run("interfere --from own.jsonl --gpu h100 --json").stdout)
    assert document["prediction"].startswith("small on 1 × NVIDIA H100")
    assert tell(own_folder / "own.jsonl", {"gpu": "h100"}).compared.spike.workload.dtype == "bf16"
    header["model"]["dtype"] = "fp32"  # as it was served, whatever the checkpoint has
    (own_folder / "own.jsonl").write_text("\n".join([json.dumps(header), *lines, ""]))
    for model in ({}, {"model": "Llama-3.2-1B"}):
        told = tell(own_folder / "own.jsonl", {"gpu": "h100", "tp": 1, **model})
        assert told.compared.spike.workload.dtype == "fp32"
    without = run(f"interfere --from {path} --gpu h100")
    assert without.exit_code == 2
    assert "needs the model that was served" in without.stderr
    assert "ITL p99" in without.stdout


def test_a_record_is_reported_again(recorded):
    document, path = recorded
    again = run(f"interfere --from {path} --json")
    assert parse(again.stdout) == document
    text = run(f"interfere --from {path}").stdout
    for words in (
        "one to one",
        "Did a prompt go through in one step? yes",
        "ITL p99.9 [ms]",
        "Every token is in r.jsonl",
    ):
        assert words in text


def test_a_prediction_stands_beside(recorded):
    _, path = recorded
    result = run(f"interfere --from {path} --gpu h100 --model Llama-3.1-8B --json")
    document = parse(result.stdout)
    assert [row["what"] for row in document["predicted"]] == ["decode step", "spike"]
    for row in document["predicted"]:
        assert row["error"] == pytest.approx(row["predicted_s"] / row["measured_s"] - 1)
        assert row["inside_interval"] == (row["interval_s"][0] <= row["measured_s"] <= row["interval_s"][1])
    assert "H100" in document["prediction"]
    text = run(f"interfere --from {path} --gpu h100 --model Llama-3.1-8B").stdout
    assert "Prediction: Llama-3.1-8B on 1 × NVIDIA H100 SXM" in text


@pytest.mark.parametrize("figure", ["gaps", "percentiles", "timeline"])
def test_figures(recorded, figure):
    _, path = recorded
    result = run(f"interfere --from {path} --gpu h100 --model Llama-3.1-8B --plot {figure}.png --figure {figure}")
    assert result.exit_code == 0, result.stderr
    assert os.path.getsize(f"{figure}.png") > 20_000


def test_chunks_are_seen_and_the_flag_is_named():
    with serving(Behaviour(chunks=4)) as address:
        document = parse(interfere(address, "--json --chunk 256").stdout)
    assert document["one_step"]["verdict"] == "no"
    assert document["one_step"]["steps"] == 4
    assert document["one_step"]["flag"] == "--max-num-batched-tokens 1002 or more"
    assert "256" in document["one_step"]["why"]
    assert document["one_to_one"]


def test_the_prefix_cache_is_seen():
    with serving(Behaviour(cached=512)) as address:
        document = parse(interfere(address, "--json").stdout)
    assert any("--no-enable-prefix-caching" in text for text in document["warnings"])


def test_several_tokens_in_a_piece_are_said():
    with serving(Behaviour(bundle=2)) as address:
        document = parse(interfere(address, "--json").stdout)
    assert any("came together" in text for text in document["warnings"])


def test_problems_are_counted():
    with serving(Behaviour(wrong="drop", times=2)) as address:
        document = parse(interfere(address, "--json").stdout)
    assert sum(document["problems"].values()) == 2
    assert any(text.startswith("2 × dropped") for text in document["warnings"])


def test_a_server_that_fails_for_good_leaves_a_record():
    with serving(Behaviour(wrong="error")) as address:
        result = interfere(address)
    assert result.exit_code == 1
    assert "the experiment ended early: every stream failed 3 times in a row" in result.stderr
    assert not read_record(Path("interference.jsonl")).complete


def test_the_key_is_sent_and_never_shown(monkeypatch):
    monkeypatch.setenv("OUR_KEY", KEY)
    behaviour = Behaviour(key=KEY)
    with serving(behaviour) as address:
        good = interfere(address, "--api-key-env OUR_KEY --record good.jsonl")
        assert good.exit_code == 0, good.stderr
        assert all(f"Bearer {KEY}" in head for head in behaviour.heads)
        monkeypatch.setenv("OUR_KEY", KEY + "-wrong")
        wrong = interfere(address, "--api-key-env OUR_KEY --served-model-name tiny --record wrong.jsonl")
        none = interfere(address, "--record none.jsonl")
    assert wrong.exit_code == none.exit_code == 2
    assert "--api-key-env" in none.stderr
    texts = [good.stdout, good.stderr, wrong.stdout, wrong.stderr, none.stderr, Path("good.jsonl").read_text()]
    assert not any("sesame" in text for text in texts)
    assert sorted(os.listdir()) == ["good.jsonl"]


def start(address, *more):
    """Start the command as a user does."""
    arguments = f"interfere --url {address} --streams 2 --context 20 --prompt 1000 --every 0.5 --first 0.2 --duration 60".split()
    return subprocess.Popen(
        [SCRIPT, *arguments, "--baseline", "1", *more], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 130), (signal.SIGKILL, -9)])
def test_ending_the_client_leaves_a_usable_record(own_folder, number, code):
    path = own_folder / "interference.jsonl"
    with serving(Behaviour()) as address:
        client = start(address)
        until = time.monotonic() + 60
        while not (path.exists() and b'"begun":"injected"' in path.read_bytes()) and time.monotonic() < until:
            time.sleep(0.05)
        time.sleep(random.uniform(0.3, 1.5))
        client.send_signal(number)
        out, error = client.communicate(timeout=30)
    assert client.returncode == code, error
    record = read_record(path)
    assert record.baseline.complete
    assert record.injected.gaps
    assert not record.complete
    if number != signal.SIGKILL:
        assert error == "interrupted: the numbers are of what had happened until then\n"
        assert "ITL p99" in out
        assert record.injected.notes == ("interrupted",)
    assert os.listdir() == ["interference.jsonl"]
    assert run(f"interfere --from {path}").exit_code == 0


REFUSED = {
    "interfere": "give one of --serve MODEL_DIR, --url URL and --from RECORD",
    "interfere --url http://x --serve y": "give one of",
    "interfere --url localhost:8000": "--url 'localhost:8000': is no address",
    "interfere --url http://me:sesame@x": "--url: user, password",
    "interfere --url http://127.0.0.1:1": "the server at http://127.0.0.1:1 does not answer: no connection",
    "interfere --url http://x --prompt 0": "prompt",
    "interfere --url http://x --streams 0": "streams",
    "interfere --url http://x --every 0": "every",
    "interfere --url http://x --duration nan": "duration",
    "interfere --url http://x --first 50": "--first 50: is not within the --duration of 40 s",
    "interfere --url http://x --api-key-env NO_SUCH_NAME": "--api-key-env NO_SUCH_NAME: there is no such environment variable",
    "interfere --url http://x --random-weights": "--random-weights is for --serve",
    "interfere --url http://x -- --dtype float32": "flags behind `--` are for `vllm serve`",
    "interfere --url http://x --gpu h100": "needs the model that is served: --model",
    "interfere --url http://x --gpu nothing --model Llama-3.1-8B": "unknown GPU 'nothing'",
    "interfere --url http://x --model Llama-3.1-8B": "needs a GPU as well: --gpu NAME",
    "interfere --url http://x --figure gaps": "--figure gaps needs --plot FILE",
    "interfere --url http://x --plot a.txt": "a.txt",
    "interfere --url http://x --record no/folder/r.jsonl": "the folder",
    "interfere --from missing.jsonl": "record missing.jsonl: no such file",
    "interfere --url http://x --prompt 1,2": "--prompt takes one value",
}


@pytest.mark.parametrize("arguments", REFUSED)
def test_refusals(arguments):
    message = refusal(arguments)
    assert REFUSED[arguments] in message
    assert "sesame" not in message
    assert os.listdir() == []


def test_an_existing_record_is_kept(own_folder):
    (own_folder / "interference.jsonl").write_text("mine")
    assert "exists; use --force" in refusal("interfere --url http://127.0.0.1:1")
    assert "does not answer" in refusal("interfere --url http://127.0.0.1:1 --force")
    assert (own_folder / "interference.jsonl").read_text() == "mine"


def test_prompts_longer_than_the_model_takes():
    with serving(Behaviour()) as address:
        message = refusal(f"interfere --url {address} --prompt 5000")
    assert "--prompt 5,000: the server takes sequences of up to 4,096 tokens" in message


@pytest.fixture(scope="module")
def chunked(tmp_path_factory):
    """The record of a server that takes the same prompts in four steps."""
    path = tmp_path_factory.mktemp("record") / "small.jsonl"
    with serving(Behaviour(chunks=4)) as address:
        result = interfere(address, f"--record {path} --json --chunk 256")
    assert result.exit_code == 0, result.stderr
    return path


def test_the_run_is_simulated_beside(recorded):
    _, path = recorded
    asked = f"interfere --from {path} --gpu h100 --model Llama-3.1-8B"
    document = parse(run(f"{asked} --json").stdout)
    simulated, injected = document["simulated"], document["injected"]
    assert simulated["duration_s"] == pytest.approx(injected["duration_s"], rel=0.01)
    assert simulated["requests"]["done"] == len(document["injections"])
    assert simulated["stalls"] >= 2 * len(document["injections"])
    [heading] = [line for line in run(asked).stdout.splitlines() if "baseline" in line and "injected" in line]
    assert heading.split() == ["baseline", "injected", "simulated"]


def test_several_records_share_a_figure(recorded, chunked):
    document, path = recorded
    asked = f"interfere --from {path} --from {chunked} --gpu h100 --model Llama-3.1-8B"
    together = parse(run(f"{asked} --json").stdout)
    assert together["schema"] == "costmodel.interferences/1"
    assert [each["record"] for each in together["interferences"]] == ["r.jsonl", "small.jsonl"]
    assert together["interferences"][0]["injections"] == document["injections"]
    text = run(asked).stdout
    assert text.count("Did a prompt go through in one step?") == 2
    for figure in ("gaps", "percentiles"):
        result = run(f"{asked} --plot both-{figure}.png --figure {figure}")
        assert result.exit_code == 0, result.stderr
        assert os.path.getsize(f"both-{figure}.png") > 20_000
    refused = run(f"{asked} --plot timeline.png --figure timeline")
    assert refused.exit_code == 2
    assert "--figure gaps takes several" in refused.stderr
    assert not os.path.exists("timeline.png")


def test_figures_of_several_records_name_their_budgets(recorded, chunked):
    found = [tell(path, {"gpu": "h100", "model": "Llama-3.1-8B"}) for path in (recorded[1], chunked)]
    figure = percentiles(found)
    texts = " ".join(text.get_text() for text in figure.findobj(Text))
    for words in ("one step, measured", "one step, predicted", "budget 256, measured", "budget 256, predicted"):
        assert words in texts
    title = str(figure.get_label())
    assert re.match(
        r"Budget 256: a prompt of 1,000 tokens makes every stream wait \d+ times for up to [\d.]+ ms", title
    )
    assert ("instead of once" in title) == (found[0].summary.one_step.steps == 1)
    solid, dashed = figure.axes[0].lines[:2]
    assert solid.get_color() == dashed.get_color()
    assert solid.get_linestyle() == "-" != dashed.get_linestyle()

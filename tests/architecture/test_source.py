import hashlib
import json
import shutil
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import ClassVar

import pytest

from costmodel.architecture import hub
from costmodel.architecture.counts import total_parameters
from costmodel.architecture.source import DEFAULT_MODEL, load_model, model_names, preset_config, preset_repository
from costmodel.hardware.errors import InputError, UnsupportedError

ONE_B = preset_config("Llama-3.2-1B")


@pytest.fixture(autouse=True)
def empty_cache(tmp_path, monkeypatch):
    for name in ("HF_HUB_CACHE", "HF_ENDPOINT", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf-home"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.chdir(tmp_path)


def write(folder, config=ONE_B, name="config.json"):
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_text(config if isinstance(config, str) else json.dumps(config), encoding="utf-8")
    return path


@pytest.mark.parametrize(
    "name",
    [
        "Llama-3.1-8B",
        "llama-3.1-8b",
        "meta-llama/Llama-3.1-8B",
        "meta-llama/Meta-Llama-3.1-8B",
        "Meta-Llama-3.1-8B-Instruct",
        " META-LLAMA/llama-3.1-8b-instruct ",
    ],
)
def test_presets_answer_to_every_spelling(name):
    arch, note = load_model(name)
    assert arch.name == "Llama-3.1-8B"
    assert total_parameters(arch) == 8_030_261_248
    assert note == "preset Llama-3.1-8B: config of meta-llama/Meta-Llama-3.1-8B"


@pytest.mark.parametrize("name", model_names())
def test_every_preset_loads_under_its_repository_too(name):
    arch, _ = load_model(name)
    assert load_model(preset_repository(name))[0] == arch
    assert hash(arch) == hash(load_model(name.upper())[0])
    assert arch.max_positions


def test_default_model_is_a_preset():
    assert DEFAULT_MODEL in model_names()
    assert len(model_names()) == len(set(model_names())) >= 28


def test_preset_config_of_an_unknown_name():
    with pytest.raises(InputError, match="unknown model 'Llama-9'"):
        preset_config("Llama-9")


def test_file_folder_and_quantisation_beside_it(tmp_path):
    path = write(tmp_path / "my-model")
    quant = {"quantization": {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8", "exclude_modules": ["lm_head"]}}
    plain, note = load_model(str(path))
    assert (plain.name, plain.quantization, note) == ("my-model", "", f"file {path}")
    write(tmp_path / "my-model", quant, "hf_quant_config.json")
    for spelling in (str(path), str(path.parent), "my-model", "./my-model", "my-model/config.json"):
        arch, _ = load_model(spelling)
        assert (arch.name, arch.quantization, arch.kv_dtype) == ("my-model", "modelopt FP8", "fp8")


def test_a_path_that_exists_comes_before_a_preset(tmp_path):
    write(tmp_path / "Qwen3-8B")
    assert load_model("Qwen3-8B")[0].model_type == "llama"


def test_a_folder_without_configuration_does_not_hide_a_preset(tmp_path):
    (tmp_path / "Qwen3-8B").mkdir()
    (tmp_path / "results").mkdir()
    assert load_model("Qwen3-8B")[0].model_type == "qwen3"
    with pytest.raises(InputError, match=r"folder results contains no config\.json, and no model has that name"):
        load_model("results")


def test_other_file_names_give_the_model_its_name(tmp_path):
    assert load_model(str(write(tmp_path, name="variant.json")))[0].name == "variant"


def test_home_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    write(tmp_path / "mine")
    assert load_model("~/mine")[0].name == "mine"


@pytest.mark.parametrize(
    ("make", "name", "reason"),
    [
        (None, "", "the model name is empty"),
        (None, "   ", "the model name is empty"),
        (None, "./nowhere", "no such file or folder"),
        (None, "nowhere/config.json", "no such file or folder"),
        (None, "a/b/c", "no such file or folder"),
        (None, "bad\0name", "not a usable path|unknown model"),
        ("folder", "./empty", "contains no config.json"),
        ("{", "./broken", "is not JSON"),
        ("", "./broken", "is not JSON"),
        ("[1, 2]", "./broken", "holds a JSON list, not an object"),
        ("3", "./broken", "holds a JSON int, not an object"),
        ("{}", "./broken", "model_type is missing"),
        ("[" * 100_000, "./broken", "is not JSON"),
    ],
)
def test_what_is_no_configuration_is_said_in_one_line(tmp_path, make, name, reason):
    if make == "folder":
        (tmp_path / "empty").mkdir()
    elif make is not None:
        write(tmp_path / "broken", make)
    with pytest.raises(InputError, match=reason) as caught:
        load_model(name)
    assert "\n" not in str(caught.value)


def test_binary_file(tmp_path):
    path = tmp_path / "config.json"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match="is not JSON"):
        load_model(str(path))


def test_a_folder_in_place_of_the_file(tmp_path):
    (tmp_path / "odd" / "config.json").mkdir(parents=True)
    with pytest.raises(InputError, match=r"contains no config\.json"):
        load_model("./odd")


def test_unreadable_file(tmp_path, monkeypatch):
    path = write(tmp_path / "secret")

    def refuse(self):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(type(path), "read_bytes", refuse)
    with pytest.raises(InputError, match=r"cannot be read \(Permission denied\)"):
        load_model(str(path))


def test_unknown_names_have_near_misses():
    with pytest.raises(
        InputError, match=r"unknown model 'Llama-3\.1-9B'; did you mean Llama-3\.1-8B.*costmodel models list"
    ):
        load_model("Llama-3.1-9B")
    with pytest.raises(InputError, match=r"unknown model 'Qwen/Qwen3-9B'; did you mean Qwen/Qwen3-.*Hub was not asked"):
        load_model("Qwen/Qwen3-9B")


def cache(folder, repository, config=ONE_B, commit="abc123", main=True):
    entry = folder / ("models--" + repository.replace("/", "--"))
    path = write(entry / "snapshots" / commit, config)
    if main:
        (entry / "refs").mkdir(exist_ok=True)
        (entry / "refs" / "main").write_text(commit, encoding="utf-8")
    return path


def test_local_cache_under_each_setting(tmp_path, monkeypatch):
    def loads():
        return load_model("someone/some-model")

    with pytest.raises(InputError, match="unknown model"):
        loads()
    cache(tmp_path / "hf-home" / "hub", "someone/some-model")
    arch, note = loads()
    assert arch.name == "someone/some-model"
    assert note.startswith("local Hugging Face cache: ")
    monkeypatch.delenv("HF_HOME")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    cache(tmp_path / "xdg" / "huggingface" / "hub", "someone/some-model", {**ONE_B, "num_hidden_layers": 3})
    assert loads()[0].layer_count == 3
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    cache(tmp_path / "home" / ".cache" / "huggingface" / "hub", "someone/some-model", {**ONE_B, "num_hidden_layers": 4})
    assert loads()[0].layer_count == 4
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "explicit"))
    cache(tmp_path / "explicit", "someone/some-model", {**ONE_B, "num_hidden_layers": 5})
    assert loads()[0].layer_count == 5


def test_main_is_preferred_and_any_snapshot_is_better_than_none(tmp_path):
    root = tmp_path / "hf-home" / "hub"
    path = cache(root, "someone/model", {**ONE_B, "num_hidden_layers": 3}, "old", main=False)
    assert load_model("SomeOne/Model")[0].layer_count == 3
    cache(root, "someone/model", {**ONE_B, "num_hidden_layers": 4}, "new")
    assert load_model("someone/model")[0].layer_count == 4
    write(path.parent, {"quantization": {"quant_algo": "FP8"}}, "hf_quant_config.json")
    (root / "models--someone--model" / "refs" / "main").write_text("old", encoding="utf-8")
    assert load_model("someone/model")[0].quantization == "modelopt FP8"
    shutil.rmtree(root / "models--someone--model" / "snapshots")
    with pytest.raises(InputError, match="unknown model"):
        load_model("someone/model")


def test_presets_come_before_the_cache(tmp_path):
    cache(tmp_path / "hf-home" / "hub", "Qwen/Qwen3-8B")
    assert load_model("Qwen/Qwen3-8B")[0].model_type == "qwen3"


def test_refusals_of_cached_models_name_them(tmp_path):
    cache(tmp_path / "hf-home" / "hub", "someone/hybrid", {"model_type": "jamba"})
    with pytest.raises(UnsupportedError, match=r"^someone/hybrid: model type 'jamba'"):
        load_model("someone/hybrid")


class Hub(BaseHTTPRequestHandler):
    """As much of the Hub as a download of two small files needs."""

    files: ClassVar = {
        "/someone/served/resolve/main/config.json": json.dumps(ONE_B).encode(),
        "/someone/quantised/resolve/main/config.json": json.dumps(ONE_B).encode(),
        "/someone/quantised/resolve/main/hf_quant_config.json": b'{"quantization": {"quant_algo": "FP8"}}',
        "/someone/broken/resolve/main/config.json": b"<html>",
        "/someone/embeds/resolve/main/config.json": json.dumps(ONE_B).encode(),
        "/someone/embeds/resolve/main/modules.json": json.dumps(
            [{"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"}]
        ).encode(),
        "/someone/embeds/resolve/main/1_Pooling/config.json": b'{"pooling_mode_mean_tokens": true}',
    }
    codes: ClassVar = {
        f"/someone/{name}/": "EntryNotFound" for name in ("without", "served", "broken", "quantised", "embeds")
    } | {"/someone/gated/": "GatedRepo"}

    def do_HEAD(self):
        self.answer(body=False)

    def do_GET(self):
        self.answer(body=True)

    def answer(self, body):
        path = self.path.split("?")[0]
        content = self.files.get(path)
        if content is None:
            code = next((value for prefix, value in self.codes.items() if path.startswith(prefix)), "RepoNotFound")
            if path.startswith("/someone/broken-server/"):
                self.send_response(500)
            else:
                self.send_response(403 if code == "GatedRepo" else 404)
                self.send_header("X-Error-Code", code)
                self.send_header("X-Error-Message", "said by the Hub")
                self.send_header("X-Repo-Commit", "0" * 40)
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        self.send_response(200)
        self.send_header("ETag", f'"{hashlib.sha256(content).hexdigest()}"')
        self.send_header("X-Repo-Commit", "0" * 40)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if body:
            self.wfile.write(content)

    def log_message(self, *args):
        pass


@pytest.fixture
def endpoint(monkeypatch):
    pytest.importorskip("huggingface_hub", reason="huggingface_hub is not installed (extra: hub)")
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    monkeypatch.delenv("HF_HUB_OFFLINE")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    address = f"http://127.0.0.1:{server.server_address[1]}"
    monkeypatch.setenv("HF_ENDPOINT", address)
    yield address
    server.shutdown()
    server.server_close()
    thread.join()


def test_fetch_from_the_hub(endpoint):
    arch, note = load_model("someone/served")
    assert total_parameters(arch) == total_parameters(load_model("Llama-3.2-1B")[0])
    assert note == "Hugging Face Hub: someone/served"
    assert load_model("someone/served")[1].startswith("local Hugging Face cache: ")
    assert load_model("someone/quantised")[0].quantization == "modelopt FP8"
    assert arch.pooling == ""
    assert load_model("someone/embeds")[0].pooling == "mean"


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("someone/without", r"its repository on http://127\.0\.0\.1:\d+ has no config\.json"),
        ("someone/missing", r"unknown to http://127\.0\.0\.1:\d+"),
        ("someone/gated", "access on .* is restricted"),
        ("someone/broken", "is not JSON"),
        ("someone/broken-server", "could not be asked"),
        ("some one/odd name", "not a valid organisation/name"),
    ],
)
def test_what_the_hub_answers_is_said_in_one_line(endpoint, name, reason):
    start = time.monotonic()
    with pytest.raises(InputError, match=reason) as caught:
        load_model(name)
    assert "\n" not in str(caught.value)
    assert time.monotonic() - start < 10


def test_no_network_is_said_quickly(endpoint, monkeypatch):
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")  # the discard port: nothing listens
    start = time.monotonic()
    with pytest.raises(InputError, match=r"not packaged, not cached, and http://127\.0\.0\.1:9 could not be asked"):
        load_model("someone/served")
    assert time.monotonic() - start < 10


@pytest.mark.parametrize("value", ["1", "true", "ON", "yes"])
def test_offline_asks_nobody(monkeypatch, value):
    monkeypatch.setenv("HF_HUB_OFFLINE", value)
    assert hub.fetch("someone/served") is None


def test_without_the_library_nobody_is_asked(monkeypatch):
    monkeypatch.delenv("HF_HUB_OFFLINE")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert hub.fetch("someone/served") is None


def test_loading_the_default_model_is_fast_and_imports_little():
    code = (
        "import sys, time\n"
        "from costmodel.architecture import source\n"
        "times = []\n"
        "for _ in range(5):\n"
        "    source._index.cache_clear(), source._aliases.cache_clear()\n"
        "    start = time.perf_counter()\n"
        "    source.load_model('Llama-3.1-8B')\n"
        "    times.append(time.perf_counter() - start)\n"
        "assert min(times) < 0.005, times\n"
        "heavy = {'numpy', 'sympy', 'pydantic', 'matplotlib', 'click', 'scipy', 'huggingface_hub'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr

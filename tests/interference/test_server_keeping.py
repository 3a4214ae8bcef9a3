"""A server is ended with all its processes, however whoever wanted it ends; tried with a stand-in for vLLM."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from costmodel.hardware.errors import InputError
from costmodel.validation.backends import vllm_main, vllm_server
from costmodel.validation.backends.vllm_server import check_folder, environment, known_flags
from costmodel.validation.hiding import hidden

STUBBORN = """
import os, signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
engine = subprocess.Popen([sys.executable, "-c", child], start_new_session=True)  # out of the server's own session
open(os.path.join(os.environ["TMPDIR"], "socket"), "w").close()
print(os.getpid(), engine.pid, os.environ["TMPDIR"], flush=True)
time.sleep(600)
"""
"""A server that does not end when it is asked, and whose engine is in another session."""

linux = pytest.mark.skipif(sys.platform != "linux", reason="a process's orphans are found on Linux only")


@pytest.fixture
def kept(tmp_path, monkeypatch):
    """A keeper whose patience is short, and what it keeps: (keeper, server's id, engine's id, folder)."""
    script, folder = tmp_path / "stubborn.py", tmp_path / "temporary"
    script.write_text(STUBBORN)
    folder.mkdir()
    code = (
        "import sys; from costmodel.validation.backends import keeper; keeper.PATIENCE = 0.5; "
        "sys.exit(keeper.keep(sys.argv[1], sys.argv[2:]))"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(folder), sys.executable, str(script)],
        env=os.environ | {"TMPDIR": str(folder)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    server, engine, folder = process.stdout.readline().split()
    yield process, int(server), int(engine), Path(folder)
    for stream in (process.stdin, process.stdout):
        stream.close()
    process.wait(20)


def lives(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def await_end(*pids):
    until = time.monotonic() + 20
    while any(map(lives, pids)) and time.monotonic() < until:
        time.sleep(0.05)
    return not any(map(lives, pids))


@linux
@pytest.mark.parametrize("how", ["end of input", "SIGTERM", "SIGINT", "SIGHUP", "server killed"])
def test_nothing_is_left(kept, how):
    keeper, server, engine, folder = kept
    assert (folder / "socket").exists()
    if how == "end of input":
        keeper.stdin.close()
    elif how == "server killed":
        os.kill(server, signal.SIGKILL)
    else:
        keeper.send_signal(getattr(signal, how))
    assert await_end(server, engine)
    assert keeper.wait(20) == (-signal.SIGKILL % 256 if how == "server killed" else 0)
    assert not folder.exists()


BOUND = """
import multiprocessing, os, time
from costmodel.validation.backends.vllm_main import bind_to_parent
bind_to_parent(spawned=__name__ == "__mp_main__")
if __name__ == "__mp_main__":
    print("bound", flush=True)
if __name__ == "__main__":
    engines = [multiprocessing.get_context(way).Process(target=time.sleep, args=(600,)) for way in ("fork", "spawn")]
    for engine in engines:
        engine.start()
    print(os.getpid(), *(engine.pid for engine in engines), flush=True)
    time.sleep(600)
"""
"""A server that starts processes as vLLM does, forked and spawned, and is bound as `vllm_main` is."""


@linux
@pytest.mark.parametrize("victim", ["keeper", "server", "client"])
def test_whoever_is_killed_outright_takes_the_server_with_it(tmp_path, victim):
    """Nobody can tidy where the keeper is killed: the system kills what it kept."""
    script, folder = tmp_path / "bound.py", tmp_path / "temporary"
    script.write_text(BOUND)
    folder.mkdir()
    client = (
        "import subprocess, sys, time\n"
        "keeper = subprocess.Popen([sys.executable, '-m', 'costmodel.validation.backends.keeper', *sys.argv[1:]], stdin=subprocess.PIPE)\n"
        "print(keeper.pid, flush=True)\n"
        "time.sleep(600)"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", client, str(folder), sys.executable, str(script)],
        stdout=subprocess.PIPE,
        text=True,
    )
    with process.stdout:
        keeper = int(process.stdout.readline())
        lines = [process.stdout.readline() for _ in range(2)]  # the spawned one may be bound before its parent has told
        lines.remove("bound\n")
        server, *engines = map(int, lines[0].split())
        try:
            assert all(map(lives, (server, *engines)))
            os.kill({"keeper": keeper, "server": server, "client": process.pid}[victim], signal.SIGKILL)
            assert await_end(server, *engines)
        finally:
            process.kill()
            process.wait()
            for pid in filter(lives, engines):
                os.kill(pid, signal.SIGKILL)
        assert await_end(keeper)
    assert folder.exists() == (victim == "keeper")  # whose client removes it


def serve(folder, **more):
    with vllm_server.serving(folder, [], **more):
        pass


def test_a_server_that_ends_at_once_is_told_with_its_log(tmp_path, monkeypatch):
    monkeypatch.setattr(vllm_server, "MODULE", "costmodel.no_such_module")
    with pytest.raises(InputError, match=r"ended before it was ready.*No module named costmodel.no_such_module"):
        serve(tmp_path)


def test_a_server_that_is_never_ready_is_given_up(tmp_path, monkeypatch):
    (tmp_path / "sleepy.py").write_text("import time; print('loading the weights', flush=True); time.sleep(60)")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(vllm_server, "MODULE", "sleepy")
    for patience in (3, 30):  # on a loaded machine it may not have begun after 3 s
        with pytest.raises(InputError, match=f"was not ready within {patience} s; the last lines of its log: ") as told:
            serve(tmp_path, patience=patience)
        if "loading the weights" in str(told.value):
            break
    assert str(told.value).endswith("loading the weights")


@pytest.mark.parametrize(
    ("arguments", "found"),
    [
        ([], {}),
        (
            ["--dtype", "float32", "--enforce-eager", "--max-model-len=4096"],
            {"dtype": "float32", "enforce_eager": True, "max_model_len": 4096},
        ),
        (
            ["--no-enable-prefix-caching", "--gpu-memory-utilization", "0.9"],
            {"enable_prefix_caching": False, "gpu_memory_utilization": 0.9},
        ),
        (["--lora-modules", "a", "b"], {"lora_modules": "a b"}),
        (["--max-model-len", "-1"], {"max_model_len": -1}),
        (["--long-prefill-token-threshold", "4"], {"long_prefill_token_threshold": 4}),
        (["--hf-overrides", '{"api_key": "sesame"}'], {"hf_overrides": "(not recorded)"}),
        (["--otlp-traces-endpoint", "http://me:sesame@x"], {"otlp_traces_endpoint": "(not recorded)"}),
    ],
)
def test_flags(arguments, found):
    assert known_flags(arguments) == found


@pytest.mark.parametrize(
    "arguments",
    [
        ["--api-key", "sesame"],
        ["--hf-token=sesame"],
        ["--x.auth_token", "sesame"],
        ["-tp", "2"],
        ["--port", "1"],
        ["--host", "x"],
        ["serve"],
    ],
)
def test_flags_that_are_refused(arguments):
    with pytest.raises(InputError) as caught:
        known_flags(arguments)
    assert "sesame" not in str(caught.value)


def test_the_servers_environment_has_no_key_and_asks_nobody(tmp_path):
    found = environment(tmp_path, {"VLLM_API_KEY": "sesame", "PATH": "x"})
    assert "VLLM_API_KEY" not in found
    assert found["HF_HUB_OFFLINE"] == found["VLLM_NO_USAGE_STATS"] == "1"
    assert found["PATH"] == "x"


def test_on_a_cpu_the_engine_computes_itself_and_leaves_the_client_a_core(tmp_path, monkeypatch):
    monkeypatch.setattr(vllm_server, "is_cpu_build", lambda: True)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 2, 3}, raising=False)
    found = environment(tmp_path, {})
    assert found["VLLM_ENABLE_V1_MULTIPROCESSING"] == "0"
    assert found["OMP_NUM_THREADS"] == "2"
    assert environment(tmp_path, {"OMP_NUM_THREADS": "1"})["OMP_NUM_THREADS"] == "1"
    assert environment(tmp_path, {"VLLM_ENABLE_V1_MULTIPROCESSING": "1"})["VLLM_ENABLE_V1_MULTIPROCESSING"] == "1"
    bound = {"VLLM_CPU_OMP_THREADS_BIND": "0"}
    assert environment(tmp_path, bound).keys() & {"VLLM_ENABLE_V1_MULTIPROCESSING", "OMP_NUM_THREADS"} == set()


def test_secrets_of_the_environment_are_hidden():
    given = {
        "HF_TOKEN": "hf_sesame",
        "AWS_SECRET_ACCESS_KEY": "sesame-2",
        "PGPASSWORD": "sesame-3",
        "PATH": "/usr/bin",
        "A_KEY": "no",
    }
    text = "token hf_sesame, sesame-2 and sesame-3 at http://me:sesame@host/x, no PATH /usr/bin"
    assert hidden(text, given) == "token ***, *** and *** at http://***@host/x, no PATH /usr/bin"


def test_the_log_of_a_server_that_ends_holds_no_secret(tmp_path, monkeypatch):
    (tmp_path / "chatty.py").write_text(
        "import os; print('my token is', os.environ['HF_TOKEN'], flush=True); raise SystemExit(3)"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("HF_TOKEN", "hf_sesame")
    monkeypatch.setattr(vllm_server, "MODULE", "chatty")
    with pytest.raises(InputError, match=r"my token is \*\*\*$"):
        serve(tmp_path)


def test_folders_without_a_model(tmp_path, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(InputError, match="--serve needs vLLM in this environment"):
        check_folder(tmp_path)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: name)
    with pytest.raises(InputError, match=r"has no config\.json"):
        check_folder(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(InputError, match="is no JSON"):
        check_folder(tmp_path)


def test_the_cpu_build_answers_for_vllm(monkeypatch):
    def lookup(name):
        versions = {"vllm-cpu": "0.32.0", "x": "1"}
        if name not in versions:
            raise vllm_main.importlib.metadata.PackageNotFoundError(name)
        return versions[name]

    monkeypatch.setattr(vllm_main, "_version", lookup)
    assert vllm_main.version("vllm") == "0.32.0+cpu"
    assert vllm_main.version("x") == "1"
    with pytest.raises(vllm_main.importlib.metadata.PackageNotFoundError):
        vllm_main.version("y")

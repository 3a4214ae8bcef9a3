"""Kills a random process of a running experiment or measurement at a random moment, with a random signal, and looks at what is left.

    python -m tests.vllm.kill_tries --tries 10            # needs the real vLLM; about a minute each

Nothing may be left but a record that can be read: no process, no temporary file, no half-written file. `--what` and the other options keep
to one of the kinds; `--seed` repeats what was drawn (but for the moments, which depend on the machine).
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from costmodel.validation.interference.reading import read_record
from costmodel.validation.measurements.files import read_content
from tests.cli.runner import SCRIPT, run
from tests.vllm.conftest import ENVIRONMENT

VICTIMS = ("client", "keeper", "server", "engine")
SIGNALS = ("SIGKILL", "SIGTERM", "SIGINT", "SIGHUP")
PHASES = ("starting", "warm-up", "baseline", "injected", "ending")
"""Of an experiment."""
MEASURING = ("starting", "measuring", "ending")
"""Phases of a measurement, which is one process."""
MARKS = {
    "warm-up": b'"schema"',
    "baseline": b'"begun":"baseline"',
    "injected": b'"begun":"injected"',
    "measuring": b'"chunks"',
    "ending": b'"complete":true',
}
"""What the file holds when a phase has begun."""
LONGEST = {"starting": 25.0, "warm-up": 1.0, "baseline": 2.0, "injected": 6.0, "measuring": 6.0, "ending": 0.4}
"""From the beginning of a phase to the signal, at most [s]."""
EXPERIMENT = (
    "--random-weights --streams 3 --context 32 --prompt 1024 --every 2 --first 1 --baseline 3 --duration 8 --plot gaps.png "
    "-- --dtype float32 --enforce-eager --max-model-len 2048"
)
MEASUREMENT = "--dtype fp32 --enforce-eager --max-num-batched-tokens 1024 --max-model-len 2048 --minutes 0.2 --out measurement.jsonl"
START = 300.0
"""Longest time to the beginning of a phase [s]."""
AFTERWARDS = 30.0
"""Longest time until all processes are gone [s]."""


class Try(NamedTuple):
    """What is killed, how and when.

    Attributes:
        what: ``interfere`` or ``measure``.
        victim: one of :data:`VICTIMS`; of a measurement always the client.
        number: name of the signal.
        phase: of the run; ``after``: from its beginning to the signal [s].
    """

    what: str
    victim: str
    number: str
    phase: str
    after: float


def draw(dice: random.Random, what: str = "interfere", **fixed: str | None) -> Try:
    """Draw a try; what is fixed is not drawn."""
    phase = fixed.get("phase") or dice.choice(PHASES if what == "interfere" else MEASURING)
    victim = "client"
    if what == "interfere":
        victim = fixed.get("victim") or dice.choice(VICTIMS)
    number = fixed.get("number") or dice.choice(SIGNALS)
    return Try(what, victim, number, phase, dice.uniform(0.0, LONGEST[phase]))


def attempt(one: Try, model: Path, environment: dict[str, str]) -> str:
    """Make a try; return how it went, in words.

    Raises:
        AssertionError: something is left that must not be.
    """
    folder = Path(tempfile.mkdtemp(prefix="cm-"))  # short, as sockets are in it
    temporary, results = folder / "t", folder / "r"
    temporary.mkdir()
    results.mkdir()
    file = results / ("interference.jsonl" if one.what == "interfere" else "measurement.jsonl")
    arguments = (
        f"interfere --serve {model} {EXPERIMENT}"
        if one.what == "interfere"
        else f"measure --random-weights {model} {MEASUREMENT}"
    )
    client = subprocess.Popen(
        [SCRIPT, *arguments.split()],
        env=environment | {"TMPDIR": str(temporary)},
        cwd=results,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        processes = _strike(one, client, file)
        _, error = client.communicate(timeout=180)
    finally:
        if client.poll() is None:
            client.kill()
            client.communicate()
    left = await_end(processes - {client.pid}, temporary)
    said = f"exit code {client.returncode}: {error.strip() or 'no words'}"
    assert not left, f"left over: {left}; {said}"
    assert "Traceback" not in error, error
    if client.returncode != 0:
        _check_code(one, client.returncode, said)
    strange = sorted(
        path.name for path in temporary.rglob("*") if "torchinductor" not in str(path)
    )  # torch keeps its cache
    if one.number == "SIGKILL" and one.what == "measure":
        strange = []  # nobody is there to tidy
    assert not strange, f"temporary files are left: {strange}; {said}"
    kept = _check_files(one, results, file)
    if client.returncode == 0:  # the signal came too late, or the victim does not heed it
        assert "complete" in kept, f"{said}; {kept}"
    shutil.rmtree(folder)
    return f"{said}; {kept}"


def _strike(one: Try, client: subprocess.Popen[str], file: Path) -> set[int]:
    """Wait for the moment, and kill the victim; return all processes that there were."""
    until = time.monotonic() + START
    mark = MARKS.get(one.phase)
    while mark is not None and not (file.exists() and mark in file.read_bytes()):
        assert client.poll() is None, client.communicate()[1]
        assert time.monotonic() < until, f"{one.phase} did not begin"
        time.sleep(0.001 if one.phase == "ending" else 0.02)
    end = time.monotonic() + one.after
    while time.monotonic() < end and client.poll() is None and not (one.phase == "starting" and file.exists()):
        time.sleep(0.005)  # a start is over when there is a file, on a machine that is faster than was thought
    while one.victim != "client" and one.victim not in roles(descendants(client.pid)) and client.poll() is None:
        assert time.monotonic() < until, f"there is no {one.victim}"
        time.sleep(0.02)
    processes = descendants(client.pid)
    if client.poll() is None:
        pid = client.pid if one.victim == "client" else roles(processes).get(one.victim)
        if pid is not None:
            os.kill(pid, getattr(signal, one.number))
    return processes


def _check_code(one: Try, code: int, said: str) -> None:
    """Check the exit code of a command that has not ended well."""
    if one.victim == "client":
        allowed = {-signal.SIGKILL} if one.number == "SIGKILL" else {130}
        allowed |= {-signal.SIGHUP, -signal.SIGTERM} if one.phase == "ending" else set()
    else:
        allowed = {1, 2} if one.phase == "starting" else {1}
    # Within the first second the command has not begun to listen, and ends as any process does.
    if one.victim == "client" and one.phase == "starting" and one.after < 2:
        allowed.add(-getattr(signal, one.number))
    assert code in allowed, said


def _check_files(one: Try, results: Path, file: Path) -> str:
    """Check that what was written is whole, and tell what it is."""
    names = sorted(path.name for path in results.iterdir())
    assert set(names) <= {file.name, "gaps.png"}, names
    if (results / "gaps.png").exists():
        assert (results / "gaps.png").read_bytes().endswith(b"IEND\xaeB`\x82")
    if not file.exists():
        assert one.phase == "starting", "there is no record"
        return "no record yet"
    if one.what == "measure":
        if one.number == "SIGKILL" and not file.read_bytes().endswith(b"\n"):
            return "a line was cut off"
        content = read_content(file)
        return f"{len(content.samples)} repeats, {'complete' if content.complete else 'partial'}"
    record = read_record(file)
    again = run(["interfere", "--from", str(file)])
    assert again.exit_code == 0, again.stderr
    if one.phase in ("injected", "ending"):
        assert record.baseline is not None
        assert record.baseline.complete
    tokens = sum(len(answer.times) for each in record.runs for answer in each.answers)
    return f"{tokens} tokens, {'complete' if record.complete else 'partial'}"


def descendants(pid: int) -> set[int]:
    """Return all processes below one, and it."""
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except (OSError, IndexError, ValueError):
                continue
    found = {pid}
    while more := {child for child, parent in parents.items() if parent in found} - found:
        found |= more
    return found


def roles(processes: set[int]) -> dict[str, int]:
    """Return the keeper, the server's main process and its engine, by name."""
    found = {}
    for pid in processes:
        words = _words(pid)
        for name, mark in (
            ("engine", "VLLM::EngineCore"),
            ("keeper", "backends.keeper"),
            ("server", "vllm_main serve"),
        ):
            if mark in words:
                found[name] = pid
                break
    return found


def await_end(processes: set[int], temporary: Path | None = None) -> dict[int, str]:
    """Return what is left of processes, and of those with this temporary folder, after half a minute at most."""
    until = time.monotonic() + AFTERWARDS
    while True:
        left = {pid for pid in processes if _lives(pid)} | (_using(temporary) if temporary else set())
        if not left or time.monotonic() > until:
            return {pid: _words(pid) for pid in left}
        time.sleep(0.1)


def _using(temporary: Path) -> set[int]:
    """Return the processes that were given this folder for temporary files."""
    found = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal() and int(entry.name) != os.getpid():
            try:
                if bytes(temporary) in (entry / "environ").read_bytes() and _lives(int(entry.name)):
                    found.add(int(entry.name))
            except OSError:
                continue
    return found


def _words(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").replace("\0", " ")
    except OSError:
        return ""


def _lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def main() -> int:
    """Make the tries; return 1 if one failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tries", type=int, default=10)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--what", choices=("interfere", "measure"), default="interfere")
    parser.add_argument("--victim", choices=VICTIMS)
    parser.add_argument("--signal", dest="number", choices=SIGNALS)
    parser.add_argument("--phase", choices=(*PHASES, "measuring"))
    given = parser.parse_args()
    seed = random.SystemRandom().randrange(10**6) if given.seed is None else given.seed
    print(f"seed {seed}", flush=True)
    dice = random.Random(seed)
    failed = 0
    model = Path(__file__).parents[2] / "examples" / "tiny-llama"
    for index in range(given.tries):
        one = draw(dice, given.what, victim=given.victim, number=given.number, phase=given.phase)
        begun = time.monotonic()
        try:
            told = attempt(one, model, os.environ | ENVIRONMENT)
        except AssertionError as error:
            failed += 1
            told = f"FAILED: {error}"
        print(
            f"{index + 1}. {one.what}, {one.phase} + {one.after:.2f} s: {one.number} to the {one.victim}; {told} "
            f"({time.monotonic() - begun:.0f} s)",
            flush=True,
        )
    print(f"{given.tries - failed} of {given.tries} as it must be")
    return int(failed > 0)


if __name__ == "__main__":
    raise SystemExit(main())

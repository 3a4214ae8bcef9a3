"""Servers that misbehave in every way, through the real command: one line says what they do, nothing hangs, and nothing is written."""

from __future__ import annotations

import html
import json
import os
import time
from pathlib import Path
from urllib.parse import quote

import pytest

from tests.cli.runner import refusal, run, script
from tests.interference.raw import LAST, STREAM, TOKEN, always, answering, page, silent

KEY = "sk-Sesame/and+open="
LISTED = json.dumps({"data": [{"id": f"tiny-{KEY}", "max_model_len": 4096, "owned_by": "vllm"}]}).encode()

SHORT = "--streams 2 --context 20 --prompt 600 --every 0.5 --first 0.2 --duration 1 --baseline 0.4 --timeout 0.5"
PAUSE = 0.2


def line(text: bytes) -> bytes:
    return b"data: " + text + b"\n\n"


def ending(usage: bytes) -> bytes:
    return line(b'{"choices": [{"text": "x", "finish_reason": "length"}], "usage": ' + usage + b"}") + line(b"[DONE]")


ANY = {
    "401": (always(page(401, b'{"error": "no"}')), "wants a key (status 401); name the variable that holds it"),
    "403": (always(page(403)), "wants a key (status 403)"),
    "404": (always(page(404)), "lists no model (status 404); name one with --served-model-name, or check the address"),
    "429": (always(page(429, b'{"error": "slow down"}')), 'does not answer: status 429: \'{"error": "slow down"}\''),
    "500": (always(page(500, b"boom")), "does not answer: status 500: 'boom'"),
    "HTML": (always(page(200, b"<html>", "Content-Type: text/html")), "lists no model (status 200)"),
    "redirect": (
        always(page(302, b"", "Location: http://me:sesame@example.com/v1?key=sesame")),
        "status 302: it sends its clients to 'http://example.com/v1', which is not followed",
    ),
    "no answer": (silent, "slow: /v1/models took more than 0.5 s"),
    "hang up": (always(), "dropped: the server closed the connection before it answered"),
    "endless headers": (
        always(b"HTTP/1.1 200 OK\r\n", b"X: " + b"a" * 10**6 + b"\r\n", forever=True),
        "headers without end",
    ),
    "slow headers": (always(b"HTTP/1.1 200 OK\r\n", b"X: a\r\n", pause=PAUSE, forever=True), "took more than 0.5 s"),
    "slow page": (always(b"HTTP/1.1 200 OK\r\n\r\n", b" ", pause=PAUSE, forever=True), "took more than 0.5 s"),
    "endless page": (always(b"HTTP/1.1 200 OK\r\n\r\n", b" " * 10**6, forever=True), "a page without end"),
    "another protocol": (always(b"SSH-2.0-OpenSSH\r\n"), "is no whole answer of an HTTP server"),
    "garbage": (always(b"\x00\xff\x1b[31m\r\n\r\n"), "no answer of an HTTP server (illegal status line"),
    "strange status": (always(b"HTTP/1.1 9999999 X\r\n\r\n"), "illegal status line"),
    "strange list": (always(page(200, b'{"data": [{"id": 5}, 3, null]}')), "lists no model (status 200)"),
    "deep list": (always(page(200, b"[" * 10**5)), "lists no model (status 200)"),
    "control characters": (
        always(page(200, b'{"data": [{"id": "a\\u001b[31m\\ud800"}]}')),
        "does not answer a first prompt: malformed",
    ),
}
"""What answers everything, and what is said of it."""
PROMPTS = {
    "401": (always(page(401, b'{"error": {"message": "no"}}'), models=True), "status 401: 'no'; a key comes from"),
    "429": (always(page(429, b"{}"), models=True), "status 429"),
    "500 HTML": (always(page(500, b"<h1>"), models=True), "status 500: '<h1>'"),
    "another type": (always(page(200, b"{}", "Content-Type: application/json"), models=True), "is no event stream: {}"),
    "no answer": (silent, "slow"),
    "only comments": (always(STREAM, b": wait\n\n", pause=PAUSE, forever=True, models=True), "slow: no token came for 0.5 s"),
    "endless line": (always(STREAM + b"data: ", b"x" * 10**6, forever=True, models=True), "malformed: a line without end"),
    "endless answer": (always(STREAM, TOKEN * 50, forever=True, models=True), "the server does not end an answer"),
    "no UTF-8": (always(STREAM + line(b'{"choices": [{"text": "\xe9"}]}'), models=True), "is no text"),
    "no JSON": (always(STREAM + line(b'{"choices": [{'), models=True), "is no JSON"),
    "deep JSON": (always(STREAM + line(b"[" * 10**5), models=True), "is no JSON"),
    "nothing": (always(STREAM + line(b"[DONE]"), models=True), "stopped mid-stream: no reason to finish after 0 tokens"),
    "mid-stream": (always(STREAM + TOKEN, models=True), "stopped mid-stream: no reason to finish after 1 tokens"),
    "too many tokens": (
        always(STREAM + line(b'{"choices": [{"token_ids": [' + b"1," * 2000 + b"1]}]}"), models=True),
        "the server does not end an answer: 2,001 tokens",
    ),
    "compressed": (
        always(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Encoding: gzip\r\n\r\n\x1f\x8b", models=True),
        "the answer is compressed ('gzip')",
    ),
    "negative length": (
        always(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: -5\r\n\r\n", models=True),
        "bad Content-Length",
    ),
    "cut short": (
        always(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: 999\r\n\r\n" + TOKEN, models=True),
        "dropped: the server closed the connection in the middle of its answer",
    ),
    "redirect": (always(page(307, b"", "Location: /v2"), models=True), "it sends its clients to '/v2', which is not followed"),
}  # fmt: skip
"""What answers prompts, and what is said of it."""
GOOD = {
    "tokens behind the end": STREAM + LAST + TOKEN,
    "a byte-order mark": STREAM + b"\xef\xbb\xbf" + LAST,
    "continue": b"HTTP/1.1 100 Continue\r\n\r\n" + STREAM + LAST,
    "capitals": STREAM.replace(b"text/event", b"Text/Event") + LAST,
    "numbers that are none": STREAM + ending(b'{"completion_tokens": NaN, "prompt_tokens": -5}'),
    "huge numbers": STREAM + ending(b'{"completion_tokens": 999999999999, "prompt_tokens": true}'),
}
"""Odd answers that are whole all the same."""


@pytest.mark.parametrize("how", [*ANY, *(f"prompt: {name}" for name in PROMPTS)])
def test_what_is_wrong_is_said_in_a_line(how: str) -> None:
    answer, said = PROMPTS[how.removeprefix("prompt: ")] if how.startswith("prompt: ") else ANY[how]
    begun = time.monotonic()
    with answering(answer) as address:
        message = refusal(f"interfere --url {address} {SHORT}")
    assert said in message
    assert "sesame" not in message
    assert time.monotonic() - begun < 20
    assert os.listdir() == []


@pytest.mark.parametrize("how", GOOD)
def test_odd_answers_that_are_whole(how: str) -> None:
    async def answer(head, body, writer):
        await always(*(bytes([byte]) for byte in GOOD[how]), models=True)(head, body, writer)  # in the oddest pieces

    with answering(answer) as address:
        result = run(f"interfere --url {address} {SHORT} --json")
    assert result.exit_code == 0, result.stderr


def test_a_certificate_that_nobody_trusts(tmp_path) -> None:
    with answering(always(page(200)), tmp_path) as address:
        message = refusal(f"interfere --url {address} {SHORT}")
        plain = refusal(f"interfere --url {address.replace('https', 'http')} {SHORT}")
    assert "no connection to https://127.0.0.1" in message
    assert "certificate" in message
    assert "dropped" in plain or "malformed" in plain
    with answering(always(page(200))) as address:
        message = refusal(f"interfere --url {address.replace('http', 'https')} {SHORT}")
    assert "does not answer: " in message


def test_nothing_else_is_contacted(monkeypatch, tmp_path) -> None:
    """No proxy is asked, no .netrc is read, and the path of the address is kept."""
    heads: list[str] = []

    async def answer(head, body, writer):
        heads.append(head)
        writer.write(page(404))

    (tmp_path / ".netrc").write_text("machine 127.0.0.1 login me password sesame\n")
    environment = os.environ | dict.fromkeys(("HTTP_PROXY", "http_proxy", "ALL_PROXY"), "http://127.0.0.1:9")
    with answering(answer) as address:
        for path in ("", "/", "/v1", "/v1/", "/llm/v1", "/llm"):
            done = script(
                f"interfere --url {address}{path} {SHORT}",
                env=environment | {"HOME": str(tmp_path), "NETRC": str(tmp_path / ".netrc")},
            )
            assert (done.returncode, "status 404" in done.stderr) == (2, True), done.stderr
    assert [head.split()[1] for head in heads] == ["/v1/models"] * 4 + ["/llm/v1/models"] * 2
    assert not any("authorization" in head.lower() or "sesame" in head for head in heads)


def test_addresses_of_the_sixth_version() -> None:
    try:
        with answering(always(page(404)), host="::1") as address:
            assert "status 404" in refusal(f"interfere --url {address} {SHORT}")
    except OSError:
        pytest.skip("this machine has no IPv6")


ECHOES = {
    "an error": page(401, json.dumps({"error": {"message": f"Incorrect API key provided: {KEY}"}}).encode()),
    "an error that is cut": page(401, ("x" * 186 + KEY).encode()),
    "escaped slashes": page(500, KEY.replace("/", "\\/").encode()),
    "an address": page(404, quote(KEY, safe="").encode()),
    "HTML": page(500, f"<p>{html.escape(KEY)}</p>".encode()),
    "a redirect": page(302, b"", f"Location: /{KEY}/login?key={KEY}"),
    "a reason to finish": STREAM + line(json.dumps({"choices": [{"text": "x", "finish_reason": KEY}]}).encode()),
    "an error mid-stream": STREAM + TOKEN + line(json.dumps({"error": {"message": "x" * 50 + KEY}}).encode()),
    "a line that is none": STREAM + f"{'y' * 40}{KEY}: z\n\n".encode(),
    "a status line": f"HTTP/1.1 {KEY}\r\n\r\n".encode(),
    "a length": f"HTTP/1.1 200 OK\r\nContent-Length: {KEY}\r\n\r\n".encode(),
    "a chunk": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + f"{KEY}\r\n".encode(),
    "no HTTP": f"Bearer {KEY}".encode(),
    "the text": STREAM + line(json.dumps({"choices": [{"text": KEY, "finish_reason": "length"}]}).encode()) + line(b"[DONE]"),
}  # fmt: skip
"""Ways in which a server repeats the key that it was sent."""


@pytest.mark.parametrize("how", ECHOES)
@pytest.mark.parametrize("after", [0, 5], ids=["at once", "later"])
def test_a_key_that_comes_back_is_nowhere(how: str, after: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OUR_KEY", KEY)
    asked = 0

    async def answer(head, body, writer):
        nonlocal asked
        assert f"Authorization: Bearer {KEY}\r\n" in head
        asked += head.startswith("POST")
        if head.startswith("GET /v1/models "):
            writer.write(page(200, LISTED))
        elif head.startswith("GET /version "):
            writer.write(page(200, json.dumps({"version": KEY}).encode()))
        elif head.startswith("GET /metrics "):
            writer.write(page(200, f'vllm:cache_config_info{{block_size="{KEY}"}} 1\n'.encode()))
        elif asked > after:
            writer.write(ECHOES[how])
        else:
            writer.write(STREAM + LAST)

    with answering(answer) as address:
        result = run(f"interfere --url {address} {SHORT} --api-key-env OUR_KEY --json")
    assert isinstance(result.exception, SystemExit | None)
    texts = [result.stdout, result.stderr, *(Path(name).read_text(encoding="utf-8") for name in os.listdir())]
    for text in texts:
        assert "Traceback" not in text
        for part in ("Sesame", "and+open", "sk-S"):
            assert part not in text


@pytest.mark.parametrize("key", ["my key", "a'b", 'a"b', "a\\b", "ä", "a\tb", "a\nb", " ", ""])
def test_what_cannot_be_a_key_is_not_shown(key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OUR_KEY", key)
    message = refusal("interfere --url http://127.0.0.1:9 --api-key-env OUR_KEY")
    assert message.startswith("--api-key-env OUR_KEY: ")
    assert len(key.strip()) < 2 or key not in message


@pytest.mark.parametrize(
    "flag", ["--api-key sesame", "--api-key=sesame", "--hf-token sesame", "--kv-transfer-config.auth_token sesame"]
)
def test_no_secret_among_the_flags_of_a_server(flag: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: name)
    Path("config.json").write_text("{}", encoding="utf-8")
    message = refusal(f"interfere --serve . -- {flag}")
    assert "a secret does not belong into a command" in message
    assert "sesame" not in message

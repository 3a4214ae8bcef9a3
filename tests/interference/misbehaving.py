"""A real HTTP server that answers like vLLM, batch by batch, and misbehaves on demand."""

import asyncio
import json
import threading
from contextlib import contextmanager
from dataclasses import dataclass, field

DECODE = 0.01
"""Seconds of a step without prefill."""
PREFILL = 0.2
"""Seconds that a long prompt adds to its step."""
LONG = 500
"""Tokens from which a prompt is long."""


@dataclass
class Behaviour:
    """What the server does; ``wrong`` is one of the ways below, from a stream's token ``after`` on."""

    wrong: str = ""
    after: int = 5
    times: int = 10**9
    """Streams that go wrong."""
    bundle: int = 1
    """Tokens in a piece."""
    counts: bool = True
    """Say how many tokens a piece has."""
    extended: bool = True
    """Take ignore_eos and the like."""
    chunks: int = 1
    """Steps that a long prompt takes."""
    cached: int = 0
    key: str | None = None
    seen: list = field(default_factory=list)
    """Every request: (path, body)."""
    heads: list = field(default_factory=list)


class Server:
    def __init__(self, behaviour):
        self.behaviour = behaviour
        self.prompts = []
        self.step = 0
        self.batches = []

    async def ticks(self):
        """Run steps: every one ends with a token for everybody."""
        self.stepped = asyncio.Condition()
        while True:
            duration = DECODE
            carried = None
            if self.prompts:
                carried = self.prompts[0]
                carried["left"] -= 1
                duration += PREFILL / self.behaviour.chunks
            await asyncio.sleep(duration)
            async with self.stepped:
                self.step += 1
                if carried and carried["left"] == 0:
                    self.prompts.pop(0)["done"].set()
                self.stepped.notify_all()

    async def answer(self, reader, writer):
        try:
            await self._answer(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    async def _answer(self, reader, writer):
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        self.behaviour.heads.append(head)
        method, path, _ = head.split("\r\n")[0].split(" ")
        headers = dict(line.lower().split(": ", 1) for line in head.split("\r\n")[1:] if line)
        content = await reader.readexactly(int(headers.get("content-length", 0)))
        behaviour = self.behaviour
        if behaviour.key and headers.get("authorization") != f"bearer {behaviour.key}".lower():
            said = headers.get("authorization", "nothing")
            original = next((line for line in head.split("\r\n") if line.lower().startswith("authorization")), said)
            return page(writer, 401, {"error": {"message": f"Incorrect API key provided: {original}"}})
        if method == "GET":
            return self.get(writer, path)
        body = json.loads(content)
        behaviour.seen.append((path, body))
        if not behaviour.extended and ("ignore_eos" in body or isinstance(body.get("prompt"), list)):
            return page(writer, 400, {"error": {"message": "Unrecognized request argument supplied: ignore_eos"}})
        return await self.stream(writer, path, body)

    def get(self, writer, path):
        if path == "/v1/models":
            return page(writer, 200, {"data": [{"id": "tiny", "max_model_len": 4096, "owned_by": "vllm"}]})
        if path == "/version":
            return page(writer, 200, {"version": "0.32.0"})
        if path == "/health":
            return page(writer, 200, {})
        return page(writer, 404, {"error": {"message": "Not Found"}})

    async def stream(self, writer, path, body):
        behaviour = self.behaviour
        prompt = body.get("prompt", body.get("messages"))
        words = prompt if isinstance(prompt, list) and isinstance(prompt[0], int) else str(prompt).split()
        tokens = len(words) if words is prompt else 2 * len(words) + 7
        if behaviour.wrong == "error" and tokens < LONG and body["max_tokens"] > 2 and behaviour.times > 0:
            behaviour.times -= 1
            return page(writer, 503, {"error": {"message": "overloaded, try later"}})
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
        if tokens >= LONG:
            done = asyncio.Event()
            self.prompts.append({"left": behaviour.chunks, "done": done})
            await done.wait()
        sent, total = 0, body["max_tokens"]
        wrong = behaviour.wrong if total > 2 else ""
        while sent < total:
            if sent:
                async with self.stepped:
                    for _ in range(behaviour.bundle):
                        await self.stepped.wait()
            if wrong and sent >= behaviour.after and behaviour.times > 0:
                behaviour.times -= 1
                if await self.go_wrong(writer, wrong):
                    return None
            count = min(behaviour.bundle, total - sent)
            sent += count
            piece = {
                "choices": [{"index": 0, "text": "x" * count, "finish_reason": "length" if sent == total else None}]
            }
            if "chat" in path:
                piece["choices"][0]["delta"] = {"content": piece["choices"][0].pop("text")}
            if behaviour.counts and behaviour.extended:
                piece["usage"] = usage(tokens, sent, behaviour.cached)
            event(writer, json.dumps(piece))
            await writer.drain()
        event(writer, json.dumps({"choices": [], "usage": usage(tokens, sent, behaviour.cached)}))
        event(writer, "[DONE]")
        writer.write(b"0\r\n\r\n")
        return await writer.drain()

    async def go_wrong(self, writer, how):
        """Do it; tell whether the stream is over."""
        if how == "slow":
            await asyncio.sleep(30)
        elif how == "drop":
            writer.write(b"40\r\ndata: {")
            await writer.drain()
            writer.transport.abort()
        elif how == "stop":
            event(writer, "[DONE]")
            writer.write(b"0\r\n\r\n")
        elif how == "close":
            writer.write(b"0\r\n\r\n")
        elif how == "garbage":
            event(writer, '{"choices": [{"te')
        elif how == "no-events":
            chunk(writer, b"<html>\r\n\r\n")
        elif how == "bad-chunk":
            writer.write(b"zz\r\n")
        elif how == "no-choices":
            event(writer, '{"hello": 1}')
        elif how == "broken-off":
            event(writer, json.dumps({"error": {"message": "EngineCore died", "code": 500}}))
        elif how == "abort":
            event(writer, json.dumps({"choices": [{"index": 0, "text": "", "finish_reason": "abort"}]}))
            event(writer, "[DONE]")
            writer.write(b"0\r\n\r\n")
        await writer.drain()
        return True


def usage(prompt, sent, cached):
    return {
        "prompt_tokens": prompt,
        "completion_tokens": sent,
        "total_tokens": prompt + sent,
        "prompt_tokens_details": {"cached_tokens": cached},
    }


def page(writer, status, content):
    text = json.dumps(content).encode()
    head = f"HTTP/1.1 {status} X\r\nContent-Type: application/json\r\nContent-Length: {len(text)}\r\n\r\n"
    writer.write(head.encode() + text)


def chunk(writer, data):
    writer.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")


def event(writer, text):
    chunk(writer, f"data: {text}\n\n".encode())


@contextmanager
def serving(behaviour):
    """Serve on a free port; yield the address."""
    ready, ports = threading.Event(), []
    loop = asyncio.new_event_loop()

    async def serve():
        server = Server(behaviour)
        ticks = asyncio.create_task(server.ticks())
        listening = await asyncio.start_server(server.answer, "127.0.0.1", 0)
        ports.append(listening.sockets[0].getsockname()[1])
        ready.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            ticks.cancel()
            listening.close()

    def run():
        asyncio.set_event_loop(loop)
        serve_task = loop.create_task(serve())
        tasks.append(serve_task)
        loop.run_until_complete(serve_task)
        rest = asyncio.all_tasks(loop)
        for task in rest:
            task.cancel()
        loop.run_until_complete(asyncio.gather(*rest, return_exceptions=True))
        loop.run_until_complete(asyncio.sleep(0.01))
        loop.close()

    tasks = []
    thread = threading.Thread(target=run)
    thread.start()
    ready.wait(10)
    try:
        yield f"http://127.0.0.1:{ports[0]}"
    finally:
        loop.call_soon_threadsafe(tasks[0].cancel)
        thread.join(10)

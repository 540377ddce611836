"""Asking a server: a job of ``kind: openai`` beside the user's own loop of asyncio with a semaphore.

    python benchmarks/pipeline_server.py [--requests 1 320 20000] [--at-once 1 16 64] [--world tails limits]

tails   an answer takes 0.1 s, each 64th takes 4 s
limits  an answer takes 0.1 s; the server takes 150 requests a second, refuses the others with 429 and
        Retry-After, fails at each 50th (500) and cuts each 51st connection

Seconds are those of the server's clock, from the first request to the last answer; "whole" is the whole
program's, with its start, its imports and its summary. Of a single request it is what a program costs that
does nothing. Both are programs of their own, and may keep compiled modules.
"""

import argparse
import asyncio
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import aiohttp

FAIR_RETRIES = 60
ENVIRONMENT = {name: one for name, one in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}


class Server:
    """A server with OpenAI's protocol in a process of its own, which says at the end what it saw."""

    def __init__(self, world: str):
        command = [sys.executable, __file__, "--serve", world]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.url = self._process.stdout.readline().strip()  # type: ignore[union-attr]

    def end(self) -> dict[str, float]:
        said, _ = self._process.communicate("")
        return json.loads(said)


async def serve(world: str) -> None:
    from aiohttp import web

    seen, second, rng = {"first_s": 0.0, "last_s": 0.0, "asked": 0}, [0, 0], random.Random(1)
    failed: set[str] = set()

    async def chat(request: web.Request) -> web.Response:
        seen["first_s"] = seen["first_s"] or time.monotonic()
        seen["asked"] += 1
        text = (await request.json())["messages"][-1]["content"]
        if world == "limits":
            now = int(time.monotonic())
            second[:] = [now, second[1] + 1 if second[0] == now else 1]
            if second[1] > 150:
                wait_s = now + 1 - time.monotonic()
                return web.json_response({}, status=429, headers={"Retry-After": f"{wait_s:.3f}"})
            if text not in failed and int(text) % 50 == 7:
                failed.add(text)
                return web.json_response({}, status=500)
            if text not in failed and int(text) % 51 == 8 and request.transport is not None:
                failed.add(text)
                request.transport.close()
        slow = world == "tails" and int(text) % 64 == 7
        await asyncio.sleep(4 if slow else rng.uniform(0.08, 0.12))
        seen["last_s"] = time.monotonic()
        return web.json_response({"choices": [{"message": {"content": text}, "finish_reason": "stop"}]})

    app = web.Application()
    app.router.add_post("/v1/chat/completions", chat)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, backlog=1024)
    await site.start()
    print(f"http://127.0.0.1:{site._server.sockets[0].getsockname()[1]}/v1", flush=True)  # type: ignore
    await asyncio.to_thread(sys.stdin.read)
    print(json.dumps({"s": seen["last_s"] - seen["first_s"], "asked": seen["asked"]}))


async def own_loop(url: str, n: int, at_once: int) -> int:
    """What a user writes: a semaphore, and pauses before an item is asked again. Returns the answers."""
    free = asyncio.Semaphore(at_once)

    async def one(session: aiohttp.ClientSession, number: int) -> int:
        async with free:
            for attempt in range(FAIR_RETRIES):
                wait_s = min(0.5 * 2**attempt, 60.0)
                try:
                    body = {"model": "m", "messages": [{"role": "user", "content": str(number)}]}
                    async with session.post(f"{url}/chat/completions", json=body) as reply:
                        if reply.status == 200:
                            return len((await reply.json())["choices"])
                        wait_s = float(reply.headers.get("Retry-After", wait_s))
                except aiohttp.ClientError:
                    pass
                await asyncio.sleep(wait_s)
        return 0

    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        return sum(await asyncio.gather(*(one(session, number) for number in range(n))))


def own_program(url: str, n: int, at_once: int) -> int:
    command = [sys.executable, __file__, "--own", url, "--requests", str(n), "--at-once", str(at_once)]
    return int(subprocess.run(command, check=True, stdout=subprocess.PIPE, env=ENVIRONMENT).stdout)


def job(url: str, n: int, at_once: int) -> int:
    with tempfile.TemporaryDirectory() as folder:
        rows = "".join(json.dumps({"id": f"i{number}", "k": str(number)}) + "\n" for number in range(n))
        (Path(folder) / "rows.jsonl").write_text(rows)
        params = {"url": url, "model": "m", "prompt": "{k}", "retries": FAIR_RETRIES}
        stage = {"name": "ask", "kind": "openai", "params": params, "in_flight": at_once}
        spec = {"version": 1, "job": {"name": "ask", "inputs": {"jsonl": "rows.jsonl"}, "out": "run"},
                "devices": "cpu*1", "stages": [stage], "report": {"html": False, "trace": False}}  # fmt: skip
        (Path(folder) / "job.yaml").write_text(json.dumps(spec))
        command = [sys.executable, "-m", "evenload", "run", "job.yaml", "-q", "--no-progress"]
        subprocess.run(command, cwd=folder, check=True, stdout=subprocess.DEVNULL, env=ENVIRONMENT)
        return (Path(folder) / "run/results.jsonl").read_text().count('"done"')


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--requests", type=int, nargs="+", default=[1, 320, 20000])
    parser.add_argument("--at-once", type=int, nargs="+", default=[1, 16, 64])
    parser.add_argument("--world", nargs="+", default=["tails", "limits"])
    parser.add_argument("--serve")
    parser.add_argument("--own")
    asked = parser.parse_args()
    if asked.serve:
        asyncio.run(serve(asked.serve))
        return
    if asked.own:
        print(asyncio.run(own_loop(asked.own, asked.requests[0], asked.at_once[0])))
        return
    from record import record  # not by the programs that are measured

    rows = []
    for world in asked.world:
        for n, at_once in zip(asked.requests, asked.at_once, strict=True):
            for who in ("own loop", "evenload"):
                server, began_s = Server(world), time.monotonic()
                done = (job if who == "evenload" else own_program)(server.url, n, at_once)
                whole_s, seen = time.monotonic() - began_s, server.end()
                rows.append({"world": world, "requests": n, "at once": at_once, "who": who, "done": done,
                             "asked": seen["asked"], "s": seen["s"], "whole s": whole_s})  # fmt: skip
            rows[-1]["ratio"] = rows[-1]["s"] / rows[-2]["s"]
            rows[-1]["whole ratio"] = rows[-1]["whole s"] / rows[-2]["whole s"]
            print(*rows[-2:], sep="\n", file=sys.stderr)
    record("pipeline_server", rows)


if __name__ == "__main__":
    main()

"""Speed of the server with many clients at once, compared with one client: tokens per second through HTTP.

    python benchmarks/many_clients.py [--preset shakespeare-char] [--backend opencl] [--dtype float32]
                                      [--clients 1 8 32 64] [--tokens N] [--turns 3] [--stream]

A server of random weights runs in this process, clients in another one. Each client asks for one text after a prompt of
20 tokens, sampled (temperature 0.8, top_k 50), all at the same time; no EOS token ends one. A turn is timed from before
the first request to after the last answer, and the numbers of clients alternate. With --stream, answers come as events,
and the time to the first event is shown: the median and the 95th percentile of all clients.
"""

import argparse
import asyncio
import json
import os
import signal
import statistics
import subprocess
import sys
import time

from many_texts import config_of

import polyarr as pa
from polyarr.models.families import new_model
from polyarr.models.llama import PRESETS as LLAMAS
from polyarr.serving.server import listen, server_of
from polyarr.text import byte_tokenizer
from polyarr.training import PRESETS

PROMPT = 20  # tokens before each text


async def ask(port, tokens, seed, is_stream):
    """Ask for a text; return the number of its tokens, and the seconds to the first byte of the answer's body."""
    asked = {"model": "m", "prompt": [*range(PROMPT)], "max_tokens": tokens, "seed": seed, "stream": is_stream}
    body = json.dumps({**asked, "temperature": 0.8, "top_k": 50, "ignore_eos": True}).encode()
    head = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nConnection: close\r\n"
    began = time.perf_counter()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
    await reader.readuntil(b"\r\n\r\n")
    first = await reader.read(1 << 16)
    seconds = time.perf_counter() - began
    answer = first + await reader.read(-1)
    writer.close()
    if is_stream:
        assert b"[DONE]" in answer, answer[-500:]
        return tokens, seconds
    if b"error" in answer:
        sys.exit(f"the server answers: {answer.decode()}")
    if (count := json.loads(answer)["usage"]["completion_tokens"]) != tokens:
        sys.exit(f"a text has {count} tokens; it must have {tokens}")
    return count, seconds


async def turn(port, clients, tokens, seed, is_stream):
    """Ask as several clients at once; return tokens per second and the seconds to the first bytes."""
    began = time.perf_counter()
    found = await asyncio.gather(*(ask(port, tokens, seed + n, is_stream) for n in range(clients)))
    return sum(count for count, _ in found) / (time.perf_counter() - began), [first for _, first in found]


async def ask_as_clients(port, args):
    """Print the speeds with each number of clients."""
    speeds, firsts = {n: [] for n in args.clients}, {n: [] for n in args.clients}
    for number in range(args.turns + 1):
        for n in args.clients:
            speed, first = await turn(port, n, args.tokens, 100 * number, args.stream)
            if number:
                speeds[n].append(speed)
                firsts[n] += first
    base = speeds[min(speeds)]
    for n, found in speeds.items():
        ratio = statistics.median(a / b for a, b in zip(found, base, strict=True))
        line = f"{n:3} clients {statistics.median(found):10,.0f} tokens/s {ratio:8.2f} x {min(speeds)} client"
        if args.stream:
            late = statistics.quantiles(firsts[n], n=20)[-1] if len(firsts[n]) > 1 else firsts[n][0]
            line += f"   first event {statistics.median(firsts[n]) * 1000:6.0f} ms, 95th percentile {late * 1000:6.0f}"
        print(line, flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preset", default="shakespeare-char", choices=[*PRESETS, *LLAMAS])
    parser.add_argument("--backend", default="opencl")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 8, 32, 64])
    parser.add_argument("--rows", type=int, help="texts at a time; the largest number of clients by default")
    parser.add_argument("--tokens", type=int, help="of each text; 256, or as many as the context holds")
    parser.add_argument("--context", type=int, default=1024, help="context of a Llama; other models have theirs")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--stream", action="store_true")
    parser.add_argument("--port", type=int, help=argparse.SUPPRESS)  # of the server, for the process of the clients
    args = parser.parse_args()
    config, rows = config_of(args.preset, args.context), max(args.clients)
    args.tokens = args.tokens or min(256, config.context_length - PROMPT)
    if args.port:
        try:
            asyncio.run(ask_as_clients(args.port, args))
        finally:
            os.kill(os.getppid(), signal.SIGINT)
        return
    pa.set_backend(args.backend)
    pa.random.seed(0)
    model = new_model(config).eval().astype(args.dtype)
    server = server_of(model, byte_tokenizer(), "m", batch=args.rows or rows, waiting=rows)
    print(f"{args.preset}, {args.dtype}, {pa.get_backend().name}: median of {args.turns} turns", flush=True)
    with listen("127.0.0.1", 0) as listener:
        port = str(listener.getsockname()[1])
        clients = subprocess.Popen([sys.executable, __file__, *sys.argv[1:], "--port", port])
        server.run([listener])
        clients.wait()


if __name__ == "__main__":
    main()

"""Requests to a server that speaks OpenAI's API, timed chunk by chunk; the server as a child process.  asyncio and the
standard library alone: a client of 64 streams must not take the processor from the server that it measures.
"""
import asyncio
import json
import os
import resource
import shlex
import signal
import socket
import subprocess
import time
import urllib.request


class Failed(Exception):
    pass


class Server:
    """A command that serves on a port, started and stopped as often as a test wants."""

    def __init__(self, name, command, log):
        self.name, self.command, self.log = name, command, log
        self.process, self.port, self.peak, self.cpu = None, 0, 0, 0.0

    def start(self, timeout_s=600):
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            self.port = s.getsockname()[1]
        command = [part.replace("{port}", str(self.port)) for part in shlex.split(self.command)]
        self.process = subprocess.Popen(command, stdout=self.log, stderr=self.log, stdin=subprocess.DEVNULL)
        end = time.monotonic() + timeout_s
        while time.monotonic() < end:
            if self.process.poll() is not None:
                raise Failed(f"{self.name} ended with status {self.process.returncode} instead of listening")
            try:
                with urllib.request.urlopen(self.url("/health"), timeout=2) as r:
                    if r.status == 200:
                        return
            except OSError:
                pass
            time.sleep(.05)
        raise Failed(f"{self.name} was not ready after {timeout_s} s")

    def url(self, path):
        return f"http://127.0.0.1:{self.port}{path}"

    def look(self):
        """Largest resident set so far in MiB, and CPU seconds; both go on over restarts."""
        try:
            with open(f"/proc/{self.process.pid}/status", encoding="ascii") as f:
                peak = next((int(line.split()[1]) for line in f if line.startswith("VmHWM")), 0) / 1024
            with open(f"/proc/{self.process.pid}/stat", encoding="ascii") as f:
                fields = f.read().rsplit(")", 1)[1].split()
        except OSError:
            return self.peak, self.cpu
        cpu = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
        return max(self.peak, peak), self.cpu + cpu

    def stop(self):
        if not self.process:
            return
        self.peak, self.cpu = self.look()
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.process = None

    def post(self, path, body):
        r = urllib.request.Request(self.url(path), json.dumps(body).encode(), {"Content-Type": "application/json"})
        with urllib.request.urlopen(r, timeout=600) as answer:
            return json.load(answer)


class Reply:
    """What one stream brought, and when."""

    def __init__(self):
        self.began = time.monotonic()
        self.at, self.text, self.error = [], "", None
        self.prompt = self.cached = self.generated = 0
        self.ended = None

    @property
    def first(self):
        return self.at[0] - self.began if self.at else None

    @property
    def gaps(self):
        return [b - a for a, b in zip(self.at, self.at[1:])]

    def take(self, event):
        if "error" in event:
            self.error = str(event["error"])[:200]
            return
        for choice in event.get("choices") or []:
            text = choice.get("text") or (choice.get("delta") or {}).get("content")
            if text:
                self.at.append(time.monotonic())
                self.text += text
        usage, timings = event.get("usage"), event.get("timings")
        if usage:
            self.prompt = usage.get("prompt_tokens", 0)
            self.generated = usage.get("completion_tokens", 0)
            self.cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
        if timings and "prompt_n" in timings and not self.cached and self.prompt:
            self.cached = max(self.prompt - timings["prompt_n"], 0)  # a peer that says what it computed


async def _stream(port, path, body, reply):
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 24)
    data = json.dumps(body).encode()
    writer.write(f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Type: application/json\r\n"
                 f"Connection: close\r\nContent-Length: {len(data)}\r\n\r\n".encode() + data)
    try:
        await writer.drain()
        status = (await reader.readline()).split()
        chunked = False
        while (line := await reader.readline()) not in (b"\r\n", b"\n", b""):
            chunked |= line.lower().startswith(b"transfer-encoding:") and b"chunked" in line.lower()
        if len(status) < 2 or status[1] != b"200":
            rest = await reader.read(400)
            reply.error = f"status {status[1].decode() if len(status) > 1 else 'none'}: {rest.decode(errors='replace')}"
            return
        held, complete = b"", False
        while True:
            if chunked:
                size = int((await reader.readline()).strip() or b"0", 16)
                piece = await reader.readexactly(size + 2) if size else b""
                held += piece[:-2]
            else:
                piece = await reader.read(65536)
                held += piece
            if not piece:
                break
            *lines, held = held.split(b"\n")
            for line in lines:
                line = line.strip()
                if line == b"data: [DONE]":
                    complete = True
                elif line.startswith(b"data: "):
                    reply.take(json.loads(line[6:]))
        if not complete and not reply.error:
            reply.error = "the stream broke off"
    finally:
        writer.close()


async def ask(server, path, body):
    """One streamed request; never raises for what the server does."""
    reply = Reply()
    body = dict(body, stream=True, stream_options={"include_usage": True}, temperature=0, ignore_eos=True)
    try:
        await _stream(server.port, path, body, reply)
    except (OSError, ValueError, asyncio.IncompleteReadError) as e:
        reply.error = f"{type(e).__name__}: {e}"
    reply.ended = time.monotonic()
    if not reply.error and not reply.at:
        reply.error = "no text came"
    return reply


def raise_descriptors():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def quantile(values, q):
    """The value that a part q of all is not above; None of nothing."""
    if not values:
        return None
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, max(0, -int(-q * len(ordered) // 1) - 1))]

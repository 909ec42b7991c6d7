"""Runs this crate against software of others, and prints the results as Markdown.

Part `clients`: third-party clients call the `server` example above its limit.
Part `servers`: the `client` example calls third-party servers that limit.

`scripts/interop` installs what this needs, builds the examples and runs this file.
"""

import argparse
import asyncio
import collections
import concurrent.futures
import contextlib
import dataclasses
import datetime
import importlib.metadata
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time

HERE = pathlib.Path(__file__).resolve().parent
CALLS = 20
LOAD_LIMIT = 100
SERVER_LIMIT = 50


# --- processes ---------------------------------------------------------------


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


@contextlib.contextmanager
def process(command, port, log, **options):
    """Runs a server until the end of the block."""
    with open(log, "wb") as output:
        child = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, **options
        )
    try:
        deadline = time.monotonic() + 30
        while True:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                break
            if child.poll() is not None or time.monotonic() > deadline:
                sys.exit(f"{command[0]} does not listen: {pathlib.Path(log).read_text()}")
            time.sleep(0.05)
        yield
    finally:
        child.terminate()
        try:
            child.wait(10)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()


def output_of(*command):
    result = subprocess.run(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=120
    )
    return result.stdout


# --- part `clients` ----------------------------------------------------------


@dataclasses.dataclass
class Attempt:
    """One request of a call, as seen on the wire."""

    started: float
    status: int = 0
    retry_after: float | None = None
    answered: float = 0.0


class Recorder:
    """A TCP proxy that forwards bytes unchanged and records HTTP/1.1 attempts."""

    REQUEST = re.compile(rb"GET (\S+) HTTP/1\.1\r\n(.*?)\r\n\r\n", re.S)
    RESPONSE = re.compile(rb"HTTP/1\.1 (\d{3})[^\r]*\r\n(.*?)\r\n\r\n", re.S)

    def __init__(self, upstream):
        self.upstream = upstream
        self.attempts = collections.defaultdict(list)
        self.loop = asyncio.new_event_loop()
        server = asyncio.start_server(self.serve, "127.0.0.1", 0)
        self.server = self.loop.run_until_complete(server)
        self.port = self.server.sockets[0].getsockname()[1]
        threading.Thread(target=self.loop.run_forever, daemon=True).start()

    async def serve(self, reader, writer):
        up_reader, up_writer = await asyncio.open_connection("127.0.0.1", self.upstream)
        pending = collections.deque()
        await asyncio.gather(
            self.forward(reader, up_writer, lambda data: self.requests(data, pending)),
            self.forward(up_reader, writer, lambda data: self.responses(data, pending)),
        )

    async def forward(self, reader, writer, record):
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(65536):
                record(data)
                writer.write(data)
                await writer.drain()
        with contextlib.suppress(ConnectionError, OSError):
            writer.close()

    def requests(self, data, pending):
        for target, head in self.REQUEST.findall(data):
            tenant = re.search(rb"(?im)^x-forwarded-for: *(\S+)", head)
            attempt = Attempt(time.monotonic())
            pending.append(attempt)
            self.attempts[tenant.group(1).decode(), target].append(attempt)

    def responses(self, data, pending):
        for status, head in self.RESPONSE.findall(data):
            attempt = pending.popleft()
            attempt.status, attempt.answered = int(status), time.monotonic()
            after = re.search(rb"(?im)^retry-after: *(\d+)", head)
            attempt.retry_after = float(after.group(1)) if after else None

    def calls_of(self, tenant):
        return [attempts for (owner, _), attempts in self.attempts.items() if owner == tenant]


@dataclasses.dataclass
class ClientCase:
    name: str
    program: str
    # Whether every call has to succeed in the end, with each retry in time.
    serves_all: bool = False


CLIENTS = [
    ClientCase("urllib3", "clients.py"),
    ClientCase("urllib3, Retry(10)", "clients.py", True),
    ClientCase("requests", "clients.py"),
    ClientCase("requests, Retry(10)", "clients.py", True),
    ClientCase("httpx", "clients.py"),
    ClientCase("httpx-retries, 10", "clients.py", True),
    ClientCase("node fetch", "clients.mjs"),
    ClientCase("got", "clients.mjs"),
    ClientCase("got, 10 retries", "clients.mjs", True),
    ClientCase("axios", "clients.mjs"),
    ClientCase("axios-retry", "clients.mjs"),
    ClientCase("axios-retry, 10 of 429", "clients.mjs", True),
    ClientCase("ky", "clients.mjs"),
    ClientCase("ky, 10 retries", "clients.mjs", True),
    ClientCase("undici", "clients.mjs"),
    ClientCase("undici RetryAgent", "clients.mjs", True),
    ClientCase("reqwest", "interop-reqwest-retry"),
    ClientCase("reqwest-retry, 10", "interop-reqwest-retry"),
    ClientCase("curl", "curl"),
    ClientCase("curl --retry 10", "curl", True),
]

CLIENT_POLICY = """
rules:
  - id: calls
    match: { methods: [GET], paths: ["/"] }
    tiers: [{ limit: 4, window: 2s, algorithm: fixed-window }]
  - id: load
    match: { methods: [GET], paths: ["/v1/search"] }
    tiers: [{ limit: 100, window: 1d, algorithm: fixed-window }]
"""


def run_client(case, url, tenant, node, scratch):
    if case.program == "curl":
        command = [*case.name.split(), "-s", "-w", "%{http_code}", "-H", f"X-Forwarded-For: {tenant}"]

        def call(number):
            # curl 7.88 fails to retry if the output is /dev/null: it truncates it.
            return output_of(*command, "-o", str(scratch / f"{tenant}-{number}"), f"{url}?call={number}")

        with concurrent.futures.ThreadPoolExecutor(CALLS) as threads:
            return list(threads.map(call, range(CALLS)))
    program = {
        "clients.py": [sys.executable, str(HERE / "clients.py")],
        "clients.mjs": ["node", str(node / "clients.mjs")],
        "interop-reqwest-retry": [str(node / "rust" / "debug" / case.program)],
    }[case.program]
    return output_of(*program, case.name, url, tenant).strip().split("\n")


def judge_client(case, outcomes, calls):
    """Returns a row of the table and a list of failures."""
    failures = []
    served = sum(outcome == "200" for outcome in outcomes)
    on_wire = sum(attempts[-1].status == 200 for attempts in calls)
    statuses = {attempt.status for attempts in calls for attempt in attempts}
    if served != on_wire or len(calls) != CALLS or not statuses <= {200, 429}:
        failures.append(f"{case.name}: {served} served, {on_wire} of {len(calls)} on the wire, {statuses}: {outcomes}")
    pauses = [
        (after.started - before.answered, before.retry_after)
        for attempts in calls
        for before, after in zip(attempts, attempts[1:])
    ]
    early = sum(pause < asked - 0.05 for pause, asked in pauses)
    if case.serves_all and served != CALLS:
        failures.append(f"{case.name}: {served} of {CALLS} calls served")
    if case.serves_all and early:
        failures.append(f"{case.name}: {early} retries before `Retry-After`")
    if not pauses:
        honours = "no retry"
    elif not early:
        honours = "yes"
    else:
        honours = f"no: {early} of {len(pauses)} retries came early"
    attempts = sum(map(len, calls))
    most = max(map(len, calls)) - 1
    return f"| {case.name} | {served} of {CALLS} | {attempts} | {most} | {honours} |", failures


def load_tools(url, http2_url):
    """Returns (tool, successes counted by the tool) for each load tool."""

    def number(pattern, text):
        found = re.search(pattern, text)
        if not found:
            sys.exit(f"no `{pattern}` in: {text}")
        return int(found.group(1))

    def header(tool):
        return ["-H", f"X-Forwarded-For: {tool}"]

    text = output_of("ab", "-q", "-n", "500", "-c", "8", *header("192.0.2.1"), url)
    failed = re.search(r"Non-2xx responses:\s+(\d+)", text)
    yield "ab", number(r"Complete requests:\s+(\d+)", text) - (int(failed.group(1)) if failed else 0)
    text = output_of("hey", "-n", "500", "-c", "10", *header("192.0.2.2"), url)
    yield "hey", number(r"\[200\]\s+(\d+) responses", text)
    text = output_of("wrk", "-d", "2s", "-c", "8", "-t", "1", *header("192.0.2.3"), url)
    yield "wrk", number(r"(\d+) requests in", text) - number(r"Non-2xx or 3xx responses: (\d+)", text)
    text = output_of("h2load", "--h1", "-n", "500", "-c", "8", *header("192.0.2.4"), url)
    yield "h2load --h1", number(r"status codes: (\d+) 2xx", text)
    text = output_of("h2load", "-n", "500", "-c", "8", "-m", "10", *header("192.0.2.5"), http2_url)
    yield "h2load (HTTP/2)", number(r"status codes: (\d+) 2xx", text)


def part_clients(bin_dir, node, scratch):
    failures = []
    policy = scratch / "clients.yaml"
    policy.write_text(CLIENT_POLICY)
    port = free_port()
    environment = {**os.environ, "PORT": str(port), "TRUSTED_PROXIES": "127.0.0.0/8"}
    with process([str(bin_dir / "server"), str(policy)], port, scratch / "server.log", env=environment):
        recorder = Recorder(port)
        url = f"http://127.0.0.1:{recorder.port}/"
        tenants = [f"198.51.100.{index + 1}" for index in range(len(CLIENTS))]
        with concurrent.futures.ThreadPoolExecutor(3) as threads:
            outcomes = list(threads.map(lambda case, tenant: run_client(case, url, tenant, node, scratch), CLIENTS, tenants))
        print("| client | calls served | requests sent | most retries of a call | honours `Retry-After` |")
        print("|---|---|---|---|---|")
        for case, outcome, tenant in zip(CLIENTS, outcomes, tenants):
            row, failed = judge_client(case, outcome, recorder.calls_of(tenant))
            print(row, flush=True)
            failures += failed
        print("\n| load tool | successes, of a limit of 100 |\n|---|---|")
        target = f"http://127.0.0.1:{port}/v1/search"
        for tool, successes in load_tools(target, target):
            print(f"| {tool} | {successes} |", flush=True)
            if successes != LOAD_LIMIT:
                failures.append(f"{tool}: {successes} successes of {LOAD_LIMIT}")
    return failures


# --- part `servers` ----------------------------------------------------------


@dataclasses.dataclass
class ServerCase:
    name: str
    kind: str
    argument: str = ""
    # The least share of the limit that the client has to use, in percent, and
    # the largest share of rejected requests.
    used: float = 90
    rejected: float = 5


SERVERS = [
    ServerCase("nginx, 429", "nginx", "429;", used=80, rejected=100),
    ServerCase("nginx, 429, burst=10 nodelay", "nginx", "429;burst=10 nodelay", used=80, rejected=100),
    ServerCase("nginx, 503", "nginx", "503;", used=80, rejected=100),
    ServerCase("nginx, 503, burst=10 nodelay", "nginx", "503;burst=10 nodelay", used=80, rejected=100),
    ServerCase("HAProxy stick-table", "haproxy", used=80, rejected=100),
    ServerCase("express-rate-limit, draft 6", "node", "express-draft-6"),
    ServerCase("express-rate-limit, draft 7", "node", "express-draft-7"),
    ServerCase("express-rate-limit, draft 8", "node", "express-draft-8"),
    ServerCase("express-rate-limit, legacy", "node", "express-legacy"),
    ServerCase("rate-limiter-flexible", "node", "rate-limiter-flexible"),
    ServerCase("Flask-Limiter", "python", "flask-limiter"),
    ServerCase("slowapi", "python", "slowapi"),
    ServerCase("this crate, burst 1", "ours", "{ limit: 50, window: 1s, burst: 1 }"),
    ServerCase("this crate, burst 10", "ours", "{ limit: 50, window: 1s, burst: 10 }"),
    ServerCase("this crate, fixed window", "ours", "{ limit: 50, window: 1s, algorithm: fixed-window }"),
]
MODES = ["1", "10", "adapt"]


def start_server(case, port, bin_dir, node, scratch):
    environment = dict(os.environ)
    if case.kind == "nginx":
        status, burst = case.argument.split(";")
        config = scratch / "nginx.conf"
        (scratch / "www").mkdir(exist_ok=True)
        (scratch / "www" / "index.html").write_text("hello\n")
        text = (HERE / "nginx.conf").read_text()
        for name, value in {"DIR": str(scratch), "PORT": str(port), "STATUS": status, "BURST": burst}.items():
            text = re.sub(rf"\b{name}\b", value, text)
        config.write_text(text)
        command = ["nginx", "-e", str(scratch / "nginx.log"), "-c", str(config)]
    elif case.kind == "haproxy":
        config = scratch / "haproxy.cfg"
        config.write_text((HERE / "haproxy.cfg").read_text().replace("PORT;", str(port)).replace(":PORT", f":{port}"))
        command = ["haproxy", "-db", "-f", str(config)]
    elif case.kind == "node":
        command = ["node", str(node / "servers.mjs"), case.argument, str(port)]
    elif case.kind == "python":
        command = [sys.executable, str(HERE / "servers.py"), case.argument, str(port)]
    else:
        policy = scratch / "ours.yaml"
        policy.write_text(f"rules:\n  - id: all\n    tiers: [{case.argument}]\n")
        command = [str(bin_dir / "server"), str(policy)]
        environment["PORT"] = str(port)
    return process(command, port, scratch / "server.log", env=environment)


def measure(url, mode, seconds, bin_dir):
    """Returns the share of the limit used and the share rejected, in percent."""
    text = output_of(str(bin_dir / "client"), str(seconds), url, str(SERVER_LIMIT), mode)
    found = re.fullmatch(r"answered (\d+) rejected (\d+) other (\d+) allowed (\d+)\n", text)
    if not found:
        sys.exit(f"client: {text}")
    answered, rejected, other, allowed = map(int, found.groups())
    if other:
        sys.exit(f"{url}: {other} responses are neither successes nor rejections")
    return 100 * answered / allowed, 100 * rejected / max(1, answered + rejected)


def part_servers(bin_dir, node, scratch, seconds, names):
    failures = []
    print("| server | rule with burst 1 | rule with burst 10 | adaptive rate |")
    print("|---|---|---|---|")
    for case in SERVERS:
        if names and not any(name in case.name for name in names):
            continue
        cells = []
        for mode in MODES:
            port = free_port()
            with start_server(case, port, bin_dir, node, scratch):
                used, rejected = measure(f"http://127.0.0.1:{port}/", mode, seconds, bin_dir)
            cells.append(f"{used:.0f}% used, {rejected:.1f}% rejected")
            if mode != "adapt" and (used < case.used or rejected > case.rejected):
                failures.append(
                    f"{case.name}, burst {mode}: {cells[-1]}; wanted at least {case.used:.0f}% used"
                    f" and at most {case.rejected:.0f}% rejected"
                )
        print(f"| {case.name} | {' | '.join(cells)} |", flush=True)
    return failures


# --- versions ----------------------------------------------------------------


def versions(node):
    def first(pattern, *command):
        found = re.search(pattern, output_of(*command))
        return found.group(1) if found else "?"

    found = [
        ("Python", sys.version.split()[0]),
        ("Node", first(r"v([\d.]+)", "node", "--version")),
        ("nginx", first(r"nginx/([\d.]+)", "nginx", "-v")),
        ("HAProxy", first(r"version ([\d.]+)", "haproxy", "-v")),
        ("curl", first(r"curl ([\d.]+)", "curl", "--version")),
        ("ab", first(r"Version ([\d.]+)", "ab", "-V")),
        ("wrk", first(r"wrk (?:debian/)?([\d.]+)", "wrk", "-v")),
        ("h2load", first(r"nghttp2/([\d.]+)", "h2load", "--version")),
    ]
    for package in PYTHON_PACKAGES:
        found.append((package, importlib.metadata.version(package)))
    for package in NODE_PACKAGES:
        manifest = node / "node_modules" / package / "package.json"
        found.append((package, json.loads(manifest.read_text())["version"]))
    lock = (HERE / "reqwest-retry" / "Cargo.lock").read_text()
    for package in RUST_PACKAGES:
        found.append((package, re.search(rf'name = "{package}"\nversion = "([^"]+)"', lock).group(1)))
    return ", ".join(" ".join(pair) for pair in found)


PYTHON_PACKAGES = ["urllib3", "requests", "httpx", "httpx-retries", "Flask-Limiter", "waitress", "slowapi", "uvicorn"]
NODE_PACKAGES = ["got", "axios", "axios-retry", "ky", "undici", "express", "express-rate-limit", "rate-limiter-flexible"]
RUST_PACKAGES = ["reqwest", "reqwest-retry"]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--check", action="store_true", help="fail below the targets")
    parser.add_argument("--part", choices=["clients", "servers"], help="run one part only")
    parser.add_argument("--seconds", type=int, default=10, help="how long to call each server")
    parser.add_argument("--bin", type=pathlib.Path, required=True, help="where the examples are")
    parser.add_argument("--node", type=pathlib.Path, required=True, help="where the Node packages are")
    parser.add_argument("servers", nargs="*", help="parts of the names of the servers to call; default all")
    options = parser.parse_args()
    # SystemExit runs the `finally` blocks, which stop the servers.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))

    for program in ("servers.mjs", "clients.mjs"):
        shutil.copy(HERE / program, options.node)
    failures = []
    with tempfile.TemporaryDirectory() as scratch:
        scratch = pathlib.Path(scratch)
        # nginx reads its files as another user.
        scratch.chmod(0o755)
        print(f"Measured on {datetime.date.today()}: {versions(options.node)}.\n", flush=True)
        if options.part != "servers":
            failures += part_clients(options.bin, options.node, scratch)
            print()
        if options.part != "clients":
            failures += part_servers(options.bin, options.node, scratch, options.seconds, options.servers)
    for failure in failures:
        print(f"below target: {failure}", file=sys.stderr)
    if options.check and failures:
        sys.exit(1)


main()

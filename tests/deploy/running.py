"""What the tests start: replicas with a key, and the proxies of deploy/ in front of them."""

import concurrent.futures
import contextlib
import json
import os
import signal
import ssl
import subprocess
from pathlib import Path

import httpx
from tests.fleet.replicas import Replica
from tests.ports import held_port

from .files import DEPLOY, SECONDS, SITE, changed, program, wait_until

KEY = "a key of the tests"
HEADERS = {"authorization": f"Bearer {KEY}"}


class KeyedReplica(Replica):
    """A replica that answers to the holder of a key only, as one that others can reach has to."""

    home = Path(__file__).parent
    agents = "deployed_agents"
    seconds = SECONDS

    def __init__(self, url, folder, **options):
        super().__init__(url, folder, STOPPABLE_API_KEY=KEY, **options)
        self.http.headers.update(HEADERS)

    def metric(self, name):
        """Return the value of a metric without labels."""
        lines = self.http.get("/metrics").text.splitlines()
        [value] = [line.split()[1] for line in lines if line.startswith(f"{name} ")]
        return float(value)


@contextlib.contextmanager
def two_replicas(url, folder):
    """Yield two replicas of one store, which load their agents at the same time."""
    with contextlib.ExitStack() as stack, concurrent.futures.ThreadPoolExecutor() as pool:

        def start(_):
            replica = KeyedReplica(url, folder)
            stack.callback(replica.close)
            return replica

        yield tuple(pool.map(start, range(2)))


@contextlib.contextmanager
def process(command, log, **options):
    """Run a program in a group of its own, which ends with the block."""
    with log.open("wb") as output:
        started = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True, **options
        )
    try:
        yield started
    finally:
        started.terminate()
        try:
            started.wait(SECONDS)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(started.pid, signal.SIGKILL)
            started.wait(SECONDS)
            raise


class Proxy:
    """One of the proxies of deploy/, with a certificate that the tests made."""

    def __init__(self, kind, replicas, certificate, folder):
        self.kind = kind
        self._certificate = certificate
        self._folder = folder
        self._addresses = {f"replica-{n}:8420": f"127.0.0.1:{each.port}" for n, each in enumerate(replicas, 1)}
        self._held = contextlib.ExitStack()

    def __enter__(self):
        self.port, self.plain_port = (self._held.enter_context(held_port()) for _ in range(2))
        command = self._nginx() if self.kind == "nginx" else self._caddy()
        self.log = self._folder / f"{self.kind}.log"
        environment = {"PATH": os.environ["PATH"], "HOME": str(self._folder)}  # Caddy keeps files in it
        self.process = self._held.enter_context(process(command, self.log, env=environment))
        context = ssl.create_default_context(cafile=self._certificate / "cert.pem")
        self.http = self._held.enter_context(
            httpx.Client(base_url=f"https://localhost:{self.port}", verify=context, timeout=SECONDS, headers=HEADERS)
        )
        wait_until(self._is_ready)
        return self

    def __exit__(self, *_):
        self._held.close()

    def _nginx(self):
        port, plain_port = self.port, self.plain_port
        site = changed(
            DEPLOY / "nginx.conf",
            {
                **self._addresses,
                "listen 443 ssl http2;": f"listen 127.0.0.1:{port} ssl http2;",
                "listen 80;": f"listen 127.0.0.1:{plain_port};",
                "/etc/nginx/tls": str(self._certificate),
                SITE: "localhost",
            },
        )
        (self._folder / "site.conf").write_text(site)
        places = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
        lines = [
            *(["user root;"] if os.geteuid() == 0 else []),  # its own user may not enter the folders of the tests
            f"daemon off; pid {self._folder}/nginx.pid; error_log stderr info; worker_processes 1; events {{}}",
            "http {",
            *(f"{place}_temp_path {self._folder}/{place};" for place in places),
            f"access_log off; include {self._folder}/site.conf; }}",
        ]
        (self._folder / "nginx.conf").write_text("\n".join(lines))
        return [program("nginx"), "-e", "stderr", "-p", self._folder, "-c", self._folder / "nginx.conf"]

    def _caddy(self):
        # Two lines of a test: its own certificate, and no other address than loopback.
        here = f"\tbind 127.0.0.1\n\ttls {self._certificate}/cert.pem {self._certificate}/key.pem\n"
        site = changed(
            DEPLOY / "Caddyfile",
            {
                **self._addresses,
                f"{SITE} {{\n": f"localhost:{self.port} {{\n{here}",
                "health_timeout 5s": f"health_timeout {SECONDS}s",  # a busy machine is no dead replica
                "lb_try_duration 5s": f"lb_try_duration {SECONDS}s",
            },
        )
        options = "{\n\tadmin off\n\tauto_https disable_redirects\n\tservers {\n\t\tprotocols h1 h2\n\t}\n}\n"
        (self._folder / "Caddyfile").write_text(options + site)
        return [program("caddy"), "run", "--adapter", "caddyfile", "--config", self._folder / "Caddyfile"]

    def _is_ready(self):
        assert self.process.poll() is None, self.log.read_text()
        with contextlib.suppress(httpx.TransportError):
            return self.http.get("/readyz").status_code == 200

    def start(self, agent, **options):
        """Start a run; None if it has to be repeated."""
        answer = self._post("/runs", {"agent": agent, **options})
        return answer and answer.json()["id"]

    def stop(self, run):
        """Stop a run; None if it has to be repeated."""
        return self._post(f"/runs/{run}/stop", {"reason": "enough"})

    def _post(self, path, body):
        answer = self.http.post(path, json=body)
        if answer.status_code == 502 and self.kind == "caddy":
            # Up to 2.11.1 it cannot send a body to the second replica if the first refuses the connection, until its
            # next look at their health: https://github.com/caddyserver/caddy/issues/7546. No replica has done it.
            return None
        assert answer.status_code in {200, 201, 202}, answer.text
        return answer

    @contextlib.contextmanager
    def events(self, run, after=None):
        """Yield the events of a run as they come."""
        resumed = {} if after is None else {"last-event-id": str(after)}
        with self.http.stream("GET", f"/runs/{run}/events", headers=resumed) as response:
            assert response.status_code == 200, response.read()
            yield _parsed(response)


def _parsed(response):
    event = {}
    for line in response.iter_lines():
        name, _, value = line.partition(": ")
        if line == "" and "data" in event:
            yield event | {"data": json.loads(event["data"])}
        event = {} if line == "" else event | {name: value}

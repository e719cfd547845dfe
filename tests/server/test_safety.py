"""Safe by default: only this machine, only its own pages, and only so much."""

import contextlib
import functools
import json
import logging
import socket

import pytest

import stoppable
from stoppable import InvalidArgument
from stoppable.server import Principal, ServerLimits, Service, create_app
from stoppable.supervisor import Supervisor

from .serving import DEADLINE, client_of, ended, events, over, served, started

KEY = "correct horse battery staple"


async def sleeper():
    await stoppable.sleep(60)


async def echo(value=None, **more):
    return [value, more]


@pytest.fixture
def service():
    with served([sleeper, echo]) as service:
        yield service


@pytest.fixture(scope="module")
def shared():
    """For tests that leave nothing behind."""
    with served([sleeper, echo]) as service:
        yield service


def connection_to(service):
    host, port = service.url.removeprefix("http://").split(":")
    return contextlib.closing(socket.create_connection((host, int(port)), timeout=DEADLINE))


def answer_of(connection):
    connection.settimeout(DEADLINE)
    received = b""
    with contextlib.suppress(ConnectionError):
        while chunk := connection.recv(65536):
            received += chunk
    return received


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.7", "example.com", ""])
def test_another_address_than_loopback_needs_a_key_or_a_principal(host):
    with pytest.raises(InvalidArgument, match="STOPPABLE_API_KEY"):
        Service([sleeper], host=host)
    Service([sleeper], host=host, api_key=KEY)
    Service([sleeper], host=host, principal=Principal)


async def test_any_address_of_loopback_answers_to_itself():
    with served([echo], host="127.0.0.2") as service:
        async with client_of(service) as client:
            assert (await client.get("/runs")).status_code == 200
            assert (await client.get("/runs", headers={"Host": "evil.example"})).status_code == 403


async def test_the_case_of_an_allowed_host_does_not_matter():
    with served([echo], allowed_hosts=["Agents.Example"]) as service:
        async with client_of(service) as client:
            assert (await client.get("/runs", headers={"Host": "agents.example:80"})).status_code == 200


@pytest.mark.parametrize("key", [f"{KEY}\n", f" {KEY}", f"two\n{KEY}", " " * 10])
def test_a_key_that_no_header_carries_is_refused(key):
    with pytest.raises(InvalidArgument, match="white space"):
        Service([sleeper], api_key=key)


def test_the_key_may_come_from_the_environment(monkeypatch):
    monkeypatch.setenv("STOPPABLE_API_KEY", "short")
    with pytest.raises(InvalidArgument, match="too short"):
        Service([sleeper], host="0.0.0.0")
    monkeypatch.setenv("STOPPABLE_API_KEY", KEY)
    Service([sleeper], host="0.0.0.0")


async def test_the_key_may_come_in_the_header_of_clients_that_send_no_bearer_token():
    with served([sleeper], api_key=KEY) as service:
        async with client_of(service, headers={"X-Api-Key": KEY}) as known:
            assert (await known.get("/runs")).status_code == 200


async def test_without_the_key_nothing_is_told_or_stopped():
    with served([sleeper], api_key=KEY) as service:
        async with client_of(service, headers={"Authorization": f"Bearer {KEY}"}) as known:
            run_id = await started(known, "sleeper")
            for headers in (
                {},
                {"Authorization": "Bearer wrong"},
                {"Authorization": f"Basic {KEY}"},
                {"Authorization": KEY},
                {"Authorization": f"Bearer {KEY}x"},
                {"Authorization": "Bearer \xe4\xf6".encode("latin-1")},
                {"X-Api-Key": f"{KEY}x"},
                {"X-Api-Key": KEY, "Authorization": "Bearer wrong"},
            ):
                async with client_of(service, headers=headers) as stranger:
                    for request in (
                        stranger.get("/runs"),
                        stranger.get("/agents"),
                        stranger.get(f"/runs/{run_id}/events"),
                        stranger.get(f"/runs/{run_id}", params={"key": KEY, "api_key": KEY}),
                        stranger.post(f"/runs/{run_id}/stop"),
                        stranger.post("/stops", json={"selector": {"all": True}}),
                        stranger.post("/runs", json={"agent": "sleeper"}),
                        stranger.get("/audit"),
                        stranger.get("/holds"),
                    ):
                        response = await request
                        assert (response.status_code, response.json()["error"]["code"]) == (401, "unauthenticated")
                        assert response.headers["www-authenticate"] == "Bearer"
                        assert KEY not in response.text
                    assert (await stranger.get("/healthz")).status_code == 200
                    assert (await stranger.get("/readyz")).status_code == 200
            assert (await known.get(f"/runs/{run_id}")).json()["status"] == "running"
            stop = await known.post(f"/runs/{run_id}/stop", params={"wait": 5})
            assert stop.json()["receipt"]["reason"]["actor"] == "api-key"


ORIGINS = [
    ({}, True),
    ({"Origin": "{url}"}, True),
    ({"Origin": "{url}", "Sec-Fetch-Site": "same-origin"}, True),
    ({"Sec-Fetch-Site": "none"}, True),
    ({"Origin": "https://evil.example"}, False),
    ({"Origin": "https://evil.example", "Sec-Fetch-Site": "cross-site"}, False),
    ({"Origin": "http://localhost:3000", "Sec-Fetch-Site": "same-site"}, False),
    ({"Sec-Fetch-Site": "cross-site"}, False),
    ({"Origin": "null"}, False),
    ({"Origin": ""}, False),
    ({"Origin": "{url}.evil.example"}, False),
    ({"Origin": "https://friend.example", "Sec-Fetch-Site": "cross-site"}, True),
]


async def test_a_page_of_another_origin_cannot_press_stop():
    with served([sleeper], allowed_origins=["https://friend.example"]) as service:
        async with client_of(service) as client:
            for given, is_allowed in ORIGINS:
                headers = {name: value.format(url=service.url) for name, value in given.items()}
                run_id = await started(client, "sleeper")
                for request in (
                    client.post(f"/runs/{run_id}/stop", headers=headers),
                    client.post("/stops", json={"selector": {"agent": "nobody"}}, headers=headers),
                    client.post("/runs", json={"agent": "sleeper"}, headers=headers),
                    client.delete("/holds/none", headers=headers),
                ):
                    response = await request
                    assert (response.status_code != 403) == is_allowed, (given, response.text)
                    if not is_allowed:
                        assert response.json()["error"]["code"] == "foreign_origin"
                status = (await client.get(f"/runs/{run_id}")).json()["status"]
                assert (status in {"stopping", "stopped"}) == is_allowed, given


async def test_a_page_of_another_origin_cannot_stop_a_run_by_opening_its_stream_and_leaving():
    limits = ServerLimits(disconnect_grace=0.0)
    with served([sleeper], allowed_origins=["https://friend.example"], limits=limits) as service:
        async with client_of(service) as client:
            for given, is_allowed in ORIGINS:
                headers = {name: value.format(url=service.url) for name, value in given.items()}
                run_id = await started(client, "sleeper", onDisconnect="stop")
                async with client.stream("GET", f"/runs/{run_id}/events", headers=headers) as response:
                    assert response.status_code == (200 if is_allowed else 403), given
                if is_allowed:
                    assert (await over(client, run_id))["status"] == "stopped"
                else:
                    assert (await client.get(f"/runs/{run_id}")).json()["status"] == "running"
                    await client.post(f"/runs/{run_id}/stop")


async def test_a_friend_may_read_across_origins_and_others_may_not():
    with served([sleeper], allowed_origins=["https://friend.example"]) as service:
        async with client_of(service) as client:
            friend = await client.get("/runs", headers={"Origin": "https://friend.example"})
            assert friend.headers["access-control-allow-origin"] == "https://friend.example"
            evil = await client.get("/runs", headers={"Origin": "https://evil.example"})
            assert "access-control-allow-origin" not in evil.headers


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8420", "localhost.evil.example", "", "[::2]", "127.0.0.2x"]
)
async def test_a_name_that_was_pointed_at_us_is_refused(shared, host):
    async with client_of(shared) as client:
        for path in ("/runs", "/openapi.json", "/", "/runs/x/events"):
            response = await client.get(path, headers={"Host": host})
            assert (response.status_code, response.json()["error"]["code"]) == (403, "foreign_host")
        assert (await client.get("/healthz", headers={"Host": host})).status_code == 200
        for name in ("localhost", "LOCALHOST:1", "127.0.0.1:99", "[::1]:8420"):
            assert (await client.get("/runs", headers={"Host": name})).status_code == 200


async def test_every_response_carries_the_security_headers(shared):
    async with client_of(shared) as client:
        for path in ("/", "/runs", "/nope", "/runs/x", "/openapi.json", "/healthz"):
            headers = (await client.get(path)).headers
            assert headers["x-content-type-options"] == "nosniff"
            assert headers["x-frame-options"] == "DENY"
            assert headers["referrer-policy"] == "no-referrer"
            # The page has nothing of a run in it, and is asked for again.
            assert headers["cache-control"] == ("no-cache" if path == "/" else "no-store")
            assert "default-src 'none'" in headers["content-security-policy"]
            assert "server" not in headers
            assert "access-control-allow-origin" not in headers


async def test_a_body_that_is_too_large_is_refused_whether_or_not_it_says_so():
    with served([echo], limits=ServerLimits(body_bytes=1000)) as service:
        async with client_of(service) as client:
            body = json.dumps({"agent": "echo", "input": "x" * 2000}).encode()

            async def in_pieces():
                for at in range(0, len(body), 100):
                    yield body[at : at + 100]

            kind = {"Content-Type": "application/json"}
            for content in (body, in_pieces()):
                response = await client.post("/runs", content=content, headers=kind)
                assert (response.status_code, response.json()["error"]["code"]) == (413, "too_large")
            assert (await client.get("/runs")).json()["runs"] == []


def test_a_body_or_head_that_does_not_arrive_is_not_waited_for():
    with served([echo], limits=ServerLimits(body_seconds=0.2, head_seconds=0.2)) as service:
        with connection_to(service) as connection:
            head = b"POST /runs HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            connection.sendall(head + b"Content-Length: 9\r\n\r\n{")
            assert b"408 Request Timeout" in answer_of(connection)
        with connection_to(service) as connection:
            connection.sendall(b"GET /runs HTTP/1.1\r\nHost: lo")
            assert b"408 Request Timeout" in answer_of(connection)
        with connection_to(service) as connection:
            assert b"408 Request Timeout" in answer_of(connection)


def test_a_head_that_never_ends_is_cut_off():
    with served([echo], limits=ServerLimits(head_bytes=1000)) as service:
        with connection_to(service) as connection:
            connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX: " + b"x" * 1500 + b"\r\n\r\n")
            connection.shutdown(socket.SHUT_WR)
            assert b"431 Request Header Fields Too Large" in answer_of(connection)
        with connection_to(service) as connection:
            with contextlib.suppress(ConnectionError):
                connection.sendall(b"GET /healthz HTTP/1.1\r\nX: ")
                while True:
                    connection.sendall(b"x" * 10_000)  # until it is cut off
        with connection_to(service) as connection:
            connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n" * 1)
            assert b"200 OK" in answer_of(connection)


def test_requests_that_come_together_are_not_one_large_head():
    with served([echo], limits=ServerLimits(head_bytes=1000)) as service, connection_to(service) as connection:
        one = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
        last = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
        connection.sendall(one * 100 + last[:10])
        assert connection.recv(1) == b"H", "it has read them"
        connection.sendall(last[10:])
        assert answer_of(connection).count(b"200 OK") == 101


@pytest.mark.parametrize(
    "body",
    [
        {"agent": ""},
        {"agent": "x" * 300},
        {"agent": "echo", "labels": {f"k{n}": "v" for n in range(33)}},
        {"agent": "echo", "labels": {"k": "v" * 300}},
        {"agent": "echo", "labels": {"k": 1}},
        {"agent": "echo", "runId": "../../etc/passwd"},
        {"agent": "echo", "runId": "x" * 200},
        {"agent": "echo", "runId": ""},
        {"agent": "echo", "owner": "x" * 300},
        {"agent": "echo", "limits": {"seconds": -1}},
        {"agent": "echo", "limits": {"seconds": 1e300}},
        {"agent": "echo", "limits": {"boundaries": {"llm": -1}}},
        {"agent": "echo", "limits": {"boundaries": {"llm": 1.5}}},
        {"agent": "echo", "policy": {"grace": -1}},
        {"agent": "echo", "policy": {"grace": 1e300}},
        {"agent": "echo", "isolation": "none"},
        {"agent": "echo", "onDisconnect": "maybe"},
        {"agent": "echo", "unknown": 1},
        {"agent": "sleeper", "input": {"no": "such argument"}},
        {"agent": "sleeper", "input": None},
        {"agent": "echo", "input": functools.reduce(lambda inner, _: [inner], range(100), [])},
        {"agent": ["echo"]},
        [],
        None,
        "echo",
    ],
)
async def test_a_start_that_makes_no_sense_is_422_and_starts_nothing(shared, body):
    async with client_of(shared) as client:
        response = await client.post("/runs", json=body)
        assert (response.status_code, response.json()["error"]["code"]) == (422, "invalid_argument"), response.text
        assert len(response.text) < 1000
        assert (await client.get("/runs")).json()["runs"] == []


async def test_a_start_of_an_agent_that_is_not_there_is_404_and_names_those_that_are(shared):
    async with client_of(shared) as client:
        response = await client.post("/runs", json={"agent": "nobody"})
        assert (response.status_code, response.json()["error"]["code"]) == (404, "agent_not_found")
        assert "echo" in response.json()["error"]["message"]


@pytest.mark.parametrize(
    ("content", "kind", "status"),
    [
        (b"{", "application/json", 422),
        (b'{"agent": "echo", "input": NaN}', "application/json", 422),
        (b'{"agent": "echo", "input": "\\ud800"}', "application/json", 422),
        (b'{"agent": "echo", "input": "\xff"}', "application/json", 422),
        (b"[" * 100_000, "application/json", 422),
        (b'{"agent": "echo"}', "text/plain", 415),
        (b'{"agent": "echo"}', "application/x-www-form-urlencoded", 415),
        (b'{"agent": "echo"}', "", 415),
    ],
)
async def test_what_is_not_json_is_refused(shared, content, kind, status):
    async with client_of(shared) as client:
        response = await client.post("/runs", content=content, headers={"Content-Type": kind})
        assert response.status_code == status, response.text
        assert (await client.get("/runs")).json()["runs"] == []


async def test_any_input_and_any_result_goes_there_and_back(service):
    async with client_of(service) as client:
        for given in ("text", 7, [1, [2]], None, True, "\u0000\u2028<b>", 1.5):
            run_id = (await client.post("/runs", json={"agent": "echo", "input": given})).json()["id"]
            assert (await ended(client, run_id))["outcome"]["result"] == [given, {}]
        run_id = await started(client, "echo", {"value": 1, "func": 2, "self": 3})
        assert (await ended(client, run_id))["outcome"]["result"] == [1, {"func": 2, "self": 3}]
        run_id = await started(client, "echo")
        assert (await ended(client, run_id))["outcome"]["result"] == [None, {}]


async def test_no_secret_gets_into_the_log(caplog):
    caplog.set_level(logging.DEBUG)
    with served([echo, sleeper], api_key=KEY) as service:
        async with client_of(
            service, headers={"Authorization": f"Bearer {KEY}", "Cookie": "session=topsecret"}
        ) as client:
            run_id = await started(client, "echo", "topsecret")
            assert [one async for one in events(client, run_id)]
            await client.get("/runs", params={"cursor": "topsecret"})
            await client.get("/runs/%0d%0aInjected:%20line")
            await client.post("/runs", content=b"{topsecret", headers={"Content-Type": "application/json"})
        async with client_of(service, headers={"Authorization": "Bearer topsecret"}) as stranger:
            await stranger.get("/runs")
    lines = [record.getMessage() for record in caplog.records if record.name.startswith(("stoppable", "uvicorn"))]
    access = [line for line in lines if " /runs" in line]
    assert any("POST /runs 201" in line for line in access)
    assert len(access) >= 6
    for line in lines:
        assert KEY not in line
        assert "topsecret" not in line
        assert "\n" not in line
        assert "Injected: line" not in line


async def test_the_openapi_document_names_every_route_and_error():
    app = create_app(Supervisor(), [sleeper])
    document = app.openapi()
    assert set(document["paths"]) == {
        "/runs",
        "/runs/{run_id}",
        "/runs/{run_id}/tree",
        "/runs/{run_id}/receipt",
        "/events",
        "/runs/{run_id}/events",
        "/runs/{run_id}/stop",
        "/stops",
        "/holds",
        "/holds/{hold_id}",
        "/audit",
        "/agents",
        "/healthz",
        "/readyz",
        "/whoami",
    }
    start = document["paths"]["/runs"]["post"]["responses"]
    assert {"200", "201", "400", "401", "403", "409", "413", "415", "422", "423", "431", "503"} <= set(start)
    for path in document["paths"].values():
        for operation in path.values():
            for status, response in operation["responses"].items():
                if int(status) >= 400:
                    assert response["content"]["application/json"]["schema"]["$ref"].endswith("/ErrorBody")
    assert document["components"]["schemas"]["StartBody"]["examples"]
    assert "security" not in document
    guarded = create_app(Supervisor(), [sleeper], api_key=KEY).openapi()
    assert guarded["security"] == [{"key": []}]
    assert guarded["components"]["securitySchemes"]["key"]["scheme"] == "bearer"
    assert guarded["paths"]["/healthz"]["get"]["security"] == []


def test_two_agents_of_one_name_are_refused():
    def one():
        pass

    first, one = one, lambda: None
    one.__name__ = "one"
    with pytest.raises(InvalidArgument, match="'one'"):
        create_app(Supervisor(), [first, one])


async def test_readyz_tells_when_the_store_does_not_answer(service):
    from stoppable.errors import StoreError
    from stoppable.stores.base import StoreFuture

    def refuse(*_, **__):
        def fail():
            raise StoreError("the disk is full: make room")

        return StoreFuture.of(fail)

    async with client_of(service) as client:
        run_id = await started(client, "sleeper")
        assert (await client.get("/readyz")).json() == {"status": "ready"}
        store = service.supervisor.store
        store.holds, store.request_stop = refuse, refuse
        try:
            ready = await client.get("/readyz")
            assert (ready.status_code, ready.json()["error"]["code"]) == (503, "not_ready")
            stop = await client.post(f"/runs/{run_id}/stop")
            assert (stop.status_code, stop.json()["error"]["code"]) == (503, "store_unavailable")
            assert "make room" in stop.json()["error"]["message"]
            assert (await client.get("/healthz")).status_code == 200
        finally:
            del store.holds, store.request_stop


async def test_readyz_tells_when_the_store_cannot_be_written(service, monkeypatch):
    """A file that another process holds can be read all the same; no heartbeat is answered then."""
    lease = service.supervisor._core.lease
    async with client_of(service) as client:
        assert (await client.get("/readyz")).json() == {"status": "ready"}
        # as if no heartbeat had been answered for 20 seconds, which nobody wants to wait
        monkeypatch.setattr(lease, "_renewed_at", lease._renewed_at - 20)
        assert (await client.get("/readyz")).status_code == 503
        assert (await client.get("/healthz")).status_code == 200


async def test_agents_are_described(shared):
    async with client_of(shared) as client:
        response = await client.post("/runs", json={"agent": "nobody"})
        assert (response.status_code, response.json()["error"]["code"]) == (404, "agent_not_found")
        agents = {agent["name"]: agent for agent in (await client.get("/agents")).json()["agents"]}
        assert agents["echo"]["parameters"] == [{"name": "value", "type": None, "required": False}]
        assert agents["sleeper"]["kind"] == "async def"


@pytest.mark.parametrize("number", [2**64 - 1, 2**64, 10**40, -(10**40), -(2**63) - 1, 1.5e300, 0.1234567890123456789])
async def test_a_number_arrives_as_it_was_sent(service, number):
    async with client_of(service) as client:
        run_id = (await client.post("/runs", json={"agent": "echo", "input": [number]})).json()["id"]
        result = (await ended(client, run_id))["outcome"]["result"][0]
        assert result == [number]
        assert type(result[0]) is type(number)


async def test_a_number_without_end_is_refused(service):
    async with client_of(service) as client:
        body = b'{"agent": "echo", "input": %b}' % (b"7" * 5000)
        response = await client.post("/runs", content=body, headers={"Content-Type": "application/json"})
        assert response.status_code in {400, 422}, response.text

"""Whatever a client sends, and whatever scopes it lacks, it gets an error of the protocol, never an internal one."""

import contextlib
import json

import httpx
import pytest
from a2a.types import AgentCard
from a2a.utils.proto_utils import validate_proto_required_fields
from fastapi import Request
from google.protobuf.json_format import ParseDict

import stoppable
from stoppable.adapters.a2a import Exposed
from stoppable.server import Principal, create_app

from .serving import PATIENT, SECONDS, listening

V1 = {"A2A-Version": "1.0"}


@stoppable.agent
async def quick(value: object = None):
    """Return what it gets."""
    return value


def principal(request: Request) -> Principal:
    return Principal(owner="ann", scopes=request.headers.get("x-scopes", "read start stop"))


@contextlib.asynccontextmanager
async def client(**options):
    over = Exposed({"quick": quick}, policy=PATIENT)
    async with stoppable.Supervisor() as supervisor:
        app = create_app(
            supervisor, [quick], routers=[over.router], services=[over.service], principal=principal, **options
        )
        async with listening(app, lifespan="on") as url, httpx.AsyncClient(base_url=url, timeout=SECONDS) as http:
            yield http


def sent(params, method="tasks/send"):
    """Return the body of a JSON-RPC request whose parameters are JSON already."""
    return b'{"jsonrpc":"2.0","id":1,"method":"' + method.encode() + b'","params":' + params + b"}"


def data(value, task_id=b"t"):
    return sent(b'{"id":"' + task_id + b'","message":{"role":"user","parts":[{"data":' + value + b"}]}}")


def nested(depth):
    return b"[" * depth + b"]" * depth


RPC = {
    "deep": sent(nested(100_000)),
    "deep data": data(nested(400)),
    "deep object": data(b'{"value":' * 90 + b"1" + b"}" * 90),
    "nan": data(b'{"value":NaN}'),
    "infinite": data(b'{"value":1e400}'),
    "an integer of 5000 digits": data(b'{"value":' + b"9" * 5000 + b"}"),
    "an integer of 400 digits": data(b'{"value":' + b"9" * 400 + b"}"),
    "surrogate in id": sent(b'{"id":"\\ud800","message":{"role":"user","parts":[{"text":"x"}]}}'),
    "surrogate in text": sent(b'{"id":"t","message":{"role":"user","parts":[{"text":"\\ud800"}]}}'),
    "surrogate in data": data(b'{"value":"\\ud800"}'),
    "surrogate in session": sent(b'{"id":"t","sessionId":"\\ud800","message":{"role":"user","parts":[{"text":"x"}]}}'),
    "surrogate in get": sent(b'{"id":"\\ud800"}', "tasks/get"),
    "surrogate in method": sent(b"{}", "tasks/\\\\ud800"),
    "surrogate in cancel": sent(b'{"id":"t","metadata":{"reason":"\\ud800"}}', "tasks/cancel"),
    "nul in id": sent(b'{"id":"a\\u0000b","message":{"role":"user","parts":[{"text":"x\\u0000y"}]}}'),
    "a list": b"[]",
    "nothing": b"",
    "not utf-8": b'\xff\xfe{"a":1}',
    "byte order mark": b'\xef\xbb\xbf{"jsonrpc":"2.0","id":1,"method":"tasks/list"}',
    "null": b"null",
    "a method that is an object": b'{"jsonrpc":"2.0","id":1,"method":{},"params":{}}',
    "a method that is a list": b'{"jsonrpc":"2.0","id":1,"method":["tasks/send"],"params":{}}',
    "an id that is an object": b'{"jsonrpc":"2.0","id":{"a":[1]},"method":"tasks/get","params":{"id":"x"}}',
    "get without an id": sent(b"{}", "tasks/get"),
    "cancel without an id": sent(b"{}", "tasks/cancel"),
    "cancel in an unknown mode": sent(b'{"id":"t","metadata":{"stoppable":{"mode":"bogus"}}}', "tasks/cancel"),
    "a part that is a number": sent(b'{"id":"p","message":{"parts":[5]}}'),
    "parameters that are a list": sent(b"[1,2]"),
    "1.0 with wrong types": sent(b'{"message":{"messageId":5,"role":"x","parts":{}}}', "SendMessage"),
    "0.3 with wrong types": sent(b'{"message":{"messageId":5,"role":"x","parts":{}}}', "message/send"),
    "0.3 with a surrogate": sent(
        b'{"message":{"kind":"message","messageId":"1","role":"user","parts":[{"kind":"text","text":"\\ud800"}]}}',
        "message/send",
    ),
    "1.0 with a surrogate": sent(
        b'{"message":{"messageId":"1","role":"ROLE_USER","parts":[{"text":"\\ud800"}]}}', "SendMessage"
    ),
    "push": sent(b'{"taskId":"x","pushNotificationConfig":{"url":"http://x"}}', "tasks/pushNotificationConfig/set"),
}


@pytest.mark.parametrize("headers", [{}, V1], ids=["unversioned", "1.0"])
async def test_no_json_rpc_body_is_an_internal_error(headers):
    async with client() as http:
        for name, body in RPC.items():
            answer = await http.post(
                "/a2a/quick/", content=body, headers={**headers, "content-type": "application/json"}
            )
            assert answer.status_code < 500, (name, answer.text)
            told = json.loads(answer.text.removeprefix("data: "))
            assert told["jsonrpc"] == "2.0", (name, told)
            if "error" in told:
                assert isinstance(told["error"]["code"], int), (name, told)
                assert told["error"]["code"] != -32603, (name, told)


def message(part):
    return b'{"message":{"messageId":"1","role":"ROLE_USER","parts":[' + part + b"]}}"


REST = {
    "deep": ("POST", "message:send", b'{"message":' + nested(50_000) + b"}"),
    "wrong type": ("POST", "message:send", b'{"message": 5}'),
    "a list": ("POST", "message:send", b"[1]"),
    "nothing": ("POST", "message:send", b""),
    "nan": ("POST", "message:send", message(b'{"data":{"value":NaN}}')),
    "surrogate": ("POST", "message:send", message(b'{"text":"\\ud800"}')),
    "deep data": ("POST", "message:send", message(b'{"data":' + nested(400) + b"}")),
    "not utf-8": ("POST", "message:send", b"\xff"),
    "stream of a wrong type": ("POST", "message:stream", b'{"message": 5}'),
    "negative page": ("GET", "tasks?pageSize=-1", None),
    "huge page": ("GET", "tasks?pageSize=99999999999999", None),
    "page that is no number": ("GET", "tasks?pageSize=x", None),
    "page token": ("GET", "tasks?pageToken=zzz", None),
    "status": ("GET", "tasks?status=bogus", None),
    "history": ("GET", "tasks/x?historyLength=abc", None),
    "unknown task": ("GET", "tasks/x", None),
    "unknown task to cancel": ("POST", "tasks/x:cancel", b"{}"),
    "cancel of a list": ("POST", "tasks/x:cancel", b"[]"),
    "cancel of nonsense": ("POST", "tasks/x:cancel", b"{"),
    "push": ("POST", "tasks/x/pushNotificationConfigs", b'{"url":"http://127.0.0.1:1/"}'),
    "list of push": ("GET", "tasks/x/pushNotificationConfigs", None),
    "extended card": ("GET", "extendedAgentCard", None),
}


async def test_no_rest_request_is_an_internal_error():
    async with client() as http:
        for name, (method, path, body) in REST.items():
            headers = V1 if body is None else {**V1, "content-type": "application/json"}
            answer = await http.request(method, f"/a2a/quick/{path}", content=body, headers=headers)
            assert answer.status_code in range(400, 500), (name, answer.status_code, answer.text)
            error = answer.json()["error"]
            assert error["code"] == answer.status_code, (name, error)
            assert error["status"].isupper(), (name, error)


SCOPED = {
    "start": ["SendMessage", "SendStreamingMessage", "message/send", "message/stream", "tasks/send"],
    "stop": ["CancelTask", "tasks/cancel"],
    "read": ["GetTask", "ListTasks", "SubscribeToTask", "tasks/get", "tasks/list", "tasks/resubscribe"],
}
ROUTES = {
    "start": [("POST", "message:send"), ("POST", "message:stream")],
    "stop": [("POST", "tasks/x:cancel")],
    "read": [("GET", "tasks"), ("GET", "tasks/x"), ("POST", "tasks/x:subscribe"), ("GET", "extendedAgentCard")],
}


@pytest.mark.parametrize("scope", SCOPED)
async def test_each_method_needs_its_own_scope_only(scope):
    """A caller without it gets 403 in the format of the protocol; one with nothing else is served."""
    without = " ".join({"read", "start", "stop"} - {scope})
    body = {"id": "x", "message": {"messageId": "1", "role": "user", "parts": [{"text": "x"}]}}
    async with client() as http:
        for method in SCOPED[scope]:
            call = {"jsonrpc": "2.0", "id": 7, "method": method, "params": body}
            headers = V1 if method[0].isupper() else {}
            refused = await http.post("/a2a/quick/", json=call, headers={**headers, "x-scopes": without})
            assert refused.status_code == 403, (method, refused.text)
            told = refused.json()
            assert (told["jsonrpc"], told["id"]) == ("2.0", 7)
            assert isinstance(told["error"]["code"], int)
            assert repr(scope) in told["error"]["message"]
            served = await http.post("/a2a/quick/", json=call, headers={**headers, "x-scopes": scope})
            assert served.status_code == 200, (method, served.text)
            assert "-32603" not in served.text
        for method, path in ROUTES[scope]:
            given = {} if method == "GET" else {"json": {"message": body["message"] | {"role": "ROLE_USER"}}}
            headers = {**V1, "x-scopes": without}
            refused = await http.request(method, f"/a2a/quick/{path}", headers=headers, **given)
            assert refused.status_code == 403, (path, refused.text)
            error = refused.json()["error"]
            assert (error["code"], error["status"]) == (403, "PERMISSION_DENIED")
            served = await http.request(method, f"/a2a/quick/{path}", headers={**V1, "x-scopes": scope}, **given)
            assert served.status_code not in {403, 500}, (path, served.text)


async def test_a_body_that_is_too_large_is_refused_in_the_format_of_the_protocol():
    async with client() as http:
        huge = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tasks/get", "params": {"id": "x" * 2_000_000}})
        headers = {**V1, "content-type": "application/json"}
        answer = await http.post("/a2a/quick/", content=huge, headers=headers)
        assert (answer.status_code, answer.json()["jsonrpc"]) == (413, "2.0")
        answer = await http.post("/a2a/quick/message:send", content=huge, headers=headers)
        assert (answer.status_code, answer.json()["error"]["code"]) == (413, 413)
        answer = await http.post("/a2a/quick/", content="a=b", headers={"content-type": "text/plain"})
        assert (answer.status_code, answer.json()["jsonrpc"]) == (415, "2.0")


ODD = {"set": {1}, "nan": float("nan"), "none": None, "text": "\ud800", "large": 10**400}


@stoppable.agent
async def odd():
    """Report values that JSON cannot hold, or protocol buffers cannot."""
    stoppable.set_partial(ODD)
    stoppable.emit("step", value=float("inf"))
    return {"large": 10**400}


async def test_values_that_json_cannot_hold_become_text():
    over = Exposed({"odd": odd}, policy=PATIENT)
    async with stoppable.Supervisor() as supervisor:
        app = create_app(supervisor, [odd], routers=[over.router], services=[over.service])
        async with listening(app, lifespan="on") as url, httpx.AsyncClient(base_url=url, timeout=SECONDS) as http:
            task = (await http.post("/message:send", content=message(b'{"text":""}'), headers=JSON)).json()["task"]
    assert task["status"]["state"] == "TASK_STATE_COMPLETED"
    found = {one["name"]: one["parts"][0]["data"] for one in task["artifacts"]}
    assert set(found) == {"partial", "result"}
    assert found["result"] == {"large": str(10**400)}


JSON = {**V1, "content-type": "application/json"}
OF_1_0 = {  # the fields of AgentCard and of AgentInterface in protocol 1.0
    "name",
    "description",
    "supportedInterfaces",
    "provider",
    "version",
    "documentationUrl",
    "capabilities",
    "securitySchemes",
    "securityRequirements",
    "defaultInputModes",
    "defaultOutputModes",
    "skills",
    "signatures",
    "iconUrl",
}


async def test_a_client_of_1_0_gets_a_card_of_its_schema_without_fields_of_0_3():
    async with client() as http:
        path = "/a2a/quick/.well-known/agent-card.json"
        new, old = await http.get(path, headers=V1), await http.get(path)
        assert set(new.json()) <= OF_1_0
        assert {"name", "description", "supportedInterfaces", "version", "capabilities", "skills"} <= set(new.json())
        for interface in new.json()["supportedInterfaces"]:
            assert set(interface) == {"url", "protocolBinding", "protocolVersion"}
        # The schema of 1.0 is made of these messages: no unknown field, and every required one.
        validate_proto_required_fields(ParseDict(new.json(), AgentCard()))
        assert {"url", "protocolVersion", "preferredTransport"} <= set(old.json())  # what clients of 0.3 need
        assert new.headers["vary"] == old.headers["vary"] == "A2A-Version"

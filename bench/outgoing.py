"""Measures what `instrument()` adds to a request of httpx, whose answer is in memory, and to a chunk of a stream.

A full run writes bench/results/outgoing.md.
"""

from __future__ import annotations

import argparse
import itertools
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import httpx

import stoppable
from core_sections.places import in_run
from machine import facts
from measure import Contender, Effort, in_asyncio, measure
from table import Section, Target, against, as_json, as_markdown, as_text, summary, write

RESULTS = Path(__file__).parent / "results" / "outgoing.md"
METHOD = (
    "Written by `make bench`. Minimum of many interleaved rounds, in one process; the floor calls what is behind our"
    " function. A request is answered in memory: what it adds is the same to one that goes over a network."
)
BODY = {"model": "gpt-5", "messages": [{"role": "user", "content": "count"}]}
ANSWER = {"choices": [{"message": {"role": "assistant", "content": "one two three"}}]}


CHUNKS = 1000
WHERE_IT_GOES = (
    "Where it goes, by cProfile: the request is named (a third; httpx puts `url.host` and `url.netloc` together at each"
    " use), its run and the boundaries around it are looked up (a third), the boundary and the hook that ends a blocked"
    " wait are entered and left (a third); of a model call the body is decoded for the model and the answer for its"
    " text. It is less than a thousandth of a model call of 50 ms. Outside runs a third of it is a wrapper that does"
    " nothing but pass the arguments on; the rest is a coroutine that finds that there is no run, and one lookup."
)


class Words(httpx.SyncByteStream):
    def __iter__(self):
        return itertools.repeat(b"data: {}\n\n", CHUNKS)


def _names(path: str, *, is_plain: bool) -> dict[str, object]:
    client = httpx.Client(transport=httpx.MockTransport(lambda _: httpx.Response(200, json=ANSWER)))
    send = httpx.Client.send
    request = client.build_request("POST", f"http://model.test{path}", json=BODY)
    return {"send": send.__wrapped__ if is_plain else send, "client": client, "request": request}


def requests(quick: bool) -> Section:
    def contender(name: str, path: str = "/ask", *, is_plain: bool = False, is_in_run: bool = False) -> Contender:
        return Contender(
            name=name,
            statement="send(client, request)",
            names=lambda: _names(path, is_plain=is_plain),
            drive=in_run if is_in_run else in_asyncio,
        )

    floor = contender("httpx, as it is (floor)", is_plain=True)
    ours = {
        contender("instrumented, outside runs"): 1_000,
        contender("instrumented, in a run", is_in_run=True): 10_000,
        contender("instrumented, a model call in a run", "/v1/chat/completions", is_in_run=True): 10_000,
    }
    return _section("A request", floor, ours, quick, [WHERE_IT_GOES])


def chunks(quick: bool) -> Section:
    def contender(name: str, *, is_plain: bool) -> Contender:
        def names() -> Mapping[str, object]:
            client = httpx.Client(transport=httpx.MockTransport(lambda _: httpx.Response(200, stream=Words())))
            send = httpx.Client.send
            request = client.build_request("GET", "http://model.test/ask")
            return {"send": send.__wrapped__ if is_plain else send, "client": client, "request": request}

        return Contender(
            name=name,
            statement="for _ in send(client, request, stream=True).stream: pass",
            names=names,
            drive=in_asyncio if is_plain else in_run,
        )

    floor = contender("httpx, as it is (floor)", is_plain=True)
    ours = {contender("instrumented, in a run", is_plain=False): 2_000 * CHUNKS}
    return _section(f"A streamed answer of {CHUNKS:,} chunks", floor, ours, quick)


def _section(
    title: str, floor: Contender, ours: Mapping[Contender, int], quick: bool, notes: Sequence[str] = ()
) -> Section:
    times = measure((floor, *ours), Effort(rounds=20 if quick else 100, batch_ns=3_000_000))
    base = times[floor.name]
    assert base is not None, "httpx is there"
    rows = [against(base, floor.name, base)]
    for contender, most in ours.items():
        rows.append(against(base, contender.name, times[contender.name]))
        added = times[contender.name] - base
        target = Target(limit=most, absolute=True)
        rows.append(against(base, f"{contender.name}: what it adds", added, target=target))
    return Section(title=title, rows=rows, notes=notes)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="print machine-readable results")
    parser.add_argument("--quick", action="store_true", help="fewer rounds; writes no results file")
    options = parser.parse_args()
    about = facts(("stoppable", "httpx"))
    stoppable.instrument()
    sections = [part(options.quick) for part in (requests, chunks)]
    last_line = summary("outgoing", sections)
    if options.json:
        print(json.dumps(as_json(about, sections, last_line), indent=2))
    else:
        print("\n".join(as_text(section) for section in sections) + f"\n\n{last_line}")
    if not options.quick:
        write(RESULTS, as_markdown("Requests, measured", METHOD, about, sections, last_line))


if __name__ == "__main__":
    main()

"""The commands against a real server: what they print, as text and as JSON, and their exit codes."""

import itertools
import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from tests.waiting import wait_until

from stoppable import Policy
from stoppable._extras import pip_install
from stoppable.cli import formatting
from stoppable.cli.command_line import COMMANDS
from stoppable.cli.exits import EPILOG, MEANINGS, Exit
from stoppable.client import Client
from stoppable.records import EventType

from ..server.serving import served as serving

ROOT = Path(__file__).parents[2]
PATIENT = Policy(grace=60, cancel=60)  # only the next press is harder, however slow the machine is


def running(client, agent, *given, **options):
    """Start a run and wait until it runs."""
    record = client.start(agent, *given, **options)
    for event in client.events(record.id):
        if event.type is EventType.STATUS and event.data["status"] == "running":
            return record.id
    raise AssertionError("it is over")


def at_work(client, agent, *given, **options):
    """Start a run and wait until a call of it is in flight: a stop that comes before would end it there."""
    run_id = running(client, agent, *given, **options)
    next(event for event in client.events(run_id) if event.type == "entered")
    return run_id


def test_start_prints_the_id_alone_and_says_how_to_stop(stoppable, client, unique):
    done = stoppable("start", "waiting", "--id", unique, "--owner", unique, "--label", "a:b", "--seconds", "60")
    assert done.stdout == f"{unique}\n"
    assert f"stoppable stop {unique}" in done.stderr
    record = client.get(unique)
    assert (record.owner, dict(record.labels), record.limits.seconds) == (unique, {"a": "b"}, 60)
    again = ("start", "waiting", "--seconds", "60", "--id", unique, "--label", "a:b", "--owner", unique)
    assert stoppable.json(*again)["id"] == unique
    stoppable(*again, "--label", "c:d", code=Exit.REFUSED)
    client.stop(unique, "kill")


def test_start_follow_shows_it_to_its_end(stoppable):
    assert stoppable("start", "echo", '"hello"', "--follow").stdout == "hello\n"
    assert stoppable("start", "echo", "not json", "-f").stdout == "not json\n"
    assert json.loads(stoppable("start", "echo", '{"value": [1]}', "-f").stdout) == [1]
    assert "ValueError: it went wrong" in stoppable("start", "failing", "-f", code=Exit.FAILED).stderr


def test_ls_shows_children_below_their_parents(stoppable, client, unique):
    run_id = running(client, "parent", owner=unique)
    wait_until(lambda: [one.status for one in client.tree(run_id)] == ["running"] * 3)
    head, *rows = stoppable("ls", "--owner", unique).stdout.splitlines()
    assert head.split() == ["RUN", "AGENT", "OWNER", "STATUS", "STARTED", "TIME", "WHAT"]
    assert [re.split(r"  +", row)[1] for row in rows] == ["parent", "└ waiting", "└ waiting"]
    assert rows[0].startswith(run_id[:12])
    listed = stoppable.json("ls", "--owner", unique, "-n", "2")
    assert [(one["name"], one["status"], one["inFlight"]) for one in listed] == [("waiting", "running", [])] * 2
    cut = stoppable("ls", "--owner", unique, "-n", "2")
    assert cut.stderr == "the newest 2 of 3 runs: -n 3 shows them\n"
    assert [re.split(r"  +", row)[1] for row in cut.stdout.splitlines()[1:]] == ["└ waiting", "└ waiting"]
    assert stoppable.json("ls", "--owner", unique, "--status", "completed") == []
    tree = stoppable("tree", run_id[:10]).stdout
    assert tree.count("waiting") == 2
    assert tree.startswith(f"parent  {run_id[:12]}  ● running")
    assert [one["name"] for one in stoppable.json("tree", run_id)] == ["parent", "waiting", "waiting"]
    client.stop(run_id, wait=30)


def test_stop_waits_and_prints_the_receipt(stoppable, client):
    run_id = running(client, "calling", {"seconds": 0.05})
    done = stoppable("stop", run_id[:8], "--reason", "enough", "--wait", "20")
    assert "■ stopped" in done.stdout
    assert "enough (local)" in done.stdout
    assert "nobody" not in done.stdout
    assert stoppable("receipt", run_id).stdout.split("stop  ")[0] == done.stdout.split("stop  ")[0]
    assert stoppable.json("receipt", run_id)["reason"]["message"] == "enough"


def test_one_press_is_one_entry_of_the_audit_however_long_it_waits(stoppable, client, unique):
    run_id = running(client, "waiting", owner=unique)
    stoppable("stop", run_id, "--reason", unique, "--wait", "20")
    [entry] = [one for one in client.audit(limit=1000) if one.target.get("run") == run_id]
    assert (entry.reason, entry.result["runs"]) == (unique, {run_id: "accepted"})
    ids = [running(client, "waiting", owner=unique) for _ in range(2)]
    stoppable("stop", "--owner", unique, "--yes", "--reason", unique, "--wait", "20")
    assert {client.get(one).status for one in ids} == {"stopped"}
    after = [one for one in client.audit(after=entry.id, limit=1000) if one.target.get("run") in ids]
    assert after == [], "the stop of many is the one entry"
    stuck = at_work(client, "stuck", policy=PATIENT)
    stoppable("stop", stuck, "--mode", "graceful", "--wait", "0.3", code=Exit.TIMEOUT)
    assert len([one for one in client.audit(limit=1000) if one.target.get("run") == stuck]) == 1
    client.stop(stuck, "kill")


def test_pressing_again_climbs_and_the_last_press_asks(stoppable, client):
    run_id = at_work(client, "stuck", policy=PATIENT)
    assert stoppable.json("stop", run_id)["mode"] == "graceful"
    done = stoppable("stop", run_id)
    assert "escalated: immediate" in done.stdout
    assert "stop it again to escalate to kill" in done.stderr
    asked = stoppable("stop", run_id, code=Exit.USAGE)
    assert "Clean-up may not run" in asked.stderr
    assert "--yes" in asked.stderr
    assert stoppable.json("stop", run_id, "--yes", "--wait", "20", code=Exit.LOST)["mode"] == "kill"
    assert "already finished: kill" in stoppable("stop", run_id).stdout
    told = re.findall(r"status  stopping \((\w+)\)", stoppable("watch", run_id, code=Exit.LOST).stderr)
    assert told == ["graceful", "immediate", "kill"]


def test_an_explicit_mode_is_repeatable(stoppable, client):
    run_id = at_work(client, "stuck", policy=PATIENT)
    assert stoppable.json("stop", run_id, "--mode", "graceful")["answer"] == "accepted"
    assert stoppable.json("stop", run_id, "--mode", "graceful")["answer"] == "already_stopping"
    assert (
        stoppable.json("stop", run_id, "--mode", "graceful", "--wait", "0.1", code=Exit.TIMEOUT)["mode"] == "graceful"
    )
    stoppable("stop", run_id, "--mode", "kill")


def test_a_stop_of_many_previews_and_needs_a_yes(stoppable, client, unique):
    ids = [running(client, "waiting", owner=unique) for _ in range(2)]
    asked = stoppable("stop", "--owner", unique, code=Exit.USAGE)
    assert "Stop 2 runs (graceful)?" in asked.stderr
    assert all(run_id[:12] in asked.stderr for run_id in ids)
    stoppable("stop", "--owner", unique, "--dry-run")
    assert {client.get(run_id).status for run_id in ids} == {"running"}
    assert len(stoppable.json("stop", "--owner", unique, "--dry-run")) == 2
    done = stoppable("stop", "--owner", unique, "--yes", "--wait", "20", "--reason", "budget")
    assert done.stdout.count("■ stopped") == 2
    assert "2 runs told to stop" in done.stderr
    assert "nothing to stop" in stoppable("stop", "--owner", unique).stderr
    assert stoppable.json("stop", "--owner", unique) == {"receipts": [], "hold": None, "waitsUntil": None}


def test_holds_refuse_starts_until_they_are_released(stoppable, unique):
    stopped = stoppable.json("stop", "--label", f"team:{unique}", "--hold", "--yes", "--reason", "spend")
    refused = stoppable("start", "waiting", "--label", f"team:{unique}", code=Exit.REFUSED)
    told = f"on hold (spend): `stoppable release {stopped['hold']}` allows them again"
    assert told in refused.stderr
    listed = stoppable("holds").stdout
    assert stopped["hold"] in listed
    assert f"label team:{unique}" in listed
    assert "spend (local)" in listed
    stoppable("release", stopped["hold"])
    stoppable("release", stopped["hold"], code=Exit.NOT_FOUND)
    assert stopped["hold"] not in [one["id"] for one in stoppable.json("holds")]


def test_audit_says_who_did_what_newest_first(stoppable, client, unique):
    run_id = running(client, "waiting", owner=unique)
    stoppable("stop", run_id, "--reason", f"\x1b[2J{unique}", "--wait", "20")
    running(client, "waiting", owner=unique)
    running(client, "waiting", owner=unique)
    hold = stoppable.json("stop", "--owner", unique, "--agent", "waiting", "--hold", "--yes", "--mode", "kill")["hold"]
    stoppable("release", hold)
    head, *rows = stoppable("audit", "-n", "3").stdout.splitlines()
    assert head.split() == ["TIME", "ACTION", "ACTOR", "TARGET", "RESULT", "REASON"]
    assert [re.split(r"  +", row)[1:] for row in rows] == [
        ["release", "local", f"owner {unique}, agent waiting", f"hold {hold}"],
        ["stop kill", "local", f"owner {unique}, agent waiting", f"2 accepted, hold {hold}"],
        ["stop graceful", "local", f"run {run_id[:12]}", "accepted", rf"\x1b[2J{unique}"],
    ]
    told = stoppable("audit", "--limit", "1")
    assert len(told.stdout.splitlines()) == 2
    assert "more: -n 2 shows them" in told.stderr
    entries = stoppable.json("audit", "-n", "2")
    assert [(one["action"], one["result"]["hold"]) for one in entries] == [("release", hold), ("stop", hold)]
    assert entries[0]["id"] > entries[1]["id"]


def test_audit_reads_more_than_one_page(stoppable, client, monkeypatch):
    # small pages, since a thousand entries would take their time
    monkeypatch.setattr("stoppable.cli.commands._AUDIT_PAGE", 2)
    for _ in range(5):
        client.stop("nobody", if_unknown="wait")
    everything = client.audit(limit=1000)
    assert [one["id"] for one in stoppable.json("audit", "-n", "1000")] == [one.id for one in everything[::-1]]


def test_watch_of_one_run_ends_with_it(stoppable, client):
    run_id = running(client, "talker", {"count": 3, "pause": 0.05})
    lines = [json.loads(line) for line in stoppable("watch", run_id, "--json").stdout.splitlines()]
    assert [line["seq"] for line in lines] == list(range(1, len(lines) + 1))
    assert lines[-1]["type"] == "done"
    assert "progress  told number=2" in stoppable("watch", run_id).stderr
    stopped = running(client, "waiting")
    client.stop(stopped, wait=30)
    assert "■ stopped" in stoppable("watch", stopped, code=Exit.STOPPED).stderr


def test_nothing_an_agent_says_reaches_the_terminal_as_control(stoppable, client):
    record = client.start("hostile", owner="\x1b[31mred", labels={"a": "\x1b]0;x\x07"})
    list(client.events(record.id))
    for command in (["ls", "-n", "1"], ["tree", record.id], ["receipt", record.id], ["ls", "--json", "-n", "1"]):
        assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e]", stoppable(*command).output)
    watched = stoppable("watch", record.id, code=Exit.FAILED)
    assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e]", watched.output)
    assert r"\x1b[2J" in watched.stderr


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        (["stop", "no-such-run"], Exit.NOT_FOUND, "no run 'no-such-run'"),
        (["tree", "x"], Exit.NOT_FOUND, "`stoppable ls` lists runs"),
        (["release", "x"], Exit.NOT_FOUND, "lists the holds"),
        (["stop"], Exit.USAGE, "say which run"),
        (["stop", "x", "--all"], Exit.USAGE, "say which run"),
        (["stop", "x", "--hold"], Exit.USAGE, "--hold and --dry-run are for many"),
        (["start", "nope"], Exit.NOT_FOUND, "no agent 'nope'"),
        (["start", "echo", "{broken"], Exit.USAGE, "is not valid JSON"),
        (["start", "echo", '{"other": 1}'], Exit.USAGE, "other"),
        (["ls", "--label", "x"], Exit.USAGE, "KEY:VALUE"),
        (["serve"], Exit.USAGE, "say what to serve"),
        (["serve", "no_such_module"], Exit.NOT_FOUND, "no module 'no_such_module'"),
        (["serve", "json"], Exit.USAGE, "has no agents"),
        (["serve", "json:dumps", "--host", "0.0.0.0"], Exit.USAGE, "STOPPABLE_API_KEY"),
        (["serve", "json:dumps", "--store", "nosuch://x"], Exit.USAGE, "unknown kind of store"),
        (["serve", "json:dumps", "--ttl", "nan"], Exit.USAGE, "ttl is nan"),
        (["serve", "string:digits"], Exit.USAGE, "is a str: name an agent"),
        (["serve", "json:__all__"], Exit.USAGE, "it takes agents"),
        (["serve", "tests.served_agents:NOBODY"], Exit.USAGE, "is empty"),
        (["serve", "tests.served_agents:TWINS"], Exit.USAGE, "has two agents called 'echo'"),
        (["run", "json:dumps", "[" * 100_000], Exit.USAGE, "is not valid JSON"),
        (["run", "/somewhere/agents.py:echo"], Exit.USAGE, "use MODULE:AGENT"),
        (["run", "../agents.py:echo"], Exit.USAGE, "use MODULE:AGENT"),
        (["run", ":echo"], Exit.USAGE, "use MODULE:AGENT"),
        (["run", "json:nope"], Exit.NOT_FOUND, "has no 'nope'"),
        (["run", "json:__all__"], Exit.USAGE, "not an agent"),
        (["run", "stoppable.demo.agents"], Exit.USAGE, "has several agents"),
        (["run", "stoppable.demo.agents:stepper", '{"x": 1}'], Exit.USAGE, "cannot take these arguments"),
    ],
)
def test_errors_are_one_sentence_that_says_what_to_do(stoppable, arguments, code, told):
    done = stoppable(*arguments, code=code)
    assert told in done.stderr
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("missing", "extra", "arguments"),
    [("httpx", "client", ["ls", "--url", "https://127.0.0.1:1"]), ("fastapi", "server", ["serve", "--demo"])],
)
def test_a_missing_extra_is_one_clear_sentence(missing, extra, arguments):
    script = f"import sys; sys.modules[{missing!r}] = None; from stoppable.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", script, *arguments], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == Exit.USAGE
    assert done.stderr.startswith("error: ")
    assert pip_install(extra) in done.stderr


def test_a_server_that_is_not_there(stoppable, monkeypatch):
    monkeypatch.setattr("stoppable.cli.options._RETRY_SECONDS", 0.1)
    done = stoppable("ls", code=Exit.UNREACHABLE, STOPPABLE_URL="http://127.0.0.1:1")
    assert "start one with `stoppable serve`" in done.stderr
    assert "is not the URL" in stoppable("ls", "--url", "nonsense", code=Exit.USAGE).stderr


def test_a_demo_that_goes_wrong_exits_with_1(stoppable, monkeypatch):
    assert "as expected" in stoppable("demo", "--fast").stderr
    assert {one["status"] for one in stoppable.json("demo", "--fast").values()} == {"completed", "stopped"}
    monkeypatch.setattr("stoppable.demo.three_runs.EXPECTED", {"A": "stopped"})
    assert "A is completed, not stopped" in stoppable("demo", "--fast", code=Exit.FAILED).stderr


def test_exit_codes_are_documented():
    page = (ROOT / "docs/cli.md").read_text()
    for code, meaning in MEANINGS.items():
        assert f"| {code.value} | {meaning} |" in page
        assert meaning in EPILOG
    assert set(MEANINGS) == set(Exit)


def test_every_command_is_documented_and_helps(stoppable):
    page = (ROOT / "docs/cli.md").read_text()
    commands = [
        "serve",
        "mcp",
        "acp",
        "demo",
        "run",
        "check",
        "agents",
        "show",
        "ls",
        "start",
        "stop",
        "holds",
        "release",
        "audit",
        "watch",
        "tree",
        "receipt",
    ]
    listed = stoppable("--help").stdout
    for command in commands:
        assert re.search(rf"^  {command} ", listed, re.MULTILINE)
        helped = stoppable(command, "--help").stdout
        assert "Usage:" in helped
        assert f"`stoppable {command}" in page
        for option in re.findall(r"--[a-z-]+", helped):
            assert option in page or option == "--help", f"{command} {option}"


def test_numbers_of_any_size_are_understood(stoppable):
    stoppable("audit", "-n", "9" * 30)
    assert "--interval" in stoppable("watch", "--interval", "inf", code=Exit.USAGE).stderr


def test_run_ids_and_agents_are_completed(served, client, monkeypatch):
    from stoppable.cli import options

    monkeypatch.setenv("STOPPABLE_URL", served)
    run_id = client.start("echo").id
    with monkeypatch.context() as patient:  # who presses Tab waits for half a second at most, a test for longer
        patient.setattr(options, "_impatient", Client)
        assert run_id in options._complete_runs(run_id[:5])
        assert options._complete_agents("lon") == ["long_call"]
    monkeypatch.setenv("STOPPABLE_URL", "http://127.0.0.1:1")
    assert options._complete_runs("") == options._complete_agents("") == []


def test_a_conversation_is_stopped_by_its_key_without_asking_and_also_before_it_starts(stoppable, client, unique):
    run_id = running(client, "waiting", key=unique)
    assert [one["id"] for one in stoppable.json("ls", "--key", unique)] == [run_id]
    done = stoppable("stop", "--key", unique, "--wait", "20")
    assert (done.stdout.count("■ stopped"), client.get(run_id).status) == (1, "stopped")
    early = stoppable("stop", "--key", f"{unique} 2")
    assert "one that starts within" in early.stderr
    started = stoppable.json("start", "waiting", "--key", f"{unique} 2")
    assert (started["status"], started["key"]) == ("stopped", f"{unique} 2")
    assert stoppable.json("stop", "--key", unique, "--dry-run") == []


def test_agents_are_listed_with_what_they_take(stoppable):
    told = stoppable("agents").stdout
    assert re.search(r"^AGENT +TAKES +WHAT IT DOES", told)
    assert re.search(r"^talker +count.* = 20", told, re.MULTILINE)
    assert "talker" in [one["name"] for one in stoppable.json("agents")]


def test_show_has_all_about_a_run(stoppable, client, unique):
    client.start("failing", run_id=unique, labels={"team": "a"})
    assert "served_agents.py" in stoppable("watch", unique, code=Exit.FAILED).stderr
    told = stoppable("show", unique).stdout
    assert re.search(rf"failing  {unique}  ✗ failed", told)
    assert "team:a" in told
    assert "Traceback (most recent call last):" in told
    assert "served_agents.py" in told
    assert "stoppable/_" not in told, "only lines of the author"
    assert set(stoppable.json("show", unique)) == {"run", "tree", "receipt"}


def test_show_of_a_stopped_run_has_its_receipt(stoppable, client, unique):
    client.start("waiting", run_id=unique)
    client.stop(unique, reason="enough", wait=30)
    told = stoppable("show", unique[:-1]).stdout
    assert "receipt" in told
    assert "enough" in told


def test_the_receipt_names_connections_outside_any_boundary(stoppable, client, unique):
    client.start("connecting", run_id=unique)
    next(event for event in client.events(unique) if event.type == "entered")
    client.stop(unique, wait=30)
    (connection,) = stoppable.json("receipt", unique)["unguarded"]
    assert "served_agents.py:" in connection
    assert "connection outside any boundary: 127.0.0.1:" in stoppable("show", unique).stdout


def test_the_receipt_names_the_threads_of_libraries_that_run_on(stoppable, client, unique):
    client.start("listening", run_id=unique)
    next(event for event in client.events(unique) if event.type == "entered")
    client.stop(unique, wait=30)
    (name,) = stoppable.json("receipt", unique)["libraryThreads"]
    assert name.endswith("(logging.handlers)")
    for command in ("receipt", "show"):
        told = " ".join(stoppable(command, unique).stdout.split())
        assert f"library threads, not part of the run: {name}" in told


def test_the_receipt_says_that_a_remote_was_told_and_does_not_say_whether_it_ended(stoppable, client, unique):
    client.start("asking", run_id=unique)
    wait_until(lambda: any(run.in_flight for run in client.tree(unique)))
    assert client.stop(unique, wait=30).status == "stopped"
    entries = stoppable.json("receipt", unique)["entries"]
    assert [entry["fate"] for entry in entries if entry["kind"] == "remote"] == ["told"]
    said = stoppable("receipt", unique).stdout
    assert "remote elsewhere told to stop; it does not say whether it did\n" in said


def test_the_beginning_of_an_id_needs_four_characters(stoppable):
    assert "a prefix needs four characters" in stoppable("show", "abc", code=Exit.NOT_FOUND).stderr


@pytest.mark.parametrize(
    ("source", "code", "told"),
    [
        ("import json\n\njson.loads('{')\n", Exit.FAILED, "(char 1) ({}:3: json.loads('{{'))"),
        ("\ndef agent(:\n    pass\n", Exit.FAILED, "SyntaxError: invalid syntax ({}:2: def agent(:)"),
        (
            "import os\nimport no_such_package\n",
            Exit.NOT_FOUND,
            "needs the module no_such_package, which is not installed ({}:2: ",
        ),
        ("from json import no_such_name\n", Exit.FAILED, "({}:1: from json import no_such_name)"),
        ("raise SystemExit('no')\n", Exit.FAILED, "SystemExit: no ({}:1: "),
    ],
)
def test_a_failed_import_names_the_line_of_the_user(stoppable, tmp_path, monkeypatch, unique, source, code, told):
    name = unique.replace("-", "_")
    (tmp_path / f"{name}.py").write_text(source)
    (tmp_path / f"{name}_caller.py").write_text(f"import {name}\n")
    monkeypatch.syspath_prepend(tmp_path)
    for module in (name, f"{name}_caller"):
        done = stoppable("run", f"{module}:agent", code=code)
        assert told.format(tmp_path / f"{name}.py") in done.stderr
        assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    "command", [name for name in COMMANDS if name not in {"serve", "mcp", "acp", "demo", "doctor"}]
)
def test_an_error_is_one_line_on_stderr_with_json_too(stoppable, command, monkeypatch):
    monkeypatch.setattr("stoppable.cli.options._RETRY_SECONDS", 0.1)
    target = {"run": "no_such_module:x", "check": "no_such_module:x", "start": "x", "stop": "abcd", "release": "abcd"}
    words = [command, *filter(None, [target.get(command, "abcd" if command in {"show", "tree", "receipt"} else None)])]
    is_local = command in {"run", "check"}
    code = Exit.NOT_FOUND if is_local else Exit.UNREACHABLE
    done = stoppable(*words, "--json", code=code, STOPPABLE_URL="http://127.0.0.1:1")
    assert done.stdout == ""
    assert re.fullmatch(r"error: .+\n", done.stderr)


def test_a_receipt_counts_what_happened_more_than_once(stoppable, client, unique):
    client.start("twice", run_id=unique)
    entered = (event for event in client.events(unique) if event.type == "entered")
    assert len(list(itertools.islice(entered, 2))) == 2
    client.stop(unique, wait=30)
    told = stoppable("receipt", unique).stdout
    assert re.search(r"in flight +llm:same ×2\n", told)
    assert "llm same finished ×2\n" in told


def test_a_receipt_names_the_protocol_by_which_the_stop_came(client, unique):
    client.start("waiting", run_id=unique)
    client.stop(unique, wait=30)
    record, receipt = client.get(unique), client.receipt(unique)
    over = replace(record, stop=replace(record.stop, reason=replace(record.stop.reason, source="a2a")))
    for one, told in ((record, []), (over, ["a2a"])):
        facts = formatting._receipt_facts(receipt, one, with_output=False, full=None)
        assert [str(text) for name, text in facts if name == "over"] == told


def test_a_stop_of_a_run_that_has_ended_says_so(stoppable, client, unique):
    client.start("echo", run_id=unique).wait(30)
    assert "✓ completed  it had already ended" in stoppable("stop", unique).stdout
    assert f"{unique} was not stopped: it is completed" in stoppable("receipt", unique).stderr


def test_without_the_key_it_is_said_which_variable_to_set(stoppable):
    with serving([], api_key="a" * 20) as service:
        done = stoppable("ls", "--url", service.url, code=Exit.REFUSED)
    assert "set STOPPABLE_API_KEY" in done.stderr
    assert done.stderr.count("\n") == 1


def test_no_key_and_a_wrong_key_are_told_apart(stoppable):
    with serving([], api_key="of-this-server") as service:
        without = stoppable("ls", "--url", service.url, code=Exit.REFUSED).stderr
        wrong = stoppable("ls", "--url", service.url, code=Exit.REFUSED, STOPPABLE_API_KEY="of-another-server").stderr
    assert "a key is required" in without
    assert "the key is wrong" in wrong
    assert all("set STOPPABLE_API_KEY" in said for said in (without, wrong))


@pytest.mark.parametrize(
    ("meant", "told"),
    [("mian", "did you mean main?"), ("zzz", "it has main, other"), ("_hiden", "it has main, other")],
)
def test_a_misspelt_function_is_guessed(stoppable, tmp_path, monkeypatch, unique, meant, told):
    name = unique.replace("-", "_")
    (tmp_path / f"{name}.py").write_text(
        "from json import dumps\ndef main(): pass\ndef other(): pass\ndef _hidden(): pass\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    assert told in stoppable("run", f"{name}:{meant}", code=Exit.NOT_FOUND).stderr


def test_a_receipt_in_a_pipe_has_no_trailing_blanks(stoppable, client):
    run_id = running(client, "calling", {"seconds": 0.05})
    stopped = stoppable("stop", run_id, "--wait", "20").stdout
    followed = stoppable("start", "failing", "-f", code=Exit.FAILED).stderr
    for line in (stopped + followed).splitlines():
        assert line == line.rstrip()
    assert "stop " in stopped

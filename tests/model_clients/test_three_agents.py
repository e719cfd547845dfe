"""What people have before they know of stoppable: a streaming script, a chat behind FastAPI, a script with a pool.

The scripts are not changed at all. Of the chat, docs/how-to/fastapi.md changes twelve lines, also if it uses openai.
"""

from __future__ import annotations

import contextlib
import difflib
import json
import os
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path

import httpx
import pytest
from tests.process_states import is_alive
from tests.providers import TEXT, WORDS, Providers
from tests.served import Server
from tests.server import test_fastapi_page as page
from tests.waiting import wait_until

HERE = Path(__file__).parent / "three_agents"
SECONDS = 120  # imports take long on a busy machine
SHOWN = "".join(WORDS[: Providers.shown])


@pytest.fixture
def providers():
    with Providers() as providers:
        yield providers


@contextlib.contextmanager
def program(providers, tmp_path, *arguments):
    """Start a Python program beside the scripts, as a user does in their folder."""
    (tmp_path / "save.sh").write_text(f"echo $$ > {tmp_path}/pid; mv {tmp_path}/pid {tmp_path}/saving; exec sleep 600")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("STOPPABLE")}
    own = {"OPENAI_BASE_URL": f"{providers.url}/v1", "OPENAI_API_KEY": "none", "SAVE": str(tmp_path / "save.sh")}
    process = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-m", *arguments],
        cwd=HERE,
        env={**environment, **own, "COLUMNS": "200"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    server = Server(process)
    try:
        yield server
    finally:
        process.kill()
        process.wait(SECONDS)
        server.close()
        process.stdout.close()


def wait_for_calls(providers, number, process):
    for _ in range(number):
        wait_until(lambda: providers.streaming.acquire(blocking=False) or process.poll() is not None, SECONDS)
    assert process.poll() is None


def curl(url, body):
    """Post something as the tutorial does, and return the answer."""
    command = ["curl", "-sS", url, "-H", "content-type: application/json", "-d", json.dumps(body)]
    return json.loads(subprocess.run(command, capture_output=True, text=True, check=True, timeout=SECONDS).stdout)


def test_the_scripts_know_nothing_of_stoppable():
    for script in HERE.glob("*.py"):
        assert "stoppable" not in script.read_text()


# The streaming script


def test_ctrl_c_ends_the_script_between_two_words_of_the_model(providers, tmp_path):
    with program(providers, tmp_path, "stoppable", "run", "story:main") as terminal:
        assert terminal.process.stdout.read(len(SHOWN)) == SHOWN
        terminal.process.send_signal(signal.SIGINT)
        terminal.hear("stopping (graceful)")
        providers.released.set()  # the next word comes, and others that nobody reads
        assert terminal.process.wait(SECONDS) == 130
        said = terminal.said()
    assert "main " in said
    assert "■ stopped" in said
    assert "chat/completions gpt-5-mini " in said
    assert re.search(f"partial +{SHOWN.strip()}", said), said
    assert len(providers.begun) == 1


def test_curl_ends_the_script_on_a_server(providers, tmp_path):
    with program(providers, tmp_path, "stoppable", "serve", "story:main", "--port", "0") as server:
        url = server.url()
        curl(f"{url}/runs", {"agent": "main", "runId": "first"})
        wait_for_calls(providers, 1, server.process)
        curl(f"{url}/runs/first/stop", {"reason": "enough"})
        providers.released.set()
        receipt = curl(f"{url}/runs/first/stop?wait=60", {"reason": "enough"})
        record = httpx.get(f"{url}/runs/first", timeout=SECONDS).json()
    assert receipt["status"] == "stopped"
    assert TEXT.startswith(record["outcome"]["partial"] or "")
    assert len(providers.begun) == 1


# The script with a pool and commands


def test_ctrl_c_lets_the_calls_of_the_pool_finish_and_starts_no_command(providers, tmp_path):
    with program(providers, tmp_path, "stoppable", "run", "report:main") as terminal:
        wait_for_calls(providers, 4, terminal.process)
        terminal.process.send_signal(signal.SIGINT)
        terminal.hear("stopping (graceful): ")
        providers.released.set()
        assert terminal.process.wait(SECONDS) == 130
        said = terminal.said()
    assert "■ stopped" in said
    assert "thread ask finished ×4" in said
    assert "chat/completions gpt-5-mini finished ×4" in said
    assert len(providers.begun) == 4
    assert not (tmp_path / "saving").exists()


def test_two_ctrl_c_end_the_command(providers, tmp_path):
    providers.released.set()
    with program(providers, tmp_path, "stoppable", "run", "report:main") as terminal:
        wait_until((tmp_path / "saving").exists, SECONDS)
        terminal.process.send_signal(signal.SIGINT)
        terminal.hear("stopping (graceful): spawn:sh")
        terminal.process.send_signal(signal.SIGINT)
        assert terminal.process.wait(SECONDS) == 130
        said = terminal.said()
    assert "■ stopped" in said
    assert "spawn sh cancelled" in said
    assert not is_alive((tmp_path / "saving").read_text().strip())
    assert len(providers.begun) == 4


def test_curl_ends_the_script_with_its_command_on_a_server(providers, tmp_path):
    providers.released.set()
    with program(providers, tmp_path, "stoppable", "serve", "report:main", "--port", "0") as server:
        url = server.url()
        curl(f"{url}/runs", {"agent": "main", "runId": "first"})
        wait_until((tmp_path / "saving").exists, SECONDS)
        receipt = curl(f"{url}/runs/first/stop?wait=60", {"mode": "immediate"})
    assert receipt["status"] == "stopped"
    assert [entry["fate"] for entry in receipt["receipt"]["entries"] if entry["kind"] == "spawn"] == ["cancelled"]
    assert not is_alive((tmp_path / "saving").read_text().strip())
    assert len(providers.begun) == 4


# The chat


def with_openai(code):
    """Return the chat of the page with the package of OpenAI in place of httpx."""
    begin, end = code.index("client = httpx"), code.index("class Turn")
    code = code[:begin] + "client = AsyncOpenAI()\n\n\n" + code[end:]
    begin, end = code.index('    request = {"model"'), code.index('@app.post("/chat")')
    answer = """    stream = await client.chat.completions.create(model="gpt-5-mini", messages=messages, stream=True)
    async for chunk in stream:
        yield chunk.choices[0].delta.content or ""


"""
    return (
        code[:begin]
        .replace("import httpx\n", "")
        .replace("import os\n", "")
        .replace("from pydantic", "from openai import AsyncOpenAI\nfrom pydantic")
        + answer
        + code[end:]
    )


def test_curl_ends_the_chat_after_twelve_lines_were_changed(providers, tmp_path):
    before, after = (with_openai(code).splitlines() for code in (page.PLAIN, page.changed()))
    added = [line for line in difflib.ndiff(before, after) if line.startswith("+ ") and line.strip() != "+"]
    assert len(added) <= 12
    (tmp_path / "chat.py").write_text("\n".join(after))
    arguments = ("uvicorn", "chat:app", "--app-dir", str(tmp_path), "--port", "0")
    with program(providers, tmp_path, *arguments) as server:
        while "running on " not in server._said:
            server._next_line(SECONDS)
        url = server._said.partition("running on ")[2].split()[0]
        seen = []
        asking = threading.Thread(target=read_answer, args=(url, seen))
        asking.start()
        wait_until(lambda: f'data: "{WORDS[Providers.shown - 1]}"' in seen, SECONDS)  # the chat has read what there is
        answer = curl(f"{url}/agents/runs/r1/stop", {"reason": "typo"})
        providers.released.set()
        asking.join(SECONDS)
    assert answer["runId"].startswith("r1")
    assert seen[-2:] == ["event: stopped", 'data: "typo (ann)"']
    assert 'data: "word11 "' not in seen
    assert len(providers.begun) == 1


def read_answer(url, seen):
    """Ask a question, and add the lines of the answer to a list as they come."""
    body = {"run_id": "r1", "messages": [{"role": "user", "content": "why?"}]}
    with httpx.stream("POST", f"{url}/chat", json=body, timeout=SECONDS) as response:
        for line in filter(None, response.iter_lines()):
            seen.append(line)

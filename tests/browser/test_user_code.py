"""The page of examples/user_code_app: write an agent, run it, watch it, stop it."""

import re

import httpx
import pytest
from playwright.sync_api import expect

from stoppable._core.values import new_id

from ..examples.user_code import APP, Running
from ..waiting import wait_until
from .test_accessible import AXE, violations

WAITS = """
async def run(input_dict, tools):
    print("waiting for", input_dict["what"])
    await asyncio.sleep(600)
"""

ASKS = """
async def run(input_dict, tools):
    print("asking")
    await call_llm("scripted", "demo", [{"role": "user", "content": "hi"}], {"seconds": 600})
"""

WAITER = """
async def run(input_dict, tools):
    print("waiting for", input_dict["what"])
    if input_dict["asks"]:
        await call_llm("scripted", "demo", [{"role": "user", "content": "hi"}], {"seconds": 600})
    await asyncio.sleep(600)
"""

CALLS = """
async def run(input_dict, tools):
    try:
        return await gofannon_client.call("waiter", input_dict)
    except Exception as error:
        return "went on after " + type(error).__name__
"""


@pytest.fixture(scope="module")
def app(tmp_path_factory):
    running = Running(tmp_path_factory.mktemp("app"), "--grace", "60")
    yield running
    running.close()


@pytest.fixture
def opened(app, page):
    """The page, for a user of its own."""
    user = f"user-{new_id()}"  # a name that comes again would have a history
    page.context.add_cookies([{"name": "user", "value": user, "url": app.url}])
    open_page(page, app)
    yield page
    with httpx.Client(base_url=app.url, cookies={"user": user}, timeout=30) as http:
        for run in http.get("/runs").json()["runs"]:
            http.post(f"/runs/{run['runId']}/stop", json={"mode": "kill"})


def open_page(page, app):
    """Open the page, and wait until it has the saved agents: a list that comes late would undo a choice."""
    with page.expect_response(lambda answer: answer.url == f"{app.url}/agents"):
        page.goto(app.url)


def button(page, name):
    return page.get_by_role("button", name=name, exact=True)


def chip(page):
    return page.locator("#run-status .chip")


def run(page, code, what="{}", name="my_agent"):
    page.get_by_label("Agent", exact=True).fill(name)
    page.get_by_label("Code").fill(code)
    page.get_by_label("Input, as JSON").fill(what)
    button(page, "Run").click()


def test_write_run_and_read_the_result(opened):
    page = opened
    expect(button(page, "Stop")).to_be_disabled()
    run(page, "async def run(input_dict, tools):\n    print('<b>hello</b>')\n    return input_dict", '{"n": 1}')
    expect(chip(page)).to_have_attribute("data-status", "success")
    expect(page.locator("#trace [data-type='stdout']")).to_contain_text("<b>hello</b>")
    expect(page.locator("#result")).to_have_text('{\n  "n": 1\n}')
    expect(page.locator("#history .chip[data-status='success']")).to_have_count(1)
    expect(button(page, "Stop")).to_be_disabled()
    run(page, "async def run(input_dict, tools):\n    raise ValueError('no')")
    expect(chip(page)).to_have_attribute("data-status", "error")
    expect(page.locator("#result")).to_have_text("ValueError: no")
    expect(page.locator("#history .chip")).to_have_text(["error", "success"])


def test_a_stop_says_what_it_waits_for_and_ends_gray(opened):
    page = opened
    run(page, ASKS)
    expect(page.get_by_text("asking", exact=True)).to_be_visible()
    expect(button(page, "Run")).to_be_disabled()
    wait_until(lambda: in_flight(page) == ["llm:scripted/demo"], 60)
    button(page, "Stop").click()
    waiting = button(page, "Stopping… (after current LLM call completes)")
    expect(waiting).to_be_disabled()
    expect(chip(page)).to_have_attribute("data-status", "stopping")
    button(page, "Stop now").click()
    expect(chip(page)).to_have_attribute("data-status", "stopped")
    expect(page.locator("#run-line")).to_contain_text("Nothing of it is left running.")
    expect(button(page, "Stop")).to_be_disabled()
    expect(button(page, "Run")).to_be_enabled()
    stopped = page.locator("#history .chip[data-status='stopped']")
    expect(stopped).to_have_count(1)
    gray = page.evaluate("getComputedStyle(document.querySelector('#history .chip')).color")
    red, green, blue = map(int, re.findall(r"\d+", gray)[:3])
    assert max(red, green, blue) - min(red, green, blue) < 40


def in_flight(page, tree=False):
    run_id = page.url.partition("#")[2]
    runs = page.evaluate("fetch('stoppable/runs?status=running').then((answer) => answer.json())")["runs"]
    key = "rootId" if tree else "id"
    return [label for one in runs if one[key] == run_id for label in one["inFlight"]]


def test_escape_stops_and_a_stop_from_elsewhere_is_seen(opened, app):
    page = opened
    run(page, WAITS, '{"what": "Esc"}')
    expect(page.get_by_text("waiting for Esc")).to_be_visible()
    page.keyboard.press("Escape")
    expect(chip(page)).to_have_attribute("data-status", "stopped")
    run(page, WAITS, '{"what": "another tab"}')
    expect(page.get_by_text("waiting for another tab")).to_be_visible()
    page.evaluate("fetch('runs/' + location.hash.slice(1) + '/stop', {method: 'POST'})")
    expect(chip(page)).to_have_attribute("data-status", "stopped")


def test_a_reload_attaches_again_and_leaving_the_page_keeps_the_run(opened, app):
    page = opened
    run(page, WAITS, '{"what": "a reload"}', name="patient")
    expect(page.get_by_text("waiting for a reload")).to_be_visible()
    address = page.url
    page.reload()
    expect(page.get_by_text("waiting for a reload")).to_be_visible()
    expect(chip(page)).to_have_attribute("data-status", "running")
    expect(page.get_by_label("Code")).to_have_value(WAITS)
    page.goto("about:blank")
    page.goto(address)
    expect(page.get_by_text("waiting for a reload")).to_have_count(1)
    button(page, "Stop").click()
    expect(chip(page)).to_have_attribute("data-status", "stopped")


def test_chained_agents_are_shown_below_their_caller_and_stopped_alone_or_with_it(opened):
    page = opened
    page.get_by_label("Agent", exact=True).fill("waiter")
    page.get_by_label("Code").fill(WAITER)
    button(page, "Save").click()
    page.get_by_role("checkbox", name="waiter").check()
    run(page, CALLS, '{"what": "food", "asks": false}', name="guest")
    expect(page.get_by_text("waiter called by guest")).to_be_visible()
    expect(page.get_by_text("waiting for food")).to_be_visible()
    button(page, "Stop waiter").click()
    expect(chip(page)).to_have_attribute("data-status", "success")
    expect(page.locator("#result")).to_have_text('"went on after RunStopped"')
    expect(page.locator("#trace .chip[data-status='stopped']")).to_have_count(1)
    expect(page.locator("#history .chip")).to_have_count(1)

    run(page, CALLS, '{"what": "more food", "asks": true}', name="guest")
    expect(page.get_by_text("waiting for more food")).to_be_visible()
    wait_until(lambda: "llm:scripted/demo" in in_flight(page, tree=True), 60)
    button(page, "Stop").click()
    button(page, "Stop now").click()
    expect(chip(page)).to_have_attribute("data-status", "stopped")
    expect(page.locator("#trace .chip[data-status='stopped']")).to_have_count(1)
    page.locator("#history a").last.click()
    expect(page.locator("#result")).to_have_text('"went on after RunStopped"')
    page.get_by_label("Open").select_option("waiter")
    expect(page.get_by_label("Code")).to_have_value(WAITER)


def test_what_cannot_be_started_is_said(opened, watched):
    page = opened
    run(page, WAITS, "not json")
    expect(page.get_by_role("alert")).to_contain_text("The input is not JSON")
    watched.allow("the server responded with a status of 4")
    page.goto(page.url.partition("#")[0] + "#nobody")
    expect(page.get_by_role("alert")).to_have_text("Run not found")


def test_the_receipt_of_a_stopped_run_is_one_click_away(opened):
    page = opened
    run(page, WAITS, '{"what": "it"}')
    expect(page.get_by_text("waiting for it")).to_be_visible()
    button(page, "Stop").click()
    page.get_by_role("link", name="Receipt").click()
    expect(page.get_by_role("button", name="Stopped")).to_be_disabled()


@pytest.mark.skipif(not AXE.exists(), reason="NO AXE-CORE: `make test-ui` installs it where npm is")
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 360])
def test_axe_finds_no_violation(app, browser, scheme, width):
    context = browser.new_context(
        viewport={"width": width, "height": 720}, color_scheme=scheme, reduced_motion="reduce", bypass_csp=True
    )
    context.add_init_script(AXE.read_text())
    page = context.new_page()
    page.goto(app.url)
    assert violations(page) == []
    run(page, "async def run(input_dict, tools):\n    raise ValueError('no')")
    expect(chip(page)).to_have_attribute("data-status", "error")
    assert violations(page) == []
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    context.close()


def test_the_page_keeps_to_its_rules():
    for path in (APP / "user_code" / "page").glob("*.js"):
        text = path.read_text()
        assert "innerHTML" not in text
        assert len(text.splitlines()) < 300

"""Every page in both schemes, seen by axe-core, at the widths of a phone and of a desk."""

import os
from pathlib import Path

import pytest
from playwright.sync_api import expect

from ..waiting import wait_until
from .test_stop import LONG, SHORT, button

ROOT = Path(__file__).parents[2]
AXE = Path(os.environ.get("AXE", ROOT / ".venv-node/node_modules/axe-core/axe.min.js"))


@pytest.fixture(scope="session")
def runs(shared):
    """One run in each state."""
    stopping = shared.start("asker", labels={"for": "axe"}, owner="ann", policy=LONG)
    shared.until_it_asks(stopping)
    shared.ask("POST", f"/runs/{stopping}/stop", json={"reason": "wrong topic"})
    lost = shared.start("deaf", input={"gate": "axe"}, labels={"for": "axe"}, policy=SHORT)
    shared.until_it_asks(lost)
    shared.ask("POST", f"/runs/{lost}/stop?wait=60", json={})
    stopped = shared.start("asker", labels={"for": "axe"})
    shared.ask("POST", f"/runs/{stopped}/stop?wait=60", json={"mode": "immediate"})
    cleaning = shared.start("tidy", input={"gate": "axe"}, policy=LONG)
    wait_until(lambda: shared.ask("GET", f"/runs/{cleaning}/tree")["runs"][0]["inFlight"], 60)
    shared.ask("POST", f"/runs/{cleaning}/stop", json={"mode": "immediate"})
    failed = shared.start("fails", labels={"for": "axe"})
    shared.until_it_is(failed, "failed")  # or it would be one more to stop
    live = shared.start("family", labels={"for": "axe"}, policy=LONG)
    shared.ask("POST", "/stops", json={"selector": {"owner": "zoe"}, "hold": True, "reason": "budget is used up"})
    return {
        "stopping": stopping,
        "lost": lost,
        "stopped": stopped,
        "failed": failed,
        "live": live,
        "cleaning": cleaning,
    }


GO = "(to) => new Promise((done) => (addEventListener('hashchange', done, {once: true}), (location.hash = to)))"


def violations(page):
    found = page.evaluate("axe.run(document, {resultTypes: ['violations']})")["violations"]
    return [(one["id"], one["impact"], [node["html"][:200] for node in one["nodes"][:3]]) for one in found]


def states(runs):
    """What a screen looks like after some clicks, each with its address."""
    escalation = [("button", "Kill")]
    yield "question in the list", f"#/?text={runs['cleaning']}", escalation
    yield "question of a run", f"#/runs/{runs['cleaning']}", escalation
    yield "list as text", f"#/runs/{runs['stopped']}?tab=Events", [("button", "Zoom in")]
    yield "again", f"#/start/asker?again={runs['stopped']}", []
    yield "sorted", "#/?label=for:axe&sort=-duration&since=day", []


@pytest.mark.skipif(not AXE.exists(), reason="NO AXE-CORE: `make test-ui` installs it where npm is")
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 1280])
def test_axe_finds_no_violation_on_any_page(shared, runs, browser, scheme, width):
    context = browser.new_context(
        viewport={"width": width, "height": 800}, color_scheme=scheme, reduced_motion="reduce", bypass_csp=True
    )
    context.add_init_script(AXE.read_text())
    page = context.new_page()
    page.goto(f"{shared.url}/#/nowhere")
    addresses = ["#/?label=for:axe", "#/?text=nothing-has-this", "#/agents", "#/start/typed", "#/holds", "#/audit"]
    addresses += ["#/overview", "#/help", f"#/compare/{runs['stopped']}/{runs['lost']}"]
    found = {}
    for address in [*addresses, *(f"#/runs/{run}" for run in runs.values())]:
        page.evaluate(GO, address)
        expect(page.locator("main h1:visible, main h2:visible").first).to_be_visible()
        expect(page.locator(".loading:visible")).to_have_count(0)
        if bad := violations(page):
            found[address] = bad
    page.evaluate(GO, "#/?label=for:axe")
    button(page, "Stop these…").click()
    expect(page.get_by_role("dialog").get_by_role("button", name="Stop 2 runs")).to_be_visible()
    if bad := violations(page):
        found["bulk"] = bad
    page.keyboard.press("Escape")
    label = f"for:bulk-{scheme}-{width}"
    shared.start("asker", labels=dict([label.split(":")]), policy=LONG)
    page.evaluate(GO, f"#/?label={label}")
    button(page, "Stop these…").click()
    button(page, "Stop 1 run").click()
    expect(page.get_by_role("dialog").get_by_role("button", name="Stop now")).to_be_enabled()
    if bad := violations(page):
        found["bulk that stops"] = bad
    page.keyboard.press("Escape")
    for name, address, steps in states(runs):
        page.evaluate(GO, address)
        expect(page.locator(".loading:visible")).to_have_count(0)
        for step in steps:
            page.get_by_role(step[0], name=step[1], exact=True).first.click()
        if bad := violations(page):
            found[name] = bad
        page.keyboard.press("Escape")
    overflow = page.evaluate("document.documentElement.scrollWidth - innerWidth")
    context.close()
    assert found == {}
    assert overflow <= 0

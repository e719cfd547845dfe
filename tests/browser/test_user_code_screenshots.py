"""The pictures of docs/how-to/user-code.md; SCREENSHOTS=FOLDER keeps them."""

import os
from pathlib import Path

import pytest
from playwright.sync_api import expect

from ..examples.user_code import Running
from ..waiting import wait_until
from .test_screenshots import LARGEST
from .test_user_code import button, chip, in_flight, open_page, run

RESEARCH = """\
async def run(input_dict, tools):
    print("looking for", input_dict["topic"])
    notes = await gofannon_client.call("reader", input_dict)
    data_store.set(input_dict["topic"], notes)
    return {"notes": notes}
"""

READER = """\
async def run(input_dict, tools):
    for page in range(1, 4):
        print("reading page", page)
        messages = [{"role": "user", "content": f"page {page}"}]
        seconds = 0.2 if page < 2 else input_dict["seconds"]
        await call_llm("scripted", f"page-{page}", messages, {"seconds": seconds})
"""


OWNERS = {"user-code": "ann", "user-code-dark": "bob", "user-code-360": "eve"}  # each with a history of its own


@pytest.fixture(scope="module")
def app(tmp_path_factory):
    running = Running(tmp_path_factory.mktemp("pictures"), "--grace", "60")
    yield running
    running.close()


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("user-code", {}),
        ("user-code-dark", {"color_scheme": "dark"}),
        ("user-code-360", {"viewport": {"width": 360, "height": 900}}),
    ],
)
def test_a_run_is_stopped(app, browser, tmp_path, name, options):
    context = browser.new_context(**{"viewport": {"width": 1280, "height": 640}, "reduced_motion": "reduce", **options})
    context.add_cookies([{"name": "user", "value": OWNERS[name], "url": app.url}])
    page = context.new_page()
    folder = Path(os.environ.get("SCREENSHOTS", tmp_path))

    def shoot(named):
        path = folder / f"{named}.png"
        path.write_bytes(page.screenshot())
        assert path.stat().st_size < LARGEST

    open_page(page, app)
    page.get_by_label("Agent", exact=True).fill("reader")
    page.get_by_label("Code").fill(READER)
    button(page, "Save").click()
    page.get_by_role("checkbox", name="reader").check()
    run(page, RESEARCH, '{"topic": "ladders", "seconds": 0.2}', name="research")
    expect(chip(page)).to_have_attribute("data-status", "success")
    run(page, RESEARCH, '{"topic": "stop buttons", "seconds": 600}', name="research")
    expect(page.get_by_text("reading page 2")).to_be_visible()
    wait_until(lambda: "llm:scripted/page-2" in in_flight(page, tree=True), 60)
    button(page, "Stop").click()
    expect(button(page, "Stopping… (after current LLM call completes)")).to_be_disabled()
    expect(page.locator("#history .chip[data-status='stopping']")).to_have_count(1)
    if name != "user-code-dark":
        shoot(name.replace("user-code", "user-code-stopping"))
    button(page, "Stop now").click()
    expect(chip(page)).to_have_attribute("data-status", "stopped")
    expect(page.locator("#history .chip[data-status='stopped']")).to_have_count(1)
    if name != "user-code-360":
        shoot(name.replace("user-code", "user-code-stopped"))
    context.close()

"""The chat of docs/how-to/fastapi.md in a browser: Stop, what stays on the page, and the next turn."""

from playwright.sync_api import expect

from stoppable.testing import Pause, Reply

from ..server.test_fastapi_page import WORDS, changed, serving


def test_stop_keeps_what_has_arrived_and_the_next_turn_works(browser, tmp_path):
    pause = Pause()
    with serving(changed(), tmp_path) as (url, model):
        model.script(Reply(WORDS, pause=pause), Reply("again"))
        page = browser.new_page()
        page.goto(url)
        page.get_by_role("textbox").fill("why?")
        page.get_by_role("button", name="Send").click()
        pause.release(2)
        expect(page.get_by_role("main")).to_have_text("one two")
        page.get_by_role("button", name="Stop", exact=True).click()
        expect(page.get_by_role("button", name="Stop now")).to_be_visible()
        pause.release(1)
        expect(page.get_by_role("button", name="Stopped")).to_be_disabled()
        page.get_by_role("textbox").fill("go on")
        page.get_by_role("button", name="Send").click()
        expect(page.get_by_text("again")).to_be_visible()
        question, said, another = [message["content"] for message in model.requests[-1].body["messages"]]
        assert (question, another) == ("why?", "go on")
        assert said.startswith("one two ")
        page.close()

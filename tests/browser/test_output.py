"""Output as Markdown and as a terminal shows it, and pictures as files: nothing in a text can act."""

import pytest
from playwright.sync_api import expect

from .test_stop import LONG, open_run

MARKDOWN = """\
# Tides

They come **twice** a day, with `spring` and *neap* tides:

1. high
   - at noon
2. low

> said [the almanac](https://example.org/a) and [not this](javascript:alert(1))

| when | how high |
|---|---|
| noon | 3 m |

```python
print("<b>tides</b>")
```
![pixel](https://example.org/p.png) <img src=x onerror='window.pwned = true'>
"""

ANSI = "plain \x1b[1;31mred\x1b[0m \x1b[38;5;208mmany\x1b[39m \x1b[2Kdone\n10 %\r50 %\r100 %\nend"


def shown(page, shared, text):
    run = shared.start("greet", input={"text": text})
    open_run(page, shared, run)
    page.get_by_role("tab", name="Output").click()
    return page.locator(".output").first


def test_markdown_becomes_elements_and_nothing_in_it_acts(shared, page):
    output = shown(page, shared, MARKDOWN)
    expect(output).to_contain_text("# Tides")  # as text, until it is asked for
    page.get_by_label("Show output as").select_option("Markdown")
    expect(output.locator("h3")).to_have_text("Tides")
    expect(output.locator("strong")).to_have_text("twice")
    expect(output.locator("em")).to_have_text("neap")
    expect(output.locator("p code")).to_have_text("spring")
    expect(output.locator("ol > li")).to_have_count(2)
    expect(output.locator("ol > li ul > li")).to_have_text("at noon")
    expect(output.locator("td")).to_have_text(["noon", "3 m"])
    expect(output.locator("pre")).to_have_text('print("<b>tides</b>")')
    links = output.locator("a")
    expect(links).to_have_text(["the almanac", "pixel"])  # a picture is not loaded
    assert links.first.get_attribute("href") == "https://example.org/a"
    assert links.first.get_attribute("rel") == "noopener noreferrer"
    expect(output.locator("blockquote")).to_contain_text("not this (javascript:alert(1")
    expect(output.locator("img, script, b")).to_have_count(0)
    assert page.evaluate("window.pwned") is None


def test_the_codes_of_a_terminal_become_colours_and_a_bar_of_progress_its_last_state(shared, page):
    output = shown(page, shared, ANSI)
    expect(output).to_contain_text("␛[1;31mred")  # as text, until it is asked for
    page.get_by_label("Show output as").select_option("Terminal")
    expect(output).to_have_text("plain red many done\n100 %\nend")
    expect(output.locator(".bold.colour-1")).to_have_text("red")
    page.get_by_label("Show output as").select_option("Text")
    expect(output).to_contain_text("␛[1;31mred")
    page.get_by_label("wrap").uncheck()
    expect(output).to_have_css("white-space", "pre")


HOSTILE = {
    "brackets": "[" * 100_000,
    "backticks": "`" * 100_000,
    "stars": "**a " * 25_000,
    "underscores": "_a" * 50_000,
    "quotes": "> " * 50_000,
    "spaces": "# " + " " * 100_000 + "x",
    "dashes": "a|b\n" + "-" * 100_000 + "x|",
    "returns": "x" * 50_000 + "\r" * 50_000,
    "codes": "\x1b[1m\x1b[31mx" * 10_000,
    "unended": "\x1b]" * 50_000,
    "items": "\n".join(" " * (number % 40) + "- x" for number in range(10_000)),
}


@pytest.mark.parametrize("view", ["markdown", "terminal"])
@pytest.mark.parametrize("name", HOSTILE)
def test_no_text_holds_up_the_page(shared, page, view, name):
    page.goto(f"{shared.url}/#/help")
    nodes = page.evaluate(
        "([view, text]) => import('./ui/markup.js').then((markup) => markup[view](text).length)", [view, HOSTILE[name]]
    )
    assert nodes >= 0  # it came to an end: the browser is given 30 seconds


def test_output_that_grows_is_formatted_again(shared, page):
    run = shared.start("asker", input={"gate": "formatted"}, policy=LONG)
    open_run(page, shared, run)
    shared.open_gate("formatted")
    page.get_by_label("Show output as").select_option("Markdown")
    expect(page.locator(".output.markdown p")).to_have_text("the answer that was paid for")
    shared.ask("POST", f"/runs/{run}/stop", json={"mode": "immediate"})  # it would go on, beside all other tests


def test_the_picture_is_saved_as_dots_too(shared, page):
    run = shared.start("asker", policy=LONG)
    shared.ask("POST", f"/runs/{run}/stop?wait=30", json={"mode": "immediate"})
    open_run(page, shared, run)
    with page.expect_download() as saved:
        page.get_by_role("button", name="Download as PNG").click()
    assert saved.value.suggested_filename.endswith(".png")
    picture = saved.value.path().read_bytes()
    assert picture.startswith(b"\x89PNG")
    width = int.from_bytes(picture[16:20], "big")
    assert width == 2 * page.evaluate("document.querySelector('svg.lanes').clientWidth")

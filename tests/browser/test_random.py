"""Clicks, keys and faults of the server in any order: no press ever sends more than its label said."""

import os
import random
import time

import pytest
from playwright.sync_api import Error, expect

from .cable import Cable
from .test_pages import REFUSED, row
from .test_stop import LONG, button, open_run

SEED = int(os.environ.get("STOPPABLE_UI_SEED", "1"))  # `make test-ui-random` chooses another each time
SEQUENCES = int(os.environ.get("STOPPABLE_UI_SEQUENCES", "6"))
STEPS = 14
RANK = {"graceful": 1, "immediate": 2, "kill": 3}
SAID = {"Stop": 1, "Stop 1 run": 1, "Stop now": 2, "Kill": 3}

READ = 300  # milliseconds for which the question before a kill must have been there

# Notes for each stop that is sent what was being pressed, and for how long it had said that.
NOTE = """() => {
    window.sent = [];
    let pressed = null;
    const labels = new Map();
    const watched = new WeakSet();
    // At once: a timer may come too late, on a busy machine, to see since when a label is there.
    const watch = (root) => {
        if (watched.has(root)) return;
        watched.add(root);
        const all = {subtree: true, childList: true, attributes: true, characterData: true};
        new MutationObserver(look).observe(root, all);
    };
    const look = () => {
        for (const host of document.querySelectorAll("stoppable-button, dialog")) {
            watch(host.shadowRoot ?? host);
            for (const button of (host.shadowRoot ?? host).querySelectorAll("button")) {
                const label = button.checkVisibility() ? button.textContent.trim() : "";
                if (labels.get(button)?.label !== label) labels.set(button, {label, since: performance.now()});
            }
        }
    };
    watch(document);
    setInterval(look, 20); // what the size of the window shows and hides
    look();
    const note = (event) => {
        look();
        const button = event.composedPath().find((one) => one.localName === "button");
        const {label = "", since = Infinity} = labels.get(button) ?? {};
        pressed = [label, button?.part.value ?? "", performance.now() - since];
        if (!labels.has(button) && event.key) pressed = ["Stop", "button", 1e9];
        setTimeout(() => (pressed = null));
    };
    addEventListener("click", note, true);
    // Enter in the field with the reason is the first press, as Escape is.
    const isReason = (field) => field.ariaLabel === "Reason for a stop";
    const isPress = ({key, target}) => key === "Escape" || (key === "Enter" && isReason(target));
    addEventListener("keydown", (event) => isPress(event) && note(event), true);
    const fetch = window.fetch;
    window.fetch = (url, options) => {
        const isStop = options?.method === "POST" && new URL(url).pathname.endsWith("/stop");
        if (isStop) sent.push([JSON.parse(options.body).mode, ...(pressed ?? ["nothing", "", 0])]);
        return fetch(url, options);
    };
}"""


class Player:
    """Does one thing after the other to a page, as its numbers say."""

    def __init__(self, page, cable, numbers):
        self._page, self._cable, self._numbers = page, cable, numbers
        self._spot = (700, 60)
        self._is_out = False
        self.story = []

    def step(self):
        moves = [self.click, self.click, self.click_again, self.double_click, self.key, self.hold_key, self.tab]
        moves += [self.wait, self.wait, self.cut_or_mend, self.resize]
        move = self._numbers.choice(moves)
        self.story.append(move.__name__)
        move()

    def click(self):
        buttons = self._page.locator("stoppable-button button:visible, dialog button:visible")
        names = buttons.all_inner_texts()
        if not names:
            return
        number = self._numbers.randrange(len(names))
        self.story.append(names[number])
        try:
            box = buttons.nth(number).bounding_box(timeout=300)
        except Error:
            return  # it has gone, as it may for a person
        if box is not None:
            self._spot = (box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
            self.click_again()

    def click_again(self):
        for _ in range(self._numbers.choice([1, 1, 2, 4])):
            self._page.mouse.click(*self._spot)
            self._page.wait_for_timeout(self._numbers.choice([0, 60, 300, 900]))

    def double_click(self):
        self._page.mouse.dblclick(*self._spot)

    def key(self):
        self._page.keyboard.press(self._numbers.choice(["Escape", "Enter", "Space"]))

    def hold_key(self):
        key = self._numbers.choice(["Escape", "Enter", "Space"])
        for _ in range(self._numbers.choice([5, 30])):
            self._page.keyboard.down(key)
        self._page.keyboard.up(key)

    def tab(self):
        self._page.keyboard.press(self._numbers.choice(["Tab", "Tab", "Shift+Tab"]))

    def wait(self):
        self._page.wait_for_timeout(self._numbers.choice([100, 600, 1200, 2100]))

    def cut_or_mend(self):
        (self._cable.plug_in if self._is_out else self._cable.pull_out)()
        self._is_out = not self._is_out

    def resize(self):
        self._page.set_viewport_size({"width": self._numbers.choice([360, 768, 1280]), "height": 800})


@pytest.mark.parametrize("number", range(SEQUENCES))
def test_the_strongest_mode_sent_is_never_above_the_label_that_was_pressed(shared, watched, number):
    seed = f"{SEED}-{number}"
    print(f"STOPPABLE_UI_SEED={SEED} STOPPABLE_UI_SEQUENCES={number + 1} repeats this sequence")
    numbers = random.Random(seed)
    page = watched.page
    watched.allow(REFUSED)
    watched.allow("Failed to load resource")
    run = shared.start("tidy", f"random-{seed}-{time.time_ns()}", input={"gate": f"random-{seed}"}, policy=LONG)
    with Cable(shared.url) as cable:
        place = numbers.choice(["run", "list", "many"])
        if place == "run":
            open_run(page, cable, run)
        else:
            page.goto(f"{cable.url}/#/?text={run}")
            expect(row(page, run)).to_be_visible()
        if place == "many":
            button(page, "Stop these…").click()
            expect(button(page, "Stop 1 run")).to_be_enabled()
        page.evaluate(NOTE)
        player = Player(page, cable, numbers)
        for _ in range(STEPS):
            player.step()
        for mode, label, part, age in page.evaluate("sent"):
            assert RANK[mode] <= SAID.get(label, 0), (seed, mode, label, part, age, player.story)
            assert mode != "kill" or part == "kill", (seed, "without a question", player.story)
            assert mode != "kill" or age >= READ, (seed, mode, f"after {age} ms", player.story)
        page.goto("about:blank")
    shared.open_gate(f"random-{seed}")

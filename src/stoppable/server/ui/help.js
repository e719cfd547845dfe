/** What the words and signs of the page mean. */

import { FATES } from "./call.js";
import { KEYS } from "./keys.js";
import { chip, h, page, table, tr } from "./dom.js";
import { themeSwitch } from "./settings.js";

const STATES = /** @type {[string, string][]} */ ([
	["pending", "It waits to begin."],
	["running", "It works."],
	["stopping", "It was told to stop, and has not ended yet."],
	["completed", "It came to its end by itself."],
	["stopped", "It was stopped, and nothing of it is left running. That is no error."],
	["failed", "It ended with an error."],
	["lost", "It was told to stop, or the process that ran it was gone, and something of it may still be running. Its receipt names it."],
]);
const PRESSES = [
	["Stop", "What is under way may finish, such as a model call that is paid for; nothing new begins. If that takes too long, the rest is ended by force. A countdown says when."],
	["Stop now", "What is under way is cancelled. Clean-up still runs."],
	["Kill", "Everything is ended at once, without clean-up."],
];

/** @returns {Page} */
export function helpPage() {
	const section = (/** @type {string} */ title, /** @type {Node[]} */ ...children) => h("section", h("h2", title), ...children);
	return page(
		"Help",
		h("div.help",
			section("Three presses", table(["Press", "What it does"], ...PRESSES.map(([name, words]) => tr(h("strong", name), words)))),
			section("States of a run", table(["State", "What it means"], ...STATES.map(([status, words]) => tr(chip(status), words)))),
			section("What became of a call", table(["At the stop", "What it means"], ...Object.entries(FATES).map(([fate, words]) => tr(fate, `${words[0].toUpperCase()}${words.slice(1)}.`)))),
			section("Keys", table(["Key", "What it does"], ...KEYS.map(([key, words]) => tr(h("td.mono", key), words)))),
			section("Colours", h("p", themeSwitch())),
		),
	);
}

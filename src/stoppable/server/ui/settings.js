/** What a person chose for this browser: light or dark, and to be told when a run ends. */

import { h, quiet, runAddress, say, shortId, statusWord, svg } from "./dom.js";
import { get } from "./api.js";
import { pictureOf } from "./export.js";
import { isOver } from "./stoppable-button.js";

const KEY = "stoppable-colours";
const EVERY = 5000; // ms between two looks at runs that somebody waits for
const THEMES = [["", "Colours of the system"], ["light", "Light"], ["dark", "Dark"]];

/** Show the page in the colours that were chosen here; by default in those of the system. */
export function applyTheme() {
	const theme = localStorage.getItem(KEY) ?? "";
	if (theme) document.documentElement.dataset.theme = theme;
	else delete document.documentElement.dataset.theme;
}

/** A choice of the colours. */
export function themeSwitch() {
	const chosen = localStorage.getItem(KEY) ?? "";
	const select = h("select", { "aria-label": "Colours" }, ...THEMES.map(([value, name]) => h("option", { value, selected: value === chosen }, name)));
	select.addEventListener("change", () => {
		if (select.value) localStorage.setItem(KEY, select.value);
		else localStorage.removeItem(KEY);
		applyTheme();
	});
	return select;
}

/** @type {Map<string, string>} runs that somebody waits for, with their names */
const awaited = new Map();
setInterval(() => awaited.forEach(look), EVERY); // the streams of a page that is not in sight are closed

/** A button that asks the browser to say when a run has ended, while its page is not in sight. @param {string} id @param {() => string} name */
export function teller(id, name) {
	const show = () => {
		made.setAttribute("aria-pressed", String(awaited.has(id)));
		say(made, awaited.has(id) ? "You will be told" : "Tell me when it ends");
	};
	const act = async () => {
		if (awaited.delete(id)) return show();
		if ((await Notification.requestPermission()) !== "granted") return say(made, "Your browser does not allow notifications");
		awaited.set(id, name());
		show();
	};
	const made = quiet("", act, { hidden: !("Notification" in window) });
	show();
	return made;
}

/** @param {string} name @param {string} id */
async function look(name, id) {
	const { status } = await get(`runs/${encodeURIComponent(id)}`).catch((error) => ({ status: error.status === 404 ? "lost" : "running" }));
	if (!isOver(status) || !awaited.delete(id) || (!document.hidden && location.hash.startsWith(runAddress(id)))) return;
	const told = new Notification(`${name} ${statusWord(status)}`, { body: `Run ${shortId(id)}`, tag: id });
	told.onclick = () => (window.focus(), (location.hash = runAddress(id)));
}

/** @type {Record<string, [string, number, string]>} the sign of a state: colour, width and path of its line */
const SIGNS = {
	running: ["#1f5fb4", 6, "M8 5a3 3 0 1 0 .1 0z"],
	stopping: ["#c77800", 3, "M8 2a6 6 0 1 0 6 6"],
	completed: ["#1d7440", 3, "M2 8l4 4 7-9"],
	failed: ["#b3261e", 3, "M3 3l10 10M13 3L3 13"],
	stopped: ["#566070", 10, "M3 8h10"],
	lost: ["#a33c00", 2, "M3 3h10v10H3zM3 9l6-6M7 13l6-6"],
};
const icon = /** @type {HTMLLinkElement} */ (document.querySelector("link[rel=icon]"));
/** @type {Record<string, string>} */
const addresses = { "": icon.href };

/** Show a state in the tab of the browser, or the mark of the page. @param {string} [status] */
export function showIcon(status = "") {
	const [stroke, width, d] = SIGNS[status] ?? [];
	const sign = svg("svg", { viewBox: "0 0 16 16" }, svg("path", { d, stroke, "stroke-width": width, fill: "none" }));
	icon.href = addresses[d ? status : ""] ??= URL.createObjectURL(pictureOf(sign));
}

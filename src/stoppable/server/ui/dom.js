/** Elements from plain values: every text goes in as text, so that nothing an agent says becomes markup. */

import { base, headers, now } from "./api.js";
import { clock, duration, StoppableButton } from "./stoppable-button.js";

/**
 * Makes an element, `p.meta` with its classes, and attributes if the first of the rest is an object: `on…` are
 * listeners; false and null leave one out.
 * @template {string} T
 * @param {T} tag @param {(Child | Record<string, any>)[]} rest
 * @returns {ElementOf<T>}
 */
export function h(tag, ...rest) {
	const made = classed(tag, (name) => document.createElement(name));
	const [first] = rest;
	if (first && typeof first === "object" && !(first instanceof Node)) decorate(made, /** @type {object} */ (rest.shift()));
	fill(made, .../** @type {Child[]} */ (rest));
	return /** @type {ElementOf<T>} */ (made);
}

/** A part of the page that scrolls, also by keys. @param {"div.scroller" | "div.scroller.log" | "pre.output"} tag @param {string} name @param {Child[]} children */
export const region = (tag, name, ...children) => h(tag, { tabindex: "0", role: "region", "aria-label": name }, ...children);

/** @param {string[]} names @param {Child[]} rows */
export const table = (names, ...rows) => h("table.plain", h("thead", h("tr", ...names.map((name) => h("th", { scope: "col" }, name)))), h("tbody", ...rows));

/** @param {Child[]} cells */
export const tr = (...cells) => h("tr", ...cells.map((cell) => (cell instanceof HTMLTableCellElement ? cell : h("td", cell))));

/** A button for one run. @param {string} [look] */
export function stopButton(look) {
	const made = /** @type {StoppableButton} */ (document.createElement("stoppable-button"));
	made.setAttribute("base", base.href);
	if (look) made.toggleAttribute(look, true);
	made.headers = headers;
	made.now = now;
	return made;
}

/** @param {string} name @param {(event: Event) => void} act @param {object} [more] */
export const button = (name, act, more) => h("button", { type: "button", onclick: act, ...more }, name);

/** One that is small. @param {string} name @param {(event: Event) => void} act @param {object} [more] */
export const quiet = (name, act, more) => button(name, act, { class: "quiet", ...more });

/** @param {string} tag @param {Record<string, any>} [attributes] @param {Child[]} children */
export function svg(tag, attributes = {}, ...children) {
	const made = classed(tag, (name) => document.createElementNS("http://www.w3.org/2000/svg", name));
	decorate(made, attributes);
	fill(made, ...children);
	return made;
}

/** @template {Element} E @param {string} tag @param {(name: string) => E} make */
function classed(tag, make) {
	const [name, ...classes] = tag.split(".");
	const made = make(name);
	made.classList.add(...classes);
	return made;
}

/** @param {Element} element @param {Record<string, any>} attributes */
function decorate(element, attributes) {
	for (const [name, value] of Object.entries(attributes)) {
		if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
		else if (value !== false && value !== null && value !== undefined) element.setAttribute(name, value === true ? "" : value);
	}
}

/** @param {Child} child */
const isThere = (child) => child !== null && child !== undefined && child !== false && child !== "";

/** @param {Child} child */
const asNode = (child) => /** @type {Node | string} */ (child instanceof Node ? child : shownText(String(child)));

/** @param {Element} element @param {Child[]} children */
export const fill = (element, ...children) => element.replaceChildren(...children.filter(isThere).map(asNode));

/** Set a text only if it changed. @param {Element | null} element @param {string} text */
export function say(element, text) {
	const shown = shownText(text);
	if (element && element.textContent !== shown) element.textContent = shown;
}

const UNSEEN = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u200e\u200f\u202a-\u202e\u2066-\u2069\ufeff]/g;

/**
 * A text in which control characters are visible, and marks that turn the direction of writing do nothing.
 * @param {string} text
 */
export const shownText = (text) =>
	text.replace(UNSEEN, (char) => {
		const code = char.charCodeAt(0);
		return code < 0x20 ? String.fromCharCode(0x2400 + code) : `⟨${code.toString(16).toUpperCase().padStart(4, "0")}⟩`;
	});

/** @param {string} id */
export const runAddress = (id) => `#/runs/${encodeURIComponent(id)}`;

/** A time of day, with its date before it if that is not today, and as a title. @param {number} at */
export function time(at) {
	const when = new Date(at * 1000);
	const day = when.toDateString() === new Date(now() * 1000).toDateString() ? "" : `${when.toLocaleDateString("en-GB", { day: "numeric", month: "short" })} `;
	return h("time.mono", { title: when.toLocaleString("en-GB") }, day ? day + clock(at).slice(0, 5) : clock(at));
}

/** One of our own ids is shown in short, anybody else's whole. @param {string} id */
export const shortId = (id) => (/^[0-9a-f]{32}$/.test(id) ? id.slice(0, 8) : id);

/** @param {Lasting} run @param {number} now */
export const age = (run, now) => duration((run.endedAt ?? now) - (run.startedAt ?? run.createdAt));

/** @param {string} status */
export const statusWord = (status) => (status === "lost" ? "unconfirmed" : status);

/** @param {string} status @param {string} [extra] */
export function chip(status, extra = "") {
	return h("span.chip", { "data-status": status }, h("span.mark", { "aria-hidden": "true" }), statusWord(status) + extra);
}

/** @param {Record<string, string>} labels */
export const labelText = (labels) => Object.entries(labels).map(([key, value]) => `${key}:${value}`).join(" ");

/** A button that copies a text and says so. @param {string | (() => string)} text @param {string} name @param {string} [shown] @param {string} [look] */
export function copier(text, name, shown = "Copy", look = "copy") {
	const tell = (/** @type {string} */ words, label = words) => (say(made, words), made.setAttribute("aria-label", label));
	const act = async () => {
		tell(await navigator.clipboard.writeText(typeof text === "string" ? text : text()).then(() => "copied", () => "cannot copy here"));
		setTimeout(() => tell(shown, name), 1200);
	};
	const made = button(shown, act, { class: look, "aria-label": name, title: typeof text === "string" && text.length < 300 ? text : name });
	return made;
}

/** Do something again and again, until `signal`. @param {number} ms @param {() => void} act @param {AbortSignal} signal */
export function every(ms, act, signal) {
	const timer = setInterval(act, ms);
	signal.addEventListener("abort", () => clearInterval(timer));
}

/** @param {string} title @param {Child[]} children */
export const empty = (title, ...children) => h("div.empty", h("h2", {}, title), ...children);

/** @param {any} error */
export const messageOf = ({ message }) => message[0].toUpperCase() + message.slice(1);

/** What went wrong, and a way to try again. @param {unknown} error @param {() => void} again */
export const failure = (error, again) =>
	h("div.failure", { role: "alert" }, h("span", {}, messageOf(error)), button("Try again", again));

/** @param {string} title @param {(Node | string)[]} children */
export const page = (title, ...children) => ({ element: h("section.page", h("div.head", h("h1", title)), ...children), title });

/** What a run produced, its log, and what it was given. */

import { Windowed } from "./windowed.js";
import { clock } from "./stoppable-button.js";
import { copier, h, region, say, shownText } from "./dom.js";
import { textOf } from "./history.js";

const SHOWN = 100_000; // characters: a line of five million would hold up the page

/** @param {RunHistory} history */
export function outputPanel(history) {
	const before = h("p.meta", { hidden: true });
	const text = region("pre.output", "Output");
	const end = h("p.meta");
	const element = h("div", before, text, end);
	let last = "";
	const show = () => {
		const { run, output } = history;
		const outcome = run?.outcome;
		const kept = outcome ? textOf(outcome.result ?? outcome.partial) : "";
		const whole = kept || output.text;
		const cut = Math.max(0, whole.length - SHOWN) + (kept ? 0 : output.before);
		before.hidden = cut === 0;
		say(before, `${cut.toLocaleString("en")} characters before this are not shown.`);
		const shown = shownText(whole.slice(-SHOWN));
		if (shown !== last) grow(text, last, (last = shown));
		say(end, note(run));
	};
	return { element, show };
}

/** Add what is new, or begin again. @param {HTMLElement} element @param {string} before @param {string} after */
function grow(element, before, after) {
	const isAtEnd = element.scrollTop + element.clientHeight >= element.scrollHeight - 24;
	if (before && after.startsWith(before)) element.append(after.slice(before.length));
	else element.textContent = after;
	if (element.childNodes.length > 200) element.normalize();
	if (isAtEnd) element.scrollTop = element.scrollHeight;
}

/** @param {Run | undefined} run */
function note(run) {
	const outcome = run?.outcome;
	if (!outcome) return "";
	const omitted = Object.entries(outcome.omitted).map(([name, why]) => `The ${name} is not kept: ${why}.`);
	const isPartial = (outcome.result === null || outcome.result === undefined) && outcome.partial !== null && outcome.partial !== undefined;
	if (isPartial && outcome.status !== "completed") omitted.unshift("This is what it had when it ended.");
	if (!isPartial && !omitted.length && (outcome.result === null || outcome.result === undefined)) omitted.push("It left no output.");
	return omitted.join(" ");
}

/** @param {RunHistory} history */
export function eventsPanel(history) {
	const body = h("div.body", { role: "rowgroup" });
	const notice = h("p.meta", { hidden: true });
	const table = h("div.events", { role: "table", "aria-label": "Events" }, body);
	const scroller = region("div.scroller.log", "Log", table);
	const element = h("div", notice, scroller);
	const rows = new Windowed(scroller, body, { key: (event) => `${event.runId} ${event.seq}`, make: (event) => eventRow(event, history), height: () => 24 });
	const show = () => {
		notice.hidden = history.dropped.events === 0;
		say(notice, `${history.dropped.events.toLocaleString("en")} earlier events are not shown.`);
		const isAtEnd = scroller.scrollTop + scroller.clientHeight >= scroller.scrollHeight - 30;
		rows.show(history.events);
		if (isAtEnd) scroller.scrollTop = scroller.scrollHeight;
	};
	return { element, show, close: () => rows.close() };
}

/** @param {RunEvent} event @param {RunHistory} history */
function eventRow(event, history) {
	const name = history.runs.find((run) => run.id === event.runId)?.name ?? "";
	const cell = (/** @type {string} */ kind, /** @type {string} */ text) => h("span", { role: "cell", class: kind }, text);
	const element = h("div.row", { role: "row" }, cell("at mono", clock(event.at)), cell("who", name), cell("type mono", event.type), cell("what", eventText(event)));
	return { element, update: () => {} };
}

/** @param {RunEvent} event */
function eventText({ type, data }) {
	const label = data.name ? `${data.kind} ${data.name}` : data.kind;
	if (type === "entered") return label + (data.afterStop ? " (after the stop, in a shield)" : "");
	if (type === "left") return label + (data.fate ? `: ${data.fate}` : "");
	if (type === "status" || type === "done") return [data.status, data.mode, data.reason && `“${data.reason}”`, data.actor && `by ${data.actor}`].filter(Boolean).join(" ");
	if (type === "partial") return textOf(data.delta ?? data.value).slice(0, 400).replaceAll("\n", "⏎");
	if (type === "progress") return `${data.name} ${data.data ? JSON.stringify(data.data).slice(0, 400) : ""}`;
	return String(data.message ?? JSON.stringify(data)).slice(0, 400);
}

/** @param {Run} run */
export function inputPanel(run) {
	const text = textOf(run.input);
	return h("div", region("pre.output", "Input", text.slice(0, SHOWN)), h("p", copier(text, "Copy", "Copy", "quiet")));
}

/** What a run produced, its log, and what it was given. */

import { Windowed } from "./windowed.js";
import { clock, spoken } from "./stoppable-button.js";
import { copier, fill, h, quiet, region, say, shownText } from "./dom.js";
import { follow, get } from "./api.js";
import { jsonSaver, save } from "./export.js";
import { VIEWS } from "./markup.js";
import { textOf } from "./history.js";

const PATIENCE = 60_000; // ms
const CALM = 300; // ms without new output, before it is formatted again
const SHOWN = 100_000; // characters: a line of five million would hold up the page

let chosenView = "Text"; // for every run, until the page is closed

/** What it put out while it ran, and its result beside that. @param {RunHistory} history */
export function outputPanel(history) {
	const cutWords = h("span");
	const before = h("p.meta", { hidden: true }, cutWords, " ", quiet("Download all of it", () => download(history.run)));
	const text = region("pre.output", "Output");
	const result = h("div.result");
	const end = h("p.meta");
	const views = h("select.quiet", { "aria-label": "Show output as" }, ...Object.keys(VIEWS).map((name) => h("option", name)));
	views.addEventListener("change", () => ((chosenView = views.value), draw()));
	const wraps = h("input", { type: "checkbox", checked: true });
	wraps.addEventListener("change", () => text.classList.toggle("long", !wraps.checked));
	const tools = h("div.logtools", { hidden: true }, views, h("label.check", wraps, "wrap"), copier(() => last, "Copy", "Copy", "quiet"));
	const element = h("div", before, tools, text, result, end);
	let [last, drawn, view, timer] = ["", "", "", 0];
	const draw = () => {
		const next = chosenView;
		text.classList.toggle("markdown", next === "Markdown");
		if (next === "Text") grow(text, view === next ? drawn : "", shownText(last));
		else fill(text, ...VIEWS[next](last));
		[drawn, view, views.value] = [shownText(last), next, next];
	};
	const show = () => {
		const { run, output } = history;
		const outcome = run?.outcome;
		const partial = textOf(outcome?.partial);
		const [streamed, cutOff] = partial.length > output.text.length ? [partial, 0] : [output.text, output.before];
		const returned = textOf(outcome?.result);
		const whole = streamed || returned;
		const cut = Math.max(0, whole.length - SHOWN) + cutOff;
		before.hidden = cut === 0;
		say(cutWords, `${cut.toLocaleString("en")} characters before this are not shown.`);
		const shown = whole.slice(-SHOWN);
		if (shown !== last) {
			last = shown;
			clearTimeout(timer);
			if (view === "Text" || view === "" || outcome) draw();
			else timer = window.setTimeout(draw, CALM); // these are made anew as a whole
		}
		text.hidden = tools.hidden = shown === "";
		if (streamed && returned && result.childElementCount === 0) fill(result, h("h3", "Result"), region("pre.output", "Result", returned.slice(0, SHOWN)));
		say(end, note(run, shown !== ""));
	};
	return { element, show };
}

/** Save everything that a run has put out until now, which its log has. @param {Run} run */
async function download(run) {
	const path = `runs/${encodeURIComponent(run.id)}`;
	const { lastEvent } = await get(path);
	/** @type {string[]} */ let pieces = [];
	await follow(`${path}/events`, {
		signal: AbortSignal.timeout(PATIENCE),
		take: (_, { seq, type, data }) => {
			if (type === "partial" && "delta" in data) pieces.push(textOf(data.delta));
			else if (type === "partial") pieces = [textOf(data.value)];
			return seq >= lastEvent;
		},
	});
	save(run, ".txt", new Blob(pieces, { type: "text/plain" }));
}

/** Add what is new, or begin again. @param {HTMLElement} element @param {string} before @param {string} after */
function grow(element, before, after) {
	const isAtEnd = element.scrollTop + element.clientHeight >= element.scrollHeight - 24;
	if (before && after.startsWith(before)) element.append(after.slice(before.length));
	else element.textContent = after;
	if (element.childNodes.length > 200) element.normalize();
	if (isAtEnd) element.scrollTop = element.scrollHeight;
}

/** @param {Run | undefined} run @param {boolean} hasOutput */
function note(run, hasOutput) {
	const outcome = run?.outcome;
	if (!outcome) return hasOutput ? "" : "No output yet.";
	const omitted = Object.entries(outcome.omitted).map(([name, why]) => `The ${name} is not kept: ${why}.`);
	const [hasResult, hasPartial] = [outcome.result, outcome.partial].map((one) => (one ?? null) !== null);
	if (!hasResult && hasPartial && outcome.status !== "completed") omitted.unshift("This is what it had when it ended.");
	if (!hasOutput && !omitted.length && !hasResult) omitted.push("It left no output.");
	return omitted.join(" ");
}

/** @param {RunHistory} history */
export function eventsPanel(history) {
	const body = h("div.body", { role: "rowgroup" });
	const notice = h("p.meta", { hidden: true });
	const table = h("div.events", { role: "table", "aria-label": "Events" }, body);
	const scroller = region("div.scroller.log", "Log", table);
	const search = h("input", { type: "search", "aria-label": "Search events", placeholder: "search", spellcheck: "false" });
	const type = h("select", { "aria-label": "Type" }, h("option", { value: "" }, "all events"));
	const tools = h("div.logtools", search, type, jsonSaver(history, "events", () => history.events));
	for (const one of [search, type]) one.addEventListener("input", () => show());
	const wanted = (/** @type {RunEvent} */ event) => (!type.value || event.type === type.value) && (!search.value || `${event.type} ${eventText(event)}`.toLowerCase().includes(search.value.toLowerCase()));
	const element = h("div", notice, tools, scroller);
	const rows = new Windowed(scroller, body, { key: (event) => `${event.runId} ${event.seq}`, make: (event) => eventRow(event, history), height: () => 24 });
	const show = () => {
		notice.hidden = history.dropped.events === 0;
		say(notice, `${history.dropped.events.toLocaleString("en")} earlier events are not shown.`);
		const isAtEnd = scroller.scrollTop + scroller.clientHeight >= scroller.scrollHeight - 30;
		for (const one of new Set(history.events.map((event) => event.type))) if (![...type.options].some(({ value }) => value === one)) type.append(h("option", { value: one }, one));
		rows.show(search.value || type.value ? history.events.filter(wanted) : history.events);
		if (isAtEnd) scroller.scrollTop = scroller.scrollHeight;
	};
	return { element, show, close: () => rows.close() };
}

/** @param {RunEvent} event @param {RunHistory} history */
function eventRow(event, history) {
	const name = history.runs.find((run) => run.id === event.runId)?.name ?? "";
	const cell = (/** @type {string} */ kind, /** @type {string} */ text) => h("span", { role: "cell", class: kind }, text);
	const element = h("div.row", { role: "row" }, cell("at mono", `${clock(event.at)}.${String(Math.floor((event.at % 1) * 1000)).padStart(3, "0")}`), cell("who", name), cell("type mono", event.type), cell("what", eventText(event)));
	return { element, update: () => {} };
}

/** @param {RunEvent} event */
export function eventText({ type, data }) {
	const label = spoken(data.kind ?? "") + (data.name ? ` ${data.name}` : "");
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

/** The last day: how much ran, how long stops took, and what needs a look now. */

import { failure, fill, h, region, runAddress, shortId, svg, table, time, tr } from "./dom.js";
import { clock, duration, isOver } from "./stoppable-button.js";
import { get, now } from "./api.js";
import { live } from "./live.js";

const HOUR = 3600;
const SPAN = 24 * HOUR;
const MOST = 10_000; // runs that are read
const SLOWEST = 10;
const [WIDTH, HEIGHT, FOOT] = [960, 160, 18];
const COUNTED = /** @type {const} */ (["began", "stopped", "unconfirmed"]);
/** @type {Record<string, string>} how far a stop had to go */
const RUNGS = { signal: "stopped at its next boundary", interrupt: "its calls were interrupted", cancel: "was cancelled", kill: "was killed" };

export class OverviewPage {
	title = "Overview";
	/** @type {Map<string, Summary> | null} its runs, as they were when they were read */ #read = null;
	#holds = 0;
	#ended = new AbortController();
	body = h("div");
	element = h("section.page.overview", h("div.head", h("h1", "Overview")), this.body);

	constructor() {
		this.body.addEventListener("focusout", () => setTimeout(() => this.#show()));
		live.addEventListener("change", () => this.#show(), { signal: this.#ended.signal });
		this.#load();
	}

	close() {
		this.#ended.abort();
	}

	/** Read the runs of the day; what changes later comes by the stream of the list. */
	async #load() {
		const { signal } = this.#ended;
		const from = now() - SPAN;
		fill(this.body, h("p.loading", { role: "status" }, "Counting…"));
		try {
			const read = new Map();
			const { holds } = await get("holds", signal);
			for (let cursor = ""; cursor !== null; ) {
				const part = await get(`runs?roots=true&limit=1000${cursor && `&cursor=${cursor}`}`, signal);
				for (const run of part.runs) read.set(run.id, run);
				cursor = read.size >= MOST || (part.runs.at(-1)?.createdAt ?? 0) < from ? null : part.cursor;
			}
			[this.#read, this.#holds] = [read, holds.length];
			this.#show();
		} catch (error) {
			if (signal.aborted) return;
			fill(this.body, failure(error, () => this.#load()));
			live.whenBack(() => this.#read ?? this.#load(), signal);
		}
	}

	#show() {
		if (!this.#read || this.body.matches(":focus-within")) return; // what is used is not made anew
		const to = now();
		const from = to - SPAN;
		const all = [...new Map([...this.#read, ...live.runs]).values()].filter((run) => run.parentId === null);
		const stopped = all.filter((run) => run.status === "stopped" && (run.stopRequestedAt ?? 0) >= from);
		stopped.sort((a, b) => stopTime(b) - stopTime(a));
		const cut = this.#read.size >= MOST && h("p.meta", `Of the ${MOST.toLocaleString("en")} newest runs.`);
		const runs = all.filter((run) => run.createdAt >= from);
		fill(this.body, tiles(all, this.#holds), cut, chart(runs, from, to), ...stops(stopped));
	}
}

/** What is so now, each with a way to see it. @param {Summary[]} runs @param {number} holds */
function tiles(runs, holds) {
	const tile = (/** @type {string} */ name, /** @type {string} */ address, /** @type {string} */ status, /** @type {number} */ value) => h("a.tile", { href: address, "data-status": value ? status : "" }, h("strong.mono", value.toLocaleString("en")), h("span", name));
	const count = (/** @type {(run: Summary) => boolean} */ is) => runs.filter(is).length;
	return h(
		"div.tiles",
		tile("running", "#/?status=running&status=pending", "running", count(({ status }) => !isOver(status) && status !== "stopping")),
		tile("stopping", "#/?status=stopping", "stopping", count(({ status }) => status === "stopping")),
		tile("unconfirmed", "#/?status=lost", "lost", count(({ status, endedLate }) => status === "lost" && endedLate === null)),
		tile(holds === 1 ? "hold in force" : "holds in force", "#/holds", "stopping", holds),
	);
}

/** Runs by when they began, and the same as numbers. @param {Summary[]} runs @param {number} from @param {number} to */
function chart(runs, from, to) {
	const first = Math.floor(from / HOUR) * HOUR;
	const bars = Array.from({ length: Math.floor((to - first) / HOUR) + 1 }, (_, index) => ({ at: first + index * HOUR, began: 0, stopped: 0, unconfirmed: 0 }));
	for (const { createdAt, status } of runs) {
		const bar = bars[Math.min(bars.length - 1, Math.floor((createdAt - first) / HOUR))]; // clocks may differ a little
		bar.began++;
		if (status === "lost") bar.unconfirmed++;
		else if (status === "stopped") bar.stopped++;
	}
	const most = Math.max(1, ...bars.map(({ began }) => began));
	const place = WIDTH / bars.length;
	const column = (/** @type {typeof bars[0]} */ { began, stopped, unconfirmed }, /** @type {number} */ index) =>
		[began, stopped + unconfirmed, unconfirmed].map((value, look) => {
			const height = (value / most) * (HEIGHT - 14);
			return value > 0 && svg(`rect.${COUNTED[look]}`, { x: index * place, y: HEIGHT - height, width: place * 0.85, height });
		});
	const names = bars.map(({ at }, index) => index % 4 === 0 && svg("text", { x: index * place, y: HEIGHT + FOOT - 4 }, clock(at).slice(0, 5)));
	const [began, stopped, unconfirmed] = COUNTED.map((key) => bars.reduce((sum, bar) => sum + bar[key], 0));
	const words = `${began} began; of these, ${stopped} stopped and ${unconfirmed} unconfirmed. The highest bar is ${most}.`;
	const picture = svg("svg.counts", { viewBox: `0 0 ${WIDTH} ${HEIGHT + FOOT}`, role: "img", "aria-label": words }, svg("line.grid", { x1: 0, x2: WIDTH, y1: HEIGHT, y2: HEIGHT }), ...bars.flatMap(column), ...names);
	const rows = bars.filter((bar) => bar.began).map((bar) => tr(time(bar.at), ...COUNTED.map((key) => String(bar[key]))));
	const numbers = h("details.aslist", h("summary", "The numbers"), region("div.scroller", "Runs by time", table(["From", ...COUNTED], ...rows)));
	return h("section", h("div.timehead", h("h2", "Runs by the hour"), h("p.legend", ...COUNTED.map((key) => h(`span.key.${key}`, key)))), h("p.meta", words), picture, numbers);
}

/** Seconds from the request of a stop to the end. @param {Summary} run */
const stopTime = (run) => (run.endedAt ?? 0) - (run.stopRequestedAt ?? 0);

/** How long stops took, by how far they had to go, and the slowest of them. @param {Summary[]} runs the slowest first */
function stops(runs) {
	if (runs.length === 0) return [h("section", h("h2", "Time to stop"), h("p.meta", "No run was stopped."))];
	const row = (/** @type {string} */ name, /** @type {Summary[]} */ group) => group.length > 0 && tr(name, String(group.length), ...[0.5, 0.05, 0].map((share) => h("td.mono", duration(stopTime(group[Math.floor(group.length * share)])))));
	const times = [row("all", runs), ...Object.entries(RUNGS).map(([rung, name]) => row(name, runs.filter((run) => (run.rung ?? "signal") === rung)))];
	const slowest = runs.slice(0, SLOWEST).map((run) => tr(h("a", { href: runAddress(run.id) }, run.name), h("td.mono", shortId(run.id)), h("td.mono", duration(stopTime(run))), RUNGS[run.rung ?? "signal"], time(run.stopRequestedAt ?? 0)));
	return [h("section", h("h2", "Time to stop"), table(["How", "Runs", "Half within", "95 % within", "Longest"], ...times)), h("section", h("h2", "Slowest to stop"), table(["Agent", "Run", "Took", "How", "Asked at"], ...slowest))];
}

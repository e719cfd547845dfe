/** One run with everything below it, as its events tell it. */

import { follow, get, now } from "./api.js";
import { shownOf } from "./stoppable-button.js";

const BARS = 10_000; // kept per tree
const EVENTS = 5_000; // kept in the list
const OUTPUT = 100_000; // characters kept of what has come so far
const LONG = 400; // characters of an event in the list

export class History extends EventTarget {
	/** @type {Summary[]} parents before children */ runs = [];
	run = /** @type {Run} */ (/** @type {any} */ (null)); // until start() has it
	/** @type {Bar[]} in the order in which they began */ bars = [];
	/** @type {RunEvent[]} */ events = [];
	dropped = { bars: 0, events: 0 };
	output = { text: "", before: 0 };
	/** @type {Map<string, Bar[]>} */ #open = new Map();
	#ended = new AbortController();
	#path;
	#isTold = false;
	#latest = 0; // end of a call
	#isLooking = false;
	#last = ""; // event that was taken in
	#looksAgain = false;

	/** @param {string} id */
	constructor(id) {
		super();
		this.id = id;
		this.#path = `runs/${encodeURIComponent(id)}`;
	}

	/** Load it, then follow it; raises if there is no such run. */
	async start() {
		await this.#look();
		await this.#follow();
	}

	async #follow() {
		/** @type {Take} */
		const take = (_, data, id) => {
			this.#last = id || this.#last;
			return this.#take(data);
		};
		await follow(`${this.#path}/events?tree=true`, { signal: this.#ended.signal, after: this.#last, take });
		await this.#look();
	}

	close() {
		this.#ended.abort();
	}

	/** The run, or one below it, has changed: see how it is now. */
	look() {
		this.#look().catch(() => {}); // the stream says what is wrong
	}

	async #look() {
		if (this.#isLooking) {
			this.#looksAgain = true;
			return;
		}
		this.#isLooking = true;
		try {
			do {
				this.#looksAgain = false;
				const { signal } = this.#ended;
				[this.run, { runs: this.runs }] = await Promise.all([get(this.#path, signal), get(`${this.#path}/tree`, signal)]);
			} while (this.#looksAgain);
		} finally {
			this.#isLooking = false;
		}
		this.#tell();
	}

	/** @param {RunEvent} event */
	#take(event) {
		const { runId, type, data } = event;
		if (type === "entered") this.#enter(event);
		else if (type === "left") this.#leave(event);
		else if (type === "done") this.#abandon(runId);
		else if (type === "partial" && runId === this.id) this.#put(data);
		if (["status", "done", "late"].includes(type) || !this.runs.some((run) => run.id === runId)) this.#look().catch(() => {});
		this.#list(event);
		this.#tell();
		return type === "done" && runId === this.id;
	}

	/** @param {RunEvent} event */
	#enter({ runId, at, data }) {
		/** @type {Bar} */
		const bar = { runId, kind: data.kind, name: data.name ?? "", from: at, to: null, fate: null, number: data.boundary ?? null };
		this.bars.push(bar);
		const open = this.#open.get(runId) ?? [];
		open.push(bar);
		this.#open.set(runId, open);
		if (this.bars.length > BARS) this.dropped.bars += this.bars.splice(0, BARS / 10).length;
	}

	/** @param {RunEvent} event */
	#leave({ runId, at, data }) {
		const open = this.#open.get(runId) ?? [];
		const isIt = (/** @type {Bar} */ bar) =>
			data.boundary === undefined ? bar.kind === data.kind && bar.name === (data.name ?? "") : bar.number === data.boundary;
		const place = open.findLastIndex(isIt);
		if (place < 0) return;
		const [bar] = open.splice(place, 1);
		bar.to = at;
		this.#latest = Math.max(this.#latest, at);
		bar.fate = data.fate ?? null;
	}

	/** A run is over: what is still open in it ran on. Its record may say so before its events have come. @param {string} runId */
	#abandon(runId) {
		for (const bar of this.#open.get(runId) ?? []) bar.fate = "abandoned";
	}

	/** @param {any} data */
	#put(data) {
		const text = "delta" in data ? textOf(data.delta) : textOf(data.value);
		const whole = "delta" in data ? this.output.text + text : text;
		const before = "delta" in data ? this.output.before : 0;
		const cut = whole.length > 2 * OUTPUT ? whole.length - OUTPUT : 0;
		this.output = { text: cut ? whole.slice(cut) : whole, before: before + cut };
	}

	/** @param {RunEvent} event */
	#list(event) {
		const long = typeof event.data?.delta === "string" && event.data.delta.length > LONG;
		this.events.push(long ? { ...event, data: { delta: `${event.data.delta.slice(0, LONG)}…` } } : event);
		if (this.events.length > EVENTS * 1.1) this.dropped.events += this.events.splice(0, EVENTS / 10).length;
	}

	/** Runs with their bars, children below their parents. @returns {Lane[]} */
	lanes() {
		/** @type {Map<string, Lane>} */
		const lanes = new Map();
		for (const run of ordered(this.runs, this.id)) {
			const depth = (lanes.get(run.parentId ?? "")?.depth ?? -1) + 1;
			lanes.set(run.id, { run, depth, bars: [] });
		}
		for (const bar of this.bars) {
			lanes.get(bar.runId)?.bars.push(bar);
		}
		return [...lanes.values()];
	}

	/** What is open now, in the whole tree. */
	inFlight() {
		return [...this.#open.values()].flat().map((bar) => (bar.name ? `${bar.kind}:${bar.name}` : bar.kind));
	}

	/** @param {Summary | undefined} summary */
	shown(summary) {
		const { run } = this;
		return { ...shownOf({ ...run, ladder: summary?.ladder }), inFlight: this.inFlight() };
	}

	/** When it began and ended, or now. */
	span() {
		const { run } = this;
		const from = run.startedAt ?? run.createdAt;
		const until = run.endedAt ?? now();
		return { from, to: Math.max(until, this.#latest, from + 0.001) };
	}

	#tell() {
		if (this.#isTold) return;
		this.#isTold = true;
		setTimeout(() => {
			this.#isTold = false;
			this.dispatchEvent(new Event("change"));
		}, 60);
	}
}

/** Depth first, in the order in which they began. @param {Summary[]} runs @param {string} root @returns {Summary[]} */
function ordered(runs, root) {
	/** @param {string} id @returns {Summary[]} */
	const below = (id) => runs.filter((run) => run.parentId === id).sort((a, b) => a.createdAt - b.createdAt).flatMap((run) => [run, ...below(run.id)]);
	return [...runs.filter((run) => run.id === root), ...below(root)];
}

/** @param {unknown} value */
export const textOf = (value) => (typeof value === "string" ? value : value === null || value === undefined ? "" : JSON.stringify(value, null, 2));

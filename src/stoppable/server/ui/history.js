/** One run with everything below it, as its events tell it. */

import { follow, get, now } from "./api.js";
import { live } from "./live.js";
import { clock, isOver, shownOf, spoken } from "./stoppable-button.js";

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
	#earliest = Infinity; // begin of one
	#keys = 0; // of calls
	/** @type {Map<string, number>} when the log of a run was full */ #truncated = new Map();
	/** @type {Map<string, number>} when a run was last heard of, before its end */ #signs = new Map();
	#isLooking = false;
	#last = ""; // event that was taken in
	#looksAgain = false;
	/** @type {{run: Run, runs: Summary[]} | null} what the server told last, until it is shown */ #next = null;

	/** @param {string} id */
	constructor(id) {
		super();
		this.id = id;
		this.#path = `runs/${encodeURIComponent(id)}`;
	}

	/** Load it, then follow it; raises if there is no such run. */
	async start() {
		await Promise.all([this.#look(), live.who()]); // names and offers depend on who looks at it
		this.#publish(); // events are taken in for a run that is known
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
				const [run, { runs }] = await Promise.all([get(this.#path, signal), get(`${this.#path}/tree`, signal)]);
				const own = runs.find((/** @type {Summary} */ one) => one.id === run.id);
				if (own?.status === run.status) this.#next = { run, runs };
				else this.#looksAgain = true; // it changed between the two answers
			} while (this.#looksAgain);
		} finally {
			this.#isLooking = false;
		}
		this.#tell();
	}

	/** @param {RunEvent} event */
	#take(event) {
		const { runId, type, data } = event;
		const isTurn = ["status", "done", "late"].includes(type);
		if (!isTurn || data.status === "running") this.#signs.set(runId, event.at);
		if (type === "entered") this.#enter(event);
		else if (type === "left") this.#leave(event);
		else if (type === "done") this.#abandon(runId);
		else if (type === "truncated") this.#truncate(event);
		else if (type === "partial" && runId === this.run?.id) this.#put(data);
		if (isTurn || !this.runs.some((run) => run.id === runId)) this.#look().catch(() => {});
		this.#list(event);
		this.#tell();
		return type === "done" && runId === (this.run?.id ?? this.id);
	}

	/** @param {RunEvent} event */
	#enter({ runId, at, data }) {
		/** @type {Bar} */
		const bar = { runId, kind: spoken(data.kind), name: data.name ?? "", from: at, to: null, fate: null, isUnrecorded: false, key: this.#keys++, number: data.boundary ?? null };
		this.bars.push(bar);
		this.#earliest = Math.min(this.#earliest, at);
		const open = this.#open.get(runId) ?? [];
		open.push(bar);
		this.#open.set(runId, open);
		if (this.bars.length > BARS) this.dropped.bars += this.bars.splice(0, BARS / 10).length;
	}

	/** @param {RunEvent} event */
	#leave({ runId, at, data }) {
		const open = this.#open.get(runId) ?? [];
		const isIt = (/** @type {Bar} */ bar) =>
			data.boundary === undefined ? bar.kind === spoken(data.kind) && bar.name === (data.name ?? "") : bar.number === data.boundary;
		const place = open.findLastIndex(isIt);
		if (place < 0) return;
		const [bar] = open.splice(place, 1);
		bar.to = at;
		this.#latest = Math.max(this.#latest, at);
		bar.fate = data.fate ?? null;
	}

	/** The log of a run is full: what is open then ends at some time that nobody wrote down. @param {RunEvent} event */
	#truncate({ runId, at }) {
		this.#truncated.set(runId, at);
		for (const bar of this.#open.get(runId) ?? []) [bar.to, bar.isUnrecorded] = [at, true];
		this.#open.delete(runId);
		this.#latest = Math.max(this.#latest, at);
	}

	/** Whether some calls are not in the log. */
	get isTruncated() {
		return this.#truncated.size > 0;
	}

	/** From when on nothing is known of what a run did, and why; null: everything is known. @param {Summary} run */
	knownUntil(run) {
		const full = this.#truncated.get(run.id);
		if (full !== undefined) return { at: full, why: "not recorded: its log was full" };
		return isWorkerLost(run) ? { at: this.#signs.get(run.id) ?? run.startedAt ?? run.createdAt, why: "the process that ran it was gone" } : null;
	}

	/** Where the picture of a call ends. @param {Bar} bar */
	endOf(bar) {
		if (bar.to !== null) return bar.to;
		const run = this.runs.find((one) => one.id === bar.runId);
		return (run && this.knownUntil(run)?.at) ?? this.span.to;
	}

	/** Whether a call was in flight when the stop came. @param {Bar} bar */
	crosses(bar) {
		const stop = this.run?.stopRequestedAt ?? null;
		if (stop === null || bar.isUnrecorded) return false;
		return bar.fate !== null || (bar.to === null && bar.from <= stop);
	}

	/** What the picture does not show, and why. */
	gaps() {
		const told = [];
		if (this.dropped.bars > 0) told.push(`${this.dropped.bars} earlier calls are not shown.`);
		for (const [id, at] of this.#truncated) told.push(`Calls of ${this.runs.find((one) => one.id === id)?.name ?? id} after ${clock(at)} were not recorded: its log was full.`);
		for (const run of this.runs) {
			if (isWorkerLost(run)) told.push(`The process that ran ${run.name} was gone; last sign of life at ${clock(this.knownUntil(run)?.at ?? 0)}.`);
		}
		return told;
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
		for (const run of ordered(this.runs, this.run.id)) {
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

	/** The run as the button shows it. @returns {Shown} */
	shown() {
		const { run } = this;
		const own = this.runs.find((one) => one.id === run.id);
		const shown = shownOf({ ...run, ladder: own?.ladder });
		return { ...shown, isUnrecorded: this.isTruncated, isExplained: true, inFlight: this.inFlight(), actor: live.person(shown.actor) ?? null };
	}

	/** When it began and ended, or now. */
	get span() {
		const { run } = this;
		const from = Math.min(run.startedAt ?? run.createdAt, this.#earliest);
		const until = run.endedAt ?? now();
		return { from, to: Math.max(until, this.#latest, from + 0.001) };
	}

	#tell() {
		if (this.#isTold) return;
		this.#isTold = true;
		setTimeout(() => {
			this.#isTold = false;
			this.#publish();
		}, 60);
	}

	/** Show what is known: all of it at once, so that every part of the page shows the same state. */
	#publish() {
		if (this.#next) ({ run: this.run, runs: this.runs } = this.#next);
		this.#next = null;
		this.dispatchEvent(new Event("change"));
	}
}

/** Whether a run ended because nothing executed it any more. @param {Summary} run */
const isWorkerLost = (run) => isOver(run.status) && (/^WorkerLost\b/.test(run.error ?? "") || /^its worker /.test(run.reason?.message ?? ""));

/** Depth first, in the order in which they began. @param {Summary[]} runs @param {string} root @returns {Summary[]} */
function ordered(runs, root) {
	/** @param {string} id @returns {Summary[]} */
	const below = (id) => runs.filter((run) => run.parentId === id).sort((a, b) => a.createdAt - b.createdAt).flatMap((run) => [run, ...below(run.id)]);
	return [...runs.filter((run) => run.id === root), ...below(root)];
}

/** @param {unknown} value */
export const textOf = (value) => (typeof value === "string" ? value : value === null || value === undefined ? "" : JSON.stringify(value, null, 2));

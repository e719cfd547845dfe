/** The runs as they are now: one stream for the whole page, and the list in parts. */

import { follow, get, holdClock, now, setClock } from "./api.js";

const FIRST = 200;
const MORE = 500;
const OFFLINE_AFTER = 1.5; // seconds: a connection may go and come back at once

class Live extends EventTarget {
	/** @type {Map<string, Summary>} */ runs = new Map();
	/** @type {Map<string, readonly string[]>} what is open now, of live runs */ flight = new Map();
	/** @type {"connecting" | "live" | "reconnecting" | "offline"} */ state = "connecting";
	/** @type {number | null} when the connection went */ since = null;
	/** @type {unknown} */ error = null;
	isLoaded = false;
	/** @type {Caller | null} who looks at the page */ caller = null;
	/** @type {string | null} where older runs begin; null: there are none */ cursor = null;
	/** @type {Set<string>} */ #newer = new Set();
	#isFetching = false;
	#isTold = false;
	#following = new AbortController();

	/** Begin, or begin again with another key. */
	start() {
		this.#following.abort();
		this.#following = new AbortController();
		const { signal } = this.#following;
		/** @type {Take} */
		const take = (event, data) => this.#take(event, data);
		follow("events", { signal, take, state: (state) => this.#connected(state === "live") }).catch((error) => this.#failed(error));
	}

	/** @param {boolean} isLive */
	#connected(isLive) {
		holdClock(!isLive);
		if (isLive) [this.state, this.since] = ["live", null];
		else if (this.since === null) {
			this.since = now();
			this.state = "reconnecting";
			setTimeout(() => this.#goOffline(), OFFLINE_AFTER * 1000);
		}
		this.dispatchEvent(new Event("state"));
	}

	/** Whether the server lets the caller do something; it is assumed until that is known. @param {string} scope */
	may(scope) {
		return this.caller?.scopes.includes(scope) ?? true;
	}

	/** Who looks at the page. @returns {Promise<Caller>} */
	async who() {
		return (this.caller ??= await get("whoami"));
	}

	/** Try something again when the server is back. @param {() => void} act @param {AbortSignal} [signal] */
	whenBack(act, signal) {
		const look = () => this.state === "live" && (this.removeEventListener("state", look), act());
		this.addEventListener("state", look, { signal });
	}

	/** Who one is, in words. @param {string | null | undefined} actor */
	person(actor) {
		return actor && actor === this.caller?.actor ? "you" : actor;
	}

	#goOffline() {
		if (this.since === null) return;
		this.state = "offline";
		this.dispatchEvent(new Event("state"));
	}

	/** @param {unknown} error */
	#failed(error) {
		this.error = error;
		this.dispatchEvent(new Event("state"));
		this.#tell();
	}

	/** @param {string} event @param {any} data */
	#take(event, data) {
		if (event === "hello") {
			setClock(data.now);
			if (data.reset || !this.isLoaded) this.load();
		} else if (event === "run") this.#put(data, true);
		else if (event === "flight") this.#fly(data);
		this.#tell();
	}

	/** What the stream told while a list was on its way is newer than the list. @param {Summary} run @param {boolean} [isTold] */
	#put(run, isTold = false) {
		if (isTold) this.#newer.add(run.id);
		else if (this.#newer.has(run.id)) return;
		this.runs.set(run.id, run);
		this.#fly({ all: false, runs: { [run.id]: run.inFlight } });
		this.dispatchEvent(new CustomEvent("run", { detail: run }));
	}

	/** @param {{all: boolean, runs: Record<string, readonly string[] | null>}} data */
	#fly({ all, runs }) {
		if (all) this.flight.clear();
		for (const [id, labels] of Object.entries(runs)) {
			if (labels?.length) this.flight.set(id, labels);
			else this.flight.delete(id);
		}
	}

	/** Load what is live, and the newest of the rest. */
	async load() {
		if (this.#isFetching) return;
		this.#isFetching = true;
		this.#newer.clear();
		this.error = null;
		try {
			// together: if one were awaited first, the other could fail uncaught
			const [live, part, caller] = await Promise.all([get("runs?status=pending&status=running&status=stopping&limit=1000"), get(`runs?limit=${FIRST}`), get("whoami")]);
			this.caller = caller; // another key may be another caller
			for (const run of [...live.runs, ...part.runs]) this.#put(run);
			this.cursor = part.cursor;
			this.isLoaded = true;
		} catch (error) {
			this.error = error;
		}
		this.#isFetching = false;
		this.#tell();
	}

	/** Load older runs. */
	async more() {
		if (this.#isFetching || this.cursor === null) return;
		this.#isFetching = true;
		this.#newer.clear();
		try {
			const part = await get(`runs?limit=${MORE}&cursor=${this.cursor}`);
			for (const run of part.runs) this.#put(run);
			this.cursor = part.cursor;
		} catch {
			// the next scroll asks again
		}
		this.#isFetching = false;
		this.#tell();
	}

	/** What a run has in flight, with everything below it. @param {Summary} run */
	inFlight(run) {
		if (run.rootId !== run.id) return this.flight.get(run.id) ?? [];
		const found = [];
		for (const [id, labels] of this.flight) if (id === run.id || this.runs.get(id)?.rootId === run.id) found.push(...labels);
		return found;
	}

	/** Many changes are told once, with the next picture. */
	#tell() {
		if (this.#isTold) return;
		this.#isTold = true;
		setTimeout(() => {
			this.#isTold = false;
			this.dispatchEvent(new Event("change"));
		}, 50);
	}
}

export const live = new Live();

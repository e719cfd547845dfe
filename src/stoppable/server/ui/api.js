/** Requests to the server: the key, the errors, the server's clock, and streams that resume. */

import { LOOK_AGAIN, ask, readEvents, takePlace } from "./stoppable-button.js";

const meta = /** @type {HTMLMetaElement} */ (document.querySelector('meta[name="stoppable-api"]'));
export const base = new URL(meta.content, document.baseURI);

const KEY = "stoppable-key";
const SILENCE = 40_000; // a stream says something every 15 seconds
const LOOK = 1000; // ms for which a stream without a place lasts
let skew = 0;
/** @type {number | null} when the server was last heard of; null: it is now */ let heardAt = null;

/** The server's time, in seconds since 1970; it stands still while the server is away. */
export const now = () => heardAt ?? Date.now() / 1000 - skew;

/** Stop the clock, as long as nothing is known, or let it go on. @param {boolean} stands */
export function holdClock(stands) {
	heardAt = stands ? now() : null;
}

/** Correct the clock. @param {number} serverNow */
export function setClock(serverNow) {
	const ahead = Date.now() / 1000 - serverNow;
	skew = Math.abs(ahead) < 0.5 ? 0 : ahead;
}

/** The key of this tab, as headers. @returns {Record<string, string>} */
export function headers() {
	const key = sessionStorage.getItem(KEY);
	return key ? { Authorization: `Bearer ${key}` } : {};
}
/** @param {string} key */
export const setKey = (key) => sessionStorage.setItem(KEY, key);

/** Says when the server wants a key. */
export const asking = new EventTarget();

/** @param {string} path @param {RequestInit} [options] */
async function request(path, options = {}) {
	const key = headers();
	return ask(new URL(path, base), { ...options, headers: { ...key, ...options.headers } }).catch((error) => {
		if (error.status === 401 && key.Authorization === headers().Authorization) asking.dispatchEvent(new Event("key"));
		throw error;
	});
}

/** @param {string} path @param {AbortSignal} [signal] */
export const get = async (path, signal) => (await request(path, { signal })).json();

/** @param {string} path @param {object} body @param {Record<string, string>} [more] */
export const post = async (path, body, more = {}) =>
	(await request(path, { method: "POST", body: JSON.stringify(body), headers: { "Content-Type": "application/json", ...more } })).json();

/** @param {string} path */
export const remove = async (path) => (await request(path, { method: "DELETE" })).json();

/** @param {number} ms @param {AbortSignal} signal */
const pause = (ms, signal) =>
	new Promise((done) => {
		setTimeout(done, ms);
		signal.addEventListener("abort", done, { once: true });
	});

/**
 * Follows a stream and resumes it, until `take` returns true. A tab that nobody
 * sees lets go of its connection; where no place is free, it looks again and again.
 * @param {string} path
 * @param {{signal: AbortSignal, after?: string, take: (event: string, data: any, id: string) => boolean | void, state?: (state: "live" | "lost", error?: unknown) => void}} options
 */
export async function follow(path, { signal, after = "", take, state }) {
	let last = after;
	for (let tries = 0; !signal.aborted; tries++) {
		await seen(signal);
		const turn = new AbortController();
		const both = AbortSignal.any([signal, turn.signal]);
		const hide = () => document.hidden && turn.abort();
		document.addEventListener("visibilitychange", hide);
		let [watchdog, isLook] = [0, false];
		const alive = () => (clearTimeout(watchdog), (watchdog = window.setTimeout(() => turn.abort(), SILENCE)));
		try {
			const isPlaced = await takePlace(both);
			const answer = await request(path, { signal: both, headers: last ? { "Last-Event-ID": last } : {} });
			if (answer.status === 204) return;
			state?.("live");
			alive();
			if (!isPlaced) setTimeout(() => ((isLook = true), turn.abort()), LOOK);
			for await (const { id, event, data } of readEvents(answer, alive)) {
				tries = 0;
				if (id) last = id;
				if (event === "dropped" || event === "shutdown") break;
				if (take(event, JSON.parse(data), id)) return;
			}
		} catch (error) {
			if (signal.aborted) return;
			const { status = 0 } = /** @type {Failure} */ (error);
			if (status >= 400 && status < 500 && status !== 429) throw error;
			if (!turn.signal.aborted) state?.("lost", error);
		} finally {
			clearTimeout(watchdog);
			document.removeEventListener("visibilitychange", hide);
			turn.abort(); // its place is free
		}
		if (!document.hidden && !signal.aborted) {
			if (!isLook) state?.("lost");
			await pause(isLook ? LOOK_AGAIN : Math.min(5000, 250 * 2 ** tries), signal);
		}
	}
}

/** Wait until the page is seen. @param {AbortSignal} signal @returns {Promise<void>} */
function seen(signal) {
	if (!document.hidden || signal.aborted) return Promise.resolve();
	return new Promise((done) => {
		const look = () => !document.hidden && (document.removeEventListener("visibilitychange", look), done());
		document.addEventListener("visibilitychange", look);
		signal.addEventListener("abort", () => done(), { once: true });
	});
}

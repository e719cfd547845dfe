/** Requests to the server: the key, the errors, the server's clock, and streams that resume. */

import { ask, readEvents } from "./stoppable-button.js";

const meta = /** @type {HTMLMetaElement} */ (document.querySelector('meta[name="stoppable-api"]'));
export const base = new URL(meta.content, document.baseURI);

const KEY = "stoppable-key";
const SILENCE = 40_000; // a stream says something every 15 seconds
let skew = 0;

/** The server's time, in seconds since 1970. */
export const now = () => Date.now() / 1000 - skew;

/** Correct the clock. @param {number} serverNow */
export function setClock(serverNow) {
	const ahead = Date.now() / 1000 - serverNow;
	skew = Math.abs(ahead) < 0.5 ? 0 : ahead;
}

/** The headers that carry the key, which this tab alone has. @returns {Record<string, string>} */
export function headers() {
	const key = sessionStorage.getItem(KEY);
	return key ? { Authorization: `Bearer ${key}` } : {};
}
/** @param {string} key */
export const setKey = (key) => sessionStorage.setItem(KEY, key);

/** Somebody who asks for a key when the server wants one. */
export const asking = new EventTarget();

/** @param {string} path @param {RequestInit} [options] */
async function request(path, options = {}) {
	return ask(new URL(path, base), { ...options, headers: { ...headers(), ...options.headers } }).catch((error) => {
		if (error.status === 401) asking.dispatchEvent(new Event("key"));
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
 * Follows a stream and resumes it, until `take` returns true. A tab that nobody sees lets go of its connection, of
 * which a browser has six.
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
		let watchdog = 0;
		const alive = () => (clearTimeout(watchdog), (watchdog = window.setTimeout(() => turn.abort(), SILENCE)));
		try {
			const answer = await request(path, { signal: both, headers: last ? { "Last-Event-ID": last } : {} });
			if (answer.status === 204) return;
			state?.("live");
			alive();
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
		}
		if (!document.hidden && !signal.aborted) {
			state?.("lost");
			await pause(Math.min(5000, 250 * 2 ** tries), signal);
		}
	}
}

/** Waits until somebody looks at the page. @param {AbortSignal} signal @returns {Promise<void>} */
function seen(signal) {
	if (!document.hidden || signal.aborted) return Promise.resolve();
	return new Promise((done) => {
		const look = () => !document.hidden && (document.removeEventListener("visibilitychange", look), done());
		document.addEventListener("visibilitychange", look);
		signal.addEventListener("abort", () => done(), { once: true });
	});
}

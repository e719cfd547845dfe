"use client";

/**
 * `<StoppableButton runId={runId} base="/agents" />` shows the element of stoppable-button.js, which alone knows what a
 * press means. `useStoppable(runId, { base: "/agents" })` follows a run for a control of your own.
 */

import { createElement, forwardRef, useEffect, useImperativeHandle, useLayoutEffect, useMemo, useRef, useSyncExternalStore } from "react";
import { LOOK_AGAIN, ask, isOver, readEvents, shownOf, takePlace } from "./stoppable-button.js";

/** @typedef {import("@stoppable/button").Shown} Shown */
/** @typedef {import("@stoppable/button").StoppableButton} StoppableElement */
/** @typedef {import("@stoppable/button/react").Failure} Failure */
/** @typedef {import("@stoppable/button/react").StopOptions} StopOptions */
/** @typedef {import("@stoppable/button/react").StoppableState} StoppableState */

// React 18 warns of layout effects where pages are rendered on a server.
const useBrowserEffect = typeof document === "undefined" ? useEffect : useLayoutEffect;
const REPLAYED = 1000; // events
const RETRY = [500, 1000, 2000]; // ms, then 5000

/** @type {StoppableState} */
const NOTHING = { run: null, isStopping: false, isOver: false, error: null };
const readNothing = () => NOTHING;

/** One run, followed as long as somebody listens. */
class Followed {
	/** @type {(() => Record<string, string>) | undefined} */ headers;
	#state = NOTHING;
	/** @type {Shown | null} */ #run = null;
	/** @type {Failure | null} why it is not followed */ #unseen = null;
	/** @type {Failure | null} why the last press was not sent */ #unsent = null;
	#sending = 0;
	#isAccepted = false;
	#changed = () => {};
	/** @type {ReturnType<typeof setTimeout> | undefined} */ #telling;

	/** @param {string} id @param {string} base */
	constructor(id, base) {
		this.id = id;
		this.base = base;
	}

	read = () => this.#state;

	/** @param {() => void} changed */
	subscribe = (changed) => {
		const following = new AbortController();
		this.#changed = changed;
		if (this.id) this.#follow(following);
		return () => {
			following.abort();
			this.#changed = () => {};
		};
	};

	/** Ask for a stop. Only another mode escalates. @param {StopOptions} [options] */
	stop = async ({ mode = "graceful", reason } = {}) => {
		if (!this.id) return null;
		this.#sending += 1;
		this.#unsent = null;
		this.#tell();
		try {
			const hold = this.#run ? "" : "?ifUnknown=wait"; // the stop waits for its run
			const answer = await this.#request(`stop${hold}`, { method: "POST", body: JSON.stringify(reason ? { mode, reason } : { mode }) });
			const { receipt } = await answer.json();
			this.#isAccepted = true;
			return receipt;
		} catch (error) {
			this.#unsent = /** @type {Failure} */ (error);
			return null;
		} finally {
			this.#sending -= 1;
			this.#tell();
		}
	};

	/** @param {AbortController} following */
	async #follow(following) {
		const { signal } = following;
		/** @type {number | undefined} */ let seen;
		/** @type {string[]} */ const open = []; // what is in flight
		let isPlaced = false;
		for (let tries = 0; !signal.aborted; tries++) {
			let wait = RETRY[tries] ?? 5000;
			try {
				const record = await (await this.#request("", { signal })).json();
				const shown = shownOf(record);
				this.#show({ ...shown, inFlight: open.length ? [...open] : shown.inFlight });
				if (isOver(record.status)) return following.abort(); // its place is free
				if ((isPlaced ||= await takePlace(signal))) {
					seen ??= record.lastEvent < REPLAYED ? 0 : record.lastEvent; // what is in flight, unless that is long ago
					const stream = await this.#request(`events?after=${seen}`, { signal });
					tries = 0;
					for await (const { id, data } of readEvents(stream)) {
						const event = JSON.parse(data);
						seen = Number(id) || seen;
						if (event.type === "status" || event.type === "done") break; // the record tells more
						if (take(open, event)) this.#show({ .../** @type {Shown} */ (this.#run), inFlight: [...open] });
					}
					continue;
				}
				[tries, wait] = [0, LOOK_AGAIN];
			} catch (error) {
				if (signal.aborted) return;
				this.#unseen = /** @type {Failure} */ (error);
				this.#tell();
			}
			await new Promise((done) => setTimeout(done, wait));
		}
	}

	/** @param {string} path @param {RequestInit} options */
	#request(path, options) {
		const runs = new URL(`${this.base.replace(/\/$/, "")}/runs/`, document.baseURI);
		const headers = { ...this.headers?.(), ...(options.body ? { "Content-Type": "application/json" } : {}) };
		return ask(new URL(encodeURIComponent(this.id) + (path && `/${path}`), runs), { ...options, headers });
	}

	/** @param {Shown} run */
	#show(run) {
		this.#run = run;
		this.#unseen = null;
		this.#tell();
	}

	/** Many events that come together are one rendering. */
	#tell() {
		const run = this.#run;
		const isDone = run !== null && isOver(run.status);
		const isStopping = !isDone && (run?.status === "stopping" || this.#sending > 0 || this.#isAccepted);
		this.#state = { run, isStopping, isOver: isDone, error: this.#unsent ?? this.#unseen };
		this.#telling ??= setTimeout(() => {
			this.#telling = undefined;
			this.#changed();
		});
	}
}

/** Note what an event says of what is in flight, if it says something. @param {string[]} open @param {any} event */
function take(open, { type, data }) {
	if (type !== "entered" && type !== "left") return false;
	const label = data.name ? `${data.kind}:${data.name}` : data.kind;
	if (type === "entered") open.push(label);
	else open.splice(open.indexOf(label) >>> 0, 1);
	return true;
}

/**
 * Follow a run, and stop it.
 * @param {string | null | undefined} runId @param {import("@stoppable/button/react").StoppableOptions} [options]
 */
export function useStoppable(runId, { base = ".", headers } = {}) {
	const followed = useMemo(() => new Followed(runId ?? "", base), [runId, base]);
	useEffect(() => {
		followed.headers = headers; // before the first request, which the next line makes
	});
	const state = useSyncExternalStore(followed.subscribe, followed.read, readNothing);
	return useMemo(() => ({ ...state, stop: followed.stop }), [state, followed]);
}

/** The element, with properties and events set here, because React 18 does not. */
const Button = forwardRef(
	/** @param {import("@stoppable/button/react").StoppableButtonProps} props @param {import("react").ForwardedRef<StoppableElement>} ref */
	function Button({ runId, run, headers, onStopping, onEnded, className, compact, readonly, hidden, ...rest }, ref) {
		const element = useRef(/** @type {StoppableElement | null} */ (null));
		const latest = useRef(/** @type {import("@stoppable/button/react").StoppableButtonProps} */ ({}));
		useImperativeHandle(ref, () => /** @type {StoppableElement} */ (element.current));
		useBrowserEffect(() => {
			latest.current = { headers, onStopping, onEnded };
		});
		useBrowserEffect(() => {
			const button = /** @type {StoppableElement} */ (element.current);
			const stopping = (/** @type {CustomEvent<Shown>} */ { detail }) => latest.current.onStopping?.(detail);
			const ended = (/** @type {CustomEvent<Shown>} */ { detail }) => latest.current.onEnded?.(detail);
			button.headers = () => latest.current.headers?.() ?? {};
			button.addEventListener("stopping", stopping);
			button.addEventListener("ended", ended);
			return () => {
				button.removeEventListener("stopping", stopping);
				button.removeEventListener("ended", ended);
			};
		}, []);
		useBrowserEffect(() => {
			const button = /** @type {StoppableElement} */ (element.current);
			if (run) button.run = run;
			else if (runId) button.setAttribute("run-id", runId); // the last of all, because it makes the first request
		}, [run, runId]);
		// `class`, and no false: React 18 would make the attributes classname="…" and hidden="false"
		const flags = { compact: compact || undefined, readonly: readonly || undefined, hidden: hidden || undefined };
		return createElement("stoppable-button", { ...rest, ...flags, class: className, ref: element, suppressHydrationWarning: true });
	},
);

/** A stop button for a run; nothing as long as there is none. */
export const StoppableButton = forwardRef(
	/** @param {import("@stoppable/button/react").StoppableButtonProps} props @param {import("react").ForwardedRef<StoppableElement>} ref */
	function StoppableButton(props, ref) {
		if (!props.runId && !props.run) return null;
		const key = JSON.stringify([props.base, props.compact]); // what it reads once
		return createElement(Button, { ...props, key, ref });
	},
);

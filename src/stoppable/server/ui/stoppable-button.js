/**
 * <stoppable-button base="https://agents.example" run-id="…"></stoppable-button>
 *
 * A stop button, without dependencies, for one run after the other. It follows its run by itself, or shows what its
 * `run` property says. It never says that a run has stopped before that is true, and a press that could not be sent is
 * said to have failed.
 *
 * A harder stop needs a new intention. Stop turns into a disabled "Stopping…"; "Stop now" and then "Kill" are another
 * control, which appears a second later; a kill is asked about. A second click of a double click, a key that is held
 * and further clicks at the same spot do nothing.
 */

const RANK = { cooperative: 0, graceful: 1, immediate: 2, kill: 3 };
const TIMEOUT = 10_000;
const REPLAYED = 1000; // events
const RETRY = [500, 1000, 2000]; // ms, then 5000
const PLACES = 4; // for streams, of the six connections that a browser opens to a server
export const LOOK_AGAIN = 2000; // ms between two looks at what has no stream

const held = new Set();
/** A page that the browser gives no locks has places of its own. */
const locks = globalThis.navigator?.locks ?? {
	/** @param {string} name @param {object} _ @param {(lock: unknown) => unknown} act */
	async request(name, _, act) {
		if (held.has(name)) return act(null);
		held.add(name);
		await act(name);
		held.delete(name);
	},
};

/**
 * Take a place for a stream, until `signal`; says whether one was free. All pages of an origin share them, so that
 * there is always a connection for a stop.
 * @param {AbortSignal} signal
 */
export async function takePlace(signal) {
	const lasting = () => signal.aborted || new Promise((done) => signal.addEventListener("abort", done, { once: true }));
	for (let n = 0; n < PLACES; n++) {
		const take = (/** @type {(isMine: boolean) => void} */ tell) => locks.request(`stoppable ${n}`, { ifAvailable: true }, (lock) => (tell(!!lock), lock && lasting())).catch(() => tell(true));
		if (await new Promise(take)) return true;
	}
	return false;
}

/** @param {string} status */
export const isOver = (status) => !["pending", "running", "stopping"].includes(status);

/** "llm:ask", or a kind, as people say it. @param {string} label */
export const spoken = (label) => label.replace(/^spawn\b/, "process").replace(":", " ");

/** Words, each once, with how often it is there. @param {readonly string[]} words @returns {[string, number][]} */
export function counts(words) {
	const found = new Map();
	for (const word of words) found.set(word, (found.get(word) ?? 0) + 1);
	return [...found];
}

/** Labels in words. @param {readonly string[]} labels */
export function counted(labels) {
	return counts([...labels].sort()).map(([label, count]) => spoken(label) + (count > 1 ? ` ×${count}` : "")).join(", ");
}

/** @param {number} seconds */
export function duration(seconds) {
	const s = Math.max(0, seconds);
	if (s < 0.0995) return s < 0.001 ? "under 1\u00a0ms" : `${Math.round(s * 1000)}\u00a0ms`;
	if (s < 60) return `${s.toFixed(1)}\u00a0s`;
	const whole = Math.floor(s);
	if (s < 3600) return `${Math.floor(whole / 60)} min ${String(whole % 60).padStart(2, "0")}\u00a0s`;
	return `${Math.floor(whole / 3600)} h ${String(Math.floor((whole % 3600) / 60)).padStart(2, "0")}\u00a0min`;
}

/** @param {number} at seconds since 1970 */
export const clock = (at) => new Date(at * 1000).toLocaleTimeString("en-GB");

/**
 * The button, and the control beside it that is harder.
 * @param {Shown} run @returns {{label: string, mode: Mode | null, harder: {label: string, mode: Mode} | null} | null}
 */
export function controlsOf({ status, mode, late }) {
	const inert = (/** @type {string} */ label) => ({ label, mode: null, harder: null });
	if (status === "stopped") return inert("Stopped");
	if (status === "lost") return inert(late ? "Ended late" : "Unconfirmed");
	if (isOver(status)) return null;
	if (mode === null) return { label: "Stop", mode: "graceful", harder: null };
	if (mode === "kill") return inert("Killing…");
	return { label: "Stopping…", mode: null, harder: mode === "immediate" ? { label: "Kill", mode: "kill" } : { label: "Stop now", mode: "immediate" } };
}

/**
 * The sentence beside the button, and what counts down to when.
 * @param {Shown} run @param {number} now
 * @returns {{text: string, until?: {word: string, at: number, from: number}}}
 */
export function stopLine(run, now) {
	if (run.status === "stopping") return stoppingLine(run, now);
	const after = run.stopRequestedAt === null || run.endedAt === null ? "" : duration(run.endedAt - run.stopRequestedAt);
	if (run.status === "stopped") {
		const silent = run.silent.length && `told to stop, does not say whether it did: ${run.silent.join(", ")}`;
		return { text: [[run.actor && `by ${run.actor}`, after].filter(Boolean).join(", "), silent].filter(Boolean).join("; ") };
	}
	if (run.status === "lost") {
		if (run.late) return { text: `Was unconfirmed; ended by itself at ${clock(run.late)}.` };
		return { text: `May still be running: ${run.left.join(", ") || "its worker does not answer"}.` };
	}
	if (run.status === "completed") return { text: run.stopRequestedAt ? "Finished before the stop arrived." : "" };
	if (run.status === "failed") return { text: run.isExplained ? "" : ((run.error ?? "").trim().split("\n").at(-1) ?? "") };
	if (run.isUnrecorded) return { text: "Its log is full: what is in flight is not recorded." };
	return { text: run.inFlight.length ? `in flight: ${counted(run.inFlight)}` : "" };
}

/** @param {Shown} run @param {number} now */
function stoppingLine(run, now) {
	if (run.mode === "cooperative") return { text: "Stopping… at its next check. Nothing forces it." };
	const due = new Map(run.ladder.map(({ rung, at }) => [rung, at]));
	const [interrupt, cancel, kill, lost] = ["interrupt", "cancel", "kill", "lost"].map((one) => due.get(one) ?? Infinity);
	if (due.size === 0) return { text: "Stopping…" }; // nobody has acknowledged it yet
	const from = run.stopRequestedAt ?? now;
	if (now < cancel && run.blind) return { text: "Stopping… it has met no boundary or check, so it cannot obey.", until: { word: "Cancelled", at: cancel, from } };
	if (now < interrupt) {
		const [kind, name] = spoken(run.inFlight[0] ?? "").split(/ (.*)/s);
		const calls = run.inFlight.length > 1 ? `calls (${counted(run.inFlight)})` : `${kind} call${name ? ` (${name})` : ""}`;
		const text = run.inFlight.length ? `Stopping… after the current ${calls}.` : run.isUnrecorded ? "Stopping… its log is full: what it is in is not recorded." : "Stopping… at its next step.";
		return { text, until: { word: "Forced", at: interrupt, from } };
	}
	if (run.blind || run.inFlight.length) {
		const where = run.inFlight.length ? `, but still in ${counted(run.inFlight)}` : ", but it has not ended yet"; // the cancel would have ended it
		return { text: `Cancelled${where}. If nothing can end it:`, until: { word: "unconfirmed", at: lost, from: cancel } };
	}
	if (now < kill) return { text: "Cancelling… clean-up is running.", until: { word: "Killed", at: kill, from: cancel } };
	return { text: "Killing… clean-up may not run.", until: { word: "Unconfirmed", at: lost, from: kill } };
}

/** Whether the same press would fail again. @param {any} error */
export const isRefusal = ({ status = 0 }) => status >= 400 && status < 500 && status !== 408 && status !== 429;

/** What is said of a press that failed. @param {any} error */
export function failureOf(error) {
	const { message, status } = error;
	if (!isRefusal(error)) return `Not sent: ${message}. Press again; a repeat is safe.`;
	const words = { 401: "this page has no key for the server", 403: "you may not stop this run", 404: "the server does not know this run" };
	return `Refused: ${words[/** @type {401} */ (status)] ?? message}.`;
}

const UNSEEN = { 401: "Not followed: this page has no key for the server.", 403: "Not followed: you may not see this run." };

/** A request; what goes wrong is said in words, with the status of the answer. @param {URL} url @param {RequestInit} options */
export async function ask(url, options) {
	const limit = new AbortController();
	const timer = setTimeout(() => limit.abort(), TIMEOUT);
	const signal = AbortSignal.any(options.signal ? [options.signal, limit.signal] : [limit.signal]);
	/** @param {string} message @returns {Failure} */
	const failure = (message, status = 0) => Object.assign(new Error(message), { status });
	try {
		const answer = await fetch(url, { ...options, signal, cache: "no-store" }).catch(() => {
			throw failure(limit.signal.aborted ? "the server did not answer in time" : "the server cannot be reached");
		});
		if (answer.ok) return answer;
		const told = await answer.json().catch(() => null);
		throw failure(told?.error?.message ?? `the server answered ${answer.status}`, answer.status);
	} finally {
		clearTimeout(timer);
	}
}

/**
 * The server-sent events of a response; `heard` is called for each piece. @param {Response} response @param {() => void} [heard]
 * @returns {AsyncGenerator<{id: string, event: string, data: string}>}
 */
export async function* readEvents(response, heard) {
	const reader = /** @type {ReadableStream<Uint8Array>} */ (response.body).getReader();
	const decoder = new TextDecoder();
	let rest = "";
	let parts = [];
	try {
		for (;;) {
			const { done, value } = await reader.read();
			if (done) return;
			heard?.();
			const text = decoder.decode(value, { stream: true });
			parts.push(text);
			if (!text.includes("\n")) continue; // a long line comes in many pieces: joined once
			const blocks = (rest + parts.join("")).split("\n\n");
			parts = [];
			rest = blocks.pop() ?? "";
			for (const block of blocks) {
				const found = { id: "", event: "message", data: "" };
				for (const line of block.split("\n")) {
					const colon = line.indexOf(": ");
					if (colon > 0) Object.assign(found, { [line.slice(0, colon)]: line.slice(colon + 2) });
				}
				if (found.data) yield found;
			}
		}
	} finally {
		reader.cancel().catch(() => {});
	}
}

/** What a record or a summary says, as the button shows it. @param {any} record @returns {Shown} */
export function shownOf(record) {
	const reason = record.stop?.reason ?? record.reason ?? null;
	const error = record.outcome?.error;
	return {
		id: record.id,
		status: record.status,
		mode: record.stop?.mode ?? record.mode ?? null,
		inFlight: record.inFlight ?? record.receipt?.inFlight ?? [],
		ladder: record.ladder ?? climbs(record.receipt),
		stopRequestedAt: record.stopRequestedAt ?? null,
		endedAt: record.endedAt ?? null,
		actor: reason?.actor ?? (reason && reason.kind !== "user" ? reason.kind : null),
		left: leftOf(record.receipt?.entries ?? []),
		silent: silentOf(record.receipt?.entries ?? []),
		late: record.endedLate ?? null,
		blind: record.receipt?.blind ?? false,
		error: error ? `${error.type}: ${error.message}` : (record.error ?? null),
	};
}

/** The rungs of a receipt, each with its time. @param {any} receipt @returns {Rung[]} */
export const climbs = (receipt) =>
	(receipt?.ladder ?? []).map((/** @type {Step} */ { rung, after }) => ({ rung, at: receipt.requestedAt + after }));

/** What may still be running: threads, processes and remotes by name, or else the calls. @param {Became[]} entries */
export function leftOf(entries) {
	const left = entries.filter((one) => one.kind !== "run" && ["abandoned", "unreachable"].includes(one.fate));
	const named = left.filter((one) => one.kind === "participant");
	return named.length ? named.map((one) => one.name) : left.map((one) => `${spoken(one.kind)} ${one.name}`);
}

/** The remotes that have the stop, and cannot say whether they ended. @param {Became[]} entries */
export const silentOf = (entries) => entries.filter((one) => one.fate === "told").map((one) => `${spoken(one.kind)} ${one.name}`);

const LOOK = `
:host { display:inline-flex; align-items:center; gap:8px 12px; font:14px/1.4 system-ui, sans-serif;
	--kill:var(--stop-kill, light-dark(#b3261e, #ff8a80)); --muted:var(--stop-muted, light-dark(#566070, #a0a9b6)); --line:var(--stop-line, light-dark(#c3c9d2, #434b58)) }
:host([hidden]), [hidden] { display:none !important }
button { font:inherit; font-weight:600; cursor:pointer; display:inline-flex; align-items:center; gap:8px; height:36px;
	justify-content:center; padding:0 12px; border-radius:8px; white-space:nowrap; border:1px solid var(--line); background:transparent; color:inherit }
[part~="button"] { min-width:112px; padding:0 16px; border-color:transparent; background:var(--stop-bg, light-dark(#1d2530, #e6e9ee)); color:var(--stop-fg, light-dark(#fff, #14181e)) }
button:hover { filter:brightness(1.15) }
button:focus-visible { outline:2px solid var(--stop-focus, light-dark(#1f5fb4, #7db1f5)); outline-offset:2px }
button[data-mode="kill"] { color:var(--kill); border-color:currentColor }
[part="harder"] { height:32px; font-size:13px }
button:is(:disabled, [aria-disabled="true"]) { cursor:default; filter:none; background:transparent; color:var(--muted); border-color:var(--line) }
i { width:10px; height:10px; border-radius:2px; background:currentColor }
button, i, svg { flex:none }
svg { width:18px; height:18px; transform:rotate(-90deg); fill:none; stroke:currentColor; stroke-width:2.5 }
circle:first-child { opacity:0.3 }
circle:last-child { transition:stroke-dashoffset 0.25s linear }
[part="controls"] { display:inline-flex; align-items:center; gap:8px }
[part="confirm"] { display:flex; flex-wrap:wrap; align-items:center; gap:8px 12px }
[part="panel"] { position:fixed; inset:auto; margin:0; width:max-content; box-sizing:border-box; white-space:normal; text-align:left; padding:10px 12px; border-radius:8px;
	border:1px solid var(--line); background:light-dark(#fff, #1b1f26); color:light-dark(#1b2027, #e5e8ed); font:14px/1.4 system-ui, sans-serif }
[part="line"] { color:var(--muted); overflow-wrap:anywhere }
[part="line"][data-failed] { color:var(--kill) }
[role="timer"] { font-variant-numeric:tabular-nums; white-space:nowrap }
:host([compact]) [part="controls"] button { height:28px; min-width:0; padding:0 10px; font-size:13px; border-radius:6px; gap:6px }
:host([compact]) svg { width:14px; height:14px }
@media (max-width: 480px) { [part="question"] { flex-basis:100% } }
@media (prefers-reduced-motion: reduce) { circle:last-child { transition:none } }
`;
export const APPEARS = 1000; // ms after which a harder control is there
export const SEEN = 300; // ms for which it is in sight before a press counts: nobody means what has just come under the pointer
const READ = 500; // ms for which the question is looked at before its answer counts
const SPOT = 24; // px: clicks within it are at the same spot
const IMPATIENCE = 2000; // ms between clicks at the same spot

/** Whether a click counts: a double click is one. @param {any} event */
export const isMeant = ({ detail, currentTarget }) => detail < 2 && currentTarget.ariaDisabled !== "true";

/** @param {string} tag @param {Record<string, string>} attributes @param {(Node | string)[]} children */
function make(tag, attributes = {}, ...children) {
	const isDrawn = tag === "svg" || tag === "circle";
	const made = isDrawn ? document.createElementNS("http://www.w3.org/2000/svg", tag) : document.createElement(tag);
	for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
	made.append(...children);
	return /** @type {HTMLButtonElement} */ (made);
}

const ROUND = { cx: "9", cy: "9", r: "7", pathLength: "1" };

/** What the button knows of one run, and has done about it; another run begins with a new one. */
class Watch {
	/** @type {Shown} */ run;
	/** @type {Sent | null} the last press */ sent = null;
	/** @type {any} the last answer to a press */ receipt = null;
	isKnown = true;
	refusal = ""; // why it cannot be followed
	/** @type {number | null} when it was asked whether to kill */ asked = null;
	told = "";
	/** @type {Map<Mode | null, number>} when each mode was first seen */ since = new Map();
	following = new AbortController();

	/** @param {string} id */
	constructor(id) {
		this.run = shownOf({ id, status: "pending" });
	}

	/** The run with the presses that the server may not have told of yet. @returns {Shown} */
	get shown() {
		const { run, sent, receipt } = this;
		if (isOver(run.status)) return run;
		const rank = (/** @type {Mode | null | undefined} */ mode) => (mode ? RANK[mode] : -1);
		const known = rank(receipt?.mode) <= rank(run.mode) ? run : { ...run, status: /** @type {Status} */ ("stopping"), mode: /** @type {Mode} */ (receipt.mode), stopRequestedAt: receipt.requestedAt, inFlight: receipt.inFlight, ladder: climbs(receipt), blind: receipt.blind };
		if (!sent || sent.failed || rank(sent.mode) <= rank(known.mode)) return known;
		return { ...known, mode: sent.mode };
	}

	/** Whether a press was sent and not answered. */
	get isWaiting() {
		const { sent, receipt, run } = this;
		return sent !== null && !sent.failed && receipt?.mode !== sent.mode && run.mode !== sent.mode;
	}

	/** For how long it has been in this mode. @param {Mode | null} mode */
	inMode(mode) {
		const since = this.since.get(mode) ?? performance.now();
		this.since.set(mode, since);
		return performance.now() - since;
	}
}

// A server that renders pages loads this file, too, and has no elements.
export class StoppableButton extends (globalThis.HTMLElement ?? class {}) {
	static observedAttributes = ["base", "run-id", "readonly"];

	/** What is sent with every request, as `{Authorization: "Bearer …"}`. @type {() => Record<string, string>} */
	headers = () => ({});
	/** The server's time in seconds. @type {() => number} */
	now = () => Date.now() / 1000 - this.#skew;
	#watch = new Watch("");
	#skew = 0; // by which the clock here is ahead of the server's
	#isFed = false;
	#timer = 0;
	#spot = { x: -1e6, y: 0, at: 0 }; // of the last click
	#appeared = 0; // when the harder control came in sight
	#icon = make("i");
	#circle = make("circle", { ...ROUND, "stroke-dasharray": "1" });
	#ring = make("svg", { viewBox: "0 0 18 18", "aria-hidden": "true" }, make("circle", ROUND), this.#circle);
	#label = make("span");
	#button = make("button", { part: "button", type: "button" }, this.#icon, this.#ring, this.#label);
	#harder = make("button", { part: "harder", type: "button" });
	#controls = make("span", { part: "controls" }, this.#button, this.#harder);
	#kill = make("button", { part: "kill", type: "button", "data-mode": "kill" }, "Kill");
	#keep = make("button", { part: "keep", type: "button" }, "Keep waiting");
	#confirm = make("div", { part: "confirm", role: "group", "aria-labelledby": "q" },
		make("span", { part: "question", id: "q" }, "Kill without clean-up?"), this.#kill, this.#keep);
	#says = make("span", { role: "status" });
	#count = make("span", { role: "timer" });
	#line = make("span", { part: "line" }, this.#says, " ", this.#count);
	#panel = make("div", { part: "panel", popover: "manual" }, this.#confirm); // above everything, so that nothing cuts it off

	constructor() {
		super();
		const sheet = new CSSStyleSheet();
		sheet.replaceSync(LOOK);
		const root = this.attachShadow({ mode: "open", delegatesFocus: true });
		root.adoptedStyleSheets = [sheet];
		root.append(this.#controls, this.#line, this.#panel);
		this.#button.addEventListener("click", (event) => isMeant(event) && this.press());
		this.#harder.addEventListener("click", (event) => isMeant(event) && this.#escalate(event));
		this.#kill.addEventListener("click", (event) => isMeant(event) && this.#answer(event));
		this.#keep.addEventListener("click", () => this.#ask(false));
		root.addEventListener("click", (event) => this.#note(/** @type {MouseEvent} */ (event)));
		root.addEventListener("keydown", (event) => this.#key(/** @type {KeyboardEvent} */ (event)));
	}

	connectedCallback() {
		if (this.hasAttribute("compact")) this.#panel.append(this.#line);
		this.#timer = window.setInterval(() => this.#watch.shown.mode !== null && this.#render(), 250);
		addEventListener("scroll", this.#place, { capture: true, passive: true });
		addEventListener("resize", this.#place);
		if (!this.#isFed) this.#restart();
		this.#render();
	}

	disconnectedCallback() {
		clearInterval(this.#timer);
		removeEventListener("scroll", this.#place, { capture: true });
		removeEventListener("resize", this.#place);
		this.#harder.hidden = true; // wherever it is next, it comes in sight anew
		this.#watch.following.abort();
	}

	/** @param {string} name @param {string | null} before @param {string | null} after */
	attributeChangedCallback(name, before, after) {
		if (before === after) return;
		if (name === "run-id") this.#isFed = false;
		if (this.isConnected && name !== "readonly" && !this.#isFed) this.#restart();
		this.#render();
	}

	/** What is shown; setting it feeds the button, which then follows nothing by itself. */
	get run() {
		return this.#watch.run;
	}

	set run(run) {
		if (run.id !== this.#watch.run.id || !this.#isFed) this.#begin(run.id);
		this.#isFed = true;
		this.#show(this.#watch, run);
	}

	/** Press Stop. Only the first press counts: it never escalates. */
	press() {
		const mode = controlsOf(this.#watch.shown)?.mode;
		if (mode && !this.hasAttribute("readonly")) this.#send(mode);
	}

	/** What Escape means: no, if there is a question; else the first press. */
	escape() {
		if (this.#watch.asked !== null) this.#ask(false);
		else this.press();
	}

	/** Whether a click is of somebody who goes on clicking where the last click was. @param {MouseEvent} event */
	#isImpatient({ detail, clientX, clientY }) {
		const { x, y, at } = this.#spot;
		return detail > 0 && Math.hypot(clientX - x, clientY - y) < SPOT && performance.now() - at < IMPATIENCE;
	}

	/** @param {MouseEvent} event */
	#note({ detail, clientX: x, clientY: y }) {
		if (detail) this.#spot = { x, y, at: performance.now() };
	}

	/** @param {KeyboardEvent} event */
	#key(event) {
		if (event.repeat && ["Enter", " "].includes(event.key)) event.preventDefault(); // a key that is held is one press
		if (event.key !== "Escape" || this.#watch.asked === null) return;
		event.preventDefault();
		this.#ask(false);
	}

	/** @param {MouseEvent} event */
	#escalate(event) {
		const harder = controlsOf(this.#watch.shown)?.harder;
		if (harder?.mode === "kill") this.#ask(true);
		else if (harder && !this.#isImpatient(event)) this.#send(harder.mode);
	}

	/** @param {MouseEvent} event */
	#answer(event) {
		const { asked } = this.#watch;
		if (asked !== null && performance.now() - asked >= READ && !this.#isImpatient(event)) this.#send("kill");
	}

	/** @param {boolean} isAsking */
	#ask(isAsking) {
		this.#watch.asked = isAsking ? performance.now() : null;
		this.#render();
		(isAsking ? this.#keep : this.#harder).focus(); // two quick presses do not kill
	}

	/** @param {Mode} mode */
	async #send(mode) {
		const watch = this.#watch;
		const sent = (watch.sent = /** @type {Sent} */ ({ mode }));
		const hadFocus = this.shadowRoot?.activeElement;
		watch.asked = null;
		this.#render();
		if (hadFocus) this.#button.focus(); // which does nothing now
		try {
			const reason = this.getAttribute("reason");
			const hold = watch.isKnown ? "" : "?ifUnknown=wait"; // the stop waits for its run
			const answer = await this.#request(`stop${hold}`, { method: "POST", body: JSON.stringify(reason ? { mode, reason } : { mode }) });
			const { receipt } = await answer.json();
			watch.receipt = { ...receipt, mode: receipt.mode ?? mode }; // it has no mode yet if it waits for its run
			if (["accepted", "escalated"].includes(receipt.answer)) this.#skew = Date.now() / 1000 - receipt.requestedAt;
		} catch (error) {
			sent.failed = failureOf(error);
		}
		this.#render();
	}

	/** @param {string} path @param {RequestInit} [options] */
	#request(path, options = {}) {
		const base = new URL(`${(this.getAttribute("base") ?? ".").replace(/\/$/, "")}/runs/`, document.baseURI);
		const headers = { ...this.headers(), ...(options.body ? { "Content-Type": "application/json" } : {}) };
		return ask(new URL(encodeURIComponent(this.#watch.run.id) + (path && `/${path}`), base), { ...options, headers });
	}

	/** Another run: nothing of the one before is left. @param {string} id */
	#begin(id) {
		this.#watch.following.abort();
		this.#watch = new Watch(id);
	}

	#restart() {
		const id = this.getAttribute("run-id") ?? "";
		this.#begin(id);
		if (id) this.#follow(this.#watch);
	}

	/** @param {Watch} watch */
	async #follow(watch) {
		const { signal } = watch.following;
		/** @type {number | undefined} */ let seen;
		let isPlaced = false;
		for (let tries = 0; !signal.aborted; tries++) {
			let wait = RETRY[tries] ?? 5000;
			try {
				const record = await (await this.#request("", { signal })).json();
				const shown = shownOf(record);
				watch.isKnown = true;
				watch.refusal = "";
				this.#show(watch, { ...shown, inFlight: watch.run.inFlight.length ? watch.run.inFlight : shown.inFlight });
				if (isOver(record.status)) return watch.following.abort(); // its place is free
				if ((isPlaced ||= await takePlace(signal))) {
					seen ??= record.lastEvent < REPLAYED ? 0 : record.lastEvent; // what is in flight, unless that is long ago
					const stream = await this.#request(`events?after=${seen}`, { signal });
					tries = 0;
					for await (const { id, data } of readEvents(stream)) {
						seen = Number(id) || seen;
						if (this.#take(watch, JSON.parse(data))) break;
					}
					continue;
				}
				[tries, wait] = [0, LOOK_AGAIN];
			} catch (error) {
				const { status } = /** @type {Failure} */ (error);
				watch.isKnown = watch.isKnown && status !== 404;
				watch.refusal = UNSEEN[/** @type {401} */ (status)] ?? "";
				this.#render();
			}
			await new Promise((done) => setTimeout(done, wait));
		}
	}

	/** Take in an event; says whether the record tells more. @param {Watch} watch @param {any} event */
	#take(watch, { type, data }) {
		if (type !== "entered" && type !== "left") return type === "status" || type === "done";
		const label = data.name ? `${data.kind}:${data.name}` : data.kind;
		const open = [...watch.run.inFlight];
		if (type === "entered") open.push(label);
		else open.splice(open.indexOf(label) >>> 0, 1);
		this.#show(watch, { ...watch.run, inFlight: open });
	}

	/** @param {Watch} watch @param {Shown} run */
	#show(watch, run) {
		watch.run = run;
		if (!run.id || isOver(run.status)) watch.asked = null;
		if (watch === this.#watch) this.#render();
	}

	#render() {
		const watch = this.#watch;
		const run = watch.shown;
		const isCompact = this.hasAttribute("compact");
		const isOffered = !this.hasAttribute("readonly") && !(isCompact && isOver(run.status));
		const controls = isOffered ? controlsOf(run) : null;
		const { text, until } = this.#sentence(run);
		const now = this.now();
		const harder = watch.inMode(run.mode) < APPEARS ? null : controls?.harder;
		if (harder && this.#harder.hidden) {
			this.#appeared = performance.now();
			setTimeout(() => this.#render(), SEEN);
		}
		const isFailed = !!watch.sent?.failed && !isOver(run.status);
		this.#button.hidden = controls === null;
		this.#button.ariaDisabled = String(!controls?.mode);
		this.#button.dataset.mode = controls?.mode ?? "";
		this.#button.part.toggle("ready", !!controls?.mode);
		set(this.#label, controls?.label ?? "");
		if (!harder && this.shadowRoot?.activeElement === this.#harder) this.#button.focus();
		this.#harder.hidden = !harder;
		this.#harder.ariaDisabled = String(performance.now() - this.#appeared < SEEN);
		this.#harder.dataset.mode = harder?.mode ?? "";
		set(this.#harder, harder?.label ?? "");
		this.#ring.toggleAttribute("hidden", !until);
		this.#icon.hidden = !!until || run.status === "lost";
		if (until) this.#circle.style.strokeDashoffset = String(Math.min(1, Math.max(0, 1 - (until.at - now) / (until.at - until.from || 1))));
		set(this.#says, text);
		set(this.#count, until ? `${until.word} in ${Math.max(0, Math.ceil(until.at - now))} s.` : "");
		this.#line.toggleAttribute("data-failed", isFailed);
		this.#line.hidden = isCompact && !isFailed;
		this.#confirm.hidden = watch.asked === null;
		this.toggleAttribute("data-empty", controls === null && !text);
		this.#open(this.isConnected && (watch.asked !== null || (isCompact && isFailed)));
		this.#tell(run);
	}

	/** @param {boolean} isOpen */
	#open(isOpen) {
		if (isOpen === this.#panel.matches(":popover-open")) return isOpen && this.#place();
		this.#panel.togglePopover(isOpen);
		if (isOpen) this.#place();
	}

	/** The panel is beside the button, whole, and never where the pointer has just pressed. */
	#place = () => {
		if (!this.#panel.matches(":popover-open")) return;
		const { style } = this.#panel;
		const at = this.getBoundingClientRect();
		const isBeside = this.hasAttribute("compact") && at.left > 200;
		style.maxWidth = `${Math.min(400, isBeside ? at.left - 16 : innerWidth - 16)}px`;
		const { offsetWidth: width, offsetHeight: height } = this.#panel;
		const isBelow = at.bottom + height + 16 < innerHeight;
		const top = isBeside ? at.top + (at.height - height) / 2 : isBelow ? at.bottom + 8 : at.top - height - 8;
		const left = isBeside ? at.left - width - 8 : at.right - width;
		style.top = `${Math.max(8, Math.min(innerHeight - height - 8, top))}px`;
		style.left = `${Math.max(8, Math.min(innerWidth - width - 8, left))}px`;
	};

	/** @param {Shown} run @returns {ReturnType<typeof stopLine>} */
	#sentence(run) {
		const { sent, isWaiting, isKnown, refusal } = this.#watch;
		if (!isOver(run.status)) {
			if (sent?.failed) return { text: sent.failed };
			if (isWaiting) return { text: "Sending the stop…" };
			if (refusal) return { text: refusal };
		}
		if (!isKnown && run.status === "stopping") return { text: "Stopping… as soon as it starts." };
		const line = stopLine(run, this.now());
		return line.until && !Number.isFinite(line.until.at) ? { text: line.text } : line; // nothing is due
	}

	/** @param {Shown} run */
	#tell(run) {
		const told = isOver(run.status) ? "ended" : run.status === "stopping" ? `stopping ${run.mode}` : "";
		if (!told || told === this.#watch.told) return;
		this.#watch.told = told;
		this.dispatchEvent(new CustomEvent(told.split(" ")[0], { detail: run, bubbles: true, composed: true }));
	}
}

/** @param {HTMLElement} element @param {string} text */
function set(element, text) {
	if (element.textContent !== text) element.textContent = text; // nobody hears it twice
}

if (globalThis.customElements && !customElements.get("stoppable-button")) customElements.define("stoppable-button", StoppableButton);

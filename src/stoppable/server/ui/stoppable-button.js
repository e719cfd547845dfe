/**
 * <stoppable-button base="https://agents.example" run-id="…"></stoppable-button>
 *
 * A stop button for one run, without dependencies. It follows the run by itself, or shows what its `run` property
 * says. Each press means the next mode: graceful, immediate, kill. It never says that a run has stopped before that
 * is true, and a press that could not be sent is said to have failed.
 */

const RANK = { cooperative: 0, graceful: 1, immediate: 2, kill: 3 };
const TIMEOUT = 10_000;
const REPLAYED = 1000; // events
const RETRY = [500, 1000, 2000, 5000];

/** @param {string} status */
export const isOver = (status) => !["pending", "running", "stopping"].includes(status);

/** "llm:ask" as people say it. @param {string} label */
export const spoken = (label) => label.replace(":", " ");

/** Labels, each once, with how often it is there. @param {readonly string[]} labels */
export function counted(labels) {
	const counts = new Map();
	for (const label of [...labels].sort()) counts.set(label, (counts.get(label) ?? 0) + 1);
	return [...counts].map(([label, count]) => spoken(label) + (count > 1 ? ` ×${count}` : "")).join(", ");
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

/** What the next press does. @param {string} status @param {Mode | null} mode @returns {{label: string, mode: Mode | null} | null} */
export function nextPress(status, mode) {
	if (status === "stopped") return { label: "Stopped", mode: null };
	if (status === "lost") return { label: "Unconfirmed", mode: null };
	if (isOver(status)) return null;
	if (mode === null) return { label: "Stop", mode: "graceful" };
	if (RANK[mode] < RANK.immediate) return { label: "Stop now", mode: "immediate" };
	if (mode === "immediate") return { label: "Kill", mode: "kill" };
	return { label: "Killing…", mode: null };
}

/**
 * The sentence beside the button, and what counts down to when.
 * @param {Shown} run @param {number} now
 * @returns {{text: string, until?: {word: string, at: number, from: number}}}
 */
export function stopLine(run, now) {
	if (run.status === "stopping") return stoppingLine(run, now);
	const after = run.stopRequestedAt === null || run.endedAt === null ? "" : duration(run.endedAt - run.stopRequestedAt);
	if (run.status === "stopped") return { text: [run.actor && `by ${run.actor}`, after].filter(Boolean).join(", ") };
	if (run.status === "lost") {
		if (run.late) return { text: `Was unconfirmed; ended by itself at ${clock(run.late)}.` };
		return { text: `May still be running: ${run.left.join(", ") || "its worker does not answer"}.` };
	}
	if (run.status === "completed") return { text: run.stopRequestedAt ? "Finished before the stop arrived." : "" };
	if (run.status === "failed") return { text: (run.error ?? "").trim().split("\n").at(-1) ?? "" };
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
		const [kind, name] = run.inFlight[0]?.split(":") ?? [];
		const calls = run.inFlight.length > 1 ? `calls (${counted(run.inFlight)})` : `${kind} call${name ? ` (${name})` : ""}`;
		const text = run.inFlight.length ? `Stopping… after the current ${calls}.` : "Stopping… at its next step.";
		return { text, until: { word: "Forced", at: interrupt, from } };
	}
	if (now < kill) return { text: "Cancelling… clean-up is running.", until: { word: "Killed", at: kill, from: cancel } };
	return { text: "Killing… clean-up may not run.", until: { word: "Unconfirmed", at: lost, from: kill } };
}

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
		left: leftOf(record.receipt?.nodes ?? []),
		late: record.endedLate ?? null,
		blind: record.receipt?.blind ?? false,
		error: error ? `${error.type}: ${error.message}` : (record.error ?? null),
	};
}

/** The rungs of a receipt, each with its time. @param {any} receipt @returns {Rung[]} */
export const climbs = (receipt) =>
	(receipt?.ladder ?? []).map((/** @type {Step} */ { rung, after }) => ({ rung, at: receipt.requestedAt + after }));

/** What may still be running: threads, processes and remotes by name, or else the calls. @param {Became[]} nodes */
export function leftOf(nodes) {
	const left = nodes.filter((node) => node.kind !== "run" && ["abandoned", "unreachable"].includes(node.fate));
	const named = left.filter((node) => node.kind === "participant");
	return named.length ? named.map((node) => node.name) : left.map((node) => `${node.kind} ${node.name}`);
}

const LOOK = `
:host { display:inline-flex; align-items:center; gap:12px; font:14px/1.4 system-ui, sans-serif; position:relative;
	--kill:var(--stop-kill, light-dark(#b3261e, #ff8a80)); --muted:var(--stop-muted, light-dark(#566070, #a0a9b6)); --line:var(--stop-line, light-dark(#c3c9d2, #434b58)) }
:host([hidden]), [hidden] { display:none !important }
button { font:inherit; font-weight:600; cursor:pointer; display:inline-flex; align-items:center; gap:8px; height:36px;
	min-width:96px; justify-content:center; padding:0 16px; border-radius:8px; white-space:nowrap;
	border:1px solid transparent; background:var(--stop-bg, light-dark(#1d2530, #e6e9ee)); color:var(--stop-fg, light-dark(#fff, #14181e)) }
button:hover:enabled { filter:brightness(1.15) }
button:focus-visible { outline:2px solid var(--stop-focus, light-dark(#1f5fb4, #7db1f5)); outline-offset:2px }
button[data-mode="kill"] { background:transparent; color:var(--kill); border-color:currentColor }
button[data-mode="keep"] { background:transparent; color:inherit; border-color:var(--line) }
button:disabled { cursor:default; background:transparent; color:var(--muted); border-color:var(--line) }
i { width:10px; height:10px; border-radius:2px; background:currentColor }
button, i, svg { flex:none }
svg { width:18px; height:18px; transform:rotate(-90deg); fill:none; stroke:currentColor; stroke-width:2.5 }
circle:first-child { opacity:0.3 }
circle:last-child { transition:stroke-dashoffset 0.25s linear }
[part="confirm"] { display:inline-flex; align-items:center; gap:8px }
[part="line"] { color:var(--muted); overflow-wrap:anywhere }
[part="line"][data-failed] { color:var(--kill) }
[role="timer"] { font-variant-numeric:tabular-nums; white-space:nowrap }
:host([compact]) button { height:28px; padding:0 10px; width:100%; font-size:13px; border-radius:6px; gap:6px }
:host([compact]) button:disabled { border-color:transparent }
:host([compact]) svg { width:14px; height:14px }
:host([compact]) :is([part="line"], [part="question"]) { position:absolute; width:1px; height:1px; overflow:hidden; clip-path:inset(50%) }
@media (prefers-reduced-motion: reduce) { circle:last-child { transition:none } }
`;

/** @param {string} tag @param {Record<string, string>} attributes @param {(Node | string)[]} children */
function make(tag, attributes = {}, ...children) {
	const isDrawn = tag === "svg" || tag === "circle";
	const made = isDrawn ? document.createElementNS("http://www.w3.org/2000/svg", tag) : document.createElement(tag);
	for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
	made.append(...children);
	return /** @type {HTMLButtonElement} */ (made);
}

const ROUND = { cx: "9", cy: "9", r: "7", pathLength: "1" };

export class StoppableButton extends HTMLElement {
	static observedAttributes = ["base", "run-id"];

	/** What is sent with every request, as `{Authorization: "Bearer …"}`. @type {() => Record<string, string>} */
	headers = () => ({});
	/** The server's time in seconds. @type {() => number} */
	now = () => Date.now() / 1000 - this.#skew;
	/** @type {Shown} */ #run = shownOf({ id: "", status: "pending" });
	/** @type {Sent | null} */ #sent = null;
	#skew = 0; // by which the clock here is ahead of the server's
	#isKnown = true;
	#isFed = false;
	#isAsking = false; // whether to kill
	#told = "";
	/** @type {AbortController | null} */ #following = null;
	#timer = 0;
	#icon = make("i");
	#circle = make("circle", { ...ROUND, "stroke-dasharray": "1" });
	#ring = make("svg", { viewBox: "0 0 18 18", "aria-hidden": "true" }, make("circle", ROUND), this.#circle);
	#label = make("span");
	#button = make("button", { part: "button", type: "button" }, this.#icon, this.#ring, this.#label);
	#kill = make("button", { part: "kill", type: "button", "data-mode": "kill" }, "Kill");
	#keep = make("button", { part: "keep", type: "button", "data-mode": "keep" }, "Keep waiting");
	#confirm = make("span", { part: "confirm", role: "group", "aria-labelledby": "q" },
		make("span", { part: "question", id: "q" }, "Kill without clean-up?"), this.#kill, this.#keep);
	#says = make("span", { role: "status" });
	#count = make("span", { role: "timer" });
	#line = make("span", { part: "line" }, this.#says, " ", this.#count);

	constructor() {
		super();
		const sheet = new CSSStyleSheet();
		sheet.replaceSync(LOOK);
		const root = this.attachShadow({ mode: "open", delegatesFocus: true });
		root.adoptedStyleSheets = [sheet];
		root.append(this.#button, this.#confirm, this.#line);
		this.#button.addEventListener("click", () => this.press());
		this.#kill.addEventListener("click", () => this.#send("kill"));
		this.#keep.addEventListener("click", () => this.#ask(false));
	}

	connectedCallback() {
		this.#timer = window.setInterval(() => this.#shown.status === "stopping" && this.#render(), 250);
		this.#restart();
		this.#render();
	}

	disconnectedCallback() {
		clearInterval(this.#timer);
		this.#following?.abort();
	}

	attributeChangedCallback() {
		if (this.isConnected) this.#restart();
	}

	/** What is shown; setting it feeds the button, which then follows nothing by itself. */
	get run() {
		return this.#run;
	}

	set run(run) {
		if (run.id !== this.#run.id) this.#sent = null;
		if (!run.id || isOver(run.status)) this.#isAsking = false;
		this.#isFed = true;
		this.#run = run;
		this.#render();
	}

	/** Press it: the next mode is sent; a kill asks first. */
	press() {
		const next = nextPress(this.#shown.status, this.#shown.mode);
		if (!next?.mode) return;
		if (next.mode === "kill") this.#ask(true);
		else this.#send(next.mode);
	}

	/** The run with the press that the server may not have told of yet. @returns {Shown} */
	get #shown() {
		const run = this.#run;
		const sent = this.#sent;
		const known = run.mode === null ? -1 : RANK[run.mode];
		if (!sent || sent.failed || isOver(run.status) || known >= RANK[sent.mode]) return run;
		if (!sent.receipt) return { ...run, mode: sent.mode };
		const { requestedAt, inFlight } = sent.receipt;
		return { ...run, status: "stopping", mode: sent.mode, stopRequestedAt: requestedAt, inFlight, ladder: climbs(sent.receipt), blind: sent.receipt.blind };
	}

	/** @param {boolean} isAsking */
	#ask(isAsking) {
		this.#isAsking = isAsking;
		this.#render();
		(isAsking ? this.#keep : this.#button).focus(); // two quick presses do not kill
	}

	/** @param {Mode} mode */
	async #send(mode) {
		const sent = (this.#sent = /** @type {Sent} */ ({ mode }));
		this.#isAsking = false;
		this.#render();
		if (mode === "kill") this.#button.focus();
		try {
			const reason = this.getAttribute("reason");
			const hold = this.#isKnown ? "" : "?ifUnknown=hold"; // the stop waits for its run
			const answer = await this.#request(`stop${hold}`, { method: "POST", body: JSON.stringify(reason ? { mode, reason } : { mode }) });
			sent.receipt = (await answer.json()).receipt;
			if (["accepted", "escalated"].includes(sent.receipt.answer)) this.#skew = Date.now() / 1000 - sent.receipt.requestedAt;
		} catch (error) {
			sent.failed = error instanceof Error ? error.message : String(error);
		}
		this.#render();
	}

	/** @param {string} path @param {RequestInit} [options] */
	#request(path, options = {}) {
		const base = new URL(`${(this.getAttribute("base") ?? ".").replace(/\/$/, "")}/runs/`, document.baseURI);
		const headers = { ...this.headers(), ...(options.body ? { "Content-Type": "application/json" } : {}) };
		return ask(new URL(encodeURIComponent(this.#id) + (path && `/${path}`), base), { ...options, headers });
	}

	get #id() {
		return this.#isFed ? this.#run.id : (this.getAttribute("run-id") ?? "");
	}

	#restart() {
		this.#following?.abort();
		if (this.#isFed || !this.#id) return;
		this.#following = new AbortController();
		this.#follow(this.#following.signal);
	}

	/** @param {AbortSignal} signal */
	async #follow(signal) {
		/** @type {number | undefined} */ let seen;
		for (let tries = 0; !signal.aborted; tries++) {
			try {
				const record = await (await this.#request("", { signal })).json();
				const shown = shownOf(record);
				this.#isKnown = true;
				this.#show({ ...shown, inFlight: this.#run.inFlight.length ? this.#run.inFlight : shown.inFlight });
				if (isOver(record.status)) return;
				seen ??= record.lastEvent < REPLAYED ? 0 : record.lastEvent; // what is in flight, unless that is long ago
				const stream = await this.#request(`events?after=${seen}`, { signal });
				tries = 0;
				for await (const { id, data } of readEvents(stream)) {
					seen = Number(id) || seen;
					if (this.#take(JSON.parse(data))) break;
				}
				continue;
			} catch (error) {
				this.#isKnown = this.#isKnown && /** @type {any} */ (error).status !== 404;
			}
			await new Promise((done) => setTimeout(done, RETRY[Math.min(tries, RETRY.length - 1)]));
		}
	}

	/** Take in an event; says whether the record tells more. @param {any} event */
	#take({ type, data }) {
		if (type !== "entered" && type !== "left") return type === "status" || type === "done";
		const label = data.name ? `${data.kind}:${data.name}` : data.kind;
		const open = [...this.#run.inFlight];
		if (type === "entered") open.push(label);
		else open.splice(open.indexOf(label) >>> 0, 1);
		this.#show({ ...this.#run, inFlight: open });
	}

	/** @param {Shown} run */
	#show(run) {
		this.#run = run;
		this.#render();
	}

	#render() {
		const run = this.#shown;
		const next = nextPress(run.status, run.mode);
		const { text, until } = this.#sentence(run);
		const now = this.now();
		this.#button.hidden = next === null || this.#isAsking;
		this.#confirm.hidden = !this.#isAsking;
		this.#button.disabled = !next?.mode;
		this.#button.dataset.mode = next?.mode ?? "";
		set(this.#label, next?.label ?? "");
		this.#ring.toggleAttribute("hidden", !until);
		this.#icon.hidden = !!until || run.status === "lost";
		if (until) this.#circle.style.strokeDashoffset = String(Math.min(1, Math.max(0, 1 - (until.at - now) / (until.at - until.from || 1))));
		set(this.#says, text);
		set(this.#count, until ? `${until.word} in ${Math.max(0, Math.ceil(until.at - now))} s.` : "");
		this.#line.toggleAttribute("data-failed", !!this.#sent?.failed && !isOver(run.status));
		this.toggleAttribute("data-empty", next === null && !text);
		this.#tell(run);
	}

	/** @param {Shown} run @returns {ReturnType<typeof stopLine>} */
	#sentence(run) {
		const sent = this.#sent;
		if (sent && !isOver(run.status)) {
			if (sent.failed) return { text: `Not sent: ${sent.failed}. Press again; a repeat is safe.` };
			if (!sent.receipt && this.#run.mode !== sent.mode) return { text: "Sending the stop…" };
		}
		if (!this.#isKnown && run.status === "stopping") return { text: "Stopping… as soon as it starts." };
		return stopLine(run, this.now());
	}

	/** @param {Shown} run */
	#tell(run) {
		const told = isOver(run.status) ? "ended" : run.status === "stopping" ? `stopping ${run.mode}` : "";
		if (!told || told === this.#told) return;
		this.#told = told;
		this.dispatchEvent(new CustomEvent(told.split(" ")[0], { detail: run, bubbles: true, composed: true }));
	}
}

/** @param {HTMLElement} element @param {string} text */
function set(element, text) {
	if (element.textContent !== text) element.textContent = text; // nobody hears it twice
}

if (!customElements.get("stoppable-button")) customElements.define("stoppable-button", StoppableButton);

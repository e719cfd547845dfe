/** The list of runs: filtered by its address, live, and never all in the document. */

import { Windowed } from "./windowed.js";
import { age, button as act, chip, copier, empty, failure, fill, h, labelText, say, shortId, statusWord, stopButton, time } from "./dom.js";
import { bulkDialog } from "./bulk.js";
import { counted, isOver, shownOf } from "./stoppable-button.js";
import { now } from "./api.js";
import { live } from "./live.js";

const STATUSES = ["pending", "running", "stopping", "completed", "failed", "stopped", "lost"];
const COLUMNS = ["Status", "Agent", "Run", "Owner", "Labels", "Started", "Duration", "Activity", ""];
const NARROW = matchMedia("(max-width: 900px)");

/** @param {URLSearchParams} query @returns {Page} */
export function runsPage(query) {
	const page = new RunsPage(query);
	return { element: page.element, title: "Runs", close: () => page.close() };
}

class RunsPage {
	/** @type {Set<string>} runs that wait behind "3 new runs" */ #waiting = new Set();
	/** @type {Set<string>} */ #known = new Set();
	#ended = new AbortController();

	/** @param {URLSearchParams} query */
	constructor(query) {
		/** @type {RunFilter} */
		this.filter = {
			status: new Set(query.getAll("status")),
			agent: query.get("agent") ?? "",
			owner: query.get("owner") ?? "",
			label: query.get("label") ?? "",
			text: query.get("text") ?? "",
			subs: query.has("subs"),
		};
		this.chips = h("div.chips", { role: "group", "aria-label": "Status" });
		this.agents = h("select", { "aria-label": "Agent" });
		this.owners = h("select", { "aria-label": "Owner" });
		this.fresh = act("", () => this.#showNew(), { class: "fresh", hidden: true });
		this.stopThese = act("Stop these…", () => bulkDialog(this.filter, this.#shown().filter(isLive)), { class: "quiet" });
		this.body = h("div.body", { role: "rowgroup" });
		this.table = h("div.runs", { role: "table", "aria-label": "Runs" }, heading(), this.body);
		this.notice = h("div");
		this.scroller = h("div.scroller", this.notice, this.table);
		this.element = h("section.page.list", this.#head(), this.#filters(), this.fresh, this.scroller);
		this.rows = new Windowed(this.scroller, this.body, {
			key: (run) => run.id,
			make: rowOf,
			height: () => (NARROW.matches ? 68 : 44),
			end: () => live.more(),
		});
		const { signal } = this.#ended;
		live.addEventListener("change", () => this.#change(), { signal });
		const ticking = setInterval(() => this.rows.draw(), 1000);
		signal.addEventListener("abort", () => clearInterval(ticking));
		this.#change();
	}

	close() {
		this.#ended.abort();
		this.rows.close();
	}

	#head() {
		return h("div.head", h("h1", "Runs"), h("span.space"), this.stopThese, h("a.button", { href: "#/agents" }, "Start a run"));
	}

	#filters() {
		const text = field("Search", this.filter.text, "id, agent, reason …", (value) => (this.filter.text = value));
		const label = field("Label", this.filter.label, "key:value", (value) => (this.filter.label = value));
		const subs = h("input", { type: "checkbox", checked: this.filter.subs });
		subs.addEventListener("change", () => (this.filter.subs = subs.checked));
		this.agents.addEventListener("change", () => (this.filter.agent = this.agents.value));
		this.owners.addEventListener("change", () => (this.filter.owner = this.owners.value));
		const made = h("div.filters", { role: "search", "aria-label": "Filter runs" }, this.chips, this.agents, this.owners, label, text, h("label.check", subs, "sub-runs"));
		const changed = () => this.#filtered();
		made.addEventListener("change", changed);
		made.addEventListener("input", changed);
		return made;
	}

	#filtered() {
		const query = new URLSearchParams();
		for (const one of this.filter.status) query.append("status", one);
		for (const name of /** @type {const} */ (["agent", "owner", "label", "text"])) if (this.filter[name]) query.set(name, this.filter[name]);
		if (this.filter.subs) query.set("subs", "");
		const search = query.toString();
		history.replaceState(null, "", search ? `#/?${search}` : "#/");
		this.#known.clear(); // another list: nothing in it is new
		this.#waiting.clear();
		this.#change();
		this.scroller.scrollTop = 0;
	}

	/** @returns {Summary[]} */
	#shown() {
		return [...live.runs.values()].filter((run) => matches(run, this.filter)).sort(byAge);
	}

	#change() {
		const all = this.#shown();
		const isTouched = this.scroller.scrollTop > 0 || this.scroller.matches(":hover, :focus-within");
		for (const run of all) {
			if (this.#known.has(run.id)) continue;
			const isNew = this.#known.size > 0 && isTouched && run.createdAt > this.#newest;
			(isNew ? this.#waiting : this.#known).add(run.id);
		}
		const shown = all.filter((run) => this.#known.has(run.id));
		this.#newest = Math.max(this.#newest, shown[0]?.createdAt ?? 0);
		this.fresh.hidden = this.#waiting.size === 0;
		say(this.fresh, `${this.#waiting.size} new run${this.#waiting.size === 1 ? "" : "s"}`);
		this.#showChips();
		options(this.agents, "all agents", this.filter.agent, (run) => run.name);
		options(this.owners, "all owners", this.filter.owner, (run) => run.owner);
		this.owners.hidden = this.owners.options.length < 3 && !this.filter.owner;
		this.stopThese.disabled = !shown.some(isLive);
		this.#showNotice(shown.length);
		this.table.hidden = shown.length === 0;
		this.table.setAttribute("aria-rowcount", String(shown.length + 1));
		this.rows.show(shown);
	}

	#newest = 0;

	#showNew() {
		this.#waiting.clear();
		this.#known.clear();
		this.#newest = 0;
		this.scroller.scrollTop = 0;
		this.#change();
	}

	/** @param {number} count */
	#showNotice(count) {
		if (live.error && !live.isLoaded) fill(this.notice, failure(live.error, () => live.start()));
		else if (!live.isLoaded) fill(this.notice, h("p.loading", { role: "status" }, "Loading runs…"));
		else if (count === 0 && live.runs.size === 0) fill(this.notice, noRuns());
		else if (count === 0) fill(this.notice, empty("No run matches", h("p", "Change the filter above.")));
		else fill(this.notice);
	}

	#showChips() {
		const counts = new Map(STATUSES.map((status) => [status, 0]));
		const any = { ...this.filter, status: new Set() };
		for (const run of live.runs.values()) if (matches(run, any)) counts.set(run.status, (counts.get(run.status) ?? 0) + 1);
		if (this.chips.childElementCount === 0) fill(this.chips, ...STATUSES.map((status) => this.#chip(status)));
		for (const button of this.chips.querySelectorAll("button")) {
			const status = button.dataset.status ?? "";
			const count = counts.get(status) ?? 0;
			const isPartly = live.cursor !== null && isOver(status);
			button.setAttribute("aria-pressed", String(this.filter.status.has(status)));
			button.hidden = count === 0 && !this.filter.status.has(status);
			say(button.querySelector(".count"), `${count}${isPartly ? "+" : ""}`);
		}
	}

	/** @param {string} status */
	#chip(status) {
		const toggle = () => {
			if (!this.filter.status.delete(status)) this.filter.status.add(status);
			this.#filtered();
		};
		const mark = h("span.mark", { "aria-hidden": "true" });
		return h("button", { type: "button", class: "chip", "data-status": status, onclick: toggle }, mark, statusWord(status), h("span.count.mono"));
	}
}

/** @param {Summary} a @param {Summary} b */
const byAge = (a, b) => b.createdAt - a.createdAt || (a.id < b.id ? 1 : -1);

/** @param {Summary} run */
const isLive = (run) => !isOver(run.status);

/** @param {Summary} run @param {RunFilter} filter */
function matches(run, { status, agent, owner, label, text, subs }) {
	if (run.parentId !== null && !subs) return false;
	if ((status.size && !status.has(run.status)) || (agent && run.name !== agent) || (owner && run.owner !== owner)) return false;
	if (label) {
		const [key, value] = label.split(/:(.*)/s);
		if (value === undefined ? !(key in run.labels) : run.labels[key] !== value) return false;
	}
	const all = () => `${run.id} ${run.name} ${run.owner ?? ""} ${labelText(run.labels)} ${run.key ?? ""} ${run.reason?.message ?? ""} ${run.error ?? ""}`;
	return !text || all().toLowerCase().includes(text.toLowerCase());
}

function heading() {
	const cells = COLUMNS.map((name) => h("span", { role: "columnheader" }, name || h("span.unseen", "Stop")));
	return h("div.heading", { role: "rowgroup" }, h("div", { role: "row" }, ...cells));
}

/** @param {string} name @param {string} value @param {string} hint @param {(value: string) => void} take */
function field(name, value, hint, take) {
	const made = h("input", { type: "search", "aria-label": name, placeholder: hint, value, spellcheck: "false" });
	made.addEventListener("input", () => take(made.value.trim()));
	return made;
}

/** @param {HTMLSelectElement} select @param {string} all @param {string} chosen @param {(run: Summary) => string | null} pick */
function options(select, all, chosen, pick) {
	const names = new Set(chosen ? [chosen] : []);
	for (const run of live.runs.values()) {
		const name = pick(run);
		if (name) names.add(name);
	}
	const wanted = [...names].sort();
	if (select.options.length === wanted.length + 1 && wanted.every((name, index) => select.options[index + 1].value === name)) return;
	fill(select, h("option", { value: "" }, all), ...wanted.map((name) => h("option", { value: name, selected: name === chosen }, name)));
}

/** @param {Summary} run */
function rowOf(run) {
	const cell = (/** @type {string} */ name, /** @type {any[]} */ ...children) => h("span", { role: "cell", class: name }, ...children);
	const status = cell("status");
	const duration = cell("duration mono");
	const doing = cell("doing");
	const button = stopButton("compact");
	const link = h("a", { href: `#/runs/${encodeURIComponent(run.id)}`, class: run.parentId ? "sub" : "" }, run.name);
	const element = h("div", { role: "row", class: "row", "data-run": run.id }, status, cell("agent", link), cell("id mono", copier(run.id, `Copy the id ${run.id}`, shortId(run.id))), cell("owner", run.owner ?? "–"), cell("labels", labelText(run.labels)), cell("started", time(run.startedAt ?? run.createdAt)), duration, doing, cell("stop", button));
	let before = "";
	const update = (/** @type {Summary} */ next) => {
		if (before !== next.status) fill(status, chip((before = next.status)));
		say(duration, age(next, now()));
		const text = isOver(next.status) ? told(next) : counted(live.inFlight(next));
		say(doing, text);
		doing.title = text;
		button.run = { ...shownOf(next), inFlight: live.inFlight(next) };
	};
	return { element, update };
}

/** @param {Summary} run */
function told(run) {
	if (run.error) return run.error;
	if (run.status === "completed") return run.stopRequestedAt ? "finished before the stop arrived" : "";
	const by = run.reason?.actor ? `by ${run.reason.actor}` : "";
	return [by, run.reason?.message && `“${run.reason.message}”`].filter(Boolean).join(", ");
}

function noRuns() {
	const code = "async with stoppable.Supervisor() as supervisor:\n    run = await supervisor.start(my_agent)";
	return empty("No runs yet", h("p", h("a.button.primary", { href: "#/agents" }, "Start one here")), h("p", "or from Python:"), h("pre", code));
}

/** The list of runs: filtered by its address, live, and never all in the document. */

import { Windowed } from "./windowed.js";
import { STATUSES, SINCE, arranged, filterOf, matches, queryOf } from "./filter.js";
import { button as act, empty, every, failure, fill, h, quiet, say, statusWord } from "./dom.js";
import { bulkDialog } from "./bulk.js";
import { counts, isOver } from "./stoppable-button.js";
import { listKey } from "./keys.js";
import { live } from "./live.js";
import { now } from "./api.js";
import { rowOf } from "./row.js";

const COLUMNS = ["", "Status", "Agent", "Run", "Owner", "Labels", "Started", "Duration", "Activity", " "];
const SORTED = ["Status", "Agent", "Owner", "Started", "Duration"];
const NARROW = matchMedia("(max-width: 1246px)");

let address = "#/"; // of the list as it was left

/** Where the list is, with its last filter. */
export const listAddress = () => address;

export class RunsPage {
	title = "Runs";
	/** @type {Set<string>} runs that wait behind "3 new runs" */ #waiting = new Set();
	/** @type {Set<string>} */ #known = new Set();
	/** @type {Set<string>} runs that were chosen */ #ticked = new Set();
	/** @type {Map<string, number>} where each row was */ #places = new Map();
	#ended = new AbortController();

	/** @param {URLSearchParams} query */
	constructor(query) {
		address = location.hash || "#/";
		this.filter = filterOf(query);
		this.chips = h("div.chips", { role: "group", "aria-label": "Status" });
		this.agents = h("select", { "aria-label": "Agent" });
		this.owners = h("select", { "aria-label": "Owner" });
		this.fresh = act("", () => this.#showNew(), { class: "fresh", hidden: true });
		this.stopThese = quiet("Stop these…", () => this.#stop());
		this.start = h("a.button", { href: "#/agents" }, "Start a run");
		this.body = h("div.body", { role: "rowgroup" });
		this.table = h("div.runs", { role: "table", "aria-label": "Runs" }, this.#heading(), this.body);
		this.notice = h("div");
		this.scroller = h("div.scroller", this.notice, this.table);
		this.element = h("section.page.list", this.#head(), this.#filters(), this.fresh, this.scroller);
		this.rows = new Windowed(this.scroller, this.body, {
			key: (run) => run.id,
			make: (run) => rowOf(run, this.#ticked, () => this.#change()),
			height: () => (NARROW.matches ? 72 : 44),
			end: () => live.more(),
		});
		const { signal } = this.#ended;
		live.addEventListener("change", () => this.#change(), { signal });
		document.addEventListener("keydown", (event) => listKey(event, this.element), { signal });
		this.scroller.addEventListener("pointerleave", () => this.#change(), { signal });
		every(1000, () => this.rows.draw(), signal);
		this.#change();
	}

	close() {
		this.#ended.abort();
		this.rows.close();
	}

	#head() {
		return h("div.head", h("h1", "Runs"), h("span.space"), this.stopThese, this.start);
	}

	#filters() {
		const text = field("Search", this.filter.text, "id, agent, reason …", (value) => (this.filter.text = value));
		const label = field("Label", this.filter.label, "key:value", (value) => (this.filter.label = value));
		const since = h("select", { "aria-label": "Time" }, ...Object.entries(SINCE).map(([value, [name]]) => h("option", { value, selected: value === this.filter.since }, name)));
		const subs = h("input", { type: "checkbox", checked: this.filter.subs });
		subs.addEventListener("change", () => (this.filter.subs = subs.checked));
		for (const [name, select] of /** @type {const} */ ([["since", since], ["agent", this.agents], ["owner", this.owners]])) select.addEventListener("change", () => (this.filter[name] = select.value));
		const made = h("div.filters", { role: "search", "aria-label": "Filter runs" }, this.chips, this.agents, this.owners, since, label, text, h("label.check", subs, "sub-runs"));
		const changed = () => this.#filtered();
		made.addEventListener("change", changed);
		made.addEventListener("input", changed);
		return made;
	}

	#filtered() {
		const search = queryOf(this.filter);
		history.replaceState(null, "", (address = search ? `#/?${search}` : "#/"));
		this.#known.clear(); // another list: nothing in it is new
		this.#waiting.clear();
		this.#places.clear();
		this.#change();
		this.scroller.scrollTop = 0;
	}

	/** The names of the columns; some sort the list, and back. */
	#heading() {
		const cells = COLUMNS.map((name) => {
			if (!SORTED.includes(name)) return h("span", { role: "columnheader" }, name.trim() || h("span.unseen", name ? "Stop" : "Choose"));
			const key = name.toLowerCase();
			const cell = h("span", { role: "columnheader" }, act(name, () => this.#sort(key, cell), { class: "sort" }));
			if (this.filter.sort.endsWith(key)) cell.ariaSort = this.filter.sort[0] === "-" ? "descending" : "ascending";
			return cell;
		});
		return h("div.heading", { role: "rowgroup" }, h("div", { role: "row" }, ...cells));
	}

	/** @param {string} key @param {HTMLElement} cell */
	#sort(key, cell) {
		const { sort } = this.filter;
		this.filter.sort = sort === key ? `-${key}` : sort === `-${key}` ? "" : key;
		for (const one of this.table.querySelectorAll("[aria-sort]")) one.removeAttribute("aria-sort");
		if (this.filter.sort) cell.ariaSort = this.filter.sort === key ? "ascending" : "descending";
		this.#filtered();
	}

	/** Stop what was chosen, else what the filter shows. */
	#stop() {
		const shown = this.#shown().filter(isLive);
		const chosen = shown.filter((run) => this.#ticked.has(run.id));
		bulkDialog(chosen.length ? null : this.filter, chosen.length ? chosen : shown);
	}

	/** @returns {Summary[]} */
	#shown() {
		return arranged([...live.runs.values()].filter((run) => matches(run, this.filter, now())), this.filter.sort, now());
	}

	#change() {
		let all = this.#shown();
		const isTouched = this.scroller.scrollTop > 0 || this.scroller.matches(":hover, :focus-within");
		for (const run of all) {
			if (this.#known.has(run.id)) continue;
			const isNew = this.#known.size > 0 && isTouched && run.createdAt > this.#newest;
			(isNew ? this.#waiting : this.#known).add(run.id);
		}
		const place = (/** @type {Summary} */ run) => this.#places.get(run.id) ?? -1;
		if (isTouched) all = all.sort((a, b) => place(a) - place(b)); // no row leaves the pointer
		const shown = all.filter((run) => this.#known.has(run.id));
		this.#places = new Map(shown.map((run, index) => [run.id, index]));
		this.#newest = shown.reduce((newest, run) => Math.max(newest, run.createdAt), this.#newest);
		const chosen = shown.filter((run) => this.#ticked.has(run.id) && isLive(run)).length;
		say(this.stopThese, chosen ? `Stop ${chosen} chosen…` : "Stop these…");
		this.fresh.hidden = this.#waiting.size === 0;
		say(this.fresh, `${this.#waiting.size} new run${this.#waiting.size === 1 ? "" : "s"}`);
		this.#showChips();
		options(this.agents, "all agents", this.filter.agent, (run) => run.name);
		options(this.owners, "all owners", this.filter.owner, (run) => run.owner);
		this.owners.hidden = this.owners.options.length < 3 && !this.filter.owner;
		this.stopThese.hidden = !live.may("stop");
		this.start.hidden = !live.may("start");
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
		const any = { ...this.filter, status: new Set() };
		const found = new Map(counts([...live.runs.values()].filter((run) => matches(run, any, now())).map((run) => run.status)));
		if (this.chips.childElementCount === 0) fill(this.chips, ...STATUSES.map((status) => this.#chip(status)));
		for (const button of this.chips.querySelectorAll("button")) {
			const status = button.dataset.status ?? "";
			const count = found.get(status) ?? 0;
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

/** @param {Summary} run */
const isLive = (run) => !isOver(run.status);

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

function noRuns() {
	const code = "async with stoppable.Supervisor() as supervisor:\n    run = await supervisor.start(my_agent)";
	return empty("No runs yet", h("p", h("a.button.primary", { href: "#/agents" }, "Start one here")), h("p", "or from Python:"), h("pre", code));
}

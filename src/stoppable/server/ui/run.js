/** One run: the button, the line beside it, the time line, and what it left. */

import { comparison } from "./compare.js";
import { age, button, chip, copier, empty, every, failure, fill, h, labelText, runAddress, say, shortId, stopButton, time } from "./dom.js";
import { now } from "./api.js";
import { eventsPanel, outputPanel, inputPanel } from "./panels.js";
import { History } from "./history.js";
import { isOver } from "./stoppable-button.js";
import { listAddress } from "./runs.js";
import { live } from "./live.js";
import { receiptPanel } from "./receipt.js";
import { showIcon, teller } from "./settings.js";
import { Timeline } from "./timeline.js";

export class RunPage {
	#ended = new AbortController();
	#status = "";
	#tab = "";

	/** @param {string} id @param {URLSearchParams} query the tab, and what the time line is zoomed to */
	constructor(id, query) {
		this.id = id;
		this.query = query;
		this.#tab = query.get("tab") ?? "";
		this.history = new History(id);
		this.button = stopButton();
		this.timeline = new Timeline(this.history, query.get("zoom"), (zoom) => this.#keep("zoom", zoom));
		this.reason = this.#reason();
		this.again = h("a.button", { hidden: true }, "Run again");
		this.compare = h("span");
		this.teller = teller(id, () => this.history.run.name);
		this.facts = h("p.facts");
		this.title = `Run ${shortId(id)}`;
		this.name = h("h1", shortId(id));
		this.chip = h("span");
		this.lasted = h("span.mono");
		this.error = h("div.error", { hidden: true }, h("p.why"), h("details.traceback", h("summary", "traceback"), h("pre")));
		this.output = outputPanel(this.history);
		this.events = eventsPanel(this.history);
		this.panels = h("div.panels");
		this.tabs = h("div.tabs", { role: "tablist", "aria-label": "About this run" });
		this.above = h("p.crumbs", h("a", { href: listAddress() }, "Runs"));
		const header = h("div.runhead", h("div", h("div.titleline", this.name, this.chip, this.again, this.compare, this.teller), this.facts, this.reason), this.button);
		this.whole = h("div", { hidden: true }, header, this.error, this.timeline.element, this.tabs, this.panels);
		this.notice = h("p.loading", { role: "status" }, "Loading the run…");
		this.element = h("section.page.run", this.above, this.notice, this.whole);
		const { signal } = this.#ended;
		this.history.addEventListener("change", () => this.#show(), { signal });
		live.addEventListener("change", () => this.#offerComparison(), { signal });
		live.addEventListener("run", (event) => this.#hear(/** @type {CustomEvent} */ (event).detail), { signal });
		this.button.addEventListener("stopping", () => this.history.look(), { signal });
		document.addEventListener("visibilitychange", () => document.hidden || this.history.look(), { signal });
		every(250, () => this.#tick(), signal);
		this.#start();
	}

	/** Part of the address, so that it can be shared. @param {string} name @param {string} value */
	#keep(name, value) {
		if (value) this.query.set(name, value);
		else this.query.delete(name);
		const search = this.query.toString();
		history.replaceState(null, "", runAddress(this.id) + (search && `?${search}`));
	}

	/** Why it is stopped, for the receipt and the audit: the first reason stays, so it is asked for before. */
	#reason() {
		const field = h("input", { "aria-label": "Reason for a stop", placeholder: "Reason for a stop (optional)", maxlength: "1000", hidden: true });
		field.addEventListener("input", () => this.button.setAttribute("reason", field.value.trim()));
		field.addEventListener("keydown", (event) => {
			if (event.key === "Escape") event.preventDefault(); // of the field, not of the run
			if (event.key === "Enter" && !event.repeat) this.button.press();
		});
		return field;
	}

	escape() {
		this.button.escape();
	}

	close() {
		this.#ended.abort();
		showIcon();
		this.history.close();
		this.timeline.close();
		this.events.close();
	}

	#start() {
		this.history.start().catch((error) => {
			if (this.#ended.signal.aborted || error.status === 401) return;
			live.whenBack(() => this.whole.hidden && this.#start(), this.#ended.signal);
			const again = () => (this.notice.replaceChildren("Loading the run…"), this.#start());
			const told = error.status === 404 ? empty("There is no such run", h("p", "It may belong to somebody else, or have been forgotten. ", h("a", { href: listAddress() }, "All runs"))) : failure(error, again);
			this.notice.hidden = false;
			fill(this.notice, told);
		});
	}

	/** @param {Summary} summary */
	#hear(summary) {
		if (summary.rootId === this.history.run?.rootId) this.history.look();
	}

	/** The other runs of its agent, as soon as there are some; a list that may be open is left as it is. */
	#offerComparison() {
		if (this.history.run && this.compare.childElementCount === 0) fill(this.compare, comparison(this.history.run));
	}

	#show() {
		const { run } = this.history;
		if (!run) return;
		this.#offerComparison();
		if (this.whole.hidden) {
			this.whole.hidden = false;
			this.notice.hidden = true;
		}
		if (this.#status !== run.status) {
			this.#status = run.status;
			say(this.name, run.name);
			document.title = `${run.name} ${run.status === "lost" ? "unconfirmed" : run.status} · stoppable`;
			fill(this.chip, chip(run.status));
			this.teller.hidden ||= isOver(run.status);
			showIcon(run.status);
			this.#showFacts(run);
			this.#showError(run);
			this.#showTabs(run);
		}
		this.#tick();
		this.output.show();
		if (this.#tab === "Events") this.events.show();
		if (this.#tab === "Receipt") this.#open("Receipt");
		this.timeline.draw();
	}

	#tick() {
		const { run } = this.history;
		if (!run) return;
		this.button.toggleAttribute("readonly", !live.may("stop"));
		this.button.run = this.history.shown();
		this.reason.hidden = run.stop !== null || isOver(run.status) || !live.may("stop");
		say(this.lasted, age(run, now()));
		if (!isOver(run.status)) this.timeline.draw();
	}

	/** @param {Run} run */
	#showFacts(run) {
		const facts = [copier(run.id, `${run.id}: copy the id`, run.id), run.owner && `owner ${run.owner}`, run.key && `conversation ${run.key}`, labelText(run.labels), h("span", "started ", time(run.startedAt ?? run.createdAt)), this.lasted];
		fill(this.facts, ...facts.filter(Boolean).map((fact) => h("span", fact)));
		const parent = run.parentId && h("a", { href: runAddress(run.parentId) }, "its parent");
		fill(this.above, h("a", { href: listAddress() }, "Runs"), parent && " / ", parent);
	}

	/** @param {Run} run */
	#showError(run) {
		const error = run.outcome?.error;
		this.again.hidden = !isOver(run.status) || run.parentId !== null || !live.may("start");
		this.again.setAttribute("href", `#/start/${encodeURIComponent(run.name)}?again=${encodeURIComponent(run.id)}`);
		this.error.hidden = !error;
		if (!error) return;
		say(this.error.querySelector(".why"), error.type === "WorkerLost" ? "The process that ran it died or was cut off." : `${error.type}: ${error.message.trim()}`);
		say(this.error.querySelector("pre"), error.trace || `${error.type}: ${error.message}`);
	}

	/** @param {Run} run */
	#showTabs(run) {
		const names = ["Output", "Events", ...(run.input === undefined ? [] : ["Input"]), ...(run.stop ? ["Receipt"] : [])];
		const wanted = run.stop && isOver(run.status) && (this.#tab === "" || this.#tab === "Output") && run.status !== "completed" ? "Receipt" : this.#tab || "Output";
		fill(this.tabs, ...names.map((name) => button(name, () => (this.#open(name), this.#keep("tab", name)), { role: "tab", id: `tab-${name}`, "aria-controls": "panel", onkeydown: arrows })));
		this.#open(names.includes(wanted) ? wanted : "Output");
	}

	/** @param {string} name */
	#open(name) {
		const { run } = this.history;
		this.#tab = name;
		for (const tab of this.tabs.children) {
			tab.setAttribute("aria-selected", String(tab.textContent === name));
			tab.setAttribute("tabindex", tab.textContent === name ? "0" : "-1");
		}
		/** @type {Record<string, () => HTMLElement>} */
		const made = { Output: () => this.output.element, Events: () => this.events.element, Input: () => inputPanel(run), Receipt: () => receiptPanel(run, this.history) };
		const shown = made[name]();
		if (this.panels.firstElementChild?.firstElementChild !== shown) fill(this.panels, h("div", { role: "tabpanel", id: "panel", tabindex: "0", "aria-labelledby": `tab-${name}` }, shown));
		if (name === "Events") this.events.show();
	}
}

/** The arrow keys go from tab to tab. @param {KeyboardEvent} event */
function arrows(event) {
	const tab = /** @type {HTMLElement} */ (event.currentTarget);
	const next = { ArrowRight: tab.nextElementSibling, ArrowLeft: tab.previousElementSibling }[event.key];
	if (!(next instanceof HTMLElement)) return;
	next.click();
	next.focus();
}

/** One run: the button, the line beside it, the time line, and what it left. */

import { age, button, chip, copier, empty, failure, fill, h, labelText, say, shortId, stopButton, time } from "./dom.js";
import { now } from "./api.js";
import { eventsPanel, outputPanel, inputPanel } from "./panels.js";
import { History } from "./history.js";
import { isOver } from "./stoppable-button.js";
import { live } from "./live.js";
import { receiptPanel } from "./receipt.js";
import { Timeline } from "./timeline.js";

/** @param {string} id @returns {Page} */
export function runPage(id) {
	const page = new RunPage(id);
	return { element: page.element, title: `Run ${shortId(id)}`, close: () => page.close(), escape: () => page.button.press() };
}

class RunPage {
	#ended = new AbortController();
	#status = "";
	#tab = "";

	/** @param {string} id */
	constructor(id) {
		this.id = id;
		this.history = new History(id);
		this.button = stopButton();
		this.timeline = new Timeline(this.history);
		this.facts = h("p.facts");
		this.title = h("h1", shortId(id));
		this.chip = h("span");
		this.lasted = h("span.mono");
		this.error = h("details.traceback", { hidden: true }, h("summary", "traceback"), h("pre"));
		this.output = outputPanel(this.history);
		this.events = eventsPanel(this.history);
		this.panels = h("div.panels");
		this.tabs = h("div.tabs", { role: "tablist", "aria-label": "About this run" });
		this.above = h("p.crumbs", h("a", { href: "#/" }, "Runs"));
		const header = h("div.runhead", h("div", h("div.titleline", this.title, this.chip), this.facts), this.button);
		this.whole = h("div", { hidden: true }, header, this.error, this.timeline.element, this.tabs, this.panels);
		this.notice = h("p.loading", { role: "status" }, "Loading the run…");
		this.element = h("section.page.run", this.above, this.notice, this.whole);
		const { signal } = this.#ended;
		this.history.addEventListener("change", () => this.#show(), { signal });
		live.addEventListener("run", (event) => this.#hear(/** @type {CustomEvent} */ (event).detail), { signal });
		const ticking = setInterval(() => this.#tick(), 250);
		signal.addEventListener("abort", () => clearInterval(ticking));
		this.#start();
	}

	close() {
		this.#ended.abort();
		this.history.close();
		this.timeline.close();
		this.events.close();
	}

	#start() {
		this.history.start().catch((error) => {
			if (this.#ended.signal.aborted || error.status === 401) return;
			const again = () => (this.notice.replaceChildren("Loading the run…"), this.#start());
			const told = error.status === 404 ? empty("There is no such run", h("p", "It may belong to somebody else, or have been forgotten. ", h("a", { href: "#/" }, "All runs"))) : failure(error, again);
			this.notice.hidden = false;
			fill(this.notice, told);
		});
	}

	/** @param {Summary} summary */
	#hear(summary) {
		if (summary.rootId === this.history.run?.rootId) this.history.look();
	}

	#show() {
		const { run } = this.history;
		if (!run) return;
		if (this.whole.hidden) {
			this.whole.hidden = false;
			this.notice.hidden = true;
		}
		if (this.#status !== run.status) {
			this.#status = run.status;
			say(this.title, run.name);
			document.title = `${run.name} ${run.status === "lost" ? "unconfirmed" : run.status} · stoppable`;
			fill(this.chip, chip(run.status));
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
		this.button.run = this.history.shown(live.runs.get(this.id));
		say(this.lasted, age(run, now()));
		if (!isOver(run.status)) this.timeline.draw();
	}

	/** @param {Run} run */
	#showFacts(run) {
		const facts = [copier(run.id, `Copy the id ${run.id}`, run.id.length > 40 ? shortId(run.id) : run.id), run.owner && `owner ${run.owner}`, run.key && `conversation ${run.key}`, labelText(run.labels), h("span", "started ", time(run.startedAt ?? run.createdAt)), this.lasted];
		fill(this.facts, ...facts.filter(Boolean).map((fact) => h("span", fact)));
		const parent = run.parentId && h("a", { href: `#/runs/${encodeURIComponent(run.parentId)}` }, "its parent");
		fill(this.above, h("a", { href: "#/" }, "Runs"), parent && " / ", parent);
	}

	/** @param {Run} run */
	#showError(run) {
		const error = run.outcome?.error;
		this.error.hidden = !error;
		if (error) say(this.error.querySelector("pre"), error.trace || `${error.type}: ${error.message}`);
	}

	/** @param {Run} run */
	#showTabs(run) {
		const names = ["Output", "Events", ...(run.input === undefined ? [] : ["Input"]), ...(run.stop ? ["Receipt"] : [])];
		const wanted = run.stop && isOver(run.status) && (this.#tab === "" || this.#tab === "Output") && run.status !== "completed" ? "Receipt" : this.#tab || "Output";
		fill(this.tabs, ...names.map((name) => button(name, () => this.#open(name), { role: "tab", id: `tab-${name}`, "aria-controls": "panel", onkeydown: arrows })));
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

/** Two runs beside each other: what they took, when they were stopped, and what they put out. */

import { age, chip, empty, every, failure, fill, h, runAddress, shortId, statusWord, table, time, tr } from "./dom.js";
import { duration, isOver } from "./stoppable-button.js";
import { History, textOf } from "./history.js";
import { listAddress } from "./runs.js";
import { live } from "./live.js";
import { now } from "./api.js";
import { outputPanel } from "./panels.js";
import { Timeline } from "./timeline.js";

const OFFERED = 20;

/** A choice of another run of the same agent, to see the two beside each other; null: there is none. @param {Run} run */
export function comparison(run) {
	const others = [...live.runs.values()].filter((one) => one.name === run.name && one.id !== run.id).sort((a, b) => b.createdAt - a.createdAt).slice(0, OFFERED);
	if (others.length === 0) return null;
	const words = (/** @type {Summary} */ one) => `${new Date(one.createdAt * 1000).toLocaleString("en-GB", { dateStyle: "short", timeStyle: "medium" })}, ${statusWord(one.status)}, ${shortId(one.id)}`;
	const select = h("select.quiet", { "aria-label": "Compare with" }, h("option", { value: "" }, "Compare with…"), ...others.map((one) => h("option", { value: one.id }, words(one))));
	select.addEventListener("change", () => (location.hash = compareAddress(select.value, run.id)));
	return select;
}

/** @param {string} before @param {string} after */
export const compareAddress = (before, after) => `#/compare/${encodeURIComponent(before)}/${encodeURIComponent(after)}`;

export class ComparePage {
	title = "Two runs";
	#ended = new AbortController();

	/** @param {string[]} ids */
	constructor(ids) {
		this.histories = ids.map((id) => new History(id));
		this.timelines = this.histories.map((history) => new Timeline(history, null, () => {}));
		this.outputs = this.histories.map((history) => outputPanel(history));
		this.heads = this.histories.map(() => h("h2"));
		this.facts = h("div");
		this.notice = h("p.loading", { role: "status" }, "Loading the runs…");
		const pictures = this.timelines.map(({ element }, index) => h("section.attempt", this.heads[index], element));
		const outputs = this.outputs.map(({ element }, index) => h("section", h("h2", `Output of ${"AB"[index]}`), element));
		this.whole = h("div", { hidden: true }, this.facts, ...pictures, h("div.beside", ...outputs));
		this.element = h("section.page", h("p.crumbs", h("a", { href: listAddress() }, "Runs")), h("h1", "Two runs"), this.notice, this.whole);
		const { signal } = this.#ended;
		for (const history of this.histories) history.addEventListener("change", () => this.#show(), { signal });
		every(1000, () => this.histories.some(({ run }) => run && !isOver(run.status)) && this.#show(), signal);
		this.#start();
	}

	close() {
		this.#ended.abort();
		for (const one of [...this.histories, ...this.timelines]) one.close();
	}

	#start() {
		for (const history of this.histories) {
			history.start().catch((error) => {
				if (this.#ended.signal.aborted || error.status === 401) return;
				this.notice.hidden = false;
				fill(this.notice, error.status === 404 ? empty(`There is no run ${shortId(history.id)}`, h("a", { href: listAddress() }, "All runs")) : failure(error, () => this.#start()));
			});
		}
	}

	#show() {
		const { histories } = this;
		if (histories.some(({ run }) => !run)) return;
		this.whole.hidden = false;
		this.notice.hidden = true;
		const longest = Math.max(...this.timelines.map(({ seconds }) => seconds));
		for (const [index, { run }] of histories.entries()) {
			fill(this.heads[index], `${"AB"[index]}: ${run.name} `, chip(run.status));
			this.timelines[index].least = longest; // both on one scale
			this.timelines[index].draw();
			this.outputs[index].show();
		}
		const row = (/** @type {string} */ name, /** @type {(history: RunHistory) => Node | string} */ value) => {
			const [a, b] = histories.map(value);
			return tr(h("th", { scope: "row" }, name), a, b);
		};
		const stopped = (/** @type {Run} */ run) => (run.stopRequestedAt === null ? "–" : `after ${duration(run.stopRequestedAt - (run.startedAt ?? run.createdAt))}, ${run.stop?.mode}${run.stop?.reason.message ? `, “${run.stop.reason.message}”` : ""}`);
		const took = (/** @type {Run} */ run) => (run.stopRequestedAt === null || run.endedAt === null || run.status === "completed" ? "–" : duration(run.endedAt - run.stopRequestedAt));
		const rows = [
			row("Run", ({ run }) => h("a", { href: runAddress(run.id), class: "mono" }, shortId(run.id))),
			row("Started", ({ run }) => time(run.startedAt ?? run.createdAt)),
			row("Took", ({ run }) => age(run, now())),
			row("Calls", ({ bars, dropped }) => String(bars.length + dropped.bars)),
			row("Stop", ({ run }) => stopped(run)),
			row("Time to stop", ({ run }) => took(run)),
			row("Input", ({ run }) => textOf(run.input) || "–"),
		];
		fill(this.facts, table(["What", "A", "B"], ...rows));
	}
}

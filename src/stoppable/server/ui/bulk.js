/** Stops many runs: choose by filter, see which, confirm, and what became of each. */

import { button, chip, fill, h, messageOf, region, say, shortId, table, tr } from "./dom.js";
import { isOver } from "./stoppable-button.js";
import { labelsOf } from "./start.js";
import { live } from "./live.js";
import { post } from "./api.js";
import { selectorText } from "./records.js";

const AT_ONCE = 4;
const LISTED = 200;

/** @param {RunFilter} filter @param {Summary[]} shown the live runs that the filter shows */
export function bulkDialog(filter, shown) {
	const dialog = new BulkDialog(selectorOf(filter), shown);
	document.body.append(dialog.element);
	dialog.element.showModal();
	dialog.preview();
}

/** What the server can choose by itself; a text or a status it cannot. @param {RunFilter} filter @returns {Selector | null} */
function selectorOf({ status, agent, owner, label, text }) {
	if (text || status.size || (label && !label.includes(":"))) return null;
	const chosen = { ...(agent && { agent }), ...(owner && { owner }), ...(label && { labels: labelsOf(label) }) };
	return Object.keys(chosen).length ? chosen : { all: true };
}

/** @param {Receipt[]} receipts */
const named = (receipts) => receipts.map(({ runId }) => ({ id: runId, name: live.runs.get(runId)?.name ?? "" }));

class BulkDialog {
	/** @type {{id: string, name: string}[]} */ #runs = [];

	/** @param {Selector | null} selector @param {Summary[]} shown */
	constructor(selector, shown) {
		this.selector = selector;
		this.#runs = shown;
		this.title = h("h1", { id: "bulk-title" }, "Stop these runs");
		this.scope = h("p.meta");
		this.list = region("div.scroller", "Runs");
		this.reason = h("input", { id: "bulk-reason", maxlength: "1000" });
		this.mode = h("select", { id: "bulk-mode" }, h("option", { value: "graceful" }, "graceful: calls in flight may finish"), h("option", { value: "immediate" }, "immediate: cancel now, clean-up runs"));
		this.hold = h("input", { type: "checkbox" });
		this.message = h("p", { role: "status" });
		this.go = h("button.primary", { disabled: true }, "Stop");
		this.leave = button("Cancel", () => this.element.close());
		const hold = selector && h("label.check", this.hold, `Also refuse new starts (${selectorText(selector)})`);
		this.form = h("form", { method: "dialog" }, h("label", { for: "bulk-reason" }, "Reason"), this.reason, h("label", { for: "bulk-mode" }, "Mode"), this.mode, h("p", hold));
		this.form.append(this.message, h("div.actions", this.go, this.leave));
		this.form.addEventListener("submit", (event) => {
			event.preventDefault();
			this.#stop();
		});
		this.element = h("dialog", { "aria-labelledby": "bulk-title" }, this.title, this.scope, this.list, this.form);
		this.element.addEventListener("close", () => this.element.remove());
		this.element.addEventListener("keydown", (event) => event.key === "Escape" && event.stopPropagation());
	}

	/** Say which runs are meant; where the server chooses, it is asked. */
	async preview() {
		try {
			if (this.selector) {
				const { receipts } = await post("stops", { selector: this.selector, dryRun: true });
				this.#runs = named(receipts);
			}
		} catch (error) {
			say(this.message, messageOf(error));
			return;
		}
		const count = this.#runs.length;
		say(this.scope, this.selector ? `Everything that matches now: ${selectorText(this.selector)}. Their sub-runs stop with them.` : "What the list shows. Their sub-runs stop with them.");
		say(this.go, `Stop ${count} run${count === 1 ? "" : "s"}`);
		this.go.disabled = count === 0;
		this.#list(new Map());
	}

	async #stop() {
		for (const one of [this.go, this.reason, this.mode, this.hold]) one.disabled = true;
		say(this.leave, "Close");
		const mode = this.mode.value;
		const reason = this.reason.value || undefined;
		/** @type {Map<string, string>} */
		const answers = new Map();
		try {
			if (this.selector) {
				const id = crypto.getRandomValues(new Uint32Array(4)).join("-"); // the same request again is the same stop
				const { receipts } = await post("stops", { selector: this.selector, mode, reason, hold: this.hold.checked }, { "Idempotency-Key": id });
				for (const one of receipts) answers.set(one.runId, one.answer);
				this.#runs = named(receipts);
			} else await this.#stopEach(mode, reason, answers);
			this.#follow(answers);
		} catch (error) {
			say(this.message, `${messageOf(error)}. Press again; a repeat is safe.`);
			for (const one of [this.go, this.reason, this.mode, this.hold]) one.disabled = false;
		}
	}

	/** @param {string} mode @param {string | undefined} reason @param {Map<string, string>} answers */
	async #stopEach(mode, reason, answers) {
		const waiting = [...this.#runs];
		const work = async () => {
			for (let run = waiting.shift(); run; run = waiting.shift()) {
				const told = await post(`runs/${encodeURIComponent(run.id)}/stop`, { mode, reason }).catch((error) => ({ receipt: { answer: messageOf(error) } }));
				answers.set(run.id, told.receipt.answer);
				say(this.message, `${answers.size} of ${this.#runs.length} told to stop.`);
			}
		};
		await Promise.all(Array.from({ length: AT_ONCE }, work));
	}

	/** @param {Map<string, string>} answers */
	#follow(answers) {
		const show = () => {
			const over = this.#runs.filter((run) => isOver(live.runs.get(run.id)?.status ?? "pending")).length;
			say(this.message, `${over} of ${this.#runs.length} are over.`);
			this.#list(answers);
		};
		live.addEventListener("change", show);
		this.element.addEventListener("close", () => live.removeEventListener("change", show));
		this.go.hidden = true;
		this.leave.focus();
		show();
	}

	/** @param {Map<string, string>} answers */
	#list(answers) {
		const row = (/** @type {{id: string, name: string}} */ run) =>
			tr(chip(live.runs.get(run.id)?.status ?? "pending"), run.name || "–", h("td.mono", shortId(run.id)), (answers.get(run.id) ?? "").replace("_", " "));
		const more = this.#runs.length - LISTED;
		fill(this.list, table(["Status", "Agent", "Run", "Answer"], ...this.#runs.slice(0, LISTED).map(row)), more > 0 && h("p.meta", `and ${more} more`));
	}
}

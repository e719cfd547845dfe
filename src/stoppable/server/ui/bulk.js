/** Stops many runs: choose by filter, see which, confirm, and what became of each. */

import { button, chip, fill, h, messageOf, region, say, shortId, table, tr } from "./dom.js";
import { APPEARS, SEEN, failureOf, isMeant, isOver, isRefusal } from "./stoppable-button.js";
import { labelsOf, newId } from "./start.js";
import { live } from "./live.js";
import { post } from "./api.js";
import { selectorText } from "./records.js";

const AT_ONCE = 4;
const LISTED = 200;

/** @param {RunFilter | null} filter null: the runs were chosen one by one @param {Summary[]} shown the live runs that are meant */
export function bulkDialog(filter, shown) {
	const dialog = new BulkDialog(filter && selectorOf(filter), shown);
	document.body.append(dialog.element);
	dialog.element.showModal();
	dialog.preview();
}

/** What the server can choose by itself; a text or a status it cannot. @param {RunFilter} filter @returns {Selector | null} */
function selectorOf({ status, agent, owner, label, text, since }) {
	if (text || since || status.size || (label && !label.includes(":"))) return null;
	const chosen = { ...(agent && { agent }), ...(owner && { owner }), ...(label && { labels: labelsOf(label) }) };
	return Object.keys(chosen).length ? chosen : { all: true };
}

/** @param {Receipt[]} receipts */
const named = (receipts) => receipts.map(({ runId }) => ({ id: runId, name: live.runs.get(runId)?.name ?? "" }));

class BulkDialog {
	/** @type {{id: string, name: string}[]} */ #runs = [];
	/** @type {Map<string, string>} what the server said of each */ #answers = new Map();
	#isOffered = false; // to stop them now

	/** @param {Selector | null} selector @param {Summary[]} shown */
	constructor(selector, shown) {
		this.selector = selector;
		this.#runs = shown;
		this.id = newId(); // the same request again is the same stop
		this.title = h("h1", { id: "bulk-title" }, "Stop these runs");
		this.scope = h("p.meta");
		this.list = region("div.scroller", "Runs");
		this.reason = h("input", { id: "bulk-reason", maxlength: "1000" });
		this.mode = h("select", { id: "bulk-mode" }, h("option", { value: "graceful" }, "graceful: calls in flight may finish"), h("option", { value: "immediate" }, "immediate: cancel now, clean-up runs"));
		this.hold = h("input", { type: "checkbox" });
		this.message = h("p", { role: "status" });
		this.failure = h("p.bad", { role: "alert" });
		this.go = h("button.primary", { disabled: true }, "Stop");
		this.harder = button("Stop now", (event) => isMeant(event) && this.#stopNow(), { hidden: true, "aria-disabled": "true" });
		this.leave = button("Cancel", () => this.element.close());
		const hold = selector && live.may("hold") && h("label.check", this.hold, `Also refuse new starts (${selectorText(selector)})`);
		this.form = h("form", { method: "dialog" }, h("label", { for: "bulk-reason" }, "Reason"), this.reason, h("label", { for: "bulk-mode" }, "Mode"), this.mode, h("p", hold));
		this.form.append(this.message, this.failure, h("div.actions", this.go, this.harder, this.leave));
		this.form.addEventListener("submit", (event) => {
			event.preventDefault();
			this.#stop();
		});
		this.element = h("dialog", { "aria-labelledby": "bulk-title" }, this.title, this.scope, this.list, this.form);
		this.element.addEventListener("close", () => (live.removeEventListener("change", this.#show), this.element.remove()));
		this.element.addEventListener("keydown", (event) => {
			if (event.key === "Escape") event.stopPropagation();
			if (event.key === "Enter" && event.repeat) event.preventDefault(); // a key that is held is one press
		});
	}

	/** Say which runs are meant; where the server chooses, it is asked. */
	async preview() {
		try {
			if (this.selector) {
				const { receipts } = await post("stops", { selector: this.selector, dryRun: true });
				this.#runs = named(receipts);
			}
		} catch (error) {
			return say(this.failure, messageOf(error));
		}
		const count = this.#runs.length;
		say(this.scope, this.selector ? `Everything that matches now: ${selectorText(this.selector)}. Their sub-runs stop with them.` : "These runs, and no others. Their sub-runs stop with them.");
		say(this.go, `Stop ${count} run${count === 1 ? "" : "s"}`);
		this.go.disabled = count === 0;
		this.#list();
	}

	async #stop() {
		const fields = [this.go, this.reason, this.mode, this.hold];
		for (const one of fields) one.disabled = true;
		say(this.leave, "Close");
		say(this.failure, "");
		const [mode, reason] = [this.mode.value, this.reason.value || undefined];
		try {
			if (this.selector) {
				const { receipts } = await post("stops", { selector: this.selector, mode, reason, hold: this.hold.checked }, { "Idempotency-Key": this.id });
				for (const one of receipts) this.#answers.set(one.runId, one.answer);
				this.#runs = named(receipts);
			} else await this.#stopEach(mode, reason);
		} catch (error) {
			say(this.failure, failureOf(error));
			for (const one of fields) one.disabled = false;
			return;
		}
		say(this.go, "Stopping…"); // where it was, so that nothing else comes under the pointer
		this.leave.focus();
		live.addEventListener("change", this.#show);
		this.#show();
		if (mode !== "immediate") setTimeout(() => this.#offer(), APPEARS);
	}

	/** Offer the harder stop, of which a press counts once it has been in sight. */
	#offer() {
		this.#isOffered = true;
		this.harder.ariaDisabled = "true";
		setTimeout(() => (this.harder.ariaDisabled = "false"), SEEN);
		this.#show();
	}

	/** Cancel what is not over yet. */
	async #stopNow() {
		this.#isOffered = false;
		this.leave.focus();
		this.#runs = this.#runs.filter(isLeft);
		this.#show();
		await this.#stopEach("immediate").then(() => (this.#show(), say(this.failure, "")), (error) => (say(this.failure, failureOf(error)), this.#offer()));
	}

	/** @param {string} mode @param {string} [reason] */
	async #stopEach(mode, reason) {
		const waiting = [...this.#runs];
		let sent = 0;
		/** @type {any} */ let failed = null;
		const work = async () => {
			for (let run = waiting.shift(); run; run = waiting.shift()) {
				try {
					const { receipt } = await post(`runs/${encodeURIComponent(run.id)}/stop`, { mode, reason });
					this.#answers.set(run.id, receipt.answer);
					say(this.message, `${++sent} of ${this.#runs.length} told to stop.`);
				} catch (error) {
					if (!isRefusal((failed ??= error))) failed = error;
					this.#answers.set(run.id, messageOf(error));
				}
			}
		};
		await Promise.all(Array.from({ length: AT_ONCE }, work));
		this.#list();
		if (failed && (sent === 0 || !isRefusal(failed))) throw failed; // one that was refused has its row
	}

	/** Say how far it is. */
	#show = () => {
		const left = this.#runs.filter(isLeft).length;
		say(this.message, `${this.#runs.length - left} of ${this.#runs.length} are over.`);
		this.go.hidden = left === 0;
		this.harder.hidden = !this.#isOffered || left === 0;
		this.#list();
	};

	#list() {
		const row = (/** @type {{id: string, name: string}} */ run) =>
			tr(chip(live.runs.get(run.id)?.status ?? "pending"), run.name || "–", h("td.mono", shortId(run.id)), (this.#answers.get(run.id) ?? "").replace("_", " "));
		const more = this.#runs.length - LISTED;
		fill(this.list, table(["Status", "Agent", "Run", "Answer"], ...this.#runs.slice(0, LISTED).map(row)), more > 0 && h("p.meta", `and ${more} more`));
	}
}

/** @param {{id: string}} run */
const isLeft = (run) => !isOver(live.runs.get(run.id)?.status ?? "pending");

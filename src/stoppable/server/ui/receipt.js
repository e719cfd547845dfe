/** What became of a stop, in words first. */

import { chip, copier, h, table, tr } from "./dom.js";
import { clock, duration, isOver, leftOf, spoken } from "./stoppable-button.js";

/** @param {Receipt} receipt @param {Run} run */
export function sentences(receipt, run) {
	const { reason, nodes } = receipt;
	const who = reason?.actor ? ` by ${reason.actor}` : reason && reason.kind !== "user" ? ` (${reason.kind})` : "";
	const at = receipt.requestedAt === null ? "" : ` at ${clock(receipt.requestedAt)}`;
	const why = reason?.message ? `, “${reason.message}”` : "";
	const told = [`${opening(receipt)}${who}${at}${why}.`];
	const times = steps(receipt);
	if (times) told.push(`${times}.`);
	if (receipt.blind) told.push("It had met no boundary or check, so it could not obey.");
	const calls = nodes.filter((node) => node.kind !== "run" && node.kind !== "participant");
	const skipped = calls.filter((node) => node.fate === "skipped").length;
	const flying = calls.filter((node) => node.fate !== "skipped");
	if (flying.length) told.push(`In flight: ${fates(flying)}.`);
	else if (receipt.inFlight.length && !isOver(receipt.status)) told.push(`In flight: ${receipt.inFlight.map(spoken).join(", ")}.`);
	else if (isOver(receipt.status)) told.push("Nothing was in flight.");
	if (skipped) told.push(`${skipped} skipped.`);
	if (receipt.enteredAfter.length) told.push(`Entered after the stop, in a shield: ${receipt.enteredAfter.map(spoken).join(", ")}.`);
	told.push(...closing(receipt, run));
	return told.join(" ");
}

/** @param {Receipt} receipt */
function opening({ status, tooLate }) {
	if (tooLate) return "The stop came too late: it had finished by itself. Requested";
	if (status === "stopped") return "Stopped";
	return status === "lost" ? "Stop not confirmed. Requested" : "Asked to stop";
}

/** @param {Receipt} receipt */
function steps(receipt) {
	const since = receipt.requestedAt;
	if (since === null) return "";
	const word = receipt.status === "lost" ? "given up after" : "ended in";
	const moments = /** @type {[string, number | null][]} */ ([["acknowledged in", receipt.acknowledgedAt], ["delivered in", receipt.deliveredAt], [word, receipt.tooLate ? null : receipt.endedAt]]);
	const text = moments.flatMap(([name, when]) => (when === null ? [] : `${name} ${duration(when - since)}`)).join(", ");
	return text && text[0].toUpperCase() + text.slice(1);
}

/** "llm chat ×2, cancelled; tool poke, finished". @param {Became[]} nodes */
function fates(nodes) {
	const counts = new Map();
	for (const node of nodes) {
		const key = `${node.kind}${node.name ? ` ${node.name}` : ""}\n${node.fate}`;
		counts.set(key, (counts.get(key) ?? 0) + 1);
	}
	return [...counts].map(([key, count]) => key.replace("\n", `${count > 1 ? ` ×${count}` : ""}, `)).join("; ");
}

/** @param {Receipt} receipt @param {Run} run @returns {string[]} */
function closing({ status, nodes, libraryThreads }, run) {
	if (!isOver(status)) return ["It has not ended yet."];
	const told = [];
	const clean = run.outcome?.clean;
	if (status === "stopped" && clean === false) told.push("Clean-up was cut off.");
	if (status === "stopped" && clean === null) told.push("It is not known whether clean-up ran to its end.");
	if (status !== "lost") told.push(libraryThreads.length ? "Nothing of it is left running." : "Nothing is left running.");
	else told.push(`May still be running: ${leftOf(nodes).join(", ") || "its worker, which does not answer"}.`);
	return told;
}

/** @param {Run} run @param {RunHistory} history */
export function receiptPanel(run, { runs }) {
	const { receipt } = run;
	const names = new Map(runs.map((one) => [one.id, one.name]));
	const late = run.endedLate ? ` It ended by itself at ${clock(run.endedLate)}.` : "";
	if (!receipt) {
		const text = run.stop ? "The stop is in the store. Nothing has acknowledged it yet." : "Nobody has stopped this run, so it has no receipt.";
		return h("p.meta", text);
	}
	const row = (/** @type {Became} */ node) =>
		tr(names.get(node.runId) ?? node.runId, node.kind, ...(node.kind === "run" ? ["", chip(node.fate)] : [node.name, node.fate]));
	const nodes = table(["Run", "What", "Name", "Became"], ...receipt.nodes.slice(0, 500).map(row));
	const json = JSON.stringify(receipt, null, 2);
	const unseen = [...receipt.libraryThreads, ...receipt.unguarded];
	const beside = unseen.length > 0 && h("p.meta", `Not seen by the stop: ${unseen.join(", ")}.`);
	return h("div", h("p.words", sentences(receipt, run) + late), beside, receipt.nodes.length > 0 && nodes, h("p", copier(json, "Copy as JSON", "Copy as JSON", "quiet")));
}

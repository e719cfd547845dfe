/** What became of a stop, in words first. */

import { live } from "./live.js";
import { chip, copier, h, table, tr } from "./dom.js";
import { jsonSaver } from "./export.js";
import { clock, counts, duration, isOver, leftOf, silentOf, spoken } from "./stoppable-button.js";

/** What matters first: whether it has stopped, and whether anything is left. @param {Receipt} receipt @param {Run} run */
export function answer(receipt, run) {
	if (run.endedLate !== null) return `It ended by itself at ${clock(run.endedLate)}, after its stop could not be confirmed. Nothing is left running.`;
	const silent = silentOf(receipt.entries);
	const told = silent.length ? `Told to stop; it does not say whether it did: ${silent.join(", ")}. ` : "";
	const left = `${told}${silent.length ? "Nothing else" : "Nothing"}${receipt.libraryThreads.length ? " of it" : ""} is left running.`;
	if (receipt.tooLate) return `The stop came too late: it had finished by itself. ${left}`;
	if (receipt.status === "stopped") return `Stopped. ${left}`;
	if (receipt.status === "lost") return `Not confirmed. May still be running: ${leftOf(receipt.entries).join(", ") || "its worker, which does not answer"}.`;
	return "Asked to stop. It has not ended yet.";
}

/** The rest, in the order in which it happened. @param {Receipt} receipt @param {Run} run */
export function sentences(receipt, run) {
	const { reason, entries } = receipt;
	const who = reason?.actor ? ` by ${live.person(reason.actor)}` : reason && reason.kind !== "user" ? ` (${reason.kind})` : "";
	const at = receipt.requestedAt === null ? "" : ` at ${clock(receipt.requestedAt)}`;
	const why = reason?.message ? `, “${reason.message}”` : "";
	const told = [`Requested${who}${at}${why}.`];
	const times = steps(receipt);
	if (times) told.push(`${times}.`);
	if (receipt.blind) told.push("It had met no boundary or check, so it could not obey.");
	const calls = entries.filter((one) => one.kind !== "run" && one.kind !== "participant");
	const skipped = calls.filter((one) => one.fate === "skipped").length;
	const flying = calls.filter((one) => one.fate !== "skipped");
	if (flying.length) told.push(`In flight: ${fates(flying)}.`);
	else if (receipt.inFlight.length && !isOver(receipt.status)) told.push(`In flight: ${receipt.inFlight.map(spoken).join(", ")}.`);
	else if (isOver(receipt.status)) told.push("Nothing was in flight.");
	if (skipped) told.push(`${skipped} skipped.`);
	if (receipt.enteredAfter.length) told.push(`Entered after the stop, in a shield: ${receipt.enteredAfter.map(spoken).join(", ")}.`);
	const clean = run.outcome?.clean;
	if (receipt.status === "stopped" && clean === false) told.push("Clean-up was cut off.");
	if (receipt.status === "stopped" && clean === null) told.push("It is not known whether clean-up ran to its end.");
	return told.join(" ");
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

/** "llm chat ×2, cancelled; tool poke, finished". @param {Became[]} entries */
const fates = (entries) =>
	counts(entries.map(({ kind, name, fate }) => `${spoken(kind)}${name && ` ${name}`}\n${fate}`)).map(([key, count]) => key.replace("\n", `${count > 1 ? ` ×${count}` : ""}, `)).join("; ");

/** @param {Run} run @param {RunHistory} history */
export function receiptPanel(run, history) {
	const { receipt } = run;
	const names = new Map(history.runs.map((one) => [one.id, one.name]));
	if (!receipt) {
		const text = run.stop ? "The stop is in the store. Nothing has acknowledged it yet." : "Nobody has stopped this run, so it has no receipt.";
		return h("p.meta", text);
	}
	const row = (/** @type {Became} */ entry) =>
		tr(names.get(entry.runId) ?? entry.runId, entry.kind === "participant" ? "what ran it" : spoken(entry.kind), ...(entry.kind === "run" ? ["", chip(entry.fate)] : [entry.name, entry.fate]));
	const rows = table(["Run", "What", "Name", "Became"], ...receipt.entries.slice(0, 500).map(row));
	const json = JSON.stringify(receipt, null, 2);
	const unseen = [...receipt.libraryThreads, ...receipt.unguarded];
	const beside = unseen.length > 0 && h("p.meta", `Not seen by the stop: ${unseen.join(", ")}.`);
	return h("div", h("p.words", h("strong", answer(receipt, run)), " ", sentences(receipt, run)), beside, receipt.entries.length > 0 && rows, h("p", copier(json, "Copy as JSON", "Copy as JSON", "quiet"), " ", jsonSaver(history, "receipt", () => receipt)));
}

/** One row of the list of runs. */

import { age, chip, copier, h, labelText, runAddress, say, shortId, stopButton, time } from "./dom.js";
import { clock, counted, isOver, shownOf } from "./stoppable-button.js";
import { live } from "./live.js";
import { needsYou } from "./filter.js";
import { now } from "./api.js";

/** @param {Summary} run @param {Set<string>} ticked @param {() => void} changed */
export function rowOf(run, ticked, changed) {
	const cell = (/** @type {string} */ name, /** @type {any[]} */ ...children) => h("span", { role: "cell", class: name }, ...children);
	const status = cell("status");
	const duration = cell("duration mono");
	const doing = cell("doing");
	const button = stopButton("compact");
	const tick = h("input", { type: "checkbox", "aria-label": `Choose ${run.name} ${shortId(run.id)}` });
	tick.addEventListener("change", () => {
		if (tick.checked) ticked.add(run.id);
		else ticked.delete(run.id);
		changed();
	});
	const link = h("a", { href: runAddress(run.id), class: run.parentId ? "sub" : "" }, run.name);
	const id = copier(run.id, `${shortId(run.id)}: copy the id`, shortId(run.id));
	const element = h("div", { role: "row", class: "row", "data-run": run.id }, cell("tick", tick), status, cell("agent", link), cell("id mono", id), cell("owner", run.owner ?? "–"), cell("labels", labelText(run.labels)), cell("started", time(run.startedAt ?? run.createdAt)), duration, doing, cell("stop", button));
	let before = "";
	const update = (/** @type {Summary} */ next) => {
		if (before !== next.status) fillStatus(status, (before = next.status));
		say(duration, age(next, now()));
		const text = isOver(next.status) ? ending(next) : counted(live.inFlight(next));
		say(doing, text);
		doing.title = text;
		element.toggleAttribute("data-needs", needsYou(next, now()));
		tick.hidden = isOver(next.status) || !live.may("stop");
		tick.checked = ticked.has(run.id);
		button.toggleAttribute("readonly", !live.may("stop"));
		button.run = { ...shownOf(next), inFlight: live.inFlight(next) };
	};
	return { element, update };
}

/** @param {HTMLElement} cell @param {string} status */
const fillStatus = (cell, status) => cell.replaceChildren(chip(status));

/** What there is to say of a run that is over. @param {Summary} run */
function ending(run) {
	if (run.error) return run.error;
	if (run.status === "completed") return run.stopRequestedAt ? "finished before the stop arrived" : "";
	if (run.endedLate) return `ended by itself at ${clock(run.endedLate)}`;
	const by = run.reason?.actor ? `by ${live.person(run.reason.actor)}` : "";
	const told = [by, run.reason?.message && `“${run.reason.message}”`].filter(Boolean).join(", ");
	return run.status === "lost" ? ["may still be running", told].filter(Boolean).join(" · ") : told;
}

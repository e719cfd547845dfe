/** What is known of one call. */

import { duration } from "./stoppable-button.js";
import { eventText } from "./panels.js";
import { h } from "./dom.js";

const LISTED = 20;
export const FATES = /** @type {Record<string, string>} */ ({
	finished: "it finished by itself",
	interrupted: "a hook of it ended it",
	cancelled: "the stop cancelled it",
	killed: "the stop killed it",
	closed: "the stop closed it between two of its pieces",
	abandoned: "it could not be ended, and may still be running",
	told: "it was told, and does not say whether it ended",
	unreachable: "it could not be asked whether it ended",
	skipped: "it never began",
});

/** @param {Bar} bar @param {RunHistory} history */
export function callDetail(bar, history) {
	const run = history.runs.find((one) => one.id === bar.runId);
	const end = bar.to ?? Infinity;
	const put = history.events.filter(({ runId, at, type }) => runId === bar.runId && at >= bar.from && at <= end && (type === "partial" || type === "progress"));
	const took = bar.isUnrecorded ? "its end is not recorded" : bar.to === null ? "it has not ended" : `it took ${duration(bar.to - bar.from)}`;
	const fate = history.crosses(bar) && bar.fate ? ` At the stop: ${bar.fate}, ${FATES[bar.fate] ?? "as it said itself"}.` : "";
	const words = `${bar.kind} ${bar.name} in ${run?.name ?? bar.runId}: began ${duration(bar.from - history.span.from)} after the start; ${took}.${fate}`;
	const more = put.length - LISTED;
	return h("div", h("p", words), put.length > 0 && h("pre", put.slice(0, LISTED).map((event) => eventText(event)).join("\n") + (more > 0 ? `\nand ${more} more` : "")));
}

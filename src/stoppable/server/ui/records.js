/** Holds and the audit. */

import { empty, h, labelText, messageOf, page, quiet, region, runAddress, say, shortId, table, time, tr } from "./dom.js";
import { get, remove } from "./api.js";
import { live } from "./live.js";
import { loaded } from "./start.js";

const PART = 500;

/** @param {string[]} names @param {HTMLElement[]} rows */
const scrolled = (names, rows) => region("div.scroller", "Table", table(names, ...rows));

/** What a selector means, in words. @param {Selector} selector */
export function selectorText({ owner, labels, agent, all }) {
	const parts = [agent && `agent ${agent}`, owner && `owner ${owner}`, labels && labelText(labels)].filter(Boolean);
	return parts.join(", ") || (all ? "every run" : "–");
}

/** @returns {Page} */
export function holdsPage() {
	const body = h("div");
	const message = h("p.bad", { role: "alert" });
	const show = () =>
		loaded(body, async () => {
			const [{ holds }] = await Promise.all([get("holds"), live.who()]);
			if (holds.length === 0) return [empty("Nothing is held", h("p", "A hold refuses new starts. “Stop these…” in the list of runs can place one together with a stop."))];
			return [scrolled(["Refuses", "Since", "By", "Why", "Action"], holds.map((/** @type {Hold} */ hold) => row(hold)))];
		});
	const row = (/** @type {Hold} */ hold) => {
		const name = `Release the hold on ${selectorText(hold.selector)}`;
		const release = quiet("Release", () => remove(`holds/${hold.id}`).then(show, (error) => say(message, messageOf(error))), { "aria-label": name });
		return tr(selectorText(hold.selector), time(hold.createdAt), live.person(hold.reason.actor) ?? "–", hold.reason.message || "–", live.may("hold") && release);
	};
	show();
	return page("Holds", h("p.meta", "New starts that match a hold are refused until it is released. Runs that are under way go on."), message, body);
}

/** @returns {Page} */
export function auditPage() {
	const body = h("div");
	loaded(body, async () => {
		/** @type {AuditEntry[]} */
		const entries = [];
		for (let after = /** @type {number | null} */ (0); after !== null; ) {
			const part = await get(`audit?after=${after}&limit=${PART}`);
			entries.push(...part.entries);
			after = part.after;
		}
		if (entries.length === 0) return [empty("Nothing yet", h("p", "Every stop, hold and release is written down here: who, when, why and with what result."))];
		const shown = entries.slice(-PART).reverse();
		const older = entries.length - shown.length;
		return [scrolled(["When", "What", "Who", "Which", "Result", "Why"], shown.map(auditRow)), h("p.meta", older > 0 ? `${older} older entries are not shown.` : "")];
	});
	return page("Audit", body);
}

/** @param {AuditEntry} entry */
function auditRow({ at, action, actor, target, result, reason }) {
	const when = new Date(at * 1000);
	const run = target.run ? h("a", { href: runAddress(target.run), class: "mono" }, shortId(target.run)) : selectorText(target.selector ?? target);
	const answers = Object.values(result.runs ?? {});
	const told = answers.length === 1 ? String(answers[0]).replace("_", " ") : answers.length ? `${answers.length} runs` : "–";
	return tr(h("td.mono", `${when.toLocaleDateString("en-CA")} ${when.toLocaleTimeString("en-GB")}`), [action, target.mode].filter(Boolean).join(" "), live.person(actor) ?? "–", run, told, reason || "–");
}


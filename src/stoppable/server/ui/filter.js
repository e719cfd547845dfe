/** Which runs the list shows, and in which order; all of it is in the address. */

import { isOver } from "./stoppable-button.js";
import { labelText } from "./dom.js";

export const STATUSES = ["pending", "running", "stopping", "completed", "failed", "stopped", "lost"];
const TEXTS = /** @type {const} */ (["agent", "owner", "label", "text", "since", "sort"]);
const HOUR = 3600;
/** @type {Record<string, [string, number]>} */
export const SINCE = { "": ["any time", Infinity], hour: ["last hour", HOUR], day: ["last 24 hours", 24 * HOUR], week: ["last 7 days", 168 * HOUR] };
const LONG = 30; // seconds for which a stop may last before somebody should look
const RECENT = 24 * HOUR; // for which an unconfirmed run is on top

/** @param {URLSearchParams} query @returns {RunFilter} */
export function filterOf(query) {
	const [agent, owner, label, text, since, sort] = TEXTS.map((name) => query.get(name) ?? "");
	return { status: new Set(query.getAll("status")), agent, owner, label, text, since: since in SINCE ? since : "", sort, subs: query.has("subs") };
}

/** @param {RunFilter} filter */
export function queryOf(filter) {
	const query = new URLSearchParams();
	for (const one of filter.status) query.append("status", one);
	for (const name of TEXTS) if (filter[name]) query.set(name, filter[name]);
	if (filter.subs) query.set("subs", "");
	return query.toString();
}

/** @param {Summary} run @param {RunFilter} filter @param {number} now */
export function matches(run, { status, agent, owner, label, text, subs, since }, now) {
	if (run.parentId !== null && !subs) return false;
	if ((status.size && !status.has(run.status)) || (agent && run.name !== agent) || (owner && run.owner !== owner)) return false;
	if ((run.endedAt ?? now) < now - SINCE[since][1]) return false;
	if (label) {
		const [key, value] = label.split(/:(.*)/s);
		if (value === undefined ? !(key in run.labels) : run.labels[key] !== value) return false;
	}
	const all = () => `${run.id} ${run.name} ${run.owner ?? ""} ${labelText(run.labels)} ${run.key ?? ""} ${run.reason?.message ?? ""} ${run.error ?? ""}`;
	return !text || all().toLowerCase().includes(text.toLowerCase());
}

/** Whether somebody should look at it: its stop was not confirmed, or takes long. @param {Summary} run @param {number} now */
export function needsYou(run, now) {
	if (run.status === "lost") return run.endedLate === null && (run.endedAt ?? now) > now - RECENT;
	return run.status === "stopping" && (run.stopRequestedAt ?? now) < now - LONG;
}

/** @type {Record<string, (run: Summary, now: number) => string | number>} what a column is sorted by */
const COLUMNS = {
	status: (run) => STATUSES.indexOf(run.status),
	agent: (run) => run.name,
	owner: (run) => run.owner ?? "",
	started: (run) => run.startedAt ?? run.createdAt,
	duration: (run, now) => (run.endedAt ?? now) - (run.startedAt ?? run.createdAt),
};

/** By a column; else what needs somebody first, then what is live, each newest first. @param {Summary[]} runs @param {string} sort @param {number} now */
export function arranged(runs, sort, now) {
	const column = COLUMNS[sort.replace("-", "")];
	const sign = sort.startsWith("-") ? -1 : 1;
	const group = (/** @type {Summary} */ run) => (needsYou(run, now) ? 0 : isOver(run.status) ? 2 : 1);
	const keyed = runs.map((run) => ({ run, key: column ? column(run, now) : group(run) }));
	keyed.sort((a, b) => (a.key < b.key ? -sign : a.key > b.key ? sign : byAge(a.run, b.run)));
	return keyed.map(({ run }) => run);
}

/** @param {Summary} a @param {Summary} b */
const byAge = (a, b) => b.createdAt - a.createdAt || (a.id < b.id ? 1 : -1);

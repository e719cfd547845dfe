/** One line for each thing that an agent does. */

/** @param {string} tag @param {Record<string, string>} attributes @param {(Node | string)[]} children */
export function h(tag, attributes, ...children) {
	const made = document.createElement(tag);
	for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
	made.append(...children);
	return made;
}

/** The status of a run as a chip. @param {string} status */
export const chip = (status) => h("span", { class: "chip", "data-status": status }, status);

/** The word for a run. @param {{status: string, stopping?: boolean, unconfirmed?: boolean}} run */
export const statusOf = (run) => (run.unconfirmed ? "unconfirmed" : run.stopping ? "stopping" : run.status);

/** A time of the server, which is UTC. @param {string} text */
export const clock = (text) => new Date(`${text}Z`).toLocaleTimeString("en-GB");

const DEEPEST = 4;
/** @param {number} ms */
const seconds = (ms) => (ms < 1000 ? `${Math.round(ms)} ms` : `${(ms / 1000).toFixed(1)} s`);

/** @type {Record<string, (event: any) => (Node | string)[]>} */
const WORDS = {
	agent_start: (event) => [event.agent_name, event.called_by ? ` called by ${event.called_by}` : " began"],
	agent_end: (event) => [`${event.agent_name}: ${event.outcome}, ${seconds(event.duration_ms)}`],
	llm_call: (event) => [kind("llm"), `${event.provider}/${event.model}, ${seconds(event.duration_ms)}${event.error ? `, ${event.error}` : ""}`],
	data_store: (event) => [kind("store"), [event.operation, event.key].filter(Boolean).join(" "), ` in ${event.namespace}`],
	stdout: (event) => [event.message],
	log: (event) => [kind(event.level), event.message],
	error: (event) => [h("details", {}, h("summary", {}, `${event.exception_type}: ${event.message}`), h("pre", {}, event.traceback))],
	trace_truncated: (event) => [event.message],
};

/** @param {string} text */
const kind = (text) => h("span", { class: "kind" }, text);

/**
 * @param {any} event
 * @param {(runId: string) => void} stop stops an agent that was called, alone
 */
export function line(event, stop) {
	const words = WORDS[event.type]?.(event) ?? [event.type];
	const depth = Math.min(Math.max(event.depth - 1, 0), DEEPEST);
	const made = h("li", { "data-type": event.type, class: `depth-${depth}` }, h("time", {}, clock(event.ts)), h("span", { class: "told" }, ...words));
	if (event.type === "agent_start" && event.depth > 1 && event.run_id) {
		const button = h("button", { type: "button", "data-run": event.run_id, "aria-label": `Stop ${event.agent_name}` }, "Stop this one");
		button.addEventListener("click", () => stop(event.run_id));
		made.append(button);
	}
	return made;
}

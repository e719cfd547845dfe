/** The agents that can be started, and a form for each. */

import { chip, empty, failure, fill, h, messageOf, page, say, stopButton } from "./dom.js";
import { get, post } from "./api.js";
import { compareAddress } from "./compare.js";
import { History } from "./history.js";
import { live } from "./live.js";
import { outputPanel } from "./panels.js";

/** @param {HTMLElement} element @param {() => Promise<(Node | string)[]>} load */
export function loaded(element, load) {
	fill(element, h("p.loading", { role: "status" }, "Loading…"));
	load().then(
		(children) => fill(element, ...children),
		(error) => {
			fill(element, failure(error, () => loaded(element, load)));
			live.whenBack(() => element.querySelector(".failure") && loaded(element, load));
		},
	);
}

/** @returns {Page} */
export function agentsPage() {
	const body = h("div");
	loaded(body, async () => {
		const [{ agents }] = await Promise.all([get("agents"), live.who()]);
		if (agents.length === 0) return [noAgents()];
		return [h("ul.agents", .../** @type {Agent[]} */ (agents).map(agentRow))];
	});
	return page("Agents", body);
}

/** @param {Agent} agent */
function agentRow({ name, description }) {
	const address = `#/start/${encodeURIComponent(name)}`;
	const runs = h("a", { href: `#/?agent=${encodeURIComponent(name)}`, class: "quiet button" }, "Its runs");
	return h("li", h("div", h("h2", name), h("p", description)), runs, live.may("start") && h("a.button", { href: address, "aria-label": `Start ${name}` }, "Start"));
}

function noAgents() {
	const code = "# agents.py\nimport stoppable\n\n@stoppable.agent\nasync def research(topic: str): ...\n\n$ stoppable serve agents";
	return empty("No agents here", h("p", "This server shows and stops runs, but starts none. To serve agents:"), h("pre", code));
}

/** @param {string} name @param {URLSearchParams} query @returns {Page} */
export function startPage(name, query) {
	const body = h("div");
	/** @type {StartForm | null} */
	let form = null;
	loaded(body, async () => {
		const [{ agents }, { scopes }] = await Promise.all([get("agents"), live.who()]);
		const agent = agents.find((/** @type {Agent} */ one) => one.name === name);
		if (!scopes.includes("start")) return [empty("You may not start runs here", h("a", { href: "#/" }, "All runs"))];
		const again = query.get("again");
		/** @type {Run | null} */
		const before = again ? await get(`runs/${encodeURIComponent(again)}`) : null;
		form = agent ? new StartForm(agent, before) : null;
		return [form ? form.element : empty("There is no such agent", h("a", { href: "#/agents" }, "All agents"))];
	});
	const crumbs = h("p.crumbs", h("a", { href: "#/agents" }, "Agents"));
	return { element: h("section.page", crumbs, h("h1", name), body), title: `Start ${name}`, close: () => form?.close() };
}

class StartForm {
	/** @type {History | null} the run that it started last */ history = null;

	/** @param {Agent} agent @param {Run | null} before a run that is done again */
	constructor(agent, before) {
		this.agent = agent;
		this.before = before;
		const { properties = {}, required = [] } = agent.input;
		/** @type {Map<string, Field>} */
		this.fields = new Map(Object.entries(properties).map(([name, schema]) => [name, fieldOf(name, withInput(name, schema, before), required.includes(name))]));
		const field = (/** @type {string} */ id, hint = "") => h("input", { id, placeholder: hint, spellcheck: "false" });
		this.labels = field("labels", "team:physics, chat:42");
		this.owner = field("owner");
		this.key = field("conversation", "chat:ann/42");
		this.labels.value = before ? Object.entries(before.labels).map((pair) => pair.join(":")).join(", ") : "";
		this.owner.value = before?.owner ?? "";
		this.key.value = before?.key ?? "";
		this.message = h("p.bad", { role: "alert" });
		this.start = h("button.primary", "Run");
		this.actions = h("div.actions", this.start);
		const more = h("details", h("summary", "more"), ...[this.labels, this.owner, this.key].flatMap((one) => [h("label", { for: one.id }, one.id[0].toUpperCase() + one.id.slice(1)), one]));
		this.output = h("section");
		this.form = h("form", h("p.meta", agent.description), ...[...this.fields.values()].flatMap((field) => field.element), more, this.message, this.actions);
		this.element = h("div", this.form, this.output);
		this.form.addEventListener("submit", (event) => {
			event.preventDefault();
			this.#run();
		});
	}

	async #run() {
		say(this.message, "");
		const runId = newId();
		try {
			const [owner, key] = [this.owner, this.key].map((one) => one.value.trim() || undefined);
			const body = { agent: this.agent.name, runId, ...this.#input(), labels: labelsOf(this.labels.value), owner, key };
			this.start.disabled = true;
			await post("runs", body);
			this.#follow(runId);
		} catch (error) {
			say(this.message, messageOf(error));
		}
		this.start.disabled = false;
	}

	#input() {
		const given = [...this.fields].map(([name, field]) => /** @type {[string, unknown]} */ ([name, field.value()])).filter(([, value]) => value !== undefined);
		return this.fields.size ? { input: Object.fromEntries(given) } : {};
	}

	/** While it lasts, Stop is where Run was; what it puts out is shown below. @param {string} runId */
	#follow(runId) {
		const button = stopButton();
		button.setAttribute("run-id", runId);
		const before = this.history?.id ?? this.before?.id;
		const links = h("span.links", h("a", { href: `#/runs/${runId}` }, "Open the run"), before && h("a", { href: compareAddress(before, runId) }, "Compare with the one before"));
		button.addEventListener("ended", (event) => {
			const ended = h("span", chip(/** @type {CustomEvent} */ (event).detail.status));
			say(this.start, "Run again");
			fill(this.actions, this.start, ended, links);
		});
		fill(this.actions, button, links);
		this.close();
		this.history = new History(runId);
		const output = outputPanel(this.history);
		this.history.addEventListener("change", () => output.show());
		this.history.start().catch((error) => say(this.message, messageOf(error)));
		fill(this.output, h("h2", "Output"), output.element);
	}

	close() {
		this.history?.close();
	}
}

/** A field as it was filled in before. @param {string} name @param {Schema} schema @param {Run | null} before @returns {Schema} */
function withInput(name, schema, before) {
	const input = /** @type {Record<string, unknown> | undefined} */ (before?.input);
	return input && typeof input === "object" && name in input ? { ...schema, default: input[name] } : schema;
}

export const newId = () => [...crypto.getRandomValues(new Uint8Array(16))].map((byte) => byte.toString(16).padStart(2, "0")).join("");

/** @param {string} text @returns {Record<string, string>} */
export function labelsOf(text) {
	const pairs = text.split(",").map((one) => one.trim()).filter(Boolean).map((one) => one.split(/:(.*)/s));
	const bad = pairs.find(([, value]) => value === undefined);
	if (bad) throw new Error(`“${bad[0]}” is not a label: use key:value`);
	return Object.fromEntries(pairs.map(([key, value]) => [key.trim(), value.trim()]));
}

/** @param {string} name @param {Schema} schema @param {boolean} isRequired @returns {Field} */
function fieldOf(name, schema, isRequired) {
	const id = `input-${name}`;
	const kind = schema.enum ? "enum" : String(schema.type ?? "json");
	const hint = [kind === "json" || !(kind in MAKERS) ? "JSON" : "", schema.description, isRequired ? "" : "optional"].filter(Boolean).join(", ");
	const control = (MAKERS[kind] ?? MAKERS.json)(schema, isRequired);
	control.element.id = id;
	const label = h("label", { for: id }, name, hint && h("span.hint", ` ${hint}`));
	return { element: [label, control.element], value: control.value };
}

/** @type {Record<string, MakeControl>} */
const MAKERS = {
	string: ({ default: given }, required) => {
		const element = h("input", { value: given ?? "", required, dir: "auto" });
		return { element, value: () => (element.value || required || given ? element.value : undefined) };
	},
	integer: (schema, required) => number(schema, required, "1"),
	number: (schema, required) => number(schema, required, "any"),
	boolean: ({ default: given }) => {
		const element = h("input", { type: "checkbox", checked: given === true });
		return { element, value: () => element.checked };
	},
	enum: ({ enum: values = [], default: given }, required) => {
		const element = h("select", { required }, !required && h("option", { value: "" }, "–"), ...values.map((value, index) => h("option", { value: index, selected: value === given }, String(value))));
		return { element, value: () => (element.value === "" ? undefined : values[Number(element.value)]) };
	},
	json: ({ default: given }, required) => {
		const element = h("textarea", { rows: 3, required, spellcheck: "false" }, given === undefined ? "" : JSON.stringify(given, null, 2));
		return { element, value: () => (element.value.trim() ? JSON.parse(element.value) : undefined) };
	},
};

/** @param {Schema} schema @param {boolean} required @param {string} step */
function number({ default: given }, required, step) {
	const element = h("input", { type: "number", step, value: given ?? "", required });
	return { element, value: () => (element.value === "" ? undefined : Number(element.value)) };
}

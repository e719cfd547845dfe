/** The page: write an agent, run it, watch it, stop it. */

import { ask, follow } from "./api.js";
import { chip, clock, h, line, statusOf } from "./trace.js";

/** @typedef {import("./api.js").Run} Run */

const FIRST = `async def run(input_dict, tools):
    for topic in ["stop", "receipt", "ladder"]:
        print("asking about", topic)
        messages = [{"role": "user", "content": topic}]
        answer, _ = await call_llm("scripted", "demo", messages, {"seconds": 3})
        data_store.set(topic, answer)
    return {"topics": data_store.list_keys()}
`;
const REFRESH = 3000;

/** @template {HTMLElement} T @param {string} id @returns {T} */
const element = (id) => /** @type {any} */ (document.getElementById(id));
const code = /** @type {HTMLTextAreaElement} */ (element("code"));
const input = /** @type {HTMLTextAreaElement} */ (element("input"));
const name = /** @type {HTMLInputElement} */ (element("name"));
const saved = /** @type {HTMLSelectElement} */ (element("saved"));
const run = /** @type {HTMLButtonElement} */ (element("run"));
const stop = /** @type {HTMLButtonElement} */ (element("stop"));
const trace = element("trace");

/** @type {Run | null} the run that is shown */ let shown = null;
/** @type {readonly string[]} what was in flight when Stop was pressed */ let inFlight = [];
/** @type {() => void} */ let letGo = () => {};
/** @type {any[]} */ let agents = [];

/** @param {string} text */
const problem = (text) => (element("problem").textContent = text);

/** Do something, and say what went wrong with it. @param {() => Promise<void>} act */
async function attempt(act) {
	problem("");
	await act().catch((error) => problem(error.message));
}

// The run that is shown

/** Show what is known of the run now. */
function show() {
	const status = shown === null ? null : statusOf(shown);
	const isLive = shown?.status === "running";
	const isStopping = isLive && !!shown?.stopping;
	run.disabled = isLive;
	stop.disabled = !isLive || isStopping;
	const isAsking = inFlight.some((label) => label.startsWith("llm:"));
	element("stop-text").textContent = isStopping ? (isAsking ? "Stopping… (after current LLM call completes)" : "Stopping…") : "Stop";
	element("harder").hidden = !isStopping;
	if (shown === null || status === null) return;
	element("run-name").textContent = shown.agentName;
	element("run-status").replaceChildren(chip(status));
	element("run-id").textContent = shown.runId.slice(0, 8);
	element("run-line").textContent = LINES[status](shown);
	const receipt = /** @type {HTMLAnchorElement} */ (element("run-receipt"));
	receipt.href = `stoppable/#/runs/${shown.runId}`;
	receipt.hidden = isLive;
	showResult(shown, isLive);
}

/** @type {Record<string, (run: Run) => string>} */
const LINES = {
	running: (run) => `Since ${clock(run.startedAt)}. It goes on if you close this page.`,
	stopping: () => "It was told to stop. What it has begun may finish; nothing new begins.",
	success: (run) => `Began at ${clock(run.startedAt)}, and ended by itself.`,
	error: () => "It failed.",
	stopped: (run) => `${run.error?.replace("AgentStopped: ", "") ?? ""}. Nothing of it is left running.`,
	unconfirmed: () => "It was told to stop, and something of it may still be running.",
};

/** @param {Run} run @param {boolean} isLive */
function showResult(run, isLive) {
	const isError = run.status === "error";
	element("result-panel").hidden = isLive || (run.status === "stopped" && run.result == null);
	element("result-title").textContent = isError ? "Error" : "Result";
	element("result").textContent = isError ? run.error : JSON.stringify(run.result, null, 2);
}

/** Show a run from its beginning, then as it goes on. @param {Run} found */
function attach(found) {
	letGo();
	shown = found;
	inFlight = [];
	trace.replaceChildren();
	location.hash = found.runId;
	letGo = follow(found.runId, {
		trace: (event) => trace.append(line(event, (runId) => attempt(() => press(runId)))),
		status: (told) => changed(told),
		done: (told) => {
			shown = { ...found, ...told, status: told.outcome, stopping: false };
			show();
			refresh();
		},
	});
	show();
	refresh();
}

/** @param {{runId: string, status: string, stopping: boolean}} told */
function changed(told) {
	if (told.runId === shown?.runId) shown = { ...shown, stopping: told.stopping };
	else if (told.status !== "running") trace.querySelector(`button[data-run="${CSS.escape(told.runId)}"]`)?.replaceWith(chip(told.status));
	show();
}

/** @param {string} runId @param {string} [mode] */
async function press(runId, mode = "graceful") {
	const told = await ask("POST", `runs/${runId}/stop`, { mode });
	if (runId !== shown?.runId || told.status !== "stopping") return;
	inFlight = told.inFlight;
	shown = { ...shown, stopping: true };
	show();
	refresh();
}

// The editor

const chosen = () => [...document.querySelectorAll("#calls input:checked")].map((box) => /** @type {HTMLInputElement} */ (box).value);

async function start() {
	let inputDict;
	try {
		inputDict = JSON.parse(input.value || "{}");
	} catch (error) {
		throw new Error(`The input is not JSON: ${/** @type {Error} */ (error).message}`);
	}
	const body = { code: code.value, inputDict, tools: {}, gofannonAgents: chosen(), friendlyName: name.value, agentId: name.value };
	const { runId } = await ask("POST", "agents/run-code/start", body);
	attach(await ask("GET", `runs/${runId}`));
}

async function save() {
	const agentId = name.value;
	await ask("PUT", `agents/${encodeURIComponent(agentId)}`, { name: agentId, code: code.value, gofannonAgents: chosen() });
	await loadAgents();
}

async function loadAgents() {
	agents = await ask("GET", "agents");
	const ticked = new Set(chosen());
	saved.replaceChildren(new Option("saved agents…", ""), ...agents.map((agent) => new Option(agent.name, agent.agentId)));
	const boxes = agents.map((agent) => {
		const box = /** @type {HTMLInputElement} */ (h("input", { type: "checkbox", value: agent.agentId }));
		box.checked = ticked.has(agent.agentId);
		return h("label", {}, box, agent.name);
	});
	element("calls").replaceChildren(h("legend", {}, "It may call"), ...boxes);
	element("calls").hidden = agents.length === 0;
}

function openSaved() {
	const agent = agents.find((one) => one.agentId === saved.value);
	saved.value = "";
	if (!agent) return;
	[name.value, code.value] = [agent.name, agent.code];
	for (const box of document.querySelectorAll("#calls input")) {
		const one = /** @type {HTMLInputElement} */ (box);
		one.checked = agent.gofannonAgents.includes(one.value);
	}
}

// The history

/** @type {Run[]} */ let runs = [];

async function refresh() {
	const answer = await ask("GET", "runs").catch(() => null);
	if (answer === null) return;
	runs = answer.runs;
	element("history").replaceChildren(...runs.map(entry));
}

/** @param {Run} run */
function entry(run) {
	const link = h("a", { href: `#${run.runId}` }, h("span", { class: "name" }, run.agentName), h("time", {}, clock(run.startedAt)), chip(statusOf(run)));
	if (run.runId === shown?.runId) link.setAttribute("aria-current", "true");
	return h("li", {}, link);
}

/** Show the run that the address names: after a reload, too. */
async function open() {
	const runId = location.hash.slice(1);
	if (!runId || runId === shown?.runId) return;
	const found = await ask("GET", `runs/${encodeURIComponent(runId)}`);
	if (found.code) [name.value, code.value, input.value] = [found.agentName, found.code, JSON.stringify(found.inputDict)];
	attach(found);
}

element("editor").addEventListener("submit", (event) => {
	event.preventDefault();
	attempt(start);
});
stop.addEventListener("click", () => attempt(() => press(/** @type {Run} */ (shown).runId)));
element("harder").addEventListener("click", () => attempt(() => press(/** @type {Run} */ (shown).runId, "immediate")));
element("save").addEventListener("click", () => attempt(save));
saved.addEventListener("change", openSaved);
addEventListener("hashchange", () => attempt(open));
addEventListener("keydown", (event) => {
	if (event.key === "Escape" && !stop.disabled) stop.click();
	if (event.key === "Enter" && event.ctrlKey && !run.disabled) run.click();
});
setInterval(() => !document.hidden && runs.some((one) => one.status === "running") && refresh(), REFRESH);

code.value = FIRST;
show();
refresh();
attempt(loadAgents);
attempt(open);

/** The frame of the page: which part is shown, the connection, and the key. */

import * as api from "./api.js";
import { agentsPage, startPage } from "./start.js";
import { auditPage, holdsPage } from "./records.js";
import { clock } from "./stoppable-button.js";
import { empty, h, say } from "./dom.js";
import { live } from "./live.js";
import { runPage } from "./run.js";
import { runsPage } from "./runs.js";

const content = /** @type {HTMLElement} */ (document.querySelector("#content"));
const connection = /** @type {HTMLElement} */ (document.querySelector("#connection"));
/** @type {Page | null} */
let page = null;
let shown = "";

/** @param {string} path @param {URLSearchParams} query @returns {[string, Page]} */
function pageOf(path, query) {
	const [first, second] = path.split("/").filter(Boolean).map(decodeURIComponent);
	if (!first) return ["runs", runsPage(query)];
	if (first === "runs" && second) return ["runs", runPage(second)];
	if (first === "agents") return ["agents", agentsPage()];
	if (first === "start" && second) return ["agents", startPage(second)];
	if (first === "holds") return ["holds", holdsPage()];
	if (first === "audit") return ["audit", auditPage()];
	return ["", { element: empty("There is no such page", h("a", { href: "#/" }, "All runs")), title: "Not found" }];
}

function route() {
	if (location.hash && !location.hash.startsWith("#/")) return; // a place within the page
	const [path, query = ""] = location.hash.slice(1).split("?");
	if (path === shown && path === "/") return; // the list changes its own address
	shown = path || "/";
	page?.close?.();
	const [name, next] = pageOf(path, new URLSearchParams(query));
	page = next;
	document.title = `${page.title} · stoppable`;
	for (const link of document.querySelectorAll("nav a")) {
		if (/** @type {HTMLElement} */ (link).dataset.page === name) link.setAttribute("aria-current", "page");
		else link.removeAttribute("aria-current");
	}
	content.replaceChildren(page.element);
	content.scrollTop = 0;
}

function showConnection() {
	connection.dataset.state = live.state;
	const words = { connecting: "connecting…", live: "live", reconnecting: "reconnecting…", offline: `offline since ${clock(live.since ?? 0)}` };
	say(connection.querySelector(".text"), words[live.state]);
}

/** Asks for the key that the server wants; it is kept for this tab only. */
function askForKey() {
	if (document.querySelector("#key")) return;
	const field = h("input", { id: "key", type: "password", autocomplete: "off", required: true, spellcheck: "false" });
	const isWrong = "Authorization" in api.headers();
	const form = h(
		"form.key",
		h("h1", "This server asks for its key"),
		isWrong && h("p.bad", { role: "alert" }, "That key was not accepted."),
		h("label", { for: "key" }, "Key"),
		field,
		h("p.meta", "It is kept until this tab is closed, and sent to this server only."),
		h("button.primary", "Open"),
	);
	form.addEventListener("submit", (event) => {
		event.preventDefault();
		api.setKey(field.value.trim());
		shown = "";
		live.start();
		route();
	});
	page?.close?.();
	page = { element: form, title: "Key" };
	content.replaceChildren(form);
	field.focus();
}

api.asking.addEventListener("key", askForKey);
live.addEventListener("state", showConnection);
window.addEventListener("hashchange", route);
document.addEventListener("keydown", (event) => {
	if (event.key === "Escape" && !event.defaultPrevented) page?.escape?.();
});
document.querySelector(".skip")?.addEventListener("click", (event) => {
	event.preventDefault();
	content.focus();
});
live.start();
route();

/** The frame of the page: which part is shown, the connection, and the key. */

import * as api from "./api.js";
import { agentsPage, startPage } from "./start.js";
import { auditPage, holdsPage } from "./records.js";
import { applyTheme } from "./settings.js";
import { clock } from "./stoppable-button.js";
import { ComparePage } from "./compare.js";
import { empty, h, say } from "./dom.js";
import { helpPage } from "./help.js";
import { live } from "./live.js";
import { OverviewPage } from "./overview.js";
import { RunPage } from "./run.js";
import { RunsPage } from "./runs.js";

const [content, asOf, connection] = ["#content", "#asof", "#connection"].map((name) => /** @type {HTMLElement} */ (document.querySelector(name)));
const links = document.querySelectorAll(/** @type {"a"} */ ("nav a"));
/** @type {Page | null} */
let page = null;

/** @param {string} path @param {URLSearchParams} query @returns {[string, Page]} */
function pageOf(path, query) {
	const [first, second, third] = partsOf(path);
	if (!first) return ["runs", new RunsPage(query)];
	if (first === "runs" && second) return ["runs", new RunPage(second, query)];
	if (first === "compare" && second && third) return ["runs", new ComparePage([second, third])];
	if (first === "overview") return ["overview", new OverviewPage()];
	if (first === "help") return ["help", helpPage()];
	if (first === "agents") return ["agents", agentsPage()];
	if (first === "start" && second) return ["agents", startPage(second, query)];
	if (first === "holds") return ["holds", holdsPage()];
	if (first === "audit") return ["audit", auditPage()];
	return ["", { element: empty("There is no such page", h("a", { href: "#/" }, "All runs")), title: "Not found" }];
}

/** The parts of an address; one that is malformed is the address of nothing. @param {string} path */
function partsOf(path) {
	try {
		return path.split("/").filter(Boolean).map(decodeURIComponent);
	} catch {
		return ["malformed"];
	}
}

/** Show what the address says. The list changes its own address in place, which comes past here only when it is left. */
function route() {
	if (location.hash && !location.hash.startsWith("#/")) return; // a place within the page
	const [path, query = ""] = location.hash.slice(1).split("?");
	page?.close?.();
	const [name, next] = pageOf(path, new URLSearchParams(query));
	page = next;
	document.title = `${page.title} · stoppable`;
	for (const link of links) {
		if (link.dataset.page === name) link.setAttribute("aria-current", "page");
		else link.removeAttribute("aria-current");
	}
	content.replaceChildren(page.element);
	content.scrollTop = 0;
}

function showConnection() {
	connection.dataset.state = live.state;
	document.body.dataset.connection = live.state;
	asOf.hidden = live.state !== "offline";
	if (!asOf.hidden) say(asOf, `As of ${clock(live.since ?? 0)}: the server cannot be reached. Nothing below is newer.`);
	const words = { connecting: "connecting…", live: "live", reconnecting: "reconnecting…", offline: `offline since ${clock(live.since ?? 0)}` };
	say(connection.querySelector(".text"), words[live.state]);
}

/** Leave out what the caller may not do. */
function showCaller() {
	for (const link of links) link.hidden = !!link.dataset.scope && !live.may(link.dataset.scope);
}

/** Ask for the key, which is kept for this tab only. */
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
live.addEventListener("change", showCaller);
window.addEventListener("hashchange", route);
document.addEventListener("keydown", (event) => {
	if (event.key === "Escape" && !event.defaultPrevented && !event.repeat) page?.escape?.();
});
document.querySelector(".skip")?.addEventListener("click", (event) => {
	event.preventDefault();
	content.focus();
});
applyTheme();
live.start();
route();

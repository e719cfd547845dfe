/** Keys of the list. */

export const KEYS = [["/", "search"], ["j, k", "next run, run before"], ["Enter", "open the run"], ["Esc", "on a run: the first press of Stop; in a question: no"], ["?", "this page"]];

/** @param {KeyboardEvent} event @param {HTMLElement} page */
export function listKey(event, page) {
	const target = /** @type {HTMLElement} */ (event.target);
	if (event.ctrlKey || event.metaKey || event.altKey || target.closest("input:not([type=checkbox]), select, textarea, dialog")) return;
	if (event.key === "/") page.querySelector(/** @type {"input"} */ ("[aria-label='Search']"))?.focus();
	else if (event.key === "j" || event.key === "k") step(page, event.key === "j" ? 1 : -1);
	else if (event.key === "?") location.hash = "#/help";
	else return;
	event.preventDefault();
}

/** @param {HTMLElement} page @param {number} by */
function step(page, by) {
	const links = /** @type {HTMLElement[]} */ ([...page.querySelectorAll(".row .agent a")]);
	const place = links.findIndex((link) => link.closest(".row")?.contains(document.activeElement));
	const next = links[place < 0 ? 0 : Math.max(0, Math.min(links.length - 1, place + by))];
	next?.focus();
	next?.closest(".row")?.scrollIntoView({ block: "nearest" });
}

/** Output as it was meant: Markdown, or colours of a terminal. It becomes elements, never markup, so nothing in it can act. */

import { h, shownText } from "./dom.js";

/** How output can be shown. */
export const VIEWS = /** @type {Record<string, (text: string) => Node[]>} */ ({ Text: (text) => [new Text(shownText(text))], Markdown: markdown, Terminal: terminal });

const CONTROL = /\x1b\[([\d;]*)m|\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)?/g;
const LOOKS = /** @type {Record<number, string>} */ ({ 1: "bold", 3: "italic", 4: "underline", 7: "inverse" });

/** Text with the codes of a terminal for bold, colours and so on; those that move the cursor are left out. @param {string} text @returns {Node[]} */
export function terminal(text) {
	/** @type {Node[]} */
	const made = [];
	/** @type {string[]} */
	let looks = [];
	let [place, colour] = [0, ""];
	const put = (/** @type {number} */ end) => {
		const piece = overwritten(text.slice(place, end));
		if (!piece) return;
		const names = [...looks, colour && `colour-${colour}`].filter(Boolean).join(" ");
		made.push(names ? h("span", { class: names }, piece) : new Text(shownText(piece)));
	};
	for (const match of text.matchAll(CONTROL)) {
		put(match.index);
		place = match.index + match[0].length;
		if (match[1] === undefined) continue;
		const codes = match[1].split(";").map(Number);
		for (let index = 0; index < codes.length; index++) {
			const code = codes[index];
			if (code === 0) {
				colour = "";
				looks = [];
			} else if (code in LOOKS) looks = [...new Set([...looks, LOOKS[code]])];
			else if (code > 20 && code < 30) looks = looks.filter((one) => one !== LOOKS[code - 20] && (code !== 22 || one !== "bold"));
			else if ((code >= 30 && code <= 37) || (code >= 90 && code <= 97)) colour = String(code % 10);
			else if (code === 39) colour = "";
			else if (code === 38 || code === 48) index += codes[index + 1] === 5 ? 2 : 4; // one of many colours: some cannot be read on this page
		}
	}
	put(text.length);
	return made;
}

/** A line that begins anew with a carriage return, as progress bars do, shows what was written last. @param {string} text */
const overwritten = (text) => text.split("\n").map((line) => line.slice(line.lastIndexOf("\r", line.length - 2) + 1).replace("\r", "")).join("\n");

const FENCE = /^ {0,3}(`{3,}|~{3,})\s*(\S*)/;
const ITEM = /^( *)([-*+]|\d{1,9}[.)])\s+(.*)$/;
const DEEP = 6; // lists in lists, quotes in quotes

/** @param {string} text @returns {Node[]} */
export function markdown(text) {
	return blocks(text.replace(/\r\n?/g, "\n").split("\n"), 0);
}

/** @param {string[]} lines @param {number} depth @returns {Node[]} */
function blocks(lines, depth) {
	/** @type {Node[]} */
	const made = [];
	for (let at = 0; at < lines.length; ) {
		const line = lines[at];
		const taken = (/** @type {(line: string, index: number) => boolean} */ goesOn, from = at + 1) => {
			let end = from;
			while (end < lines.length && goesOn(lines[end], end)) end++;
			const own = lines.slice(at, end);
			at = end;
			return own;
		};
		const fence = line.match(FENCE);
		const heading = line.match(/^(#{1,6})\s+(.*)$/);
		if (!line.trim()) at++;
		else if (fence) {
			const own = taken((one) => !one.trim().startsWith(fence[1]));
			at++; // its end
			made.push(h("pre", own.slice(1).join("\n")));
		} else if (heading) {
			at++;
			made.push(h(/** @type {"h3"} */ (`h${Math.min(6, heading[1].length + 2)}`), ...inline(heading[2])));
		} else if (/^ {0,3}([-*_])( *\1){2,}\s*$/.test(line)) {
			at++;
			made.push(h("hr"));
		} else if (/^\s*>/.test(line) && depth < DEEP) {
			made.push(h("blockquote", ...blocks(taken((one) => /^\s*>/.test(one)).map((one) => one.replace(/^\s*> ?/, "")), depth + 1)));
		} else if (ITEM.test(line) && depth < DEEP) made.push(list(taken((one) => ITEM.test(one) || (/^\s+\S/.test(one) && !FENCE.test(one))), depth));
		else if (line.includes("|") && /^[\s:-]*\|[\s|:-]*$/.test(lines[at + 1] ?? "")) made.push(grid(taken((one) => one.includes("|"))));
		else made.push(h("p", ...inline(taken((one) => Boolean(one.trim()) && !FENCE.test(one) && !ITEM.test(one) && !/^(#{1,6}\s|\s*>)/.test(one)).join("\n"))));
	}
	return made;
}

/** @param {string[]} lines @param {number} depth */
function list(lines, depth) {
	const [, indent, mark] = /** @type {RegExpMatchArray} */ (lines[0].match(ITEM));
	/** @type {string[][]} */
	const items = [];
	for (const line of lines) {
		const item = line.match(ITEM);
		if (item && item[1].length <= indent.length) items.push([item[3]]);
		else items[items.length - 1].push(line.slice(Math.min(indent.length + 2, line.search(/\S/))));
	}
	const isNumbered = /\d/.test(mark);
	const made = items.map(([first, ...rest]) => h("li", ...inline(first), ...blocks(rest, depth + 1)));
	return isNumbered ? h("ol", { start: String(parseInt(mark, 10)) }, ...made) : h("ul", ...made);
}

/** A table. @param {string[]} lines */
function grid(lines) {
	const cells = (/** @type {string} */ line) => line.trim().replace(/^\||\|$/g, "").split("|").map((one) => one.trim());
	const row = (/** @type {"th" | "td"} */ tag, /** @type {string} */ line) => h("tr", ...cells(line).map((one) => h(tag, ...inline(one))));
	return h("table.plain", h("thead", row("th", lines[0])), h("tbody", ...lines.slice(2).map((line) => row("td", line))));
}

const INLINE = /(`{1,3})(.{1,1000}?)\1|\*\*(?=\S)(.{1,1000}?)\*\*|(?<![\w*])[*_](?=\S)([^*_]{1,1000}?)[*_](?!\w)|!?\[([^\]]{0,1000})\]\(([^\s)]{1,1000})[^)]{0,200}\)|\b(https?:\/\/[^\s<>"')\]]{1,1000})/gs; // bounded: it meets hostile text

/** @param {string} text @returns {(Node | string)[]} */
function inline(text) {
	/** @type {(Node | string)[]} */
	const made = [];
	let place = 0;
	for (const match of text.matchAll(INLINE)) {
		const [whole, , code, bold, italic, name, target, bare] = match;
		made.push(text.slice(place, match.index), code !== undefined ? h("code", code) : bold !== undefined ? h("strong", ...inline(bold)) : italic !== undefined ? h("em", ...inline(italic)) : link(name ?? bare, target ?? bare));
		place = match.index + whole.length;
	}
	return [...made, text.slice(place)];
}

/** A link that leads to the web or to a mail; any other, and a picture, is shown with its address. @param {string} name @param {string} target */
const link = (name, target) => (/^(https?:\/\/|mailto:)/i.test(target) ? h("a", { href: target, rel: "noopener noreferrer", target: "_blank" }, name || target) : `${name} (${target})`);

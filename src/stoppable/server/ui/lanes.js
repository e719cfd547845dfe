/** The lanes of the time line: one for each run, with its calls. */

import { CHAR, count, cut, stacked, tally } from "./layout.js";
import { duration } from "./stoppable-button.js";
import { statusWord, svg } from "./dom.js";
import { stopPlace } from "./axis.js";

const ROW = 24;
const BAR = 18;
const GAP = 6;

/** What is not known of a piece of time is hatched. @param {number} from @param {number} to @param {number} y @param {number} height @param {string} why */
const hatched = (from, to, y, height, why) =>
	svg("line.unknown", { x1: from, x2: Math.max(from, to), y1: y + height / 2, y2: y + height / 2, "stroke-width": height }, svg("title", {}, why));

/** The mark of a status, which differs in shape as well as colour. @param {string} status @param {number} x @param {number} y */
function mark(status, x, y) {
	const place = { "data-status": status, transform: `translate(${x} ${y})` };
	/** @type {Record<string, string>} */
	const shapes = { completed: "M-4 0 -1 3 4 -3", failed: "M-3 -3 3 3M3 -3 -3 3", stopped: "M-3.5 -3.5h7v7h-7z", lost: "M-4.5 -4.5h9v9h-9zM-4.5 1 1 -4.5M-1 4.5 4.5 -1", stopping: "M-2.8 2.8A4 4 0 1 1 4 0" };
	return svg("path.lanemark", { ...place, d: shapes[status] ?? "M4 0A4 4 0 1 1 -4 0A4 4 0 1 1 4 0" });
}

export class Lanes {
	/** @param {RunHistory} history @param {Scale} scale @param {(id: string) => boolean} isOpen */
	constructor(history, scale, isOpen) {
		this.history = history;
		this.scale = scale;
		this.isOpen = isOpen;
	}

	/** @param {Lane} lane @param {number} y */
	lane({ run, depth, bars }, y) {
		const { history, scale } = this;
		const { rows, folded } = stacked(bars, (bar) => history.crosses(bar), this.isOpen(run.id));
		const above = scale.left ? 0 : 16;
		const height = above + Math.max(1, rows.length + (folded.length ? 1 : 0)) * ROW + GAP;
		const from = Math.max(scale.left, scale.x(run.startedAt ?? run.createdAt));
		const end = run.endedAt ?? history.span.to;
		const to = Math.min(scale.width, scale.x(end));
		const name = cut(run.name, (scale.left || scale.width) - 28 - depth * 14);
		const drawn = [
			this.#between(y),
			mark(run.status, 8 + depth * 14, y + 15 - (above ? 5 : 0)),
			svg("text.lanename", { "data-link": run.id === history.run.id ? null : run.id, x: 18 + depth * 14, y: y + 19 - (above ? 5 : 0) }, name, svg("title", {}, `${run.name} ${run.id} · ${statusWord(run.status)}`)),
		];
		const [top, inner] = [y + above + 3, height - above - GAP];
		if (to > from) drawn.push(svg("rect.life", { x: from, y: top, width: Math.max(1, to - from), height: inner, rx: 3 }));
		const known = history.knownUntil(run);
		const unknown = Math.max(from, scale.x(known?.at ?? Infinity));
		if (known && unknown < to) drawn.push(hatched(unknown, to, top, inner, known.why));
		rows.forEach((row, index) => drawn.push(...this.#row(row, y + above + 6 + index * ROW)));
		if (folded.length) drawn.push(this.#fold(run.id, folded, y + above + 6 + rows.length * ROW));
		return { group: svg("g", { "data-lane": run.id }, ...drawn), height, isFolded: folded.length > 0 };
	}

	/** The runs that have no lane of their own, in one. @param {Lane[]} lanes @param {number} y */
	rest(lanes, y) {
		const { history, scale } = this;
		const crossing = lanes.flatMap(({ bars }) => bars.filter((bar) => history.crosses(bar)));
		const calls = crossing.length ? ` · their calls at the stop: ${tally(crossing.map((bar) => bar.fate ?? "in flight"))}` : "";
		const text = `+${count(lanes.length, "sub-run")}: ${tally(lanes.map(({ run }) => statusWord(run.status)))}${calls}`;
		const group = svg("g.fold", { "data-fold": "runs" }, this.#between(y), svg("rect.hit", { x: 0, y, width: scale.width, height: ROW + GAP }), svg("text.foldname", { x: 18, y: y + 19 }, cut(text, scale.width - 24)), svg("title", {}, text));
		return { group, height: ROW + GAP };
	}

	/** @param {number} y */
	#between(y) {
		return svg("line.between", { x2: this.scale.width, y1: y, y2: y });
	}

	/** Calls for which there is no row, as one. @param {string} id @param {Bar[]} bars @param {number} y */
	#fold(id, bars, y) {
		const { history, scale } = this;
		const crossing = bars.filter((bar) => history.crosses(bar));
		const text = `+${count(bars.length, "call")}${crossing.length ? ` · at the stop: ${tally(crossing.map((bar) => bar.fate ?? "in flight"))}` : ""}`;
		const dense = [];
		let drawn = -1;
		for (const bar of bars) {
			const from = Math.max(scale.left, scale.x(bar.from));
			const to = Math.min(scale.width, scale.x(history.endOf(bar)));
			if (to <= drawn + 1 || to < from) continue; // nothing of it would be seen
			dense.push(svg("rect.dense", { x: from, y, width: Math.max(1, to - from), height: BAR, "data-kind": bar.kind }));
			drawn = to;
		}
		const place = Math.max(scale.left, scale.x(bars[0].from)) + 5;
		const x = Math.max(scale.left + 5, Math.min(place, scale.width - text.length * CHAR - 8));
		return svg("g.fold", { "data-fold": id }, ...dense, svg("rect.hit", { x: scale.left, y, width: scale.width - scale.left, height: BAR }), svg("text.foldname", { x, y: y + 13 }, text), svg("title", {}, text));
	}

	/** @param {Bar[]} row @param {number} y */
	#row(row, y) {
		const drawn = /** @type {SVGElement[]} */ ([]);
		let seen = -10;
		row.forEach((bar, index) => {
			const crosses = this.history.crosses(bar);
			const to = this.scale.x(this.history.endOf(bar));
			if (to < this.scale.left || this.scale.x(bar.from) > this.scale.width || (to - seen < 1 && !crosses)) return; // out of sight, or too small
			seen = to;
			drawn.push(...this.#bar(bar, crosses, this.scale.x(row[index + 1]?.from ?? Infinity) - to, y));
		});
		return drawn;
	}

	/** @param {Bar} bar @param {boolean} crosses @param {number} room px behind it @param {number} y */
	#bar(bar, crosses, room, y) {
		const { history, scale } = this;
		const to = scale.x(history.endOf(bar));
		const x = Math.max(scale.left, scale.x(bar.from));
		const width = Math.max(2, Math.min(scale.width, to) - x);
		const label = bar.name || bar.kind;
		const end = bar.isUnrecorded ? "end not recorded" : bar.to === null ? "not finished" : duration(bar.to - bar.from);
		const told = `${bar.kind} ${bar.name} · ${end}${bar.fate ? ` · ${bar.fate}` : ""}`;
		const facts = { "data-kind": bar.kind, "data-name": bar.name, "data-run": bar.runId, "data-fate": bar.fate ?? "", "data-crosses": String(crosses), "data-bar": bar.key };
		const drawn = [svg("rect", { class: `bar${bar.to === null ? " open" : ""}`, x, y, width, height: BAR, rx: 3, ...facts }, svg("title", {}, told))];
		const fate = bar.isUnrecorded ? "not recorded" : crosses && bar.fate ? bar.fate : "";
		const isOutside = fate && Math.min(room, scale.width - to) > fate.length * CHAR + 8;
		if (isOutside) drawn.push(svg("text.fatename", { x: to + 5, y: y + 13 }, fate));
		const both = `${label} · ${fate}`;
		const inside = isOutside || !fate ? label : both.length * CHAR + 8 <= width ? both : fate; // the fate matters more
		const shown = cut(inside, width - 8);
		const long = shown.length * CHAR + 10;
		const stop = stopPlace(history, scale) ?? NaN;
		const place = stop > x && stop < x + long && to - stop > long ? stop : x; // not under the line of the stop
		if (shown.length > 2) drawn.push(svg("text.barname", { x: place + 5, y: y + 13 }, shown));
		return drawn;
	}
}

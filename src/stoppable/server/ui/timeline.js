/** A run and everything below it on a time axis, with the moment of the stop through all of it. */

import { climbs, duration, isOver } from "./stoppable-button.js";
import { button, fill, h, svg, table, tr } from "./dom.js";
import { CHAR, count, cut, niceStep, stacked } from "./layout.js";

const ROW = 24;
const BAR = 18;
const TOP = 44; // the axis, and the words about the stop
const LISTED = 500;

export class Timeline {
	/** @type {View | null} what was zoomed to; null: all of it */ #view = null;
	/** @type {number | null} where a drag began */ #drag = null;
	#seen = "";

	/** @param {RunHistory} history */
	constructor(history) {
		this.history = history;
		this.picture = svg("svg.lanes", { role: "img", "aria-describedby": "calls" });
		this.legend = h("p.legend");
		this.zoomStop = button("To the stop", () => this.#toStop(), { class: "quiet" });
		/** @param {string} name @param {string} label @param {() => void} act */
		const tool = (name, label, act) => button(label, act, { class: "quiet", "aria-label": name, title: name });
		const half = () => (this.#now.to - this.#now.from) / 2;
		this.earlier = tool("Earlier", "‹", () => this.#pan(-half()));
		this.later = tool("Later", "›", () => this.#pan(half()));
		const tools = h("div.tools", { role: "group", "aria-label": "Zoom" }, this.zoomStop, this.earlier, this.later, tool("Zoom out", "−", () => this.#zoom(2)), tool("Zoom in", "+", () => this.#zoom(0.5)), tool("Fit all", "Fit", () => this.#look(null)));
		this.calls = h("div.scroller", { id: "calls" });
		this.list = h("details.aslist", { ontoggle: () => this.draw() }, h("summary", "As a list"), this.calls);
		this.element = h("section.timeline", { "aria-label": "Time line" }, h("div.timehead", h("h2", "Time line"), this.legend, h("span.space"), tools), this.picture, this.list);
		this.observer = new ResizeObserver(() => this.draw());
		this.observer.observe(this.element);
		this.#listen();
	}

	close() {
		this.observer.disconnect();
	}

	#listen() {
		const at = (/** @type {MouseEvent} */ event) => this.#time(event.clientX - this.picture.getBoundingClientRect().left);
		this.picture.addEventListener("wheel", (event) => {
			event.preventDefault();
			const aside = event.deltaX || (event.shiftKey ? event.deltaY : 0);
			if (aside) this.#pan(aside / this.#scale);
			else this.#zoom(event.deltaY > 0 ? 1.25 : 0.8, at(event));
		}, { passive: false });
		this.picture.addEventListener("pointerdown", (event) => {
			if (event.button !== 0) return;
			this.#drag = at(event);
			if (event.pointerType !== "touch") this.picture.setPointerCapture(event.pointerId);
		});
		this.picture.addEventListener("pointermove", (event) => {
			if (this.#drag !== null && event.pointerType === "touch") this.#pan(this.#drag - at(event));
		});
		this.picture.addEventListener("pointercancel", () => (this.#drag = null));
		this.picture.addEventListener("pointerup", (event) => {
			const [from, to] = [this.#drag ?? 0, at(event)].sort((a, b) => a - b);
			const isFar = this.#drag !== null && event.pointerType !== "touch" && (to - from) * this.#scale > 6;
			this.#drag = null;
			if (isFar) this.#look({ from, to });
		});
		this.picture.addEventListener("dblclick", () => this.#look(null));
	}

	get #whole() {
		const { from, to } = this.history.span();
		return { from, to: to + (to - from) * 0.04 };
	}

	get #now() {
		return this.#view ?? this.#whole;
	}

	#width = 600;
	#left = 0;

	get #scale() {
		return (this.#width - this.#left) / (this.#now.to - this.#now.from);
	}

	/** @param {number} at */
	#x(at) {
		return this.#left + (at - this.#now.from) * this.#scale;
	}

	/** @param {number} x */
	#time(x) {
		return this.#now.from + (x - this.#left) / this.#scale;
	}

	/** @param {View | null} view */
	#look(view) {
		this.#view = view;
		this.#seen = "";
		this.draw();
	}

	/** @param {number} factor */
	#zoom(factor, around = (this.#now.from + this.#now.to) / 2) {
		const { from, to } = this.#now;
		const all = this.#whole;
		if ((to - from) * factor < 0.002) return;
		const next = { from: Math.max(all.from, around - (around - from) * factor), to: Math.min(all.to, around + (to - around) * factor) };
		this.#look(next.from === all.from && next.to === all.to ? null : next);
	}

	/** Go along the axis, as far as there is something. @param {number} seconds */
	#pan(seconds) {
		const { from, to } = this.#now;
		const by = Math.max(this.#whole.from - from, Math.min(this.#whole.to - to, seconds));
		if (this.#view) this.#look({ from: from + by, to: to + by });
	}

	#toStop() {
		const { run } = this.history;
		if (!run?.stopRequestedAt) return;
		const end = run.endedAt ?? run.stopRequestedAt + 1;
		const room = Math.max(0.005, (end - run.stopRequestedAt) * 0.6);
		this.#look({ from: run.stopRequestedAt - room, to: end + room });
	}

	draw() {
		const { run } = this.history;
		const width = Math.floor(this.picture.parentElement?.clientWidth ?? 0);
		if (!run || width < 50) return;
		const lanes = this.history.lanes();
		const { from, to } = this.#now;
		const seen = `${this.list.open} ${width} ${from} ${to} ${this.history.bars.length} ${this.history.runs.map((one) => one.status + one.endedAt).join()} ${lanes.flatMap((lane) => lane.bars.slice(-50).map((bar) => `${bar.to ?? ""}${bar.fate ?? ""}`)).join()}`;
		if (seen === this.#seen) return;
		this.#seen = seen;
		this.#width = width;
		this.#left = width > 640 ? 176 : 0;
		let y = TOP;
		const drawn = lanes.map((lane) => {
			const made = this.#lane(lane, y);
			y += made.height;
			return made.group;
		});
		this.picture.setAttribute("viewBox", `0 0 ${width} ${y + 4}`);
		this.picture.setAttribute("height", String(y + 4));
		this.picture.setAttribute("aria-label", this.#sentence(lanes));
		fill(this.picture, ...this.#axis(y), ...this.#shade(y), ...drawn, ...this.#stopLine(y));
		this.earlier.disabled = this.later.disabled = !this.#view;
		this.zoomStop.hidden = run.stopRequestedAt === null;
		const kinds = [...new Set(this.history.bars.map((bar) => bar.kind))];
		fill(this.legend, ...kinds.map((kind) => h("span.key", { "data-kind": kind }, kind)), this.history.dropped.bars > 0 && `${this.history.dropped.bars} earlier calls are not shown`);
		if (this.list.open) this.#showList(lanes);
	}

	/** @param {number} bottom */
	#axis(bottom) {
		const { from, to } = this.#now;
		const start = this.history.span().from;
		const step = niceStep((to - from) / Math.max(2, (this.#width - this.#left) / 110));
		const made = [];
		for (let n = Math.ceil((from - start) / step); start + n * step < to; n++) {
			const x = this.#x(start + n * step);
			made.push(svg("line.grid", { x1: x, x2: x, y1: 18, y2: bottom }));
			if (x < this.#width - 44) made.push(svg("text.tick", { x: x + 3, y: 14 }, `${+(n * step).toFixed(4)} s`));
		}
		return made;
	}

	/** The time from the stop to the end, and the rungs that were climbed. @param {number} bottom */
	#shade(bottom) {
		const { run } = this.history;
		if (run.stopRequestedAt === null) return [];
		const end = run.endedAt ?? this.history.span().to;
		const x = Math.max(this.#left, this.#x(run.stopRequestedAt));
		const made = [svg("rect.shade", { x, y: 20, width: Math.max(0, Math.min(this.#width, this.#x(end)) - x), height: bottom - 20 })];
		let last = 0;
		for (const { rung, at } of climbs(run.receipt)) {
			const place = this.#x(at);
			if (at > end + 0.05 || place < x || place > this.#width) continue; // not climbed, or out of sight
			made.push(svg("line.rung", { x1: place, x2: place, y1: 34, y2: bottom, "data-rung": rung }));
			const isRight = place + 3 + rung.length * CHAR < this.#width;
			if (place > last && isRight) made.push(svg("text.rungname", { x: place + 3, y: 42 }, rung));
			else if (place - rung.length * CHAR > last) made.push(svg("text.rungname", { x: place - 3, y: 42, "text-anchor": "end" }, rung));
			last = place + rung.length * CHAR + 8;
		}
		return made;
	}

	/** @param {number} bottom */
	#stopLine(bottom) {
		const { run } = this.history;
		const x = this.#x(run.stopRequestedAt ?? NaN);
		if (!(x >= this.#left && x <= this.#width)) return [];
		const reason = run.stop?.reason;
		const words = ["stop", reason?.message && `“${reason.message}”`, reason?.actor].filter(Boolean).join(" · ");
		const text = cut(words, Math.max(x - this.#left, this.#width - x) - 12);
		const isRight = x + words.length * CHAR + 12 < this.#width || x < (this.#left + this.#width) / 2;
		return [
			svg("line.stop", { x1: x, x2: x, y1: 20, y2: bottom }),
			svg("text.stopname", { x: isRight ? x + 5 : x - 5, y: 30, "text-anchor": isRight ? "start" : "end" }, text),
		];
	}

	/** @param {Lane} lane @param {number} y */
	#lane(lane, y) {
		const { run, depth, bars } = lane;
		const rows = stacked(bars);
		const above = this.#left ? 0 : 16;
		const height = above + Math.max(1, rows.length) * ROW + 6;
		const from = Math.max(this.#left, this.#x(run.startedAt ?? run.createdAt));
		const to = Math.min(this.#width, this.#x(run.endedAt ?? this.history.span().to));
		const name = cut(run.name, (this.#left || this.#width) - 28 - depth * 14);
		const made = [
			svg("line.between", { x1: 0, x2: this.#width, y1: y, y2: y }),
			svg("circle.lanemark", { "data-status": run.status, cx: 8 + depth * 14, cy: y + 15 - (above ? 5 : 0), r: 4 }),
			svg("text.lanename", { x: 18 + depth * 14, y: y + 19 - (above ? 5 : 0) }, name, svg("title", {}, `${run.name} ${run.id}`)),
		];
		if (to > from) made.push(svg("rect.life", { x: from, y: y + above + 3, width: Math.max(1, to - from), height: height - above - 6, rx: 3 }));
		rows.forEach((row, index) => made.push(...this.#bars(row, y + above + 6 + index * ROW)));
		return { group: svg("g", { "data-lane": run.id }, ...made), height };
	}

	/** @param {Bar[]} row @param {number} y */
	#bars(row, y) {
		const made = /** @type {SVGElement[]} */ ([]);
		let drawn = -10;
		row.forEach((bar, index) => {
			const isOpen = bar.to === null;
			const from = this.#x(bar.from);
			const to = this.#x(bar.to ?? this.history.span().to);
			const crosses = this.#crosses(bar);
			if (to < this.#left || from > this.#width || (to - drawn < 1 && !crosses)) return; // out of sight, or too small
			drawn = to;
			const x = Math.max(this.#left, from);
			const width = Math.max(2, Math.min(this.#width, to) - x);
			const label = bar.name || bar.kind;
			const told = `${bar.kind} ${bar.name} · ${isOpen ? "not finished" : duration(/** @type {number} */ (bar.to) - bar.from)}${bar.fate ? ` · ${bar.fate}` : ""}`;
			const facts = { "data-kind": bar.kind, "data-name": bar.name, "data-run": bar.runId, "data-fate": bar.fate ?? "", "data-crosses": String(crosses) };
			made.push(svg("rect", { class: `bar${isOpen ? " open" : ""}`, x, y, width, height: BAR, rx: 3, ...facts }, svg("title", {}, told)));
			const room = this.#x(row[index + 1]?.from ?? Infinity) - to;
			const fate = crosses && bar.fate ? bar.fate : "";
			const isOutside = fate && Math.min(room, this.#width - to) > fate.length * CHAR + 8;
			if (isOutside) made.push(svg("text.fatename", { x: to + 5, y: y + 13 }, fate));
			const inside = cut(isOutside || !fate ? label : `${label} · ${fate}`, width - 8);
			const long = inside.length * CHAR + 10;
			const stop = this.#x(this.history.run.stopRequestedAt ?? NaN);
			const place = stop > x && stop < x + long && to - stop > long ? stop : x; // not under the line of the stop
			if (inside.length > 2) made.push(svg("text.barname", { x: place + 5, y: y + 13 }, inside));
		});
		return made;
	}

	/** Whether a call was in flight when the stop came. @param {Bar} bar */
	#crosses(bar) {
		const stop = this.history.run?.stopRequestedAt ?? null;
		if (bar.fate !== null) return stop !== null;
		return stop !== null && bar.to === null && bar.from <= stop;
	}

	/** @param {Lane[]} lanes */
	#sentence(lanes) {
		const { run } = this.history;
		const { from, to } = this.history.span();
		const told = [`${run.name}: ${count(lanes.length, "run")}, ${count(this.history.bars.length + this.history.dropped.bars, "call")} in ${duration(to - from)}.`];
		if (run.stopRequestedAt !== null) {
			const crossing = this.history.bars.filter((bar) => this.#crosses(bar));
			const calls = crossing.slice(0, 20).map((bar) => `${bar.kind} ${bar.name} ${bar.fate ?? "still running"}`).join(", ");
			told.push(`The stop came after ${duration(run.stopRequestedAt - from)}; in flight then: ${calls || "nothing"}.`);
		}
		return told.join(" ");
	}

	/** @param {Lane[]} lanes */
	#showList(lanes) {
		const names = new Map(lanes.map((lane) => [lane.run.id, lane.run]));
		const { from } = this.history.span();
		const row = (/** @type {Bar} */ bar) => {
			const isLive = bar.to === null && !isOver(names.get(bar.runId)?.status ?? "lost");
			const took = bar.to === null ? (isLive ? "running" : "–") : duration(bar.to - bar.from);
			const fate = this.#crosses(bar) ? (bar.fate ?? "in flight") : "–";
			return tr(names.get(bar.runId)?.name ?? "", `${bar.kind} ${bar.name}`, `${(bar.from - from).toFixed(2)} s`, took, fate);
		};
		fill(this.calls, table(["Run", "Call", "Began", "Took", "At the stop"], ...this.history.bars.slice(-LISTED).map(row)));
	}
}

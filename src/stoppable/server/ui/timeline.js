/** A run and everything below it on a time axis, with the moment of the stop through all of it. */

import { AXIS, axis, behind, stopPlace } from "./axis.js";
import { Lanes } from "./lanes.js";
import { callDetail } from "./call.js";
import { Scale, count, foldedLanes } from "./layout.js";
import { button, fill, h, quiet, runAddress, svg, table, tr } from "./dom.js";
import { drawing, raster, save } from "./export.js";
import { duration, isOver, spoken } from "./stoppable-button.js";

const LISTED = 500;
const FATE = 110; // px behind the end of a stopped run, for the fates of its last calls

export class Timeline {
	/** @type {View | null} what was zoomed to; null: all of it */ #view = null;
	/** @type {number | null} where a drag began */ #drag = null;
	/** @type {Set<string>} what was folded and is open now */ #open = new Set();
	#isAllOpen = false;
	#hasFolds = false;
	#seen = "";
	#width = 600;
	/** @type {number[] | null} what the address says to look at */ #wanted;
	/** @type {Bar | null} whose details are shown */ #chosen = null;
	least = 0; // seconds that are shown, so that two pictures can have one scale

	/** @param {RunHistory} history @param {string | null} zoom "from-to" in seconds after it was made @param {(zoom: string) => void} keep */
	constructor(history, zoom, keep) {
		this.history = history;
		this.keep = keep;
		this.#wanted = zoom?.match(/^(\d+(?:\.\d+)?)-(\d+(?:\.\d+)?)$/)?.slice(1).map(Number) ?? null;
		this.axis = svg("svg.axis", { "aria-hidden": "true", height: AXIS });
		const id = `calls-${history.id}`;
		this.picture = svg("svg.lanes", { role: "img", "aria-describedby": id });
		this.box = h("div.lanesbox", this.axis, this.picture);
		this.legend = h("p.legend");
		this.notes = h("p.meta", { hidden: true });
		this.zoomStop = quiet("To the stop", () => this.#toStop());
		this.fold = quiet("Show all", () => this.#toggleFolds());
		/** @param {string} name @param {string} label @param {() => void} act */
		const tool = (name, label, act) => quiet(label, act, { "aria-label": name, title: name });
		/** @param {string} kind @param {(axis: SVGElement, lanes: SVGElement) => Blob | Promise<Blob>} make */
		const file = (kind, make) => tool(`Download as ${kind}`, kind, async () => save(history.run, `.${kind.toLowerCase()}`, await make(this.axis, this.picture)));
		const half = () => (this.#now.to - this.#now.from) / 2;
		this.earlier = tool("Earlier", "‹", () => this.#pan(-half()));
		this.later = tool("Later", "›", () => this.#pan(half()));
		const tools = h("div.tools", { role: "group", "aria-label": "Zoom" }, this.fold, this.zoomStop, this.earlier, this.later, tool("Zoom out", "−", () => this.#zoom(2)), tool("Zoom in", "+", () => this.#zoom(0.5)), tool("Fit all", "Fit", () => this.#look(null)), file("SVG", drawing), file("PNG", raster));
		this.detail = h("div.detail", { role: "status", hidden: true });
		this.calls = h("div.scroller", { id });
		this.list = h("details.aslist", { ontoggle: () => this.draw() }, h("summary", "As a list"), this.calls);
		this.element = h("section.timeline", { "aria-label": `Time line of ${history.id}` }, h("div.timehead", h("h2", "Time line"), this.legend, h("span.space"), tools), this.box, this.detail, this.notes, this.list);
		this.observer = new ResizeObserver(() => this.draw());
		this.observer.observe(this.element);
		this.#listen();
	}

	close() {
		this.observer.disconnect();
	}

	#listen() {
		const { box } = this;
		const at = (/** @type {MouseEvent} */ event) => this.#scale.time(event.clientX - box.getBoundingClientRect().left);
		box.addEventListener("wheel", (event) => {
			const aside = event.deltaX || (event.shiftKey ? event.deltaY : 0);
			if (!aside && !event.ctrlKey && !event.metaKey) return; // it scrolls the page
			event.preventDefault();
			if (aside) this.#pan(aside / this.#scale.perSecond);
			else this.#zoom(event.deltaY > 0 ? 1.25 : 0.8, at(event));
		}, { passive: false });
		box.addEventListener("pointerdown", (event) => {
			if (event.button !== 0 || event.offsetX > box.clientWidth) return; // the bar that scrolls
			this.#drag = at(event);
		});
		box.addEventListener("pointermove", (event) => {
			if (this.#drag === null) return;
			if (event.pointerType === "touch") this.#pan(this.#drag - at(event));
			else if (event.buttons && !box.hasPointerCapture(event.pointerId)) box.setPointerCapture(event.pointerId);
		});
		box.addEventListener("pointercancel", () => (this.#drag = null));
		box.addEventListener("pointerup", (event) => {
			const [from, to] = [this.#drag ?? 0, at(event)].sort((a, b) => a - b);
			const isFar = this.#drag !== null && event.pointerType !== "touch" && (to - from) * this.#scale.perSecond > 6;
			this.#drag = null;
			if (isFar) this.#look({ from, to });
		});
		box.addEventListener("click", (event) => {
			const target = /** @type {Element} */ (event.target).closest("[data-fold], [data-bar], [data-link]");
			if (!(target instanceof SVGElement)) return;
			const { fold, bar, link } = target.dataset;
			if (fold) this.#unfold(fold);
			else if (link) location.hash = runAddress(link);
			else this.#choose(this.history.bars.find(({ key }) => key === Number(bar)) ?? null);
		});
		box.addEventListener("dblclick", () => this.#look(null));
	}

	/** All of it, and room for the fates of the calls that a stop ended. */
	get #whole() {
		const { from } = this.history.span;
		return { from, to: from + Math.max(this.least, this.seconds) };
	}

	/** How long all of it is, with that room. */
	get seconds() {
		const { run, span, bars } = this.history;
		const room = run.stopRequestedAt === null || !bars.some((bar) => this.history.crosses(bar)) ? 0.04 : FATE / Math.max(300, this.#width - FATE);
		return (span.to - span.from) * (1 + room);
	}

	get #now() {
		return this.#view ?? this.#whole;
	}

	get #scale() {
		return new Scale(this.#now, this.#width);
	}

	#redraw() {
		this.#seen = "";
		this.draw();
	}

	/** @param {View | null} view */
	#look(view) {
		this.#view = view;
		const { createdAt } = this.history.run;
		this.keep(view ? [view.from, view.to].map((at) => String(+Math.max(0, at - createdAt).toFixed(6))).join("-") : "");
		this.#redraw();
	}

	/** Show what is known of a call. @param {Bar | null} bar */
	#choose(bar) {
		this.#chosen = bar;
		this.#showChosen();
	}

	#showChosen() {
		const bar = this.#chosen;
		this.detail.hidden = bar === null;
		if (bar) fill(this.detail, callDetail(bar, this.history), quiet("Close", () => this.#choose(null)));
	}

	/** @param {string} id */
	#unfold(id) {
		this.#open.add(id);
		this.#redraw();
	}

	#toggleFolds() {
		this.#isAllOpen = this.#hasFolds;
		this.#open.clear();
		this.#redraw();
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
		const { history } = this;
		const { run } = history;
		const width = Math.floor(this.box.clientWidth);
		if (!run || width < 50) return;
		this.#width = width;
		if (this.#wanted) {
			const [from, to] = this.#wanted.map((seconds) => run.createdAt + seconds);
			if (to > from) this.#view = { from, to };
			this.#wanted = null;
		}
		const lanes = history.lanes();
		const { from, to } = this.#now;
		const seen = `${this.list.open} ${width} ${from} ${to} ${history.bars.length} ${history.runs.map((one) => one.status + one.endedAt).join()} ${lanes.flatMap((lane) => lane.bars.slice(-50).map((bar) => `${bar.to ?? ""}${bar.fate ?? ""}`)).join()}`;
		if (seen === this.#seen) return;
		this.#seen = seen;
		this.#drawLanes(lanes);
		this.earlier.disabled = this.later.disabled = !this.#view;
		this.zoomStop.hidden = run.stopRequestedAt === null;
		this.fold.hidden = !this.#hasFolds && !this.#isAllOpen && this.#open.size === 0;
		fill(this.fold, this.#hasFolds ? "Show all" : "Fold");
		const kinds = [...new Set(history.bars.map((bar) => bar.kind))];
		fill(this.legend, ...kinds.map((kind) => h("span.key", { "data-kind": kind }, kind)));
		const notes = history.gaps();
		this.notes.hidden = notes.length === 0;
		fill(this.notes, notes.join(" "));
		this.#showChosen();
		if (this.list.open) this.#showList(lanes);
	}

	/** @param {Lane[]} lanes */
	#drawLanes(lanes) {
		const { history } = this;
		const scale = this.#scale;
		const isOpen = (/** @type {string} */ id) => this.#isAllOpen || this.#open.has(id);
		const drawing = new Lanes(history, scale, isOpen);
		const { shown, folded } = foldedLanes(lanes, isOpen("runs"));
		let y = 0;
		this.#hasFolds = folded.length > 0;
		const drawn = shown.map((lane) => {
			const { group, height, isFolded } = drawing.lane(lane, y);
			this.#hasFolds ||= isFolded;
			y += height;
			return group;
		});
		if (folded.length) {
			const { group, height } = drawing.rest(folded, y);
			drawn.push(group);
			y += height;
		}
		const x = stopPlace(history, scale);
		for (const [one, height] of /** @type {[SVGElement, number][]} */ ([[this.axis, AXIS], [this.picture, y + 4]])) {
			one.setAttribute("viewBox", `0 0 ${scale.width} ${height}`);
			one.setAttribute("height", String(height));
		}
		this.picture.setAttribute("aria-label", this.#sentence(lanes));
		fill(this.axis, ...axis(history, scale));
		fill(this.picture, ...behind(history, scale, y), ...drawn, x !== null && svg("line.stop", { x1: x, x2: x, y1: 0, y2: y }));
		if (this.box.scrollHeight > this.box.clientHeight + 1) for (const [name, value] of [["tabindex", "0"], ["role", "region"], ["aria-label", "Lanes"]]) this.box.setAttribute(name, value);
	}

	/** @param {Lane[]} lanes */
	#sentence(lanes) {
		const { run, span, bars, dropped, isTruncated } = this.history;
		const told = [`${run.name}: ${count(lanes.length, "run")}, ${count(bars.length + dropped.bars, "call")} in ${duration(span.to - span.from)}.`];
		if (run.stopRequestedAt !== null) {
			const crossing = bars.filter((bar) => this.history.crosses(bar));
			const seen = crossing.slice(0, 20).map((bar) => `${bar.kind} ${bar.name} ${bar.fate ?? "still running"}`).join(", ");
			const calls = isTruncated ? (run.receipt?.inFlight ?? []).map(spoken).join(", ") : seen + (crossing.length > 20 ? ` and ${crossing.length - 20} more` : "");
			told.push(`The stop came after ${duration(run.stopRequestedAt - span.from)}; in flight then: ${calls || "nothing"}.`);
		}
		return [...told, ...this.history.gaps()].join(" ");
	}

	/** @param {Lane[]} lanes */
	#showList(lanes) {
		const names = new Map(lanes.map((lane) => [lane.run.id, lane.run]));
		const { from } = this.history.span;
		const row = (/** @type {Bar} */ bar) => {
			const isLive = bar.to === null && !isOver(names.get(bar.runId)?.status ?? "lost");
			const took = bar.isUnrecorded ? "not recorded" : bar.to === null ? (isLive ? "running" : "–") : duration(bar.to - bar.from);
			const fate = this.history.crosses(bar) ? (bar.fate ?? "in flight") : "–";
			const link = h("a", { href: runAddress(bar.runId) }, names.get(bar.runId)?.name ?? "");
			return tr(link, button(`${bar.kind} ${bar.name}`, () => this.#choose(bar), { class: "link" }), `${(bar.from - from).toFixed(2)} s`, took, fate);
		};
		fill(this.calls, table(["Run", "Call", "Began", "Took", "At the stop"], ...this.history.bars.slice(-LISTED).map(row)));
	}
}

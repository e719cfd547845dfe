/** The axis of the time line, and the stop on it: these stay in sight while the lanes scroll. */

import { CHAR, cut, moment, niceStep } from "./layout.js";
import { climbs } from "./stoppable-button.js";
import { live } from "./live.js";
import { svg } from "./dom.js";

export const AXIS = 48; // px

/** The marks of the axis. @param {Scale} scale @param {number} start when the run began */
function marks({ from, to, width, left }, start) {
	const step = niceStep((to - from) / Math.max(2, (width - left) / 110));
	const first = Math.ceil((from - start) / step - 1e-9);
	return Array.from({ length: Math.max(0, Math.ceil((to - start) / step - first)) }, (_, n) => ({ at: start + (first + n) * step, text: moment((first + n) * step, step) }));
}

/** The rungs that were climbed, and are in sight. @param {RunHistory} history @param {Scale} scale */
function rungs({ run, span }, scale) {
	const end = run.endedAt ?? span.to;
	return climbs(run.receipt).map(({ rung, at }) => ({ rung, at, x: scale.x(at) })).filter(({ at, x }) => at <= end + 0.05 && x >= scale.left && x <= scale.width);
}

/** Lines through all lanes: the grid, the shade from the stop to the end, and the rungs. @param {RunHistory} history @param {Scale} scale @param {number} bottom */
export function behind(history, scale, bottom) {
	const { run, span } = history;
	/** @param {string} tag @param {number} x @param {object} [more] */
	const line = (tag, x, more) => svg(tag, { x1: x, x2: x, y1: 0, y2: bottom, ...more });
	const grid = marks(scale, span.from).map(({ at }) => line("line.grid", scale.x(at)));
	if (run.stopRequestedAt === null) return grid;
	const x = Math.max(scale.left, scale.x(run.stopRequestedAt));
	const end = Math.min(scale.width, scale.x(run.endedAt ?? span.to));
	const shade = svg("rect.shade", { x, y: 0, width: Math.max(0, end - x), height: bottom });
	return [...grid, shade, ...rungs(history, scale).map(({ rung, x }) => line("line.rung", x, { "data-rung": rung }))];
}

/** Where the stop is, if it is in sight. @param {RunHistory} history @param {Scale} scale */
export function stopPlace({ run }, scale) {
	const x = scale.x(run.stopRequestedAt ?? NaN);
	return x >= scale.left && x <= scale.width ? x : null;
}

const RUNGS = /** @type {Record<string, string>} */ ({ lost: "unconfirmed" });

/** The axis itself, with the words about the stop and its rungs. @param {RunHistory} history @param {Scale} scale */
export function axis(history, scale) {
	const { run, span } = history;
	const drawn = marks(scale, span.from).flatMap(({ at, text }) => {
		const x = scale.x(at);
		return [svg("line.grid", { x1: x, x2: x, y1: 18, y2: AXIS }), x + 3 < scale.width - text.length * CHAR && svg("text.tick", { x: x + 3, y: 14 }, text)];
	});
	const stop = stopPlace(history, scale);
	let free = scale.left; // where a word may begin
	for (const { rung, x } of rungs(history, scale)) {
		const word = RUNGS[rung] ?? rung;
		const isRight = x + 3 + word.length * CHAR < scale.width;
		const from = isRight ? x + 3 : x - 3 - word.length * CHAR;
		if (from < free) continue;
		drawn.push(svg("text.rungname", { x: isRight ? x + 3 : x - 3, y: 45, "text-anchor": isRight ? "start" : "end" }, word));
		free = from + word.length * CHAR + 8;
	}
	if (stop === null) return drawn;
	const reason = run.stop?.reason;
	const words = ["stop", reason?.message && `“${reason.message}”`, live.person(reason?.actor)].filter(Boolean).join(" · ");
	const text = cut(words, Math.max(stop - scale.left, scale.width - stop) - 12);
	const isRight = stop + words.length * CHAR + 12 < scale.width || stop < (scale.left + scale.width) / 2;
	return [...drawn, svg("line.stophead", { x1: stop, x2: stop, y1: 20, y2: AXIS }), svg("text.stopname", { x: isRight ? stop + 5 : stop - 5, y: 31, "text-anchor": isRight ? "start" : "end" }, text)];
}

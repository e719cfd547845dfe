/** Where things go on the time line. */

import { counts } from "./stoppable-button.js";

const ROWS = 8; // of calls side by side in one run
const LANES = 12; // of runs
export const CHAR = 6.6; // px, about: text is cut before it is drawn
const NAMES = 176; // px for the names of the runs, where there is room
const MINUTE = 60;
const HOUR = 3600;
const LONG = [1, 2, 5, 10, 15, 30].flatMap((n) => [n, n * MINUTE]).concat([1, 2, 3, 6, 12, 24].map((n) => n * HOUR)).sort((a, b) => a - b);

/** @param {number} number @param {string} what */
export const count = (number, what) => `${number} ${what}${number === 1 ? "" : "s"}`;

/** A text in so many pixels. @param {string} text @param {number} pixels */
export function cut(text, pixels) {
	const room = Math.floor(pixels / CHAR);
	return text.length <= room ? text : room < 2 ? "" : `${text.slice(0, room - 1)}…`;
}

/** The time between two marks of the axis, in seconds. @param {number} least */
export function niceStep(least) {
	if (least > 0.5) return LONG.find((step) => step >= least) ?? Math.ceil(least / (24 * HOUR)) * 24 * HOUR;
	const unit = 10 ** Math.floor(Math.log10(least));
	return [1, 2, 5, 10].map((n) => n * unit).find((step) => step >= least) ?? unit * 10;
}

/** A place on the axis, in words as long as the step needs. @param {number} seconds @param {number} step */
export function moment(seconds, step) {
	if (seconds === 0) return "0 s";
	if (seconds < 1 && step < 1) return seconds < 0.0005 ? `${+(seconds * 1e6).toFixed(0)} µs` : `${+(seconds * 1000).toFixed(2)} ms`;
	if (seconds < MINUTE) return `${+seconds.toFixed(4)} s`;
	const whole = Math.round(seconds);
	const parts = [[Math.floor(whole / HOUR), "h"], [Math.floor((whole % HOUR) / MINUTE), "min"], [step < MINUTE ? whole % MINUTE : 0, "s"]];
	return parts.filter(([number]) => number).map(([number, unit]) => `${number} ${unit}`).join(" ");
}

/**
 * Calls that last at the same time go into rows of their own. Where there are too many, calls that cross the stop get
 * rows first, and the rest is folded.
 * @param {Bar[]} bars @param {(bar: Bar) => boolean} crosses @param {boolean} isOpen @returns {{rows: Bar[][], folded: Bar[]}}
 */
export function stacked(bars, crosses, isOpen) {
	/** @type {Bar[][]} */
	const rows = [];
	const ends = /** @type {number[]} */ ([]);
	for (const bar of bars) {
		let place = ends.findIndex((end) => end <= bar.from);
		if (place < 0) place = rows.length;
		(rows[place] ??= []).push(bar);
		ends[place] = bar.to ?? Infinity;
	}
	if (isOpen || rows.length <= ROWS) return { rows, folded: [] };
	const first = [...rows].sort((a, b) => Number(b.some(crosses)) - Number(a.some(crosses))).slice(0, ROWS - 1);
	return { rows: rows.filter((row) => first.includes(row)), folded: rows.filter((row) => !first.includes(row)).flat().sort((a, b) => a.from - b.from) };
}

const WEIGHT = /** @type {Record<string, number>} */ ({ lost: 4, failed: 3, stopping: 2, running: 1 });

/** The runs that get a lane, and those that are folded: first what somebody should look at. @param {Lane[]} lanes @param {boolean} isOpen */
export function foldedLanes(lanes, isOpen) {
	if (isOpen || lanes.length <= LANES) return { shown: lanes, folded: [] };
	const weight = (/** @type {Lane} */ { run, depth }) => (depth === 0 ? 9 : (WEIGHT[run.status] ?? 0));
	const first = new Set([...lanes].sort((a, b) => weight(b) - weight(a)).slice(0, LANES - 1));
	return { shown: lanes.filter((lane) => first.has(lane)), folded: lanes.filter((lane) => !first.has(lane)) };
}

/** "30 finished, 3 cancelled". @param {readonly string[]} words */
export const tally = (words) => counts(words).sort((a, b) => b[1] - a[1]).map(([word, number]) => `${number} ${word}`).join(", ");

/** From times to pixels and back. */
export class Scale {
	/** @param {View} view @param {number} width */
	constructor({ from, to }, width) {
		this.from = from;
		this.to = to;
		this.width = width;
		this.left = width > 640 ? NAMES : 0;
		this.perSecond = (width - this.left) / (to - from);
	}

	/** @param {number} at */
	x(at) {
		return this.left + (at - this.from) * this.perSecond;
	}

	/** @param {number} x */
	time(x) {
		return this.from + (x - this.left) / this.perSecond;
	}
}

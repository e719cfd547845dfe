/** Where things go on the time line. */

const ROWS = 8; // of calls side by side in one run
export const CHAR = 6.6; // px, about: text is cut before it is drawn

/** @param {number} number @param {string} what */
export const count = (number, what) => `${number} ${what}${number === 1 ? "" : "s"}`;

/** A text in so many pixels. @param {string} text @param {number} pixels */
export function cut(text, pixels) {
	const room = Math.floor(pixels / CHAR);
	return text.length <= room ? text : room < 2 ? "" : `${text.slice(0, room - 1)}…`;
}

/** @param {number} least */
export function niceStep(least) {
	const unit = 10 ** Math.floor(Math.log10(least));
	return [1, 2, 5, 10].map((n) => n * unit).find((step) => step >= least) ?? unit * 10;
}

/** Calls that last at the same time go into rows of their own. @param {Bar[]} bars @returns {Bar[][]} */
export function stacked(bars) {
	/** @type {Bar[][]} */
	const rows = [];
	const ends = /** @type {number[]} */ ([]);
	for (const bar of bars) {
		let place = ends.findIndex((end) => end <= bar.from);
		if (place < 0) place = Math.min(rows.length, ROWS - 1);
		(rows[place] ??= []).push(bar);
		ends[place] = bar.to ?? Infinity;
	}
	return rows;
}

/** Files made from what a page shows. */

import { quiet, shortId, svg } from "./dom.js";

const KEPT = 60_000; // ms for which the browser may take the file
const LOOKS = ["fill", "stroke", "stroke-width", "stroke-dasharray", "opacity", "font-family", "font-size", "font-weight", "text-anchor"];

/** @param {Run} run @param {string} ending @param {Blob} content */
export function save({ name, id }, ending, content) {
	const link = document.createElement("a");
	link.href = URL.createObjectURL(content);
	link.download = `${name} ${shortId(id)}${ending}`;
	link.click();
	setTimeout(() => URL.revokeObjectURL(link.href), KEPT);
}

/** @param {RunHistory} history @param {string} what @param {() => unknown} value */
export const jsonSaver = (history, what, value) => quiet("Download as JSON", () => save(history.run, ` ${what}.json`, new Blob([JSON.stringify(value(), null, 2)], { type: "application/json" })));

/** The time line as one picture that needs no style sheet. @param {SVGElement} axis @param {SVGElement} lanes */
export function drawing(axis, lanes) {
	const [width, top] = [lanes.clientWidth, axis.clientHeight];
	const height = top + lanes.clientHeight;
	const back = svg("rect", { width, height, fill: getComputedStyle(document.body).backgroundColor });
	const whole = svg("svg", { viewBox: `0 0 ${width} ${height}`, width, height }, back, styled(axis, 0), styled(lanes, top));
	return pictureOf(whole);
}

/** @param {Element} whole */
export const pictureOf = (whole) => new Blob([new XMLSerializer().serializeToString(whole)], { type: "image/svg+xml" });

/** The same as dots, two for each of the screen. @param {SVGElement} axis @param {SVGElement} lanes @returns {Promise<Blob>} */
export async function raster(axis, lanes) {
	const image = new Image();
	image.src = URL.createObjectURL(drawing(axis, lanes));
	await image.decode();
	const canvas = document.createElement("canvas");
	[canvas.width, canvas.height] = [2 * image.width, 2 * image.height];
	canvas.getContext("2d")?.drawImage(image, 0, 0, canvas.width, canvas.height);
	URL.revokeObjectURL(image.src);
	return new Promise((done, fail) => canvas.toBlob((blob) => (blob ? done(blob) : fail(new Error("the picture is too large"))), "image/png"));
}

/** @param {SVGElement} part @param {number} y */
function styled(part, y) {
	const group = svg("g", { transform: `translate(0 ${y})` }, ...[...part.children].map((child) => child.cloneNode(true)));
	const [from, to] = [part.querySelectorAll("*"), group.querySelectorAll("*")];
	from.forEach((one, index) => {
		const style = getComputedStyle(one);
		for (const look of LOOKS) to[index].setAttribute(look, style.getPropertyValue(look));
		to[index].removeAttribute("class");
	});
	return group;
}

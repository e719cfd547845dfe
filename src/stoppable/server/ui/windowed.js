/** A long list of which only the visible rows are in the document. */

const SPARE = 6; // rows above and below what is seen

/**
 * @template T
 * @typedef {{element: HTMLElement, update: (item: T, index: number) => void}} Row
 */

/** @template T */
export class Windowed {
	/** @type {readonly T[]} */ #items = [];
	/** @type {Map<string, Row<T>>} */ #rows = new Map();
	#frame = 0;

	/**
	 * @param {HTMLElement} scroller what scrolls
	 * @param {HTMLElement} body where the rows are
	 * @param {{key: (item: T) => string, make: (item: T) => Row<T>, height: () => number, end?: () => void}} options
	 */
	constructor(scroller, body, options) {
		this.scroller = scroller;
		this.body = body;
		this.options = options;
		this.observer = new ResizeObserver(() => this.draw());
		this.observer.observe(scroller);
		scroller.addEventListener("scroll", () => this.#soon(), { passive: true });
	}

	close() {
		this.observer.disconnect();
		cancelAnimationFrame(this.#frame);
	}

	/** @param {readonly T[]} items */
	show(items) {
		this.#items = items;
		this.draw();
	}

	#soon() {
		cancelAnimationFrame(this.#frame);
		this.#frame = requestAnimationFrame(() => this.draw());
	}

	draw() {
		const { key, make, height, end } = this.options;
		const each = height();
		const top = Math.max(0, this.scroller.getBoundingClientRect().top - this.body.getBoundingClientRect().top);
		const first = Math.max(0, Math.floor(top / each) - SPARE);
		const last = Math.min(this.#items.length, Math.ceil((top + this.scroller.clientHeight) / each) + SPARE);
		this.body.style.height = `${this.#items.length * each}px`;
		const kept = new Map();
		for (let index = first; index < last; index++) {
			const item = this.#items[index];
			const row = this.#rows.get(key(item)) ?? make(item);
			row.element.style.transform = `translateY(${index * each}px)`;
			row.element.setAttribute("aria-rowindex", String(index + 2));
			row.update(item, index);
			kept.set(key(item), row);
		}
		for (const [id, row] of this.#rows) if (!kept.has(id)) row.element.remove();
		let before = null;
		for (const row of kept.values()) {
			// In the order in which they are read; a row that is in its place keeps the focus.
			const place = before ? before.nextSibling : this.body.firstChild;
			if (place !== row.element) this.body.insertBefore(row.element, place);
			before = row.element;
		}
		this.#rows = kept;
		if (last >= this.#items.length - SPARE) end?.();
	}
}

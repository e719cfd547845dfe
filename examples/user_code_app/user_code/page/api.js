/** Requests to the app. */

/** @typedef {{runId: string, agentName: string, status: string, stopping: boolean, unconfirmed: boolean, startedAt: string, inputDict: object, error: string | null, code?: string, result?: unknown}} Run */

/** @param {string} method @param {string} path @param {object} [body] @returns {Promise<any>} */
export async function ask(method, path, body) {
	const headers = body === undefined ? undefined : { "Content-Type": "application/json" };
	const answer = await fetch(path, { method, headers, body: body && JSON.stringify(body), cache: "no-store" }).catch(() => {
		throw new Error("The server cannot be reached. Try again: nothing happens twice.");
	});
	const told = await answer.json().catch(() => null);
	if (answer.ok) return told;
	throw new Error(typeof told?.detail === "string" ? told.detail : `The server answered ${answer.status}.`);
}

const AGAIN = 1000;

/**
 * Follows a run until it is over. The browser resumes a stream that breaks off where it was.
 * @param {string} runId @param {Record<string, (data: any) => void>} handlers by the name of the event
 * @returns {() => void} lets go of it; the run goes on
 */
export function follow(runId, handlers) {
	let isOver = false;
	/** @type {EventSource | undefined} */ let source;
	let last = "0";
	const open = () => {
		if (isOver || document.hidden) return;
		source?.close();
		const opened = (source = new EventSource(`runs/${encodeURIComponent(runId)}/stream?after=${last}`));
		for (const [name, handle] of Object.entries(handlers)) {
			opened.addEventListener(name, (event) => {
				if (event.lastEventId) last = event.lastEventId;
				if (name === "done") close();
				handle(JSON.parse(event.data));
			});
		}
		// An answer that is no stream, as of a proxy without a server, is where a browser gives up.
		opened.onerror = () => opened.readyState === EventSource.CLOSED && setTimeout(open, AGAIN);
	};
	// A browser has six connections to a server: tabs that nobody sees must not keep a Stop waiting for one.
	const look = () => (document.hidden ? source?.close() : open());
	const close = () => {
		isOver = true;
		document.removeEventListener("visibilitychange", look);
		source?.close();
	};
	document.addEventListener("visibilitychange", look);
	open();
	return close;
}

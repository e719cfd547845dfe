export type Mode = "cooperative" | "graceful" | "immediate" | "kill";
export type Status = "pending" | "running" | "stopping" | "completed" | "failed" | "stopped" | "lost";

/** What the button shows of a run; times are in seconds since 1970. */
export type Shown = {
  id: string;
  status: Status;
  mode: Mode | null;
  inFlight: readonly string[];
  ladder: readonly { rung: string; at: number }[];
  stopRequestedAt: number | null;
  endedAt: number | null;
  actor: string | null;
  left: readonly string[];
  silent: readonly string[];
  late: number | null;
  blind: boolean;
  error: string | null;
};

/** What the server answers to a stop. */
export type Receipt = {
  runId: string;
  answer: "accepted" | "escalated" | "already_stopping" | "already_finished" | (string & {});
  status: Status;
  mode: Mode | null;
  inFlight: readonly string[];
  tooLate: boolean;
  requestedAt: number | null;
  endedAt: number | null;
};

/** `<stoppable-button base="…" run-id="…" reason="…" compact readonly>` */
export class StoppableButton extends HTMLElement {
  /** What is sent with every request, as `{Authorization: "Bearer …"}`. */
  headers: () => Record<string, string>;
  /** The server's time, in seconds since 1970. */
  now: () => number;
  /** What is shown. Setting it feeds the button, which then follows nothing by itself. */
  get run(): Shown;
  set run(run: Shown);
  /** Press Stop. Only the first press counts: it never escalates. */
  press(): void;
  /** What Escape means: no, if there is a question; else the first press. */
  escape(): void;
  addEventListener(type: "stopping" | "ended", listener: (event: CustomEvent<Shown>) => void, options?: boolean | AddEventListenerOptions): void;
  addEventListener(type: string, listener: EventListenerOrEventListenerObject, options?: boolean | AddEventListenerOptions): void;
  removeEventListener(type: "stopping" | "ended", listener: (event: CustomEvent<Shown>) => void, options?: boolean | EventListenerOptions): void;
  removeEventListener(type: string, listener: EventListenerOrEventListenerObject, options?: boolean | EventListenerOptions): void;
}

/** What a record or a summary says, as the button shows it. */
export function shownOf(record: object): Shown;

declare global {
  interface HTMLElementTagNameMap {
    "stoppable-button": StoppableButton;
  }
}

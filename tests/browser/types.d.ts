// The JSON of the server, and what the parts of the page tell each other.
type Mode = "cooperative" | "graceful" | "immediate" | "kill";
type Status = "pending" | "running" | "stopping" | "completed" | "failed" | "stopped" | "lost";
type Rung = { rung: string; at: number };
type Step = { rung: string; after: number };
/** A press that was sent, and what came of that. */
type Sent = { mode: Mode; failed?: string };
type Reason = { kind: string; message: string; actor: string | null; at: number; cause: string | null; source: string | null };
type Policy = { grace: number; interrupt: number; cancel: number; kill: number };

/** What the button shows. */
type Shown = {
  id: string;
  status: Status;
  mode: Mode | null;
  inFlight: readonly string[];
  ladder: readonly Rung[];
  stopRequestedAt: number | null;
  endedAt: number | null;
  actor: string | null;
  left: readonly string[];
  silent: readonly string[];
  late: number | null;
  blind: boolean;
  error: string | null;
  isUnrecorded?: boolean;
  /** Whether the page says elsewhere why it failed. */
  isExplained?: boolean;
};

type Summary = {
  id: string;
  name: string;
  parentId: string | null;
  rootId: string;
  owner: string | null;
  labels: Record<string, string>;
  key: string | null;
  status: Status;
  createdAt: number;
  startedAt: number | null;
  endedAt: number | null;
  endedLate: number | null;
  mode: Mode | null;
  reason: Reason | null;
  stopRequestedAt: number | null;
  inFlight: readonly string[];
  rung: string | null;
  clean: boolean | null;
  error: string | null;
  ladder?: readonly Rung[];
};

type Became = { runId: string; kind: string; name: string; fate: string };
type Receipt = {
  runId: string;
  answer: string;
  status: Status;
  mode: Mode | null;
  reason: Reason | null;
  inFlight: string[];
  entries: Became[];
  enteredAfter: string[];
  libraryThreads: string[];
  unguarded: string[];
  tooLate: boolean;
  blind: boolean;
  requestedAt: number | null;
  acknowledgedAt: number | null;
  deliveredAt: number | null;
  endedAt: number | null;
  ladder: Step[];
};
type Outcome = {
  status: Status;
  reason: Reason | null;
  rung: string | null;
  clean: boolean | null;
  result: unknown;
  partial: unknown;
  error: { type: string; message: string; trace: string } | null;
  omitted: Record<string, string>;
};
type Run = {
  id: string;
  name: string;
  parentId: string | null;
  rootId: string;
  owner: string | null;
  labels: Record<string, string>;
  key: string | null;
  status: Status;
  isolation: string;
  limits: object | null;
  policy: Policy;
  createdAt: number;
  startedAt: number | null;
  endedAt: number | null;
  endedLate: number | null;
  stop: { mode: Mode; reason: Reason; grace: number | null } | null;
  stopRequestedAt: number | null;
  outcome: Outcome | null;
  receipt: Receipt | null;
  lastEvent: number;
  input?: unknown;
};
type Caller = { owner: string | null; seesAll: boolean; actor: string | null; scopes: string[] };
type RunEvent = { runId: string; seq: number; at: number; type: string; data: any };

type Schema = {
  type?: string | string[];
  title?: string;
  description?: string;
  default?: unknown;
  enum?: unknown[];
  properties?: Record<string, Schema>;
  required?: string[];
  anyOf?: Schema[];
};
type Agent = {
  name: string;
  description: string;
  kind: string;
  input: Schema;
};
type Selector = { owner?: string | null; labels?: Record<string, string>; agent?: string | null; all?: boolean };
type Hold = { id: string; selector: Selector; reason: Reason; createdAt: number };
type AuditEntry = {
  id: number;
  at: number;
  action: string;
  actor: string | null;
  reason: string;
  target: Record<string, any>;
  result: Record<string, any>;
};

/** One bar of the time line. */
type Bar = {
  runId: string;
  kind: string;
  name: string;
  from: number;
  to: number | null;
  fate: string | null;
  isUnrecorded: boolean;
  key: number;
  number: number | null;
};
type Lane = { run: Summary; depth: number; bars: Bar[] };

/** A page: what it shows, and how it is left. */
type Page = { element: HTMLElement; title: string; close?: () => void; escape?: () => void };

/** Takes an event of a stream; true: it wants no more. */
type Take = (event: string, data: any, id: string) => boolean | void;

/** What an element is filled with. */
type Child = Node | string | number | null | undefined | false;

type Lasting = { startedAt: number | null; createdAt: number; endedAt: number | null };

/** A field of a form; a value of undefined is left out. */
type Field = { element: HTMLElement[]; value: () => unknown };
type MakeControl = (schema: Schema, isRequired: boolean) => { element: HTMLElement; value: () => unknown };

/** What `h("p.meta")` makes. */
type ElementOf<T extends string> = T extends `${infer Tag}.${string}` ? ElementOf<Tag> : T extends keyof HTMLElementTagNameMap ? HTMLElementTagNameMap[T] : never;

/** An error of a request: the status of its answer, 0 if there was none. */
type Failure = Error & { status: number };

type View = { from: number; to: number };
type RunFilter = { status: Set<string>; agent: string; owner: string; label: string; text: string; since: string; sort: string; subs: boolean };
type Scale = import("../../src/stoppable/server/ui/layout.js").Scale;
type RunHistory = import("../../src/stoppable/server/ui/history.js").History;

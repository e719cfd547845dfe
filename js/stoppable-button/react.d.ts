import type { DetailedHTMLProps, ForwardRefExoticComponent, HTMLAttributes, RefAttributes } from "react";
import type { Mode, Receipt, Shown, StoppableButton as StoppableElement } from "./stoppable-button.js";

export type { Mode, Receipt, Shown, Status } from "./stoppable-button.js";

/** Why a request failed, in the server's words. */
export type Failure = Error & {
  /** The status of the answer; 0 if there was none. */
  status: number;
};

export type StoppableOptions = {
  /** Where the routes are; the folder of the page if it is left out. */
  base?: string;
  /** What is sent with every request, as `() => ({ Authorization: "Bearer …" })`. */
  headers?: () => Record<string, string>;
};

export type StopOptions = {
  /** Default: graceful. Only another mode escalates. */
  mode?: Mode;
  /** Goes into the receipt. */
  reason?: string;
};

export type StoppableState = {
  /** What the server says of the run; null until it has said something. */
  run: Shown | null;
  /** Whether somebody has asked for a stop, and the run is not over. */
  isStopping: boolean;
  isOver: boolean;
  /** Why the run is not followed, or the last stop was not sent. Its status is 404 as long as the server does not know the run. */
  error: Failure | null;
};

export type Stoppable = StoppableState & {
  /** Ask for a stop. It never rejects: what goes wrong is in `error`, and the receipt is null. */
  stop: (options?: StopOptions) => Promise<Receipt | null>;
};

/** Follow a run, and stop it; null follows nothing. */
export function useStoppable(runId: string | null | undefined, options?: StoppableOptions): Stoppable;

export type StoppableButtonProps = Omit<HTMLAttributes<StoppableElement>, "children" | "onEnded"> &
  StoppableOptions & {
    /** Another id begins anew; without one, there is no button. */
    runId?: string | null;
    /** What `useStoppable` says of the run; the button then makes no connection of its own, and needs no id. */
    run?: Shown | null;
    /** Goes into the receipt. */
    reason?: string;
    /** The button without its line, unless a press fails. */
    compact?: boolean;
    /** The line without the button. */
    readonly?: boolean;
    /** Called once for each mode. */
    onStopping?: (run: Shown) => void;
    /** Called once, when the run is over. */
    onEnded?: (run: Shown) => void;
  };

/** A stop button for a run; nothing as long as there is none. */
export const StoppableButton: ForwardRefExoticComponent<StoppableButtonProps & RefAttributes<StoppableElement>>;

declare module "react" {
  namespace JSX {
    interface IntrinsicElements {
      "stoppable-button": DetailedHTMLProps<HTMLAttributes<StoppableElement>, StoppableElement> & {
        /** Instead of `className` in React 18. */
        class?: string;
        base?: string;
        "run-id"?: string;
        reason?: string;
        compact?: boolean | "";
        readonly?: boolean | "";
        /** Set as a property by React 19. */
        headers?: () => Record<string, string>;
        /** Set as a property by React 19. */
        run?: Shown;
      };
    }
  }
}

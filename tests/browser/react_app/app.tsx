// A chat in which each message has its run. What it shows is said by the test: window.show({…}).
import { StoppableButton, useStoppable } from "@stoppable/button/react";
import { StrictMode, useCallback } from "react";
import { createRoot, hydrateRoot, type Root } from "react-dom/client";

export type Scene = {
  base: string;
  key?: string;
  /** Goes into what is told, to see that the newest callbacks are called. */
  word?: string;
  strict?: boolean;
  messages: { id: string | null; kind: "button" | "own" | "fed"; compact?: boolean; readonly?: boolean; hidden?: boolean }[];
};
type Props = { scene: Scene; message: Scene["messages"][number] };

declare global {
  interface Window {
    scene?: Scene;
    told: unknown[];
    show: (scene: Scene) => void;
    leave: () => void;
  }
}

function useAccess({ base, key }: Scene) {
  const headers = useCallback((): Record<string, string> => (key ? { Authorization: `Bearer ${key}` } : {}), [key]);
  return { base, headers };
}

function Plain({ scene, message: { id, kind, ...flags } }: Props) {
  const tell = (word: string, status: string) => window.told.push([id, word, status, scene.word ?? ""]);
  return (
    <StoppableButton
      runId={id}
      reason="wrong topic"
      className="stop"
      {...useAccess(scene)}
      {...flags}
      onStopping={(run) => tell("stopping", run.status)}
      onEnded={(run) => tell("ended", run.status)}
    />
  );
}

function Own({ scene, message: { id } }: Props) {
  const { run, isStopping, isOver, error, stop } = useStoppable(id, useAccess(scene));
  const words = isOver ? run!.status : isStopping ? "stopping…" : run ? run.inFlight.join() : "unknown";
  const press = async (mode?: "immediate") => {
    const receipt = await stop({ mode, reason: "wrong topic" });
    window.told.push([id, "receipt", receipt?.answer ?? null, scene.word ?? ""]);
  };
  return (
    <>
      <output>{words}</output> {error && <em>{`${error.status}: ${error.message}`}</em>}
      <button onClick={() => press()}>Stop</button>
      <button onClick={() => press("immediate")}>Stop now</button>
    </>
  );
}

function Fed({ scene, message: { id } }: Props) {
  const access = useAccess(scene);
  return <StoppableButton run={useStoppable(id, access).run} {...access} />;
}

const KINDS = { button: Plain, own: Own, fed: Fed };

export function App({ scene }: { scene: Scene }) {
  return scene.messages.map((message, at) => {
    const Kind = KINDS[message.kind];
    return (
      <p key={at} id={`message-${at}`}>
        <Kind scene={scene} message={message} />
      </p>
    );
  });
}

const inMode = (scene: Scene) => (scene.strict ? <StrictMode><App scene={scene} /></StrictMode> : <App scene={scene} />);

export function begin(place: HTMLElement) {
  let root: Root | null = window.scene ? hydrateRoot(place, inMode(window.scene)) : null;
  window.told = [];
  window.show = (scene) => (root ??= createRoot(place)).render(inMode(scene));
  window.leave = () => (root?.unmount(), (root = null));
}

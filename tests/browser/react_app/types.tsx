// What must compile, and what must not.
import type { Receipt, Shown, Status, StoppableButton as Element } from "@stoppable/button";
import { shownOf } from "@stoppable/button";
import { StoppableButton, useStoppable, type Failure, type StoppableButtonProps } from "@stoppable/button/react";
import { useRef } from "react";

export function Everything({ id }: { id: string | undefined }) {
  const element = useRef<Element>(null);
  const { run, isStopping, isOver, error, stop } = useStoppable(id, { base: "/agents", headers: () => ({ Authorization: "Bearer key" }) });
  const told: [Shown | null, boolean, boolean, Failure | null] = [run, isStopping, isOver, error];
  const press = async () => {
    const receipt: Receipt | null = await stop({ mode: "immediate", reason: "wrong topic" });
    element.current?.press();
    return [receipt?.answer, told];
  };
  const props: StoppableButtonProps = { className: "stop", title: "Stop it", compact: true, "aria-label": "of the second message" };
  return (
    <>
      <StoppableButton ref={element} runId={id} onStopping={({ mode }) => mode satisfies string | null} onEnded={({ status }) => status satisfies Status} {...props} />
      <StoppableButton run={run} base="/agents" onClick={(event) => event.currentTarget.press()} />
      <stoppable-button base="/agents" run-id="abc" compact />
      <button onClick={() => void press()}>Stop now</button>
    </>
  );
}

export function WithoutReact() {
  const made = document.createElement("stoppable-button");
  made.headers = () => ({ Authorization: "Bearer key" });
  made.run = shownOf({ id: "abc", status: "running" });
  made.addEventListener("ended", ({ detail }) => detail.status satisfies Status);
  document.querySelector("stoppable-button")?.escape();
}

export function Wrong() {
  const { stop } = useStoppable("abc");
  // @ts-expect-error: there is no such mode
  void stop({ mode: "hard" });
  return (
    <>
      {/* @ts-expect-error: the names of React are in camelCase */}
      <StoppableButton runID="abc" />
      {/* @ts-expect-error: headers are made for each request */}
      <StoppableButton runId="abc" headers={{ Authorization: "Bearer key" }} />
      {/* @ts-expect-error: it has what it shows */}
      <StoppableButton runId="abc">Stop</StoppableButton>
      {/* @ts-expect-error: an event is no mode */}
      <button onClick={stop}>Stop</button>
      {/* @ts-expect-error: the element has no such attribute */}
      <stoppable-button compact="very" />
    </>
  );
}

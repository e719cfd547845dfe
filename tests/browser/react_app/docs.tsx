// Shows the components of docs/embedding.md.
import { createRoot } from "react-dom/client";
import { Chat } from "./chat.js";
import { SmallStop } from "./small-stop.js";

const run = new URLSearchParams(location.search).get("run");
createRoot(document.querySelector("main")!).render(run ? <SmallStop runId={run} /> : <Chat />);

// Prints the page that a server would send.
import { StrictMode } from "react";
import { renderToString } from "react-dom/server";
import { App, type Scene } from "./app.js";

declare const process: { argv: string[]; stdout: { write: (text: string) => void } };
const scene: Scene = JSON.parse(process.argv[2]!);
process.stdout.write(renderToString(<StrictMode><App scene={scene} /></StrictMode>));

import { begin } from "./app.js";

begin(document.querySelector("main")!);

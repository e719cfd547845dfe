// The types that are written by hand say what the modules are.
import * as publishedButton from "@stoppable/button";
import * as publishedReact from "@stoppable/button/react";
import * as button from "./source/stoppable-button.js";
import * as react from "./source/react.js";

export const modules: [typeof publishedButton, typeof publishedReact] = [button, react];
export const shown = (run: Shown): publishedButton.Shown => run;
export const receipt = (receipt: Receipt): publishedButton.Receipt => receipt;

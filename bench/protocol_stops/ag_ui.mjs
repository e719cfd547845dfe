// The unmodified HttpAgent of npm: argv is the file of its package and the address of the agent.
import { createRequire } from "node:module";
import { createInterface } from "node:readline";

const [file, url] = process.argv.slice(2);
const { HttpAgent } = createRequire(import.meta.url)(file);
const agent = new HttpAgent({ url });
let running;
let last;
let whole = []; // the messages as the server has them

function run(content) {
  agent.addMessage({ id: `question-${agent.messages.length}`, role: "user", content });
  agent.abortController = new AbortController();
  return new Promise((started) => {
    const onEvent = ({ event }) => {
      last = event;
      if (event.type === "MESSAGES_SNAPSHOT") whole = event.messages;
      if (event.type === "TEXT_MESSAGE_CONTENT") started();
    };
    running = agent.runAgent({}, { onEvent }).catch(() => undefined);
    running.then(started);
  });
}

const commands = {
  async begin(text) {
    await run(text);
  },
  async cancel() {
    agent.abortRun();
    await running;
    return { words: `its own \`${last.type}\` (${last.code})`, isEnd: false };
  },
  async ask(text) {
    agent.messages = agent.messages.filter((message) => message.role === "user"); // as after a reload
    await run(text);
    await running;
    return last.type === "RUN_FINISHED" ? agent.messages.at(-1).content : `${last.type} ${last.message}`;
  },
  async kept() {
    return whole.map((message) => message.content).join(" ");
  },
};

for await (const line of createInterface({ input: process.stdin })) {
  const [name, text] = JSON.parse(line);
  console.log(JSON.stringify((await commands[name](text)) ?? null));
}

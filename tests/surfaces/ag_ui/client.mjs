// The unmodified client of npm: argv is the file of the package, the address, and a folder for the marks of each agent.
import { existsSync } from "node:fs";
import { createRequire } from "node:module";

const [file, address, folder] = process.argv.slice(2);
const { HttpAgent } = createRequire(import.meta.url)(file);
const kinds = ["async", "thread", "command", "subagent"];
const say = (name, value) => console.log(JSON.stringify([name, value]));
const contents = (agent) => agent.messages.map((message) => [message.role, message.content]);

const begun = async (name) => {
  while (!kinds.every((kind) => existsSync(`${folder}/${name}/${kind}.begun`))) {
    await new Promise((done) => setTimeout(done, 5));
  }
};

const on = (name) => new HttpAgent({ url: `${address}/agui/${name}` });

// Add a question, run the agent, and return what its subscriber has seen.
async function ask(agent, content, during) {
  const seen = [];
  agent.addMessage({ id: `question-${agent.messages.length}`, role: "user", content });
  agent.abortController = new AbortController();
  const subscriber = {
    onEvent: ({ event }) => void seen.push(event),
    onRunFailed: ({ error }) => void seen.push({ type: "failed", status: error.status, payload: error.payload }),
  };
  const running = agent.runAgent({}, subscriber).catch((error) => void seen.push({ type: "thrown", error: error.message }));
  if (during) await during(seen);
  await running;
  return seen;
}

const hasText = (seen) => seen.some((event) => event.type === "TEXT_MESSAGE_CONTENT");
const until = async (condition) => {
  while (!condition()) await new Promise((done) => setTimeout(done, 5));
};
const last = (events) => ({ type: events.at(-1).type, code: events.at(-1).code, outcome: events.at(-1).outcome });

// A client that aborts, before it has read the answer; the next message of its thread is sent at once.
const agent = on("research");
const aborted = await ask(agent, JSON.stringify({ folder: `${folder}/aborted` }), async (seen) => {
  await begun("aborted");
  await until(() => hasText(seen));
  agent.abortRun();
});
say("aborted", { last: last(aborted.filter((event) => event.type === "RUN_ERROR")), messages: agent.messages.length });
agent.url = `${address}/agui/echo`;
const next = await ask(agent, "and now");
say("next", { last: last(next), kinds: next.map((event) => event.type), messages: contents(agent) });

// The same, but the client keeps nothing of the answer. It aborts once there is one: before, the agent may not have begun.
const hasty = on("waits");
await ask(hasty, "go", async (seen) => {
  await until(() => hasText(seen));
  hasty.abortRun();
});
hasty.messages = hasty.messages.filter((message) => message.role === "user");
hasty.url = `${address}/agui/echo`;
await ask(hasty, "and now");
say("hasty", contents(hasty));

// A stop by somebody else.
const stopped = on("crew");
const events = await ask(stopped, JSON.stringify({ folder: `${folder}/stopped` }), async (seen) => {
  await begun("stopped");
  await until(() => seen.length > 0);
  await fetch(`${address}/runs/${seen[0].runId}/stop`, {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify({ reason: "enough" }),
  });
});
const subagents = events.filter((event) => event.type.startsWith("SUBAGENT")).map((event) => event.type);
say("stopped", { last: last(events), subagents, messages: stopped.messages.length });

const done = on("team");
const team = await ask(done, "tides");
const words = done.messages.map((message) => [message.subagentRunId !== undefined, message.content]);
say("done", { last: last(team), words });

const refused = await ask(on("nobody"), "x");
say("refused", refused.find((event) => event.type === "failed"));

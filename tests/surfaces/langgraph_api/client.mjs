// The unmodified package of npm: argv is its file, the address, and a folder for the marks of each agent.
import { existsSync } from "node:fs";
import { pathToFileURL } from "node:url";

const [file, address, folder] = process.argv.slice(2);
const { Client } = await import(pathToFileURL(file));
const kinds = ["async", "thread", "command", "subagent"];
const say = (name, value) => console.log(JSON.stringify([name, value]));
const client = new Client({ apiUrl: `${address}/lg`, apiKey: null });

const until = async (condition) => {
  while (!(await condition())) await new Promise((done) => setTimeout(done, 5));
};
const begun = (name) => until(() => kinds.every((kind) => existsSync(`${folder}/${name}/${kind}.begun`)));
const said = (text) => ({ messages: [{ type: "human", content: text }] });
const work = (name) => said(JSON.stringify({ folder: `${folder}/${name}` }));
const contents = (values) => values.messages.map((one) => [one.type, one.content]);
const status = async (thread, run) => (await client.runs.get(thread, run)).status;
const over = (thread, run) => until(async () => !["pending", "running"].includes(await status(thread, run)));
const newThread = async () => (await client.threads.create()).thread_id;
const read = async (stream) => {
  const parts = [];
  for await (const part of stream) parts.push(part);
  return parts;
};
const running = async (thread) => {
  await until(async () => (await client.runs.list(thread))[0]?.status === "running");
  return (await client.runs.list(thread))[0].run_id;
};

// A cancel while the answer is read; the next turn follows at once.
const stopped = await newThread();
const reading = read(client.runs.stream(stopped, "research", { input: work("stopped"), streamMode: ["values", "messages-tuple"] }));
await begun("stopped");
const first = await running(stopped);
await client.runs.cancel(stopped, first, true);
const parts = await reading;
say("stopped", {
  events: [...new Set(parts.map((part) => part.event))],
  text: parts.filter((part) => part.event === "messages").map((part) => part.data[0].content).join(""),
  status: await status(stopped, first),
  thread: (await client.threads.get(stopped)).status,
});
say("next", contents(await client.runs.wait(stopped, "echo", { input: said("and now") })));
say("history", (await client.threads.getHistory(stopped)).length);

// A rollback.
const back = await newThread();
const { run_id: taken } = await client.runs.create(back, "research", { input: work("rolled") });
await begun("rolled");
await client.runs.cancel(back, taken, true, "rollback");
say("rolled back", [(await client.threads.getState(back)).values, (await client.runs.list(back)).length]);

// Leaving a stream that stops its run.
const left = await newThread();
const abort = new AbortController();
const leaving = read(
  client.runs.stream(left, "research", { input: work("left"), onDisconnect: "cancel", signal: abort.signal }),
).catch(() => undefined);
await begun("left");
const leftRun = await running(left);
abort.abort();
await leaving;
await over(left, leftRun);
say("left", await status(left, leftRun));

// A run that stops the one before it.
const busy = await newThread();
const { run_id: before } = await client.runs.create(busy, "research", { input: work("busy") });
await begun("busy");
const instead = await client.runs.wait(busy, "echo", { input: said("instead"), multitaskStrategy: "interrupt" });
say("interrupted", [await status(busy, before), contents(instead).at(-1)]);

// Coming back to a stream after an event, and an error.
const again = await newThread();
const whole = await read(client.runs.stream(again, "echo", { input: said("a b c"), streamMode: ["values", "updates"] }));
const rest = await read(client.runs.joinStream(again, whole[0].data.run_id, { lastEventId: whole[1].id }));
say("joined", [whole.length, rest.map((part) => part.event), whole.slice(2).map((part) => part.event)]);
const failed = await client.runs.wait(again, "failing", { input: said("x") }).catch((error) => error.message);
say("failed", failed);
say("refused", await client.threads.get("unknown").catch((error) => error.status));
say("found", (await client.threads.search({ metadata: { graph_id: "echo" } })).length > 0);

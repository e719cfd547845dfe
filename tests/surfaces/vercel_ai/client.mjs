// The unmodified package of npm: argv is its file, the address, and a folder for the marks of each agent.
import { existsSync } from "node:fs";
import { pathToFileURL } from "node:url";

const [file, address, folder] = process.argv.slice(2);
const { AbstractChat, DefaultChatTransport } = await import(pathToFileURL(file));
const kinds = ["async", "thread", "command", "subagent"];
const say = (name, value) => console.log(JSON.stringify([name, value]));

// What @ai-sdk/react keeps in the state of a component.
class State {
  status = "ready";
  error = undefined;
  messages = [];
  pushMessage = (message) => void (this.messages = [...this.messages, message]);
  popMessage = () => void (this.messages = this.messages.slice(0, -1));
  replaceMessage = (index, message) => {
    this.messages = [...this.messages.slice(0, index), structuredClone(message), ...this.messages.slice(index + 1)];
  };
  snapshot = (thing) => structuredClone(thing);
}

class Chat extends AbstractChat {
  constructor(id, agent, messages = []) {
    const seen = { data: [], finished: [], errors: [] };
    const state = new State();
    state.messages = messages;
    super({
      id,
      state,
      transport: new DefaultChatTransport({ api: `${address}/vercel/${agent}` }),
      onData: (part) => void seen.data.push(part.type),
      onFinish: ({ isAbort, isError }) => void seen.finished.push([isAbort ?? false, isError ?? false]),
      onError: (error) => void seen.errors.push(error.message),
      onToolCall: () => void seen.errors.push("a page was asked to execute a tool"),
    });
    this.seen = seen;
  }
}

const until = async (condition) => {
  while (!condition()) await new Promise((done) => setTimeout(done, 5));
};
const begun = (name) => until(() => kinds.every((kind) => existsSync(`${folder}/${name}/${kind}.begun`)));
const part = (one) => (one.type === "dynamic-tool" ? [one.toolName, one.state, one.errorText ?? one.output] : one.text);
const shown = (chat) =>
  chat.messages.map((message) => [message.role, ...message.parts.map(part).filter((one) => one !== undefined)]);
const facts = (chat) => chat.messages.at(-1).metadata.stoppable;
const told = (chat) => ({ status: chat.status, shown: shown(chat), facts: facts(chat), seen: chat.seen });

// The Stop button of a page: the endpoint, not `chat.stop()`.
const press = async (chat, agent, more = "") => {
  const response = await fetch(`${address}/vercel/${agent}/${encodeURIComponent(chat.id)}/stop${more}`, { method: "POST" });
  return [response.status, (await response.json()).status];
};

// The next message of a chat goes to another agent, as if the page had chosen that.
const ask = async (before, agent, text) => {
  const chat = new Chat(before.id, agent, before.messages);
  await chat.sendMessage({ text });
  return chat;
};

// A stop during text, by its endpoint; the next message of the chat is sent at once.
const stopped = new Chat("a chat/with 1 slash", "research");
const running = stopped.sendMessage({ text: JSON.stringify({ folder: `${folder}/stopped` }) });
await begun("stopped");
await until(() => stopped.messages.length === 2);
await press(stopped, "research");
await running;
say("stopped", told(stopped));
say("next", told(await ask(stopped, "echo", "and now")));

// A stop during the call of a tool.
const tool = new Chat("tool", "tooling");
const calling = tool.sendMessage({ text: "sleep" });
await until(() => tool.messages.at(-1)?.parts.some((one) => one.type === "dynamic-tool"));
say("press", await press(tool, "tooling", "?wait=60"));
await calling;
say("tool", told(tool));
say("after the tool", told(await ask(tool, "tooling", "go")));

// The button of the SDK, which only leaves.
const left = new Chat("left", "research");
const leaving = left.sendMessage({ text: JSON.stringify({ folder: `${folder}/left` }) });
await begun("left");
await until(() => left.messages.length === 2);
await left.stop();
await leaving;
say("left", { status: left.status, finished: left.seen.finished });
say("after leaving", told(await ask(left, "echo", "and now")));

// Another page of the same chat reads along, and sees the stop of the first one.
const first = new Chat("two pages", "tooling");
const both = [first.sendMessage({ text: "sleep" })];
await until(() => first.messages.at(-1)?.parts.some((one) => one.type === "dynamic-tool"));
const second = new Chat("two pages", "tooling", first.messages.slice(0, 1));
both.push(second.resumeStream());
await until(() => second.messages.at(-1)?.parts.some((one) => one.type === "dynamic-tool"));
await press(second, "tooling");
await Promise.all(both);
say("first page", told(first));
say("second page", told(second));
await second.resumeStream();
say("nothing to resume", second.status);

const failed = new Chat("failed", "failing");
await failed.sendMessage({ text: "x" });
say("failed", told(failed));

const team = new Chat("team", "team");
await team.sendMessage({ text: "tides" });
say("team", { ...told(team), agents: team.messages.at(-1).parts.filter((one) => one.type === "data-subagent") });

const refused = new Chat("refused", "nobody");
await refused.sendMessage({ text: "x" });
say("refused", { status: refused.status, error: JSON.parse(refused.error.message).error.code });

// The unmodified package `ai` of npm: argv is its file, the address of the agent, and "leave" or "stop".
import { createInterface } from "node:readline";
import { pathToFileURL } from "node:url";

const [file, api, how] = process.argv.slice(2);
const { AbstractChat, DefaultChatTransport } = await import(pathToFileURL(file));

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

const chat = new (class extends AbstractChat {})({
  id: "chat",
  state: new State(),
  transport: new DefaultChatTransport({ api }),
});
const textOf = (message) => message.parts.map((part) => part.text ?? "").join("");
let running;

const commands = {
  async begin(text) {
    running = chat.sendMessage({ text });
    while (!chat.messages.at(-1)?.parts.some((part) => part.type === "text" && part.text !== text)) {
      await new Promise((done) => setTimeout(done, 5));
    }
  },
  async cancel() {
    if (how === "leave") {
      await chat.stop();
      await running;
      return { words: "nothing: it leaves", isEnd: false };
    }
    await fetch(`${api}/${chat.id}/stop`, { method: "POST" });
    await running;
    return { words: `\`${chat.messages.at(-1).metadata.stoppable.status}\``, isEnd: true };
  },
  async ask(text) {
    await chat.sendMessage({ text });
    return chat.status === "ready" ? textOf(chat.messages.at(-1)) : `${chat.status} ${chat.error?.message}`;
  },
  async kept() {
    return textOf(chat.messages[1]);
  },
};

for await (const line of createInterface({ input: process.stdin })) {
  const [name, text] = JSON.parse(line);
  console.log(JSON.stringify((await commands[name](text)) ?? null));
}

// The unmodified client of npm: argv is the file of the package, the address, and a folder for the marks of each agent.
import { existsSync } from "node:fs";
import { pathToFileURL } from "node:url";

const [file, address, folder] = process.argv.slice(2);
const { default: OpenAI } = await import(pathToFileURL(file));
const client = new OpenAI({ baseURL: `${address}/v1`, apiKey: "none", maxRetries: 0 });
const kinds = ["async", "thread", "command", "subagent"];
const ask = (name) => JSON.stringify({ folder: `${folder}/${name}` });
const say = (name, value) => console.log(JSON.stringify([name, value]));

async function begun(name) {
  while (!kinds.every((kind) => existsSync(`${folder}/${name}/${kind}.begun`))) {
    await new Promise((done) => setTimeout(done, 5));
  }
}

const response = await client.responses.create({ model: "research", input: ask("background"), background: true });
await begun("background");
const cancelled = await client.responses.cancel(response.id);
say("cancelled", { status: cancelled.status, text: cancelled.output[0].content[0].text });

const resumed = [];
for await (const event of await client.responses.retrieve(response.id, { stream: true, starting_after: 2 })) resumed.push(event);
say("resumed", { numbers: resumed.map((event) => event.sequence_number), last: resumed.at(-1).response.status });

const next = await client.responses.create({ model: "echo", input: "and now", previous_response_id: response.id });
say("next", { status: next.status, text: next.output_text });

const words = await client.responses.create({ model: "research", input: ask("responses"), stream: true });
for await (const event of words) {
  await begun("responses");
  break; // which aborts the request
}
say("left responses", null);

const messages = [{ role: "user", content: ask("chat") }];
const abort = new AbortController();
const chunks = await client.chat.completions.create({ model: "research", messages, stream: true }, { signal: abort.signal });
await begun("chat");
abort.abort();
for await (const chunk of chunks) void chunk; // ends without an error, as the client has it
say("left chat", null);

const refusal = await client.responses.retrieve("resp_nobody").catch((error) => error);
say("refused", { status: refusal.status, code: refusal.code, kind: refusal.constructor.name });
const models = await client.models.list();
say("models", models.data.map((model) => model.id));

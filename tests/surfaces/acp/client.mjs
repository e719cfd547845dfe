// The unmodified client of npm: argv is the file of the package, a folder for the marks, and the command of an agent.
import { spawn } from "node:child_process";
import { existsSync } from "node:fs";
import { Readable, Writable } from "node:stream";
import { pathToFileURL } from "node:url";

const [file, folder, command, ...words] = process.argv.slice(2);
const { client, methods, ndJsonStream } = await import(pathToFileURL(file));
const kinds = ["async", "thread", "command", "subagent"];
const say = (name, value) => console.log(JSON.stringify([name, value]));
const pause = () => new Promise((done) => setTimeout(done, 5));

const agent = spawn(command, words, { stdio: ["pipe", "pipe", "inherit"] });
const left = new Promise((done) => agent.on("exit", done));
let said = "";
const editor = client({ name: "editor" }).onNotification(methods.client.session.update, ({ params }) => {
  if (params.update.sessionUpdate === "agent_message_chunk") said += params.update.content.text;
});
const stream = ndJsonStream(Writable.toWeb(agent.stdin), Readable.toWeb(agent.stdout));
await editor.connectWith(stream, async (agentSide) => {
  const { agentInfo } = await agentSide.request(methods.agent.initialize, { protocolVersion: 1, clientCapabilities: {} });
  const { sessionId } = await agentSide.request(methods.agent.session.new, { cwd: "/", mcpServers: [] });
  const ask = (text) =>
    agentSide.request(methods.agent.session.prompt, { sessionId, prompt: [{ type: "text", text }] });
  const turn = ask(JSON.stringify({ folder }));
  while (!kinds.every((kind) => existsSync(`${folder}/${kind}.begun`)) || !said.includes("two")) await pause();
  await agentSide.notify(methods.agent.session.cancel, { sessionId });
  const { stopReason } = await turn;
  say("cancelled", { agent: agentInfo.name, stopReason, said });
  say("next", await ask("not/there").then(() => "a result", (error) => error.message));
});
agent.stdin.end();
say("exit", await left);
process.exit(0);

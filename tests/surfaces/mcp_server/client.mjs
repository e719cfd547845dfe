// The unmodified client of npm: argv is the file of the package, the address, and a folder for the marks of each agent.
import { existsSync } from "node:fs";
import { pathToFileURL } from "node:url";

const [file, address, folder] = process.argv.slice(2);
const { Client, StreamableHTTPClientTransport } = await import(pathToFileURL(file));
const kinds = ["async", "thread", "command", "subagent"];
const say = (name, value) => console.log(JSON.stringify([name, value]));
const pause = () => new Promise((done) => setTimeout(done, 5));

for (const mode of ["auto", "legacy"]) {
  const client = new Client({ name: "test", version: "1" }, { versionNegotiation: { mode } });
  await client.connect(new StreamableHTTPClientTransport(new URL(`${address}/mcp`)));
  const heard = [];
  const abort = new AbortController();
  const call = client.callTool(
    { name: "research", arguments: { folder: `${folder}/${mode}` } },
    { signal: abort.signal, onprogress: (progress) => heard.push(progress.message) },
  );
  const outcome = call.then(() => "a result", () => "an error");
  while (!kinds.every((kind) => existsSync(`${folder}/${mode}/${kind}.begun`)) || !heard.length) await pause();
  abort.abort("enough");
  await outcome;
  const uri = `stoppable://runs/${heard[0].split(" ").at(-1)}`;
  let run;
  do {
    await pause();
    run = JSON.parse((await client.readResource({ uri })).contents[0].text);
  } while (!run.receipt);
  const next = await client.callTool({ name: "echo", arguments: { text: "and now" } });
  say(mode, { outcome: await outcome, status: run.status, text: run.text, next: next.content[0].text });
  await client.close();
}
process.exit(0);

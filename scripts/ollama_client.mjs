// Checks a server with the official `ollama` package for JavaScript: models, whole and streamed answers, tools,
// structured output, prompts, loading, errors, streams that are given up.
//
// Usage: node ollama_client.mjs http://127.0.0.1:11116
// The packages are found in NODE_MODULES, the folder `node_modules` of where they were installed.

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { join } from "node:path";

const modules = process.env.NODE_MODULES ?? "node_modules";
const packages = createRequire(join(modules, "x.js"));
const { Ollama } = packages("ollama");

const client = new Ollama({ host: process.argv[2] });
const { models } = await client.list();
const model = models[0].name;
assert(model.endsWith(":latest") && models[0].size > 0 && models[0].digest, models);
assert((await client.version()).version.split(".").length === 3);
const shown = await client.show({ model });
assert(shown.capabilities.includes("completion") && shown.details.family, shown);

const asked = { model, messages: [{ role: "user", content: "2+2=?" }], options: { temperature: 0 } };
const answer = await client.chat(asked);
const text = answer.message.content;
assert(text.includes("4") && answer.done && answer.eval_count > 0, answer);
let streamed = "";
let last;
for await (const part of await client.chat({ ...asked, stream: true })) {
  streamed += part.message.content;
  last = part;
}
assert.equal(streamed, text);
assert(last.done && last.done_reason === "stop" && last.total_duration > 0, last);
assert.equal((await client.ps()).models[0].name, model);

const days = {
  type: "object",
  properties: { days: { type: "integer", minimum: 1, maximum: 9 } },
  required: ["days"],
};
const parsed = JSON.parse((await client.chat({ ...asked, format: days })).message.content);
assert(parsed.days >= 1 && parsed.days <= 9, parsed);

// The built-in model is no caller of tools, so a schema makes it write a call.
const tools = [{ type: "function", function: { name: "get_weather", description: "", parameters: days } }];
const properties = { name: { const: "get_weather" }, parameters: days };
const format = { type: "object", properties, required: ["name", "parameters"] };
const { message } = await client.chat({ ...asked, tools, format });
const [call] = message.tool_calls;
assert(call.function.name === "get_weather" && call.function.arguments.days >= 1, call);
const result = { role: "tool", tool_name: "get_weather", content: "rain" };
const again = await client.chat({ ...asked, tools, messages: [...asked.messages, message, result] });
assert(again.done);

const prompt = { model, prompt: "2+2=?", options: { temperature: 0 } };
assert.equal((await client.generate(prompt)).response, text);
assert.equal((await client.generate({ model, prompt: "", keep_alive: "5m" })).done_reason, "load");
const statuses = [];
for await (const part of await client.pull({ model, stream: true })) statuses.push(part.status);
assert.equal(statuses.at(-1), "success");

await assert.rejects(client.chat({ ...asked, options: { temperature: -9 } }), {
  name: "ResponseError",
  status_code: 400,
});
// A stream that is given up ends; the server goes on.
const endless = { ...asked, options: { num_predict: 400 }, format: { type: "array", minItems: 90 } };
const stream = await client.chat({ ...endless, stream: true });
await assert.rejects(
  async () => {
    for await (const _ of stream) stream.abort();
  },
  { name: "AbortError" },
);
assert.equal((await client.chat(asked)).message.content, text);

const own = JSON.parse(readFileSync(join(modules, "ollama", "package.json"), "utf8"));
console.log(`ollama client for JavaScript: content (package ${own.version}, answer '${text}')`);

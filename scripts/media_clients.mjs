// The packages of OpenAI and Ollama for Node, unmodified, ask a model about a picture.
// Usage: NODE_MODULES=FOLDER node scripts/media_clients.mjs http://127.0.0.1:11116 PICTURE.png
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { join } from "node:path";

const packages = createRequire(join(process.env.NODE_MODULES ?? "node_modules", "x.js"));
const OpenAI = packages("openai").default;
const { Ollama } = packages("ollama");

const [, , url, path] = process.argv;
const data = readFileSync(path).toString("base64");
const client = new OpenAI({ baseURL: `${url}/v1`, apiKey: "unused", maxRetries: 0 });
const content = [
  { type: "image_url", image_url: { url: `data:image/png;base64,${data}` } },
  { type: "text", text: "What is this?" },
];
const answer = await client.chat.completions.create({
  model: "default", messages: [{ role: "user", content }], max_tokens: 8, temperature: 0,
});
const said = answer.choices[0].message.content;
assert(answer.usage.prompt_tokens_details.image_tokens > 0, JSON.stringify(answer.usage));
const response = await client.responses.create({
  model: "default",
  input: [{ role: "user", content: [
    { type: "input_image", image_url: content[0].image_url.url, detail: "auto" },
    { type: "input_text", text: "What is this?" },
  ] }],
  max_output_tokens: 8, temperature: 0,
});
assert.equal(response.output_text, said);

const ollama = new Ollama({ host: url });
const { models } = await ollama.list();
const seen = await ollama.chat({
  model: models[0].model, options: { temperature: 0, num_predict: 8 },
  messages: [{ role: "user", content: "What is this?", images: [data] }],
});
assert.equal(seen.message.content, said);
console.log(`clients for Node with a picture: content (openai ${packages("openai/version").VERSION}, answer ${JSON.stringify(said)})`);

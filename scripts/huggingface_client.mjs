// Checks a server with `@huggingface/inference`: chats by the address of the server alone, whole and streamed.
//
// Usage: node huggingface_client.mjs http://127.0.0.1:11116/v1
// The packages are found in NODE_MODULES, the folder `node_modules` of where they were installed.

import assert from "node:assert/strict";
import { createRequire } from "node:module";
import { join } from "node:path";

const packages = createRequire(join(process.env.NODE_MODULES ?? "node_modules", "x.js"));
const { InferenceClient } = packages("@huggingface/inference");

const url = process.argv[2];
const request = { messages: [{ role: "user", content: "2+2=?" }], temperature: 0, max_tokens: 32 };

// With and without the name of a model: the package then sends a name of its own.
for (const named of [{}, { model: "some/model" }]) {
  const client = new InferenceClient("unused", { endpointUrl: url });
  const answer = await client.chatCompletion({ ...request, ...named });
  const text = answer.choices[0].message.content;
  assert(text.includes("4"), text);
  let streamed = "";
  for await (const chunk of client.chatCompletionStream({ ...request, ...named })) {
    streamed += chunk.choices[0]?.delta?.content ?? "";
  }
  assert.equal(streamed, text);
}
const endpoint = new InferenceClient("unused").endpoint(url);
const answer = await endpoint.chatCompletion(request);
assert(answer.choices[0].message.content.includes("4"));

console.log("Hugging Face client for Node: content");

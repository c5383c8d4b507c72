// Checks a server whose model gives vectors with the official `openai` package for Node.
//
// Usage: node embeddings_client.mjs http://127.0.0.1:11116/v1, with NODE_MODULES as openai_client.mjs has it.

import assert from "node:assert/strict";
import { createRequire } from "node:module";
import { join } from "node:path";

const packages = createRequire(join(process.env.NODE_MODULES ?? "node_modules", "x.js"));
const { default: OpenAI, BadRequestError } = packages("openai");

const client = new OpenAI({ baseURL: process.argv[2], apiKey: "unused", maxRetries: 0 });
const model = (await client.models.list()).data[0].id;
const of = async (input, more) => (await client.embeddings.create({ model, input, ...more })).data;

// By itself the package asks for base64, and gives numbers all the same.
const coded = await of(["w5 w6", "w7"]);
const plain = await of("w5 w6", { encoding_format: "float" });
assert.equal(coded.length, 2);
const [vector, expected] = [coded[0].embedding, plain[0].embedding];
assert.equal(vector.length, expected.length);
assert(expected.every((value, i) => Math.abs(value - vector[i]) < 1e-4));
assert.equal((await of("w5", { dimensions: 8 }))[0].embedding.length, 8);
assert.notDeepEqual(coded[1].embedding, vector);
await assert.rejects(of(""), (error) => error instanceof BadRequestError && error.param === "input");

console.log("embeddings client for Node: content");

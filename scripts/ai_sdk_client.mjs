// Checks a server with Vercel's AI SDK and its `openai()` provider as they are by default (OpenAI's responses): several
// turns, of which the SDK sends earlier ones as references or leaves them to the server, tools, streams, objects of a schema, embeddings left out.
//
// Usage: node ai_sdk_client.mjs http://127.0.0.1:11116/v1
// The packages are found in NODE_MODULES, the folder `node_modules` of where they were installed.

import assert from "node:assert/strict";
import { createRequire } from "node:module";
import { join } from "node:path";

const packages = createRequire(join(process.env.NODE_MODULES ?? "node_modules", "x.js"));
const { generateText, streamText, Output, tool, stepCountIs } = packages("ai");
const { createOpenAI } = packages("@ai-sdk/openai");
const { z } = packages("zod");

const openai = createOpenAI({ baseURL: process.argv[2], apiKey: "unused" });
const model = openai("default");
const greedy = { model, temperature: 0, maxRetries: 0 };

// Three turns. From the second on, the SDK refers to the answers before by their ids.
let messages = [];
for (const question of ["2+2=?", "And 3+3?", "And 4+4?"]) {
  messages.push({ role: "user", content: question });
  const { text, response } = await generateText({ ...greedy, messages, maxOutputTokens: 32 });
  assert(text.length > 0, question);
  messages.push(...response.messages);
}

// The server keeps the conversation: each turn sends its question and the id of the response before.
let previousResponseId;
const counts = [];
for (const question of ["2+2=?", "And 3+3?", "And 4+4?"]) {
  const { text, usage, providerMetadata } = await generateText({
    ...greedy,
    prompt: question,
    maxOutputTokens: 32,
    providerOptions: { openai: { previousResponseId } },
  });
  assert(text.length > 0, question);
  counts.push(usage.inputTokens);
  previousResponseId = providerMetadata.openai.responseId;
}
assert(counts[0] < counts[1] && counts[1] < counts[2], String(counts));

// A stream that goes on with the same conversation.
messages.push({ role: "user", content: "5+5=?" });
const stream = streamText({ ...greedy, messages, maxOutputTokens: 32 });
let streamed = "";
for await (const part of stream.textStream) streamed += part;
assert.equal(streamed, await stream.text);
assert(streamed.length > 0);
messages.push(...(await stream.response).messages);

// A tool that has to be called; its result goes back, with the call as a reference.
const days = tool({
  description: "The weather of some days",
  inputSchema: z.object({ days: z.number().int().min(1).max(9) }),
  execute: async ({ days }) => ({ days, weather: "rain" }),
});
const called = await generateText({
  ...greedy,
  messages: [...messages, { role: "user", content: "The weather?" }],
  tools: { days },
  toolChoice: { type: "tool", toolName: "days" },
  stopWhen: stepCountIs(2),
  prepareStep: ({ stepNumber }) => (stepNumber > 0 ? { toolChoice: "none" } : {}),
  maxOutputTokens: 64,
});
assert.equal(called.steps.length, 2);
const [call] = called.steps[0].toolCalls;
assert(call.input.days >= 1 && call.input.days <= 9, JSON.stringify(call));
assert.equal(called.steps[0].toolResults[0].output.weather, "rain");

// An object of a schema, asked for in the same way.
const { output } = await generateText({
  ...greedy,
  prompt: "A person",
  output: Output.object({ schema: z.object({ age: z.number().int().min(0).max(120) }) }),
  maxOutputTokens: 64,
});
assert(Number.isInteger(output.age) && output.age >= 0 && output.age <= 120);

// The same provider's chat completions.
const chat = await generateText({ ...greedy, model: openai.chat("default"), prompt: "2+2=?" });
assert(chat.text.includes("4"), chat.text);

console.log("AI SDK: content");

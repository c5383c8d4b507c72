// Checks a server with the official `openai` package for Node: whole and streamed answers, log-probabilities,
// tools, structured output, responses, completions, errors, retries.
//
// Usage: node openai_client.mjs http://127.0.0.1:11116/v1 [URL of a server with one place and a queue of one]
// The packages are found in NODE_MODULES, the folder `node_modules` of where they were installed.

import assert from "node:assert/strict";
import { createServer } from "node:http";
import { createRequire } from "node:module";
import { join } from "node:path";

const packages = createRequire(join(process.env.NODE_MODULES ?? "node_modules", "x.js"));
const { default: OpenAI, NotFoundError, BadRequestError, RateLimitError } = packages("openai");
const { zodResponseFormat, zodTextFormat, zodFunction } = packages("openai/helpers/zod");
const { z } = packages("zod");

const baseURL = process.argv[2];
const client = new OpenAI({ baseURL, apiKey: "unused", maxRetries: 0 });
const model = (await client.models.list()).data[0].id;
const messages = [{ role: "user", content: "2+2=?" }];
const greedy = { model, messages, temperature: 0 };

// Whole and streamed.
const { data: answer, response: raw } = await client.chat.completions
  .create({ ...greedy, logprobs: true, top_logprobs: 5 })
  .withResponse();
assert(raw.headers.get("x-request-id"));
const [choice] = answer.choices;
const text = choice.message.content;
assert(text.includes("4"), text);
const entries = choice.logprobs.content;
assert.equal(Buffer.from(entries.flatMap((entry) => entry.bytes)).toString(), text);
assert(entries.every((entry) => entry.logprob <= 0 && entry.top_logprobs.length === 5));

let streamed = "";
let usage = null;
const tokens = [];
const wanted = { stream: true, logprobs: true, stream_options: { include_usage: true } };
for await (const chunk of await client.chat.completions.create({ ...greedy, ...wanted })) {
  usage = chunk.usage ?? usage;
  for (const part of chunk.choices) {
    streamed += part.delta.content ?? "";
    tokens.push(...(part.logprobs?.content ?? []));
  }
}
assert.equal(streamed, text);
assert.deepEqual(tokens.map((token) => token.bytes), entries.map((entry) => entry.bytes));
assert.equal(usage.total_tokens, answer.usage.total_tokens);

// A client that goes in the middle of a stream.
const long = await client.chat.completions.create({ ...greedy, stream: true, max_tokens: 400, ignore_eos: true });
for await (const _ of long) break;
assert(long.controller.signal.aborted);

// Structured output.
const Days = z.object({ days: z.number().int().min(1).max(9) });
const parsed = await client.chat.completions.parse({ ...greedy, response_format: zodResponseFormat(Days, "days") });
assert(parsed.choices[0].message.parsed.days >= 1);

// Tools.
const tool = zodFunction({ name: "get_weather", parameters: Days });
const tool_choice = { type: "function", function: { name: "get_weather" } };
const asked = { ...greedy, tools: [tool], tool_choice };
const called = await client.chat.completions.parse(asked);
const [call] = called.choices[0].message.tool_calls;
assert.equal(call.function.name, "get_weather");
Days.parse(call.function.parsed_arguments);
const final = await client.chat.completions.stream(asked).finalChatCompletion();
assert.equal(final.choices[0].message.tool_calls[0].function.arguments, call.function.arguments);
const result = { role: "tool", tool_call_id: call.id, content: "rain" };
const again = await client.chat.completions.create({ ...greedy, messages: [...messages, called.choices[0].message, result] });
assert(["stop", "length"].includes(again.choices[0].finish_reason));
// The package runs the tool and asks again, until an answer is text.
let n_runs = 0;
const runnable = {
  type: "function",
  function: { name: "get_weather", parameters: z.toJSONSchema(Days), parse: JSON.parse, function: () => (n_runs++, "rain") },
};
const runner = client.chat.completions.runTools({ ...greedy, tools: [runnable], tool_choice }, { maxChatCompletions: 2 });
await runner.done();
assert(n_runs >= 1);

// Responses.
const input = "2+2=?";
const whole = await client.responses.create({ model, input, temperature: 0 });
assert.equal(whole.output_text, text);
assert.equal(whole.status, "completed");
let deltas = "";
const stream = client.responses.stream({ model, input, temperature: 0 });
for await (const event of stream) if (event.type === "response.output_text.delta") deltas += event.delta;
assert.equal(deltas, text);
assert.equal((await stream.finalResponse()).output_text, text);
const fitting = await client.responses.parse({ model, input, text: { format: zodTextFormat(Days, "days") } });
assert(fitting.output_parsed.days <= 9);

// Completions, which Node's package can stream as well.
const scored = await client.completions.create({ model, prompt: "2+2", max_tokens: 2, echo: true, logprobs: 1 });
assert(scored.choices[0].text.startsWith("2+2"));
assert.equal(scored.choices[0].logprobs.token_logprobs[0], null);
assert.equal((await client.models.retrieve(model)).id, model);

// Errors, which are not tried again.
await assert.rejects(client.models.retrieve("nobody"), NotFoundError);
for (const [wrong, expected] of [
  [{ ...greedy, temperature: -9 }, BadRequestError],
  [{ ...greedy, messages: [] }, BadRequestError],
]) {
  await assert.rejects(client.chat.completions.create(wrong), (error) => {
    assert(error instanceof expected && error.code && error.param !== undefined, error);
    return true;
  });
}

// Retries: a server with one place and a queue of one says when to come again, and the package does.
async function retries(url) {
  let seen = [];
  const counting = async (...request) => {
    const response = await fetch(...request);
    seen.push([performance.now(), response.status, response.headers.get("retry-after")]);
    return response;
  };
  const small = (maxRetries) => new OpenAI({ baseURL: url, apiKey: "unused", maxRetries, fetch: counting });
  const short = { model: "default", messages, max_tokens: 1 };
  // Fills the place and the queue.
  const endless = { ...short, max_tokens: 4000, ignore_eos: true, stream: true };
  const running = await small(0).chat.completions.create(endless);
  const waiting = await small(0).chat.completions.create(endless);
  await assert.rejects(small(0).chat.completions.create(short), (error) => {
    assert(error instanceof RateLimitError, error);
    assert(Number(error.headers.get("retry-after")) >= 1, error.headers);
    return true;
  });
  seen = [];
  const patient = small(3).chat.completions.create(short);
  while (seen.length === 0) await new Promise((done) => setTimeout(done, 20));
  running.controller.abort();
  waiting.controller.abort();
  assert.equal((await patient).object, "chat.completion");
  assert.deepEqual([seen[0][1], seen.at(-1)[1]], [429, 200]);
  for (const [i, [time]] of seen.entries()) {
    if (i > 0) assert(time - seen[i - 1][0] >= 1000 * Number(seen[i - 1][2]) - 50, JSON.stringify(seen));
  }
  // What cannot become better is not tried again.
  seen = [];
  await assert.rejects(small(3).chat.completions.create({ ...short, temperature: -9 }), BadRequestError);
  assert.equal(seen.length, 1);
}
if (process.argv[3]) await retries(process.argv[3]);

const version = packages("openai/version").VERSION;
const tried = process.argv[3] ? "" : ", without retries";
console.log(`openai client for Node: content (package ${version}, answer ${JSON.stringify(text)}${tried})`);

// OpenAI's package for Node, unmodified, asks for transcripts of a sound.
// Usage: NODE_MODULES=FOLDER node scripts/transcripts_client.mjs http://127.0.0.1:11116
import assert from "node:assert/strict";
import { createRequire } from "node:module";
import { join } from "node:path";

const packages = createRequire(join(process.env.NODE_MODULES ?? "node_modules", "x.js"));
const { default: OpenAI, toFile } = packages("openai");
const client = new OpenAI({ baseURL: `${process.argv[2]}/v1`, apiKey: "unused", maxRetries: 0 });

// Two seconds of a chirp whose loudness changes, as a WAV file.
const n = 32000, bytes = Buffer.alloc(44 + 2 * n);
bytes.write("RIFF", 0);
bytes.writeUInt32LE(36 + 2 * n, 4);
bytes.write("WAVEfmt ", 8);
for (const [at, value] of [[16, 16], [24, 16000], [28, 32000], [40, 2 * n]]) bytes.writeUInt32LE(value, at);
for (const [at, value] of [[20, 1], [22, 1], [32, 2], [34, 16]]) bytes.writeUInt16LE(value, at);
bytes.write("data", 36);
for (let i = 0; i < n; i++) {
  const wave = Math.abs((Math.floor(i * i / 4000) + 37 * i) % 256 - 128) - 64;
  bytes.writeInt16LE(wave * 60 * (Math.floor(i / 4000) % 5 + 1), 44 + 2 * i);
}
const transcript = async (fields) =>
  client.audio.transcriptions.create({ model: "default", file: await toFile(bytes, "a.wav"), ...fields });

const { text } = await transcript({});
const whole = await transcript({ response_format: "verbose_json" });
assert.equal(whole.text, text);
assert.equal(whole.duration, 2);
let streamed = "";
for await (const event of await transcript({ stream: true })) {
  if (event.type === "transcript.text.delta") streamed += event.delta;
}
assert.equal(streamed.trim(), text);
assert(text.length > 0);
console.log(`openai client for Node with a sound: content (openai ${packages("openai/version").VERSION})`);

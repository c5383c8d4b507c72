// Requests to the server this page came from, with the API key of this tab.

import { ofTab } from './keep.js';

const KEY = 'bench.key';
// The page may lie below any path of a proxy; this file is in a folder beside it.
const BASE = new URL('../', import.meta.url);

export const key = () => ofTab.get(KEY) ?? '';

export function setKey(value) {
    if (value) ofTab.set(KEY, value);
    else ofTab.remove(KEY);
}

/// A refusal or a failure, as the server words it.
export class Refusal extends Error {
    constructor(status, error) {
        super(error?.message ?? `The server answered with status ${status}.`);
        this.status = status;
        this.param = error?.param ?? null;
        this.code = error?.code ?? null;
    }
}

async function ask(path, options = {}) {
    const headers = { ...options.headers };
    if (key()) headers.authorization = `Bearer ${key()}`;
    const response = await fetch(new URL(path, BASE), { ...options, headers });
    if (response.ok) return response;
    const body = await response.json().catch(() => null);
    throw new Refusal(response.status, body?.error);
}

export const json = async path => (await ask(path)).json();

/// The picture of a model, as the address of an image.
export async function diagram(model, view, theme) {
    const response = await ask(`v1/models/${encodeURIComponent(model)}/diagram?view=${view}&theme=${theme}`);
    return URL.createObjectURL(await response.blob());
}

/// The picture of a response of the lab, as the address of an image.
export async function picture(body) {
    return URL.createObjectURL(await (await send('v1/lab/pictures', body)).blob());
}

const send = (path, body, signal) => ask(path, {
    method: 'POST', signal, headers: { 'content-type': 'application/json' }, body: JSON.stringify(body),
});

export const post = async (path, body) => (await send(path, body)).json();

/// The events of a stream as they come: `{data}`, or `{comment}`.
export async function* events(response) {
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    let rest = '';
    try {
        for (;;) {
            const { done, value } = await reader.read();
            if (done) return;
            const parts = (rest + value).split(/\r?\n\r?\n/);
            rest = parts.pop();
            for (const part of parts) {
                if (part.startsWith(': ')) yield { comment: part.slice(2) };
                const data = part.split(/\r?\n/).filter(line => line.startsWith('data:')).map(line => line.slice(5).trim()).join('\n');
                if (data) yield { data };
            }
        }
    } finally {
        // Who has read enough ends the stream.
        reader.cancel().catch(() => {});
    }
}

/// Posts a request and hands over each chunk of its stream, and what its comments say.
export async function stream(path, body, signal, take, note = () => {}) {
    const response = await send(path, body, signal);
    for await (const { data, comment } of events(response)) {
        if (comment !== undefined) note(comment);
        if (data === '[DONE]') return;
        if (!data) continue;
        const chunk = JSON.parse(data);
        if (chunk.error) throw new Refusal(response.status, chunk.error);
        take(chunk);
    }
    throw new Error('The connection ended before the answer was complete.');
}

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
export async function diagram(model, view) {
    const response = await ask(`v1/models/${encodeURIComponent(model)}/diagram?view=${view}`);
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

/// Posts a request and hands over each chunk of its stream, and what its comments say.
export async function stream(path, body, signal, take, note = () => {}) {
    const response = await send(path, body, signal);
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    let rest = '';
    for (;;) {
        const { done, value } = await reader.read();
        if (done) throw new Error('The connection ended before the answer was complete.');
        const events = (rest + value).split('\n\n');
        rest = events.pop();
        for (const event of events) {
            if (event.startsWith(': ')) note(event.slice(2));
            const data = event.startsWith('data:') ? event.slice(5).trim() : '';
            if (data === '[DONE]') return;
            if (!data) continue;
            const chunk = JSON.parse(data);
            if (chunk.error) throw new Refusal(response.status, chunk.error);
            take(chunk);
        }
    }
}

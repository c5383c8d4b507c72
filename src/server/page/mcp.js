// A client of the Model Context Protocol over streamable HTTP: which tools a server has, and a call of one.

import { events } from './api.js';

const VERSION = '2025-06-18';
const MOST_PAGES = 20, LONGEST_RESULT = 200_000;

export class Mcp {
    constructor(url) {
        this.url = url;
        this.session = null;
        this.n = 0;
        this.tools = [];
    }

    async post(body) {
        const headers = { 'content-type': 'application/json', accept: 'application/json, text/event-stream' };
        if (this.session) headers['mcp-session-id'] = this.session;
        if (this.version) headers['mcp-protocol-version'] = this.version;
        let response;
        try {
            // No cookies: a server elsewhere is not to know who this is.
            response = await fetch(this.url, { method: 'POST', headers, body: JSON.stringify(body), credentials: 'omit' });
        } catch {
            throw new Error('Cannot be reached. It must allow this page (CORS), and the server of this page must let it ask there.');
        }
        this.session = response.headers.get('mcp-session-id') ?? this.session;
        return response;
    }

    /// Asks something and gives the result.
    async ask(method, params = {}) {
        const id = ++this.n, response = await this.post({ jsonrpc: '2.0', id, method, params });
        if (!response.ok) throw Object.assign(new Error(`Answers with status ${response.status}.`), { status: response.status });
        const isStream = response.headers.get('content-type')?.startsWith('text/event-stream');
        const answer = isStream ? await this.read(response, id) : await response.json();
        if (answer?.error) throw new Error(String(answer.error.message ?? 'It failed.'));
        if (!answer || answer.id !== id) throw new Error('Answers something else.');
        return answer.result ?? {};
    }

    /// The message of a stream that answers a request; others, such as progress, are left out.
    async read(response, id) {
        for await (const { data } of events(response)) {
            const message = data ? JSON.parse(data) : {};
            if (message.id === id && !message.method) return message;
        }
        return null;
    }

    async connect() {
        this.session = this.version = null;
        const { protocolVersion, serverInfo } = await this.ask('initialize', {
            protocolVersion: VERSION, capabilities: {}, clientInfo: { name: 'inference-lab-bench-page', version: '1' },
        });
        this.version = protocolVersion;
        this.name = String(serverInfo?.name ?? '').slice(0, 60) || new URL(this.url).host;
        await this.post({ jsonrpc: '2.0', method: 'notifications/initialized' });
        this.tools = [];
        let cursor;
        for (let i = 0; i < MOST_PAGES; i++) {
            const page = await this.ask('tools/list', cursor ? { cursor } : {});
            this.tools.push(...(page.tools ?? []).filter(({ name }) => typeof name === 'string' && name));
            cursor = page.nextCursor;
            if (!cursor) break;
        }
    }

    /// The text that a tool gives.
    async call(name, given) {
        const parts = { name, arguments: given };
        const result = await this.ask('tools/call', parts).catch(async error => {
            // A session that has ended is begun anew.
            if (error.status !== 404) throw error;
            await this.connect();
            return this.ask('tools/call', parts);
        });
        const texts = (result.content ?? []).map(part => part.type === 'text' ? part.text : part.resource?.text ?? `(${part.type})`);
        const text = texts.join('\n') || (result.structuredContent ? JSON.stringify(result.structuredContent) : '');
        return (result.isError ? `Error: ${text}` : text).slice(0, LONGEST_RESULT);
    }
}

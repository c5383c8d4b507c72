// A client of the Model Context Protocol over streamable HTTP: which tools a server has, and a call of one.

import { events } from './api.js';

const VERSION = '2025-06-18';
const MOST_PAGES = 20, LONGEST_RESULT = 200_000, ANSWER_MS = 3000;

// Origins that the policy of the page kept it from asking.
const kept = new Set();
addEventListener('securitypolicyviolation', ({ blockedURI }) => { if (URL.canParse(blockedURI)) kept.add(new URL(blockedURI).origin); });

export class Mcp {
    /// `token` is sent to this server as `Authorization: Bearer`, where it is not empty.
    constructor(url, token) {
        this.url = url;
        this.token = token;
        this.session = null;
        this.n = 0;
        this.tools = [];
    }

    async post(body) {
        const headers = { 'content-type': 'application/json', accept: 'application/json, text/event-stream' };
        if (this.session) headers['mcp-session-id'] = this.session;
        if (this.version) headers['mcp-protocol-version'] = this.version;
        if (this.token) headers.authorization = `Bearer ${this.token}`;
        let response;
        try {
            // No cookies: a server elsewhere is not to know who this is.
            response = await fetch(this.url, { method: 'POST', headers, body: JSON.stringify(body), credentials: 'omit' });
        } catch {
            throw new Error(await this.why());
        }
        this.session = response.headers.get('mcp-session-id') ?? this.session;
        return response;
    }

    /// Why there is no answer, in words: browsers do not tell a page.
    async why() {
        const { origin } = new URL(this.url);
        // What a policy forbids is reported after the failure.
        await new Promise(resolve => setTimeout(resolve, 50));
        if (kept.has(origin)) return `The policy of this page forbids it to ask ${origin}. Its server allows that with --page-connect ${origin}.`;
        const probe = { mode: 'no-cors', credentials: 'omit', signal: AbortSignal.timeout(ANSWER_MS) };
        if (!await fetch(this.url, probe).then(() => true, () => false)) return `${origin} cannot be reached.`;
        return `${origin} does not allow this page (CORS): it must answer with Access-Control-Allow-Origin: ${location.origin}, `
            + 'and allow the headers authorization, content-type, mcp-protocol-version and mcp-session-id.';
    }

    /// Asks something and gives the result.
    async ask(method, params = {}) {
        const id = ++this.n, response = await this.post({ jsonrpc: '2.0', id, method, params });
        const { status } = response;
        if (status === 401 || status === 403) throw new Error(this.token ? 'Refuses the token.' : 'Wants a token.');
        if (!response.ok) throw Object.assign(new Error(`Answers with status ${status}.`), { status });
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

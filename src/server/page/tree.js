// A conversation as data: a tree of messages. An edit or another answer is a further child, so nothing that was said is lost.
// What is seen is one path through it: each message names the child that was chosen last.

import { part } from './media.js';

const NO_TITLE = 'New chat';
const LONGEST_TITLE = 80;

/// A new name for a conversation or a message.
export function mint() {
    // `randomUUID` is not there on pages without encryption.
    return [...crypto.getRandomValues(new Uint8Array(12))].map(byte => byte.toString(16).padStart(2, '0')).join('');
}

/// `version` counts how often it was stored; `stamp` says when its title, settings or first message were chosen.
export function conversation(settings = {}) {
    const now = Date.now();
    return { id: mint(), title: '', isNamed: false, created: now, changed: now, version: 0, stamp: now, first: null, nodes: new Map(), settings };
}

export function message(role, fields = {}) {
    const now = Date.now();
    return {
        id: mint(), parent: null, next: null, role, at: now, stamp: now, content: '', reasoning: '', seconds: null, calls: [], files: [],
        model: '', numbers: '', reason: '', fault: '', used: null, ...fields,
    };
}

export const title = own => own.title || NO_TITLE;

/// Names a conversation; without a text it is named by its first message again.
export function rename(own, text) {
    own.title = text.trim().replace(/\s+/g, ' ').slice(0, LONGEST_TITLE);
    own.isNamed = own.title !== '';
    own.stamp = Date.now();
    nameByText(own);
}

function nameByText(own) {
    if (own.title) return;
    const first = path(own).find(({ role }) => role === 'user');
    const line = (first?.content || first?.files[0]?.name || '').trim().split('\n')[0].replace(/\s+/g, ' ');
    own.title = line.length > LONGEST_TITLE ? `${line.slice(0, LONGEST_TITLE - 1)}…` : line;
}

/// The children of each message, the eldest first; those of `null` begin the conversation.
function families(own) {
    const out = new Map();
    for (const node of own.nodes.values()) {
        if (!out.has(node.parent)) out.set(node.parent, []);
        out.get(node.parent).push(node);
    }
    for (const children of out.values()) children.sort((a, b) => a.at - b.at || (a.id < b.id ? -1 : 1));
    return out;
}

/// The messages that are seen, from the first on, each with `all` that could be in its place.
export function line(own) {
    const children = families(own), out = [];
    for (let all = children.get(null), chosen = own.first; all;) {
        const node = all.find(({ id }) => id === chosen) ?? all.at(-1);
        out.push({ node, all });
        all = children.get(node.id);
        chosen = node.next;
    }
    return out;
}

export const path = own => line(own).map(({ node }) => node);

/// A message and the others in its place.
export const siblings = (own, node) => families(own).get(node.parent) ?? [node];

/// Puts a message after another, or at the beginning, and chooses it.
export function add(own, parent, node) {
    node.parent = parent?.id ?? null;
    // Clocks differ between machines, but a message is younger than what it follows and than its siblings.
    node.at = Math.max(node.at, (parent?.at ?? 0) + 1, ...siblings(own, node).filter(other => other !== node).map(({ at }) => at + 1));
    own.nodes.set(node.id, node);
    choose(own, node);
    own.changed = Date.now();
    if (node.role === 'user') nameByText(own);
    return node;
}

/// Makes a message the one that is seen in its place.
export function choose(own, node) {
    const parent = own.nodes.get(node.parent), now = Date.now();
    if (parent) Object.assign(parent, { next: node.id, stamp: now });
    else Object.assign(own, { first: node.id, stamp: now });
}

/// Takes what another copy of a conversation has: messages that are new, and the later state of those that both have.
export function absorb(own, other) {
    for (const node of other.nodes.values()) {
        const known = own.nodes.get(node.id);
        if (!known) own.nodes.set(node.id, node);
        // The object stays the same: it may be on show.
        else if (node.stamp > known.stamp) Object.assign(known, node);
    }
    if (other.stamp > own.stamp) {
        const { title, isNamed, first, settings, stamp } = other;
        Object.assign(own, { title, isNamed, first, settings, stamp });
    }
    own.changed = Math.max(own.changed, other.changed);
    own.version = Math.max(own.version, other.version);
    return own;
}

/// A fence that is longer than any in a text.
function fence(text) {
    const longest = Math.max(2, ...[...text.matchAll(/`+/g)].map(([ticks]) => ticks.length));
    return '`'.repeat(longest + 1);
}

/// The text of a message with its files of text before it.
export function withFiles({ content, files }) {
    const blocks = files.filter(({ url }) => !url).map(({ name, text }) => `File ${name}:\n${fence(text)}\n${text.replace(/\n$/, '')}\n${fence(text)}`);
    return [...blocks, content].filter(Boolean).join('\n\n');
}

/// A message as those of a request.
export function messages(node) {
    if (node.role === 'user') {
        const text = withFiles(node), parts = node.files.filter(({ url }) => url).map(part);
        return [{ role: 'user', content: parts.length ? [...parts, ...text ? [{ type: 'text', text }] : []] : text }];
    }
    const out = { role: 'assistant', content: node.content };
    if (node.reasoning) out.reasoning_content = node.reasoning;
    // An answer that failed before it began is none.
    if (!node.calls.length) return node.content || node.reasoning ? [out] : [];
    out.tool_calls = node.calls.map(({ id, name, arguments: given }) => ({ id, type: 'function', function: { name, arguments: given } }));
    return [out, ...node.calls.map(({ id, result }) => ({ role: 'tool', tool_call_id: id, content: result }))];
}

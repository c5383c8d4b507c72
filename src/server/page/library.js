// All conversations and the one that is open in this tab: opened, stored, renamed, deleted. The address of the page names the open one,
// so that it survives a reload and the browser's own buttons walk among conversations.

import { lasting, ofTab } from './keep.js';
import * as store from './store.js';
import { absorb, conversation, mint, rename as name, title } from './tree.js';

export const PREFIX = '#/chat-';
const DRAFT = 'bench.draft.', TAB = 'bench.tab', LATEST = 'bench.latest';
const DRAFTS_KEPT_MS = 30 * 24 * 3600 * 1000;

/// What the list shows of each conversation, by id.
export const heads = new Map();
let current = conversation();
// Conversations of which there must be one object: those that are being answered, and those that could not be stored.
const held = new Map();
const running = new Set();
const unsaved = new Set();
const waiting = new Map();
const on = { list() {}, leave() {}, open() {}, joined() {}, trouble() {}, gone() {} };
let newSettings = () => ({});
let entered = 0;
// Whether many are stored at once, and the list is shown when all are.
let isQuiet = false;
// Saves follow each other.
let saved = Promise.resolve();

export const open = () => current;

/// Ids of the conversations, the one that changed last first.
export const listed = () => [...heads.values()].sort((a, b) => b.changed - a.changed);

function address(id, isNew) {
    const hash = id ? PREFIX + id : '';
    if (location.hash === hash) return;
    history[isNew ? 'pushState' : 'replaceState'](null, '', hash || location.pathname + location.search);
}

function show(own, isNew) {
    on.leave();
    settle();
    current = own;
    address(heads.has(own.id) ? own.id : '', isNew);
    on.open(own);
    on.list();
}

/// Begins a conversation. It is stored when it has a message.
export const begin = (isNew = true) => show(conversation(newSettings()), isNew);

/// Opens a conversation that is stored; says whether it is there.
export async function enter(id, isNew = true) {
    const turn = ++entered;
    if (id === current.id) return true;
    const own = await whole(id);
    if (!own) return false;
    // Another was chosen meanwhile.
    if (turn !== entered) return true;
    const latest = ofTab.json(LATEST);
    if (latest?.id === id && latest.stamp > own.stamp) Object.assign(own, { settings: latest.settings, stamp: latest.stamp });
    show(own, isNew);
    return true;
}

/// Changes the settings of the open conversation.
export function setSettings(settings) {
    const stamp = Date.now();
    Object.assign(current, { settings, stamp });
    // The database may not be done when the page is left at once; this is.
    ofTab.set(LATEST, JSON.stringify({ id: current.id, stamp, settings }));
    if (current.nodes.size) saveSoon(current);
}

/// Says that a conversation is being answered, or no more.
export function run(own, isRunning) {
    if (isRunning) running.add(own.id);
    else running.delete(own.id);
    keepObject(own);
    on.list();
}

function keepObject(own) {
    if (running.has(own.id) || unsaved.has(own.id)) held.set(own.id, own);
    else held.delete(own.id);
}

export const isRunning = id => running.has(id);

/// Why nothing could be stored, for who reads it.
function trouble(error) {
    return error?.name === 'QuotaExceededError' ? 'The browser’s storage is full, so this conversation is not kept. Export it, or delete others.'
        : 'The browser did not store this conversation. Export it before you leave the page.';
}

/// Stores a conversation that has messages.
export function save(own) {
    clearTimeout(waiting.get(own.id));
    waiting.delete(own.id);
    if (!own.nodes.size) return saved;
    saved = saved.then(async () => {
        const isFirst = !heads.has(own.id);
        try {
            const { isJoined, head } = await store.save(own);
            heads.set(own.id, head);
            if (isFirst) store.persist();
            unsaved.delete(own.id);
            on.trouble(store.isKept() ? '' : null);
            if (isJoined && own === current) on.joined(own);
        } catch (error) {
            // It stays in the list while the page is open.
            heads.set(own.id, { id: own.id, title: title(own), created: own.created, changed: own.changed, version: own.version });
            unsaved.add(own.id);
            on.trouble(trouble(error));
        }
        keepObject(own);
        if (own === current) address(own.id, false);
        if (!isQuiet) on.list();
    });
    return saved;
}

/// Stores a conversation soon, once for changes that follow each other closely.
export const saveSoon = (own, ms = 400) => { if (!waiting.has(own.id)) waiting.set(own.id, setTimeout(() => save(own), ms)); };

/// Stores the open conversation if it waits for that.
const settle = () => { if (waiting.has(current.id)) save(current); };

/// A conversation with all its messages.
export const whole = async id => id === current.id ? current : held.get(id) ?? store.load(id).catch(() => null);

export async function rename(id, text) {
    const own = await whole(id);
    if (!own) return;
    name(own, text);
    await save(own);
}

/// Takes a conversation out of the list and the store; returns what puts it back.
export async function remove(id) {
    const own = await whole(id);
    clearTimeout(waiting.get(id));
    waiting.delete(id);
    await saved;
    const tokens = await store.remove(id).catch(() => []);
    for (const kind of [heads, held, unsaved]) kind.delete(id);
    lasting.remove(DRAFT + id);
    if (id === current.id) begin(false);
    on.list();
    return async () => {
        if (!own) return;
        await save(own);
        for (const { id: node, all } of tokens) store.putTokens(id, node, all).catch(() => {});
        await enter(id);
    };
}

/// Puts conversations that came from a file into the store.
export async function put(all) {
    isQuiet = true;
    for (const own of all) await save(Object.assign(own, { version: 0 }));
    isQuiet = false;
    on.list();
}

/// The key of the draft of the open conversation. Those that are not stored yet share one in each tab.
function draftKey() {
    if (heads.has(current.id)) return DRAFT + current.id;
    if (!ofTab.get(TAB)) ofTab.set(TAB, mint());
    return DRAFT + ofTab.get(TAB);
}

/// Text and files that are not sent yet.
export function draft() {
    const { text, files } = lasting.json(draftKey()) ?? {};
    return { text: typeof text === 'string' ? text : '', files: Array.isArray(files) ? files : [] };
}

export function keepDraft(text, files) {
    const key = draftKey(), at = Date.now();
    if (!text && !files.length) lasting.remove(key);
    // Large files may not fit; the text matters more.
    else if (!lasting.set(key, JSON.stringify({ at, text, files }))) lasting.set(key, JSON.stringify({ at, text, files: [] }));
}

function dropOldDrafts() {
    const isOld = key => !(lasting.json(key)?.at > Date.now() - DRAFTS_KEPT_MS);
    for (const key of lasting.names().filter(key => key.startsWith(DRAFT))) if (isOld(key)) lasting.remove(key);
}

/// What another tab did.
async function hear({ kind, head, id }) {
    if (kind === 'saved') {
        heads.set(head.id, head);
        if (head.id === current.id && head.version !== current.version) {
            const other = await store.load(head.id).catch(() => null);
            if (other && other.id === current.id) on.joined(absorb(current, other));
        }
    } else {
        heads.delete(id);
        if (id === current.id && !running.has(id)) {
            begin(false);
            on.gone();
        }
    }
    on.list();
}

const ofAddress = () => location.hash.startsWith(PREFIX) ? location.hash.slice(PREFIX.length) : '';

/// Opens what the address has come to name.
async function follow() {
    const id = ofAddress();
    if (id ? !await enter(id, false) : heads.has(current.id)) begin(false);
}

/// Opens the store and what the address names. `calls`: `list`, `leave`, `open`, `joined`, `trouble`, `gone`; `settings` are those of a new conversation.
export async function start(calls, settings) {
    Object.assign(on, calls);
    newSettings = settings;
    await store.open();
    dropOldDrafts();
    for (const head of await store.heads().catch(() => [])) heads.set(head.id, head);
    store.listen(hear);
    if (!store.isKept()) on.trouble(null);
    if (!await enter(ofAddress(), false)) begin(false);
    addEventListener('popstate', follow);
    addEventListener('pagehide', settle);
    addEventListener('beforeunload', event => {
        if (unsaved.size || (!store.isKept() && heads.size)) event.preventDefault();
    });
}

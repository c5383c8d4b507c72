// Where conversations are kept: the browser's database, or memory where it refuses. Tabs tell each other what they changed, and a
// conversation that another tab has stored meanwhile is joined with, never overwritten.

import { absorb, title } from './tree.js';

const NAME = 'inference-lab-bench';

const done = request => new Promise((resolve, reject) => {
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
});

const complete = transaction => new Promise((resolve, reject) => {
    transaction.oncomplete = () => resolve();
    transaction.onabort = () => reject(transaction.error ?? new DOMException('', 'QuotaExceededError'));
});

/// What the list shows of a conversation.
const head = own => ({ id: own.id, title: title(own), created: own.created, changed: own.changed, version: own.version });

class Disk {
    isKept = true;

    static open() {
        const request = indexedDB.open(NAME, 1);
        request.onupgradeneeded = () => {
            for (const table of ['heads', 'bodies']) request.result.createObjectStore(table, { keyPath: 'id' });
            request.result.createObjectStore('tokens', { keyPath: ['conversation', 'id'] });
        };
        // A database that neither opens nor fails is one that is not there.
        const late = new Promise((_, reject) => setTimeout(() => reject(new Error('The database does not open.')), 5000));
        return Promise.race([done(request), late]).then(base => new Disk(base));
    }

    constructor(base) {
        this.base = base;
        // Another tab has a later page, which wants another form of the database.
        base.onversionchange = () => base.close();
    }

    read(table) {
        return this.base.transaction(table).objectStore(table);
    }

    all = table => done(this.read(table).getAll());
    get = (table, key) => done(this.read(table).get(key));

    /// Puts what `make` says in the place of what is there, in one step.
    async change(id, make) {
        const change = this.base.transaction(['heads', 'bodies'], 'readwrite'), ended = complete(change);
        const bodies = change.objectStore('bodies'), request = bodies.get(id);
        // What is thrown below ends the transaction, which does not say why.
        let fault = null;
        request.onsuccess = () => {
            try {
                const own = make(request.result);
                bodies.put(own);
                change.objectStore('heads').put(head(own));
            } catch (error) {
                fault = error;
                change.abort();
            }
        };
        await ended.catch(error => { throw fault ?? error; });
    }

    async put(table, value) {
        const change = this.base.transaction(table, 'readwrite'), ended = complete(change);
        change.objectStore(table).put(value);
        await ended;
    }

    /// Removes a conversation and returns the tokens that were with it.
    async remove(id) {
        const change = this.base.transaction(['heads', 'bodies', 'tokens'], 'readwrite'), ended = complete(change);
        const tokens = change.objectStore('tokens'), range = IDBKeyRange.bound([id], [id, []]), had = tokens.getAll(range);
        tokens.delete(range);
        for (const table of ['heads', 'bodies']) change.objectStore(table).delete(id);
        await ended;
        return had.result;
    }

    /// Hands over each conversation in turn, so that not all are in memory at once, until `take` says that it has enough.
    each(take) {
        return new Promise((resolve, reject) => {
            const request = this.read('bodies').openCursor();
            request.onerror = () => reject(request.error);
            request.onsuccess = () => {
                if (!request.result || take(request.result.value) === false) resolve();
                else request.result.continue();
            };
        });
    }
}

class Memory {
    isKept = false;
    tables = { heads: new Map(), bodies: new Map(), tokens: new Map() };

    all = async table => [...this.tables[table].values()];
    get = async (table, key) => structuredClone(this.tables[table].get(String(key)));

    async change(id, make) {
        const own = structuredClone(make(this.tables.bodies.get(id)));
        this.tables.bodies.set(id, own);
        this.tables.heads.set(id, head(own));
    }

    async put(table, value) {
        this.tables[table].set(String([value.conversation, value.id]), value);
    }

    async remove(id) {
        for (const table of ['heads', 'bodies']) this.tables[table].delete(id);
        // They may come back, and go with the page.
        return [];
    }

    async each(take) {
        for (const own of this.tables.bodies.values()) if (take(own) === false) return;
    }
}

let base = new Memory();
const channel = globalThis.BroadcastChannel ? new BroadcastChannel(NAME) : null;

// What is in the memory of one tab is no matter of others.
const post = told => { if (base.isKept) channel?.postMessage(told); };

/// Opens the store. Whether it keeps anything after the page is left is `isKept`.
export async function open() {
    try {
        base = await Disk.open();
    } catch { /* refused: private windows of some browsers, a profile that is broken or read-only */ }
}

export const isKept = () => base.isKept;
export const heads = () => base.all('heads');
export const load = id => base.get('bodies', id);
export const each = take => base.each(take);
export const tokens = async (conversation, id) => (await base.get('tokens', [conversation, id]))?.all ?? [];
export const putTokens = (conversation, id, all) => base.put('tokens', { conversation, id, all });

/// Stores a conversation, joined with what another tab stored since this one read it. Returns whether there was something to join.
export async function save(own) {
    let isJoined = false;
    await base.change(own.id, kept => {
        isJoined = kept !== undefined && kept.version !== own.version;
        if (isJoined) absorb(own, kept);
        own.version++;
        return own;
    });
    post({ kind: 'saved', head: head(own) });
    return { isJoined, head: head(own) };
}

/// Removes a conversation; returns the tokens of its answers, as `putTokens` takes them.
export async function remove(id) {
    const tokens = await base.remove(id);
    post({ kind: 'removed', id });
    return tokens;
}

/// Calls `hear` with what other tabs did: `{kind: 'saved', head}` or `{kind: 'removed', id}`.
export const listen = hear => channel?.addEventListener('message', ({ data }) => { if (base.isKept) hear(data); });

/// Asks the browser not to drop the conversations when it needs room.
export const persist = () => navigator.storage?.persist?.().catch(() => {});

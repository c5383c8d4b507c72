// The list of conversations: by day, searched, opened, renamed, deleted, exported and imported.

import { ask } from './ask.js';
import { by, download, element, iconButton, say } from './dom.js';
import { fileName, toJson, toMarkdown } from './exported.js';
import { isSame, LARGEST_FILE, read } from './imported.js';
import * as library from './library.js';
import * as menu from './menu.js';
import { notice } from './notice.js';
import * as store from './store.js';
import { mint, withFiles } from './tree.js';

const REFUSAL_MS = 20_000, SEARCH_MS = 150, MOST_FOUND = 200, AROUND = 40, DAY = 86_400_000;

// What the search found: ids with what was found in their text, or null where nothing is searched.
let found = null;
let searching = 0;
// The search under way; an earlier one stops.
let search = {};
// Ends what is under way in a conversation.
let stop = () => {};

/// The heading under which a time is listed.
function day(time) {
    const midnight = new Date().setHours(0, 0, 0, 0), date = new Date(time);
    if (time >= midnight) return 'Today';
    if (time >= midnight - DAY) return 'Yesterday';
    if (time >= midnight - 7 * DAY) return 'Last 7 days';
    if (time >= midnight - 30 * DAY) return 'Last 30 days';
    return date.toLocaleDateString('en', { month: 'long', year: 'numeric' });
}

async function exportOne(id, ending) {
    const own = await library.whole(id);
    if (!own) return;
    if (ending === 'md') download(fileName(own, 'md'), toMarkdown(own), 'text/markdown');
    else download(fileName(own, 'json'), toJson([own]), 'application/json');
}

async function rename({ id, title }) {
    const name = await ask('Rename the chat', title);
    if (name !== null) await library.rename(id, name);
    item(id)?.querySelector('button').focus();
}

async function remove({ id, title }) {
    const rows = [...by('list').querySelectorAll('.chat')], at = rows.findIndex(row => row.dataset.id === id);
    const next = rows[at + 1]?.dataset.id ?? rows[at - 1]?.dataset.id;
    await stop(id);
    const undo = await library.remove(id);
    notice(`Deleted “${title}”.`, { text: 'Undo', run: undo });
    (item(next)?.querySelector('a') ?? by('search')).focus();
}

const item = id => by('list').querySelector(`[data-id="${CSS.escape(id ?? '')}"]`);

function row(head) {
    const { id, title } = head, isOpen = id === library.open().id;
    const link = element('a', { href: library.PREFIX + id, title, 'aria-current': isOpen ? 'page' : null }, [element('span', { class: 'name' }, [title])]);
    if (library.isRunning(id)) link.append(element('span', { class: 'dot', role: 'img', 'aria-label': 'is being answered' }));
    const part = found?.get(id);
    if (part) link.append(element('small', {}, [part]));
    const more = iconButton('more', `More for “${title}”`, () => menu.toggle(more, [
        { text: 'Rename', draw: 'edit', run: () => rename(head) },
        { text: 'Export as JSON', draw: 'download', run: () => exportOne(id, 'json') },
        { text: 'Export as Markdown', draw: 'download', run: () => exportOne(id, 'md') },
        { text: 'Delete', draw: 'trash', run: () => remove(head), isGrave: true },
    ]));
    more.setAttribute('aria-haspopup', 'menu');
    more.setAttribute('aria-expanded', 'false');
    return element('li', { class: 'chat', 'data-id': id }, [link, more]);
}

/// Shows the list.
export function tell() {
    const heads = library.listed().filter(({ id }) => !found || found.has(id)), groups = new Map();
    for (const head of heads) {
        const name = day(head.changed);
        if (!groups.has(name)) groups.set(name, []);
        groups.get(name).push(head);
    }
    // The focus stays on what it is on, though that is drawn anew.
    const had = document.activeElement?.closest('.chat')?.dataset.id, kind = document.activeElement?.tagName;
    by('list').replaceChildren(...[...groups].map(([name, heads]) =>
        element('section', { 'aria-label': name }, [element('h2', {}, [name]), element('ul', {}, heads.map(row))])));
    if (had) item(had)?.querySelector(kind)?.focus({ preventScroll: true });
    const nothing = heads.length ? '' : found ? 'Nothing is found.' : 'Your chats will be listed here. They are kept in this browser only.';
    by('list-note').textContent = nothing;
    by('export-all').disabled = library.heads.size === 0;
    const own = library.heads.get(library.open().id);
    by('title').textContent = own?.title ?? 'New chat';
    document.title = own ? `${own.title} · Inference Lab Bench` : 'Inference Lab Bench';
}

/// What is around a place of a text.
function around(text, at, length) {
    const from = Math.max(0, at - AROUND), to = Math.min(text.length, at + length + AROUND);
    return `${from ? '…' : ''}${text.slice(from, to).replace(/\s+/g, ' ')}${to < text.length ? '…' : ''}`;
}

/// Looks for words in titles, and for the whole phrase or all of the words in texts.
async function find() {
    const phrase = by('search').value.trim().toLowerCase(), words = phrase.split(/\s+/), own = search = {};
    if (!phrase) {
        found = null;
        return tell();
    }
    const out = new Map();
    for (const { id, title } of library.heads.values()) if (words.every(word => title.toLowerCase().includes(word))) out.set(id, '');
    await store.each(one => {
        if (search !== own || out.size >= MOST_FOUND) return false;
        for (const node of one.nodes.values()) {
            if (out.get(one.id)) break;
            const text = withFiles(node), lower = text.toLowerCase();
            if (!words.every(word => lower.includes(word))) continue;
            const at = lower.includes(phrase) ? lower.indexOf(phrase) : lower.indexOf(words[0]);
            out.set(one.id, around(text, at, phrase.length));
        }
        return true;
    }).catch(() => {});
    if (search !== own) return;
    found = out;
    tell();
    say(`${out.size} found`);
}

async function exportAll() {
    const all = [];
    for (const { id } of library.listed()) {
        const own = await library.whole(id);
        if (own) all.push(own);
    }
    download(`chats-${new Date().toISOString().slice(0, 10)}.json`, toJson(all), 'application/json');
}

async function importFile(file) {
    try {
        if (file.size > LARGEST_FILE) throw new Error(`The file is larger than ${LARGEST_FILE / 1e6} MB.`);
        const all = read(await file.text(), file.name.replace(/\.json$/i, ''));
        const fresh = [];
        for (const own of all) {
            const had = library.heads.has(own.id) ? await library.whole(own.id) : null;
            if (had && isSame(own, had)) continue;
            // A file never replaces what is here, nor has one name for two.
            if (had || fresh.some(({ id }) => id === own.id)) own.id = mint();
            fresh.push(own);
        }
        await library.put(fresh);
        const n = fresh.length, known = all.length - n;
        if (n === 1) await library.enter(fresh[0].id);
        const count = k => `${k} chat${k === 1 ? '' : 's'}`;
        notice([n ? `${count(n)} imported.` : '', known ? `${count(known)} ${known === 1 ? 'was' : 'were'} here already.` : ''].filter(Boolean).join(' ')
            || 'The file has no chats.');
    } catch (error) {
        notice(`Not imported. ${error.message}`, null, REFUSAL_MS);
    }
}

export function focusSearch() {
    by('search').focus();
    by('search').select();
}

/// Opens the conversation before or after the open one in the list.
export function step(by) {
    const all = library.listed().map(({ id }) => id), at = all.indexOf(library.open().id);
    const next = all[at < 0 ? 0 : at + by];
    if (next) library.enter(next);
}

/// `onOpen` is called when a person opens a conversation, `stopIt` ends what is under way in one.
export function listen(onOpen, stopIt) {
    stop = stopIt;
    by('list').addEventListener('click', async event => {
        const link = event.target.closest('a');
        if (!link || event.ctrlKey || event.metaKey || event.shiftKey) return;
        event.preventDefault();
        await library.enter(link.closest('.chat').dataset.id);
        onOpen();
    });
    by('search').addEventListener('input', () => {
        clearTimeout(searching);
        searching = setTimeout(find, SEARCH_MS);
    });
    by('search').addEventListener('keydown', event => {
        if (event.key !== 'Escape' || !by('search').value) return;
        event.stopPropagation();
        by('search').value = '';
        find();
    });
    by('export-all').addEventListener('click', exportAll);
    by('import').addEventListener('click', () => by('import-file').click());
    by('import-file').addEventListener('change', async () => {
        for (const file of by('import-file').files) await importFile(file);
        by('import-file').value = '';
    });
}

// Reads files of conversations. A file is hostile input: each field is checked and copied, what is unknown is left out, and a file with a
// fault is refused as a whole, with a sentence that says where.

import { FORMAT } from './exported.js';
import { kindOfUrl, ofPart } from './media.js';
import { conversation, message, mint, add, rename } from './tree.js';

export const LARGEST_FILE = 100e6;
const MOST_CONVERSATIONS = 20_000, MOST_MESSAGES = 50_000, LONGEST_LINE = 5000, LONGEST_TEXT = 20e6, LONGEST_URL = 70e6;

const isObject = value => value !== null && typeof value === 'object' && !Array.isArray(value);

// Checks of one value; `where` is what a refusal names.

function text(value, where, longest = LONGEST_TEXT) {
    if (value == null) return '';
    if (typeof value !== 'string') throw new Error(`${where} is not a text.`);
    if (value.length > longest) throw new Error(`${where} is longer than ${longest} characters.`);
    return value;
}

/// Ids become keys of maps and parts of addresses.
function id(value, where) {
    if (typeof value !== 'string' || !/^[A-Za-z0-9-]{1,64}$/.test(value)) throw new Error(`${where} is no id.`);
    return value;
}

const idOrNull = (value, where) => value == null ? null : id(value, where);

/// Dates of JavaScript end with the year 275760; those of conversations do sooner.
function date(value, where) {
    if (value == null) return Date.now();
    if (!Number.isFinite(value) || value < 0 || value > 4e12) throw new Error(`${where} is no date.`);
    return Math.floor(value);
}

function numberOrNull(value, where) {
    if (value != null && !(Number.isFinite(value) && value >= 0)) throw new Error(`${where} is no number.`);
    return value ?? null;
}

function list(value, where, most) {
    if (value == null) return [];
    if (!Array.isArray(value)) throw new Error(`${where} is not a list.`);
    if (value.length > most) throw new Error(`${where} has more than ${most} entries.`);
    return value;
}

function object(value, where) {
    if (!isObject(value)) throw new Error(`${where} is not an object.`);
    return value;
}

function call(given, where) {
    const { id, name, arguments: parts, result } = object(given, where);
    return {
        id: text(id, `${where}.id`, 200), name: text(name, `${where}.name`, 200),
        arguments: text(parts, `${where}.arguments`), result: text(result, `${where}.result`),
    };
}

function file(given, where) {
    const { name, text: content, url } = object(given, where), out = { name: text(name, `${where}.name`, 500) };
    if (url == null) return { ...out, text: text(content, `${where}.text`) };
    if (!kindOfUrl(text(url, `${where}.url`, LONGEST_URL))) throw new Error(`${where}.url has no picture and no sound in itself.`);
    return { ...out, url };
}

/// The text and the media of the content of a message, which may be in parts.
function ofContent(content, where) {
    if (!Array.isArray(content)) return { content, files: [] };
    const all = list(content, where, 1000).map((one, i) => object(one, `${where}[${i}]`)), files = all.map((one, i) => ofPart(one, i + 1));
    return { content: all.map(({ text: own }, i) => text(own, `${where}[${i}].text`)).join(''), files: files.filter(Boolean) };
}

function used(given, where) {
    const { prompt, answer } = object(given ?? {}, where);
    return given && { prompt: numberOrNull(prompt, `${where}.prompt`) ?? 0, answer: numberOrNull(answer, `${where}.answer`) ?? 0 };
}

function node(given, where) {
    object(given, where);
    if (given.role !== 'user' && given.role !== 'assistant') throw new Error(`${where}.role is neither "user" nor "assistant".`);
    const out = message(given.role, {
        id: id(given.id, `${where}.id`), parent: idOrNull(given.parent, `${where}.parent`), next: idOrNull(given.next, `${where}.next`),
        at: date(given.at, `${where}.at`), seconds: numberOrNull(given.seconds, `${where}.seconds`), used: used(given.used, `${where}.used`),
        calls: list(given.calls, `${where}.calls`, 1000).map((one, i) => call(one, `${where}.calls[${i}]`)),
        files: list(given.files, `${where}.files`, 1000).map((one, i) => file(one, `${where}.files[${i}]`)),
    });
    for (const field of ['content', 'reasoning', 'model', 'numbers', 'reason', 'fault']) out[field] = text(given[field], `${where}.${field}`);
    return out;
}

/// Every message must be reached from the beginning: then there is no circle, and none hangs in the air.
function reached(nodes, where) {
    const children = new Map();
    for (const { id, parent } of nodes.values()) {
        if (parent !== null && !nodes.has(parent)) throw new Error(`${where}: message ${id} follows one that is not there.`);
        if (!children.has(parent)) children.set(parent, []);
        children.get(parent).push(id);
    }
    const found = [...children.get(null) ?? []];
    for (let at = 0; at < found.length; at++) found.push(...children.get(found[at]) ?? []);
    if (found.length !== nodes.size) throw new Error(`${where}: messages follow each other in a circle.`);
}

function settings(given, where) {
    const out = {};
    for (const [name, value] of Object.entries(object(given ?? {}, where))) {
        if (!/^[a-z][\w-]{0,63}$/i.test(name)) throw new Error(`${where} has a field with a name that no setting has.`);
        out[name] = typeof value === 'boolean' ? value : text(value, `${where}.${name}`, 1e6);
    }
    return out;
}

function one(given, where) {
    object(given, where);
    const nodes = new Map();
    list(given.messages, `${where}.messages`, MOST_MESSAGES).forEach((each, i) => {
        const own = node(each, `${where}.messages[${i}]`);
        if (nodes.has(own.id)) throw new Error(`${where}: two messages have the id ${own.id}.`);
        nodes.set(own.id, own);
    });
    if (!nodes.size) throw new Error(`${where} has no messages.`);
    reached(nodes, where);
    return {
        ...conversation(settings(given.settings, `${where}.settings`)), nodes, id: id(given.id, `${where}.id`),
        title: text(given.title, `${where}.title`, 500), isNamed: given.named === true, first: idOrNull(given.first, `${where}.first`),
        created: date(given.created, `${where}.created`), changed: Math.min(Date.now(), date(given.changed, `${where}.changed`)),
    };
}

/// An array of messages, as `bench chat` saves it and as requests have it.
function ofMessages(all, name) {
    const out = conversation();
    let last = null;
    list(all, 'The file', LONGEST_LINE).forEach((given, i) => {
        const where = `[${i}]`, { role } = object(given, where);
        if (role === 'system' || role === 'developer') {
            out.settings = { system: text(given.content, `${where}.content`, 1e6) };
        } else if (role === 'tool') {
            const own = last?.calls.find(({ id }) => id === given.tool_call_id);
            if (own) own.result = text(given.content, `${where}.content`);
        } else {
            const calls = list(given.tool_calls, `${where}.tool_calls`, 1000).map((each, n) => {
                const { name, arguments: parts } = object(object(each, where).function, `${where}.tool_calls[${n}].function`);
                return { id: each.id, name, arguments: parts };
            });
            const said = ofContent(given.content, `${where}.content`);
            const own = node({ ...given, ...said, id: mint(), parent: null, next: null, calls, reasoning: given.reasoning_content, reason: 'stop' }, where);
            last = add(out, last, own);
        }
    });
    if (!last) throw new Error('The file has no messages.');
    if (name) rename(out, name);
    return out;
}

/// The conversations of a file; throws with a sentence where there is a fault.
export function read(source, name = '') {
    let given;
    try { given = JSON.parse(source); } catch { throw new Error('This is not a file of conversations: it is not JSON.'); }
    if (Array.isArray(given)) return [ofMessages(given, name)];
    if (!isObject(given) || given.format !== FORMAT) throw new Error(`This is not a file of conversations: it has no format “${FORMAT}”.`);
    if (given.version !== 1) throw new Error('The file is of another version than this page can read.');
    return list(given.conversations, 'conversations', MOST_CONVERSATIONS).map((each, i) => one(each, `conversations[${i}]`));
}

/// Whether two conversations have the same messages.
export function isSame(a, b) {
    const has = (nodes, node) => nodes.get(node.id)?.content === node.content;
    return a.nodes.size === b.nodes.size && [...a.nodes.values()].every(node => has(b.nodes, node));
}

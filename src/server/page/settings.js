// The settings of the open conversation: a form made of what the server says of its sampling parameters, and the fields it gives a request.

import { json } from './api.js';
import { by, element } from './dom.js';
import { lasting } from './keep.js';
import { isColoured } from './looks.js';
import * as model from './model.js';
import * as servers from './servers.js';

const STORE = 'bench.settings';
// Fields of the form by their ids, besides the sampling parameters.
const FIELDS = ['system', 'max_tokens', 'stops', 'tool-list', 'tool-choice', 'effort', 'budget', 'extra'];
// What people look for comes first.
const COMMON = ['temperature', 'top_p', 'top_k', 'min_p', 'repeat_penalty', 'seed'];
let parameters = [];
// What was shown last, with values for which this server has no field.
let shown = {};
let onChange = () => {};

const inputOf = parameter => by(`p-${parameter.name}`);

/// What a text of the form stands for; throws with what is expected.
const READERS = {
    number: Number,
    integer: Number,
    flag: text => text === 'true',
    stages: text => text.split(/[\s,;]+/).filter(Boolean),
    texts: text => text.split('\n').filter(Boolean).map(line => line.replaceAll('\\n', '\n')),
    biases: text => Object.fromEntries(text.split(/[\n,]+/).filter(line => line.trim()).map(line => {
        const [id, bias] = line.split('=').map(part => part.trim());
        if (!/^\d+$/.test(id) || bias === '' || !Number.isFinite(Number(bias))) throw new Error(`“${line.trim()}” is not ID=BIAS`);
        return [id, Number(bias)];
    })),
};

/// The default in words: the model's own, or that of all models.
function placeholder({ name, kind, default: value, default_text: text }) {
    const own = model.defaults()[name];
    if (own != null) return String(own);
    // There is room for its first words; all of it is below the field.
    if (text) return text.split(';')[0];
    if (kind === 'texts') return value.map(one => one.replaceAll('\n', '\\n')).join('  ') || 'none';
    return value == null || kind === 'biases' ? 'none: ID=BIAS' : String(value);
}

function field(parameter) {
    const { name, kind, low, high } = parameter;
    const attributes = { id: `p-${name}`, 'aria-describedby': `d-${name}`, placeholder: placeholder(parameter) };
    if (kind === 'flag') {
        const choices = ['', 'true', 'false'].map(value => element('option', { value }, [value || 'default']));
        return element('select', { id: attributes.id, 'aria-describedby': attributes['aria-describedby'] }, choices);
    }
    if (kind === 'number' || kind === 'integer') {
        const bounds = { type: 'number', step: kind === 'number' ? 'any' : '1', min: low, max: high };
        return element('input', { ...attributes, ...bounds });
    }
    return kind === 'stages' ? element('input', attributes) : element('textarea', { ...attributes, rows: 1 });
}

function row(parameter) {
    const { name, kind, doc, range, off } = parameter;
    const isTall = !['number', 'integer', 'flag'].includes(kind);
    const notes = [doc, range, off == null ? null : `${off} = off`].filter(Boolean).join('; ').replaceAll('`', '');
    const about = element('small', { id: `d-${name}`, class: 'quiet' }, [notes]);
    const input = field(parameter);
    const out = element('div', { class: isTall ? 'parameter tall' : 'parameter' }, [element('label', { for: input.id }, [name]), input, about]);
    out.dataset.words = `${name} ${parameter.technique ?? ''} ${doc}`.toLowerCase();
    return out;
}

/// The sampling parameters that are set, as fields of a request.
function sampling(out) {
    for (const parameter of parameters) {
        const input = inputOf(parameter), text = input.value;
        if (!input.checkValidity()) throw new Error(`${parameter.name}: ${parameter.range ?? input.validationMessage}`);
        if (text.trim()) out[parameter.name] = READERS[parameter.kind](text);
    }
}

function parsed(id, what, isRight) {
    const text = by(id).value.trim(), fault = by(id.split('-')[0] + '-fault');
    fault.textContent = '';
    if (!text) return null;
    try {
        const value = JSON.parse(text);
        if (isRight(value)) return value;
    } catch (error) {
        fault.textContent = error.message;
        throw new Error(`${what}: ${error.message}`);
    }
    fault.textContent = `Not ${what}.`;
    throw new Error(fault.textContent);
}

const tools = () => parsed('tool-list', 'tool definitions, a JSON array', Array.isArray);
const extra = () => parsed('extra', 'further fields, a JSON object', value => value?.constructor === Object);

/// All settings as fields of a request; throws where one is not sound.
export function fields() {
    const out = {};
    sampling(out);
    const number = id => by(id).value && Number(by(id).value);
    if (number('max_tokens')) out.max_tokens = number('max_tokens');
    const stops = by('stops').value.split('\n').filter(Boolean);
    if (stops.length) out.stop = stops;
    if (by('effort').value) out.reasoning_effort = by('effort').value;
    if (by('budget').value) out.thinking_budget = number('budget');
    const offered = [...tools() ?? [], ...servers.tools()];
    if (offered.length) Object.assign(out, { tools: offered, tool_choice: by('tool-choice').value });
    if (isColoured()) Object.assign(out, { logprobs: true, top_logprobs: 5 });
    return Object.assign(out, extra());
}

export const system = () => by('system').value.trim();

const all = () => [...FIELDS.map(by), ...parameters.map(inputOf)];

const unset = input => input.tagName === 'SELECT' ? input.options[0].value : '';

/// What is set: the values of the fields that are not as they are at first.
export function values() {
    const fields = all(), known = new Set(fields.map(({ id }) => id));
    const others = Object.entries(shown).filter(([id]) => !known.has(id) && id !== 'model');
    const own = fields.filter(input => input.value !== unset(input)).map(input => [input.id, input.value]);
    return Object.fromEntries([...others, ...own]);
}

/// The settings that were changed last, for a new conversation.
export const last = () => Object.fromEntries(Object.entries(lasting.json(STORE) ?? {}).filter(([, value]) => typeof value === 'string' && value !== ''));

/// Shows the settings of a conversation.
export function show(given) {
    shown = given;
    for (const input of all()) {
        const value = Object.hasOwn(given, input.id) ? given[input.id] : '';
        input.value = typeof value === 'string' && value !== '' ? value : unset(input);
        // A value that a list does not have leaves it without any.
        if (input.tagName === 'SELECT' && input.selectedIndex < 0) input.value = unset(input);
    }
    tell();
}

/// Shows what holds where nothing is set.
export const tellDefaults = () => { for (const parameter of parameters) inputOf(parameter).placeholder = placeholder(parameter); };

/// A person has changed something.
export function changed() {
    lasting.set(STORE, JSON.stringify(values()));
    tell();
    onChange();
}

/// Shows what follows from the settings.
function tell() {
    const n = parameters.filter(parameter => inputOf(parameter).value.trim()).length;
    by('n-set').textContent = n ? `${n} set` : '';
    for (const read of [tools, extra]) try { read(); } catch { /* said below the field */ }
}

/// Asks for the parameters and makes their form.
export async function load() {
    const answer = await json('v1/sampling');
    const rank = ({ name }) => COMMON.includes(name) ? COMMON.indexOf(name) : COMMON.length;
    parameters = [...answer.data].sort((a, b) => rank(a) - rank(b));
    by('parameters').replaceChildren(...parameters.map(row));
    show(shown);
}

/// `changes` is called when a person has changed something.
export function listen(changes) {
    onChange = changes;
    // Some fields of the form are not those of a conversation.
    by('settings').addEventListener('input', event => { if (!event.target.closest('.looks, .servers, .mcp')) changed(); });
    by('settings').addEventListener('submit', event => event.preventDefault());
    by('find').addEventListener('input', () => {
        const words = by('find').value.toLowerCase().split(/\s+/);
        for (const own of by('parameters').children) own.hidden = !words.every(word => own.dataset.words.includes(word));
    });
    by('reset').addEventListener('click', () => {
        parameters.forEach(parameter => { inputOf(parameter).value = ''; });
        changed();
    });
    by('tool-example').addEventListener('click', () => {
        by('tool-list').value = by('tool-sample').content.textContent;
        changed();
    });
}

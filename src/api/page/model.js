// The models: which there are, their numbers, the one that answers, and its diagram.

import { diagram, json } from './api.js';
import { by, element } from './dom.js';

const STORE = 'bench.model';

let models = [];
let known = '';
let view = 'stack';

export const selected = () => by('model').value;
const entry = () => models.find(({ id }) => id === selected());
export const isDiffusion = () => entry()?.meta?.mode === 'diffusion';

/// A number with a prefix of its unit.
function short(n, units) {
    let at = 0;
    for (; n >= 1000 && at < units.length - 1; at++) n /= 1000;
    return `${at ? n.toPrecision(3) : n} ${units[at]}`.trim();
}

const bytes = n => short(n, ['B', 'kB', 'MB', 'GB', 'TB']);
const count = n => short(n, ['', 'k', 'M', 'G', 'T']);

/// What is known of a model: names and values.
function numbers(model) {
    const meta = model?.meta ?? {}, n = model?.context_length ?? model?.max_model_len;
    return [
        ['Architecture', meta.arch], ['Mode', { causal: 'token by token', diffusion: 'text diffusion', encoder: 'embeddings' }[meta.mode]],
        ['Parameters', meta.n_params && count(meta.n_params)], ['Memory of the weights', meta.size && bytes(meta.size)],
        ['Context', n && `${n} tokens`], ['Trained for', meta.n_ctx_train && `${meta.n_ctx_train} tokens`],
        ['Vocabulary', meta.n_vocab && `${meta.n_vocab} tokens`], ['State', model?.state], ['Why', model?.error],
    ].filter(([, value]) => value);
}

function tell() {
    const model = entry(), meta = model?.meta;
    const facts = [meta?.arch, meta?.n_params && `${count(meta.n_params)} parameters`, meta?.size && bytes(meta.size), model?.state];
    by('facts').textContent = facts.filter(Boolean).join(' · ');
    by('show-model').disabled = !model;
}

function option({ id, state, meta }) {
    const isMute = state === 'not servable' || meta?.mode === 'encoder';
    const note = { loaded: ' ●', loading: ' ◌', 'not servable': ' (not servable)' }[state] ?? '';
    return element('option', { value: id, disabled: isMute ? '' : null }, [id + note]);
}

/// Asks which models there are and what has become of them.
export async function load() {
    const { data } = await json('/v1/models');
    // A list that is open stays open.
    if (JSON.stringify(data) === known) return;
    known = JSON.stringify(data);
    models = data;
    const had = selected() || localStorage.getItem(STORE);
    by('model').replaceChildren(...models.map(option));
    const isThere = models.some(({ id }) => id === had);
    const first = by('model').querySelector('option:not([disabled])');
    by('model').value = isThere ? had : first?.value ?? '';
    tell();
}

export const refresh = () => load().catch(() => {});

async function draw() {
    const id = selected(), picture = by('picture');
    by('dialog-title').textContent = id;
    by('view').setAttribute('aria-pressed', view === 'layers');
    by('numbers').replaceChildren(...numbers(entry()).map(([name, value]) =>
        element('div', {}, [element('dt', {}, [name]), element('dd', {}, [value])])));
    picture.replaceChildren(element('p', { class: 'quiet' }, ['Drawing …']));
    try {
        const src = await diagram(id, view);
        const image = element('img', { src, alt: `Diagram of ${id}`, class: view });
        await image.decode();
        picture.replaceChildren(image);
        URL.revokeObjectURL(src);
    } catch (error) {
        picture.replaceChildren(element('p', { class: 'fault', role: 'alert' }, [error.message]));
    }
}

export function listen() {
    by('model').addEventListener('change', () => {
        localStorage.setItem(STORE, selected());
        tell();
    });
    by('show-model').addEventListener('click', () => {
        by('dialog').showModal();
        draw();
    });
    by('view').addEventListener('click', () => {
        view = view === 'stack' ? 'layers' : 'stack';
        draw();
    });
    by('dialog-close').addEventListener('click', () => by('dialog').close());
}

// The models: which there are, their numbers, the one that answers, whether it is loaded, and its diagram.

import { diagram, json, post, stream } from './api.js';
import { by, element, say, words } from './dom.js';
import { lasting } from './keep.js';
import { theme } from './looks.js';

const STORE = 'bench.model';

let models = [];
let known = '';
let view = 'stack';
// What this page does to a model now, and how much of it is loaded; why the last of it failed.
let doing = null;
let fault = '';
let timer = 0;
let onTell = () => {};
// The model of the open conversation, which may not be among those that there are.
let wanted = lasting.get(STORE);

/// The model that was chosen last, for a new conversation.
export const last = () => lasting.get(STORE) ?? '';
export const selected = () => by('model').value;
const entry = () => models.find(({ id }) => id === selected());
/// The kinds of media that the model takes; null if that is not known.
export const media = () => entry()?.architecture?.input_modalities ?? null;
/// How many tokens the model holds, if that is known.
export const context = () => entry()?.context_length ?? entry()?.max_model_len ?? null;
/// The sampling parameters that hold where a request sets none, as far as the model states them.
export const defaults = () => entry()?.sampling_defaults ?? {};
export const isDiffusion = () => entry()?.meta?.mode === 'diffusion';

/// A number with a prefix of its unit.
function short(n, units) {
    let at = 0;
    for (; n >= 1000 && at < units.length - 1; at++) n /= 1000;
    return `${at ? n.toPrecision(3) : n} ${units[at]}`.trim();
}

export const bytes = n => short(n, ['B', 'kB', 'MB', 'GB', 'TB']);
const count = n => short(n, ['', 'k', 'M', 'G', 'T']);

/// What is known of a model: names and values.
function numbers(model) {
    const meta = model?.meta ?? {}, n = model?.context_length ?? model?.max_model_len;
    return [
        ['Architecture', meta.arch], ['Mode', { causal: 'token by token', diffusion: 'text diffusion', encoder: 'embeddings' }[meta.mode]],
        ['Parameters', meta.n_params && count(meta.n_params)], ['Memory of the weights', meta.size && bytes(meta.size)],
        ['Context', n && `${n} tokens`], ['Trained for', meta.n_ctx_train && `${meta.n_ctx_train} tokens`],
        ['Vocabulary', meta.n_vocab && `${meta.n_vocab} tokens`], ['Reads', model?.architecture?.input_modalities?.join(', ')], ['State', model?.state], ['Why', model?.error],
    ].filter(([, value]) => value);
}

function tell() {
    const model = entry(), meta = model?.meta;
    const state = !doing || doing.id !== model?.id ? model?.state : doing.unloads ? 'unloading' : 'loading';
    const facts = [state, meta?.arch, meta?.n_params && `${count(meta.n_params)} parameters`, meta?.size && bytes(meta.size)];
    by('facts').textContent = fault || facts.filter(Boolean).join(' · ');
    by('facts').classList.toggle('fault', fault !== '');
    by('show-model').disabled = !model;
    // Passes of text diffusion are not read.
    by('show-lab').disabled = !model || isDiffusion();
    tellLoad(model);
    onTell();
}

/// Shows what can be done with the memory of a model, or how far that is.
function tellLoad(model) {
    const own = doing && doing.id === model?.id ? doing : null, isBusy = own !== null || model?.state === 'loading';
    const isLoaded = model?.state === 'loaded', share = own ? own.share : model?.progress?.fraction;
    const words = !isBusy ? (isLoaded ? 'Unload' : 'Load') : own?.unloads ? 'Unloading' : share == null ? 'Loading' : `${Math.floor(share * 100)} %`;
    const button = by('load');
    button.textContent = words;
    button.title = isLoaded ? 'Give the memory of the model back' : 'Load the model into memory';
    button.disabled = !model || model.state === 'not servable';
    button.setAttribute('aria-disabled', isBusy);
    by('share').hidden = !isBusy;
    if (share == null) by('share').removeAttribute('value');
    else by('share').value = share;
    clearTimeout(timer);
    // Somebody else loads it, who tells this page nothing.
    if (isBusy && !own) timer = setTimeout(refresh, 1000);
}

/// Loads the model that is selected, or unloads it.
async function toggle() {
    const { id, state } = entry() ?? {};
    if (!id || doing || state === 'loading') return;
    doing = { id, share: null, unloads: state === 'loaded' };
    fault = '';
    tell();
    say(doing.unloads ? `Unloading ${id}` : `Loading ${id}`);
    try {
        if (doing.unloads) await post('models/unload', { model: id });
        else await stream('models/load', { model: id, stream: true }, null, ({ progress }) => {
            doing.share = progress?.fraction ?? doing.share;
            tell();
        });
        say(doing.unloads ? `${id} is unloaded` : `${id} is loaded`);
    } catch (error) {
        fault = words(error);
        say(fault);
    }
    doing = null;
    await refresh();
    tell();
}

/// What a comment of a stream says of the model that has to be loaded for it.
export function heard(comment) {
    if (!comment.startsWith('loading')) return 'Waiting …';
    refresh();
    return comment.replace('loading', 'Loading the model');
}

function option({ id, state, meta }) {
    const isMute = state === 'not servable' || meta?.mode === 'encoder';
    const note = { loaded: ' ●', loading: ' ◌', 'not servable': ' (not servable)' }[state] ?? '';
    return element('option', { value: id, disabled: isMute ? '' : null }, [id + note]);
}

/// Asks which models there are and what has become of them.
export async function load() {
    const { data } = await json('v1/models');
    models = data;
    const listed = JSON.stringify(data.map(({ progress, ...rest }) => rest));
    // A list that is open stays open.
    if (listed !== known) list();
    known = listed;
    tell();
}

function list() {
    by('model').replaceChildren(...models.map(option));
    pick();
}

function pick() {
    const isThere = models.some(({ id }) => id === wanted);
    const first = by('model').querySelector('option:not([disabled])');
    by('model').value = isThere ? wanted : first?.value ?? '';
}

/// Selects the model of a conversation; where it is not there, another one answers.
export function choose(id) {
    wanted = id || selected() || last();
    fault = '';
    if (!models.length) return;
    pick();
    tell();
    if (id && selected() !== id) {
        fault = `This conversation used ${id}, which is not here.`;
        tell();
    }
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
        const src = await diagram(id, view, theme());
        const image = element('img', { src, alt: `Diagram of ${id}`, class: view });
        await image.decode();
        picture.replaceChildren(image);
        URL.revokeObjectURL(src);
    } catch (error) {
        picture.replaceChildren(element('p', { class: 'fault', role: 'alert' }, [error.message]));
    }
}

/// Draws the diagram that is open anew, in other colours.
export const redraw = () => { if (by('dialog').open) draw(); };

/// `changed` is called when a person selects a model, `told` when something else is known of the one that is selected.
export function listen(changed, told) {
    onTell = told;
    by('model').addEventListener('change', () => {
        wanted = selected();
        lasting.set(STORE, wanted);
        fault = '';
        tell();
        changed();
    });
    by('load').addEventListener('click', toggle);
    // Meanwhile others may have loaded a model, or the server may have begun anew.
    document.addEventListener('visibilitychange', () => { if (!document.hidden && models.length) refresh(); });
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

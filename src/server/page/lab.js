// Pictures of values of the model: logit lens, attention weights, expert routing, patching, parts of a logit; of the conversation or of a text.

import { json, picture, post } from './api.js';
import { by, element, say, words } from './dom.js';
import { theme } from './looks.js';
import * as model from './model.js';

let conversation = () => [];
// What is drawn last is shown, though an earlier picture takes longer.
let latest = 0;

const numbers = id => by(id).value.split(',').filter(text => text.trim()).map(Number);

/// Captures of points that have a name ending, where all layers or these are wanted.
async function captures(endings) {
    const layers = numbers('lab-layers');
    const isWanted = path => !layers.length || layers.some(layer => path.startsWith(`layers.${layer}.`));
    const { data } = await json(`v1/lab/points?model=${encodeURIComponent(model.selected())}`);
    const found = endings.flatMap(([ending, parts, positions]) => data
        .filter(point => point.capturable && (!parts || point.parts === parts) && point.path.endsWith(ending) && isWanted(point.path))
        .map(({ path }) => ({ point: path, positions })));
    return found;
}

async function attention(positions) {
    const all = await captures([['.weights', 'pairs', positions]]);
    if (!all.length) throw new Error('No layer that was asked for has attention weights that can be read.');
    return { captures: all };
}

/// What is asked of the model for each picture.
const PLANS = {
    async lens() {
        const layers = numbers('lab-layers');
        return { lens: { positions: 'prompt', top_k: 1, ...(layers.length ? { layers } : {}) } };
    },
    attention: () => attention('prompt'),
    attention_map: () => attention('last'),
    async routing() {
        const picked = await captures([['.picked', 'indices', 'prompt']]);
        if (!picked.length) throw new Error('No layer that was asked for has a router of experts.');
        const paths = new Set(picked.map(({ point }) => point.slice(0, -'.picked'.length)));
        const others = await captures([['.weights', null, 'prompt'], ['.router', null, 'last']]);
        const own = others.filter(({ point }) => paths.has(point.slice(0, point.lastIndexOf('.'))));
        return { captures: [...picked, ...own] };
    },
    async attribution() {
        return { attribution: { of: by('lab-token').value, to: 'heads' } };
    },
};

/// The text that was entered, or the messages of the conversation.
function prompt(kind) {
    if (by('lab-text').value && kind !== 'attention_map') return { prompt: by('lab-text').value };
    const messages = conversation();
    if (!messages.length) throw new Error(`The conversation is empty${kind === 'attention_map' ? '' : ', and there is no text'}.`);
    return { messages, ...messages.at(-1).role === 'assistant' ? { continue_final_message: true, add_generation_prompt: false } : {} };
}

/// The pictures of messages, in their order.
function images(messages) {
    const found = messages.flatMap(({ content }) => Array.isArray(content) ? content : []).filter(({ type }) => type === 'image_url');
    if (!found.length) throw new Error('The conversation has no picture.');
    return found.map(({ image_url: { url } }) => url);
}

async function response(kind) {
    const own = { model: model.selected() };
    if (kind !== 'patch') {
        return post('v1/lab/run', { ...own, ...prompt(kind), lab: { ...await PLANS[kind](), output: 'inline' } });
    }
    const against = by('lab-against').value, layers = numbers('lab-layers');
    const metric = { token: by('lab-token').value, ...(against ? { against } : {}) };
    const points = layers.length ? { points: layers.map(layer => `layers.${layer}.out`) } : {};
    return post('v1/lab/patch', { ...own, clean: by('lab-text').value, corrupt: by('lab-corrupt').value, metric, ...points });
}

async function draw() {
    const turn = ++latest, kind = by('lab-picture').value, out = by('lab-out');
    const show = (...children) => { if (turn === latest) out.replaceChildren(...children); };
    show(element('p', { class: 'quiet' }, ['Reading …']));
    try {
        const heads = kind.startsWith('attention') ? { heads: numbers('lab-heads') } : {};
        const pictures = kind === 'attention_map' ? { images: images(conversation()) } : {};
        const body = { picture: kind, response: await response(kind), layers: numbers('lab-layers'), theme: theme(), ...heads, ...pictures };
        const src = await picture(body);
        const name = by('lab-picture').selectedOptions[0].textContent;
        const image = element('img', { src, alt: `${name} of ${model.selected()}` });
        await image.decode();
        show(image);
        URL.revokeObjectURL(src);
        say(`${name} is drawn`);
    } catch (error) {
        show(element('p', { class: 'fault', role: 'alert' }, [words(error)]));
    }
}

/// Shows the fields of the picture that is chosen.
function choose() {
    const kind = by('lab-picture').value, isPatch = kind === 'patch';
    for (const label of by('lab-form').querySelectorAll('[data-of]')) label.hidden = !label.dataset.of.split(' ').includes(kind);
    by('lab-of').textContent = isPatch ? 'Clean text' : 'Text';
    by('lab-text').placeholder = isPatch ? '' : 'the conversation';
    for (const id of ['lab-text', 'lab-corrupt']) by(id).required = isPatch;
    by('lab-token').required = !by('lab-token').closest('label').hidden;
}

/// Draws anew what is shown, of what is chosen now.
function again() {
    const isShown = by('lab-out').childElementCount > 0;
    latest++;
    by('lab-out').replaceChildren();
    if (isShown && by('lab-form').checkValidity()) draw();
}

export const redraw = () => { if (by('lab').open) again(); };

/// `ofConversation` gives the messages of the conversation.
export function listen(ofConversation) {
    conversation = ofConversation;
    by('show-lab').addEventListener('click', () => {
        by('lab-title').textContent = `Values of ${model.selected()}`;
        choose();
        by('lab').showModal();
        // Another model or conversation may have been chosen since.
        again();
    });
    by('lab-picture').addEventListener('change', () => {
        choose();
        again();
    });
    by('lab-form').addEventListener('submit', event => {
        event.preventDefault();
        draw();
    });
    by('lab-close').addEventListener('click', () => by('lab').close());
    by('lab').addEventListener('close', () => { latest++; });
}

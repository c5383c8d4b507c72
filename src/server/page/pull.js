// Gets a model from the Hub: the server fetches it, the page shows how far that is.

import { Refusal, stream } from './api.js';
import { by, onEnter, say, words } from './dom.js';
import * as model from './model.js';

let running = null;

function tell(text, isFault = false) {
    by('pull-note').textContent = text;
    by('pull-note').className = isFault ? 'fault' : 'quiet';
}

function busy(isBusy) {
    by('pull-start').hidden = isBusy;
    by('pull-stop').hidden = !isBusy;
    by('pull-share').hidden = !isBusy;
    by('pull-share').removeAttribute('value');
    by('pull').disabled = isBusy;
}

function progress(name, { fraction, loaded_bytes: n, total_bytes: of, file } = {}) {
    if (fraction != null) by('pull-share').value = fraction;
    const much = n == null ? '' : of ? `${model.bytes(n)} of ${model.bytes(of)}` : model.bytes(n);
    tell([`Getting ${name} …`, much, file].filter(Boolean).join(' · '));
}

async function start() {
    const name = by('pull').value.trim();
    if (!name) return by('pull').focus();
    let id = name;
    running = new AbortController();
    busy(true);
    progress(name);
    try {
        await stream('models/pull', { model: name, stream: true }, running.signal, event => {
            id = event.model ?? id;
            if (event.progress) progress(name, event.progress);
        });
        tell(`${name} is here.`);
        by('pull').value = '';
        await model.refresh();
        model.choose(id);
    } catch (error) {
        const isMissing = error instanceof Refusal && [404, 405].includes(error.status) && !error.param && /route|method/i.test(error.message);
        if (running.signal.aborted) tell(`Stopped. What is here already of ${name} is used when it is asked for again.`);
        else tell(isMissing ? 'This server does not fetch models.' : words(error), true);
    }
    running = null;
    busy(false);
    say(by('pull-note').textContent);
}

export function listen() {
    by('pull-start').addEventListener('click', start);
    by('pull-stop').addEventListener('click', () => running?.abort());
    onEnter('pull', start);
}

// Starts the page: joins its parts, and shows and hides the settings.

import { key, Refusal, setKey } from './api.js';
import * as chat from './chat.js';
import { by } from './dom.js';
import * as model from './model.js';
import * as lab from './lab.js';
import * as settings from './settings.js';
import * as tokens from './tokens.js';

const narrow = matchMedia('(max-width: 860px)');

function show(isShown) {
    by('panel').hidden = !isShown;
    by('toggle').setAttribute('aria-expanded', isShown);
}

/// Brings the visitor to the field of the API key.
function needKey() {
    show(true);
    by('key').closest('details').open = true;
    by('key').focus();
    by('facts').textContent = 'The server wants an API key.';
}

async function load() {
    try {
        await Promise.all([model.load(), settings.load()]);
        document.documentElement.classList.add('ready');
    } catch (error) {
        if (error instanceof Refusal && error.status === 401) needKey();
        else by('facts').textContent = error instanceof Refusal ? error.message : 'The server cannot be reached.';
    }
}

show(!narrow.matches);
narrow.addEventListener('change', () => show(!narrow.matches));
by('toggle').addEventListener('click', () => {
    show(by('panel').hidden);
    if (narrow.matches && !by('panel').hidden) by('close').focus();
});
by('close').addEventListener('click', () => {
    show(false);
    by('toggle').focus();
});
by('panel').addEventListener('keydown', event => {
    if (event.key === 'Escape' && narrow.matches) by('close').click();
});
by('key').value = key();
by('key').addEventListener('change', () => {
    setKey(by('key').value.trim());
    load();
});
model.listen();
settings.listen();
chat.listen(needKey);
lab.listen(chat.conversation);
tokens.listen(chat.branch);
load();
by('input').focus();

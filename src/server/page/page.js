// Starts the page: joins its parts.

import { key, Refusal, setKey } from './api.js';
import * as ask from './ask.js';
import * as chat from './chat.js';
import { by, drawIcons, listenToScrolling, words } from './dom.js';
import * as files from './files.js';
import * as keys from './keys.js';
import * as lab from './lab.js';
import * as library from './library.js';
import * as looks from './looks.js';
import * as menu from './menu.js';
import * as model from './model.js';
import * as notices from './notice.js';
import * as panels from './panels.js';
import * as presets from './presets.js';
import * as pull from './pull.js';
import * as servers from './servers.js';
import * as settings from './settings.js';
import * as sidebar from './sidebar.js';
import * as tokens from './tokens.js';

// It says that this script does not run.
by('refused').remove();

const RETRY_MS = 4000;
const NOT_KEPT = 'This browser keeps nothing for this page: chats are gone when it is left. Export those you need.';

/// Brings the visitor to the field of the API key.
function needKey() {
    panels.show('panel', true);
    by('key').closest('details').open = true;
    by('key').focus();
    by('facts').textContent = 'The server wants an API key.';
}

async function load() {
    try {
        await Promise.all([started, model.load(), settings.load()]);
        presets.tell();
        document.documentElement.classList.add('ready');
    } catch (error) {
        if (error instanceof Refusal && error.status === 401) needKey();
        else {
            by('facts').textContent = words(error);
            by('facts').classList.add('fault');
            // A server that is not there may come back.
            if (error instanceof TypeError || error.status >= 500) setTimeout(load, RETRY_MS);
        }
    }
}

/// Keeps the settings with the conversation that is open.
function keepSettings() {
    library.setSettings({ ...settings.values(), model: model.selected() });
    presets.tell();
}

/// Uses a preset for the conversation that is open.
function use(values) {
    settings.show(values);
    if (values.model) model.choose(values.model);
    settings.changed();
}

const calls = {
    list: sidebar.tell,
    leave: chat.leave,
    open: own => { chat.show(own); presets.tell(); },
    joined: chat.joined,
    // `null`: the browser keeps nothing at all.
    trouble: text => notices.trouble(text ?? NOT_KEPT),
    gone: () => notices.notice('This chat was deleted in another tab.'),
};

drawIcons();
listenToScrolling();
document.documentElement.classList.add('scripted');
for (const part of [panels, menu, notices, ask, pull]) part.listen();
looks.listen(() => {
    model.redraw();
    lab.redraw();
});
by('key').value = key();
by('key').addEventListener('change', () => {
    setKey(by('key').value.trim());
    load();
});
document.querySelector('.skip').addEventListener('click', event => {
    // The address names the conversation, not a place in the page.
    event.preventDefault();
    by('input').focus();
});
model.listen(keepSettings, () => {
    settings.tellDefaults();
    files.offer(model.media());
});
settings.listen(keepSettings);
presets.listen(use);
chat.listen(needKey, text => notices.notice(text));
sidebar.listen(() => {
    panels.uncover();
    // On a screen that is touched, a keyboard would cover the chat.
    if (matchMedia('(hover: hover)').matches) by('input').focus();
}, chat.stop);
servers.listen(chat.offer);
lab.listen(chat.conversation);
tokens.listen(chat.branch);
keys.listen({
    begin: () => by('new').click(),
    search: () => { panels.show('chats', true); sidebar.focusSearch(); },
    chats: () => panels.toggle('chats'),
    settings: () => panels.toggle('panel'),
    step: sidebar.step,
});
const started = library.start(calls, () => ({ ...settings.last(), model: model.last() }));
load();
by('input').focus();

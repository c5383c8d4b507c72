// Asks a person for a short text, such as a name.

import { by } from './dom.js';

/// The text, or null if it is not given. `value` is what is there at first.
export function ask(title, value = '', ok = 'Save') {
    const box = by('ask'), field = by('ask-text');
    by('ask-title').textContent = title;
    by('ask-ok').textContent = ok;
    field.value = value;
    box.returnValue = '';
    box.showModal();
    field.select();
    return new Promise(resolve => {
        box.addEventListener('close', () => resolve(box.returnValue === 'ok' ? field.value : null), { once: true });
    });
}

export function listen() {
    // The policy forbids forms to be sent, those of dialogs too in some browsers.
    by('ask-form').addEventListener('submit', event => {
        event.preventDefault();
        by('ask').close('ok');
    });
    by('ask-cancel').addEventListener('click', () => by('ask').close(''));
}

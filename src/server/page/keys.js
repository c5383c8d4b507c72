// Shortcuts of the keyboard, and the list of them.

import { by, element } from './dom.js';

const isApple = /Mac|iPhone|iPad/.test(navigator.platform);
const COMMAND = isApple ? '⌘' : 'Ctrl';

/// Texts for the list; those of the first part are handled here.
const TOLD = [
    [`${COMMAND} Shift O`, 'New chat'], [`${COMMAND} K`, 'Search the chats'], [`${COMMAND} Shift S`, 'Show or hide the chats'],
    [`${COMMAND} Shift ,`, 'Show or hide the settings'], ['Alt Shift ↑ ↓', 'Previous, next chat'], ['?', 'This list'],
    ['Enter', 'Send'], ['Shift Enter', 'New line'], ['↑', 'Edit the last message, in an empty field'], [`${COMMAND} Enter`, 'Save an edit'],
    ['Esc', 'Stop the answer, close what is open'], ['← →', 'Walk over tokens'], ['↓', 'To the alternatives of a token'],
];

const isTyping = target => target.matches?.('input, textarea, select, [contenteditable]');

/// `does` are `begin`, `search`, `chats`, `settings`, `step`.
export function listen(does) {
    by('key-list').replaceChildren(...TOLD.map(([keys, what]) =>
        element('div', {}, [element('dt', {}, keys.split(' ').map(one => element('kbd', {}, [one]))), element('dd', {}, [what])])));
    const help = () => by('keys').showModal();
    by('show-keys').addEventListener('click', help);
    by('keys-close').addEventListener('click', () => by('keys').close());
    document.addEventListener('keydown', event => {
        if (document.querySelector('dialog[open]') || event.isComposing) return;
        const isCommand = isApple ? event.metaKey : event.ctrlKey, code = event.code;
        const run = isCommand && event.shiftKey ? { KeyO: does.begin, KeyS: does.chats, Comma: does.settings }[code]
            : isCommand ? { KeyK: does.search }[code]
            : event.altKey && event.shiftKey ? { ArrowUp: () => does.step(-1), ArrowDown: () => does.step(1) }[code]
            : event.key === '?' && !isTyping(event.target) ? help : null;
        if (!run) return;
        event.preventDefault();
        run();
    });
}

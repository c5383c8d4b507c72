// Shortcuts of the keyboard. The list of them is in the page.

import { by } from './dom.js';

const isApple = /Mac|iPhone|iPad/.test(navigator.platform);

const isTyping = target => target.matches?.('input, textarea, select, [contenteditable]');

/// `does` are `begin`, `search`, `chats`, `settings`, `step`.
export function listen(does) {
    if (isApple) for (const key of document.querySelectorAll('.command')) key.textContent = '⌘';
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

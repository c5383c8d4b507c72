// What the page has to say: short notices that go by themselves, and trouble that stays until it is over.

import { by, element, button, iconButton } from './dom.js';

const SHOWN_MS = 8000;

/// Shows a sentence for a while, with something that can be done about it: `{text, run}`.
export function notice(text, action, ms = SHOWN_MS) {
    const box = element('div', { class: 'notice' }, [element('span', {}, [text])]);
    let timer = 0;
    const close = () => {
        const had = box.contains(document.activeElement);
        clearTimeout(timer);
        box.remove();
        if (had) by('log').focus({ preventScroll: true });
    };
    const wait = () => { clearTimeout(timer); timer = setTimeout(close, ms); };
    if (action) box.append(button(action.text, action.text, () => { close(); action.run(); }));
    box.append(iconButton('close', 'Close', close));
    // Who is about to press a button has time.
    for (const kind of ['pointerenter', 'focusin']) box.addEventListener(kind, () => clearTimeout(timer));
    for (const kind of ['pointerleave', 'focusout']) box.addEventListener(kind, wait);
    wait();
    while (by('notices').children.length > 2) by('notices').firstElementChild.remove();
    by('notices').append(box);
}

/// Shows what is wrong, or that nothing is any more.
export function trouble(text) {
    if (by('trouble-text').textContent === text) return;
    by('trouble-text').textContent = text;
    by('trouble').hidden = !text;
}

export const listen = () => { by('trouble-close').addEventListener('click', () => { by('trouble').hidden = true; }); };

// A menu at a button: opened by a click or a key, walked with arrows, closed by Escape or by leaving it.

import { by, element, icon } from './dom.js';

let opener = null;

export function close(isBack = false) {
    if (!opener) return;
    const had = opener;
    opener = null;
    by('menu').hidden = true;
    had.setAttribute('aria-expanded', 'false');
    if (isBack) had.focus();
}

/// Opens a menu of `{text, draw, run, isGrave}` below a button, or closes it.
export function toggle(button, items) {
    const isOpen = opener === button, box = by('menu');
    close();
    if (isOpen) return;
    opener = button;
    button.setAttribute('aria-expanded', 'true');
    box.replaceChildren(...items.map(({ text, draw, run, isGrave }) => {
        const item = element('button', { type: 'button', role: 'menuitem', tabindex: -1, class: isGrave ? 'grave' : null }, [icon(draw), text]);
        item.addEventListener('click', () => { close(true); run(); });
        return item;
    }));
    box.hidden = false;
    const place = button.getBoundingClientRect(), own = box.getBoundingClientRect();
    const isAbove = place.bottom + own.height + 8 > innerHeight;
    box.style.left = `${Math.max(8, Math.min(place.right - own.width, innerWidth - own.width - 8))}px`;
    box.style.top = `${isAbove ? Math.max(8, place.top - own.height - 4) : place.bottom + 4}px`;
    box.firstElementChild.focus();
}

export function listen() {
    const box = by('menu');
    box.addEventListener('keydown', event => {
        const all = [...box.children], at = all.indexOf(document.activeElement), n = all.length;
        const places = { ArrowDown: (at + 1) % n, ArrowUp: (at + n - 1) % n, Home: 0, End: n - 1 };
        if (event.key in places) all[places[event.key]].focus();
        else if (event.key === 'Escape') close(true);
        else if (event.key === 'Tab') return close(true);
        else return;
        event.preventDefault();
        event.stopPropagation();
    });
    document.addEventListener('pointerdown', event => {
        if (!box.contains(event.target) && !opener?.contains(event.target)) close();
    });
    addEventListener('resize', () => close());
}

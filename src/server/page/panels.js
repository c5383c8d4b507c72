// What is beside the conversation: the list of chats on the left, the settings on the right. On a narrow window they lie over it.

import { by } from './dom.js';
import { lasting } from './keep.js';

// A panel has its place beside the conversation from this width on.
const SIDES = {
    chats: { shows: 'show-chats', hides: 'hide-chats', wide: matchMedia('(min-width: 861px)') },
    panel: { shows: 'toggle', hides: 'close', wide: matchMedia('(min-width: 1181px)') },
};
const over = matchMedia('(max-width: 860px)');

export const isShown = id => !by(id).hidden;

export function show(id, isShown) {
    by(id).hidden = !isShown;
    by(SIDES[id].shows).setAttribute('aria-expanded', isShown);
    if (isShown && over.matches) for (const other of Object.keys(SIDES)) if (other !== id) show(other, false);
    by('scrim').hidden = !over.matches || !Object.keys(SIDES).some(id => !by(id).hidden);
    document.documentElement.classList.toggle('with-chats', !by('chats').hidden);
}

/// A person shows or hides a panel; where it has a place of its own, that is remembered.
function choose(id, isShown) {
    const { wide, shows, hides } = SIDES[id];
    show(id, isShown);
    if (wide.matches) lasting.set(`bench.${id}`, isShown ? 'shown' : 'hidden');
    if (isShown && over.matches) by(hides).focus();
    else if (!isShown && by(shows).checkVisibility()) by(shows).focus();
}

export const toggle = id => choose(id, !isShown(id));

/// Hides what lies over the conversation.
export const uncover = () => { if (over.matches) for (const id of Object.keys(SIDES)) show(id, false); };

export function listen() {
    for (const [id, { shows, hides, wide }] of Object.entries(SIDES)) {
        const fit = () => show(id, wide.matches && lasting.get(`bench.${id}`) !== 'hidden');
        by(shows).addEventListener('click', () => toggle(id));
        by(hides).addEventListener('click', () => choose(id, false));
        by(id).addEventListener('keydown', event => {
            if (event.key !== 'Escape' || !over.matches || event.defaultPrevented) return;
            event.preventDefault();
            choose(id, false);
        });
        wide.addEventListener('change', fit);
        fit();
    }
    over.addEventListener('change', () => show('panel', isShown('panel') && !over.matches));
    by('scrim').addEventListener('click', uncover);
}

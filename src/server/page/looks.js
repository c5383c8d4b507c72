// How the page looks, on all conversations: light or dark, and tokens coloured or not.

import { by } from './dom.js';
import { lasting } from './keep.js';

const THEME = 'bench.theme', COLOURS = 'bench.colours';

export const isColoured = () => by('colours').checked;

function tell() {
    const root = document.documentElement, theme = by('theme').value;
    if (theme) root.dataset.theme = theme;
    else delete root.dataset.theme;
    root.classList.toggle('coloured', isColoured());
}

export function listen() {
    by('theme').value = lasting.get(THEME) ?? '';
    if (by('theme').selectedIndex < 0) by('theme').value = '';
    by('colours').checked = lasting.get(COLOURS) !== 'no';
    by('theme').addEventListener('change', () => {
        lasting.set(THEME, by('theme').value);
        tell();
    });
    by('colours').addEventListener('change', () => {
        lasting.set(COLOURS, isColoured() ? 'yes' : 'no');
        tell();
    });
    tell();
}

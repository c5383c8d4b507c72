// How the page looks, on all conversations: light or dark, and tokens coloured or not.

import { by } from './dom.js';
import { lasting } from './keep.js';

const THEME = 'bench.theme', COLOURS = 'bench.colours';

const dark = matchMedia('(prefers-color-scheme: dark)');

/// `light` or `dark`.
export const theme = () => by('theme').value || (dark.matches ? 'dark' : 'light');

export const isColoured = () => by('colours').checked;

function tell() {
    const root = document.documentElement, theme = by('theme').value;
    if (theme) root.dataset.theme = theme;
    else delete root.dataset.theme;
    root.classList.toggle('coloured', isColoured());
}

/// `changed` is called when light has become dark, or dark light.
export function listen(changed) {
    by('theme').value = lasting.get(THEME) ?? '';
    if (by('theme').selectedIndex < 0) by('theme').value = '';
    by('colours').checked = lasting.get(COLOURS) !== 'no';
    by('theme').addEventListener('change', () => {
        lasting.set(THEME, by('theme').value);
        tell();
        changed();
    });
    dark.addEventListener('change', changed);
    by('colours').addEventListener('change', () => {
        lasting.set(COLOURS, isColoured() ? 'yes' : 'no');
        tell();
    });
    tell();
}

// Settings with a name: model, system prompt, sampling and what else is set, to be used for other conversations.

import { ask } from './ask.js';
import { by, element } from './dom.js';
import { lasting } from './keep.js';
import * as model from './model.js';
import { notice } from './notice.js';
import * as settings from './settings.js';

const STORE = 'bench.presets';

/// `[{name, values}]`
const all = () => lasting.list(STORE).filter(one => typeof one?.name === 'string' && one.values?.constructor === Object);

const current = () => ({ ...settings.values(), model: model.selected() });
const sorted = values => JSON.stringify(Object.entries(values).sort(([a], [b]) => a < b ? -1 : 1));

function write(presets) {
    presets.sort((a, b) => a.name.localeCompare(b.name));
    if (!lasting.set(STORE, JSON.stringify(presets))) notice('The browser keeps presets only until the page is left.');
    tell();
}

/// Shows the list, and which of its presets the settings are.
export function tell() {
    const presets = all(), own = sorted(current()), is = presets.find(({ values }) => sorted(values) === own)?.name ?? '';
    by('preset').replaceChildren(element('option', { value: '' }, ['No preset']),
        ...presets.map(({ name }) => element('option', { value: name }, [name])));
    by('preset').value = is;
    by('preset-delete').disabled = !is;
}

async function save() {
    const name = (await ask('Save these settings as', by('preset').value))?.trim().slice(0, 60);
    if (!name) return;
    write([...all().filter(one => one.name !== name), { name, values: current() }]);
}

function remove() {
    const name = by('preset').value, had = all();
    write(had.filter(one => one.name !== name));
    notice(`Deleted the preset “${name}”.`, { text: 'Undo', run: () => write(had) });
}

/// `use` is called with the values of a preset that a person chooses.
export function listen(use) {
    by('preset').addEventListener('change', () => {
        const preset = all().find(({ name }) => name === by('preset').value);
        if (preset) use(preset.values);
        else tell();
    });
    by('preset-save').addEventListener('click', save);
    by('preset-delete').addEventListener('click', remove);
    // Another tab has changed them.
    addEventListener('storage', event => { if (event.key === STORE) tell(); });
}

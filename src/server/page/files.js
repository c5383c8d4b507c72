// Text files that go with a message: chosen, dropped or pasted, and shown by their names until the message is sent.

import { by, element, icon, iconButton } from './dom.js';

const LARGEST_FILE = 2e6, MOST_FILES = 20;

let chosen = [];
let onChange = () => {};
let refuse = () => {};

export const files = () => chosen;

export function set(all) {
    chosen = all;
    tell();
}

const size = ({ text }) => text.length < 1000 ? `${text.length} characters` : `${(text.length / 1000).toFixed(1)} k characters`;

/// A file of a message that was sent, to be folded out.
export const folded = file => element('details', { class: 'file' }, [
    element('summary', {}, [icon('file'), element('span', {}, [file.name]), element('small', {}, [size(file)])]),
    element('pre', { class: 'code', tabindex: 0 }, [file.text]),
]);

function chip(file) {
    const remove = iconButton('close', `Remove ${file.name}`, () => {
        chosen = chosen.filter(other => other !== file);
        tell();
        onChange();
        by('input').focus();
    });
    return element('li', { class: 'chip' }, [icon('file'), element('span', {}, [file.name]), element('small', {}, [size(file)]), remove]);
}

function tell() {
    by('files').replaceChildren(...chosen.map(chip));
    by('files').hidden = chosen.length === 0;
}

/// The text of a file; throws where it is none.
async function read(file) {
    if (file.size > LARGEST_FILE) throw new Error(`${file.name} is larger than ${LARGEST_FILE / 1e6} MB.`);
    const decoder = new TextDecoder('utf-8', { fatal: true }), bytes = await file.arrayBuffer();
    let text = '\0';
    try { text = decoder.decode(bytes); } catch { /* as if it had a zero */ }
    if (text.includes('\0')) throw new Error(`${file.name} is not a text file.`);
    return { name: file.name, text };
}

async function take(all) {
    for (const file of all) {
        try {
            if (chosen.length >= MOST_FILES) throw new Error(`A message has at most ${MOST_FILES} files.`);
            chosen = [...chosen, await read(file)];
        } catch (error) {
            refuse(error.message);
        }
    }
    tell();
    onChange();
    by('input').focus();
}

/// `changed` is called when the choice changes, `refused` with the reason why a file is not taken.
export function listen(changed, refused) {
    onChange = changed;
    refuse = refused;
    by('attach').addEventListener('click', () => by('file').click());
    by('file').addEventListener('change', () => {
        take([...by('file').files]);
        by('file').value = '';
    });
    by('input').addEventListener('paste', event => {
        // A text that is pasted may come with a picture of itself.
        if (!event.clipboardData.files.length || event.clipboardData.types.includes('text/plain')) return;
        event.preventDefault();
        take([...event.clipboardData.files]);
    });
    const main = by('main'), hasFiles = event => event.dataTransfer?.types.includes('Files');
    main.addEventListener('dragover', event => {
        if (!hasFiles(event)) return;
        event.preventDefault();
        main.classList.add('dropping');
    });
    for (const kind of ['dragleave', 'drop', 'dragend']) main.addEventListener(kind, event => {
        if (kind !== 'dragleave' || !main.contains(event.relatedTarget)) main.classList.remove('dropping');
    });
    main.addEventListener('drop', event => {
        if (!hasFiles(event)) return;
        event.preventDefault();
        take([...event.dataTransfer.files]);
    });
}

// Files that go with a message: texts, pictures and sounds. They are chosen, dropped or pasted, and shown until the message is sent.

import { by, element, icon, iconButton, say } from './dom.js';
import * as media from './media.js';

const LARGEST_FILE = 2e6, MOST_FILES = 20;

const NAMES = { image: 'pictures', audio: 'sounds' };

let chosen = [];
// The kinds of media that the model takes; null if that is not known.
let taken = null;
let onChange = () => {};
let refuse = () => {};

export const files = () => chosen;

export function set(all) {
    chosen = all;
    tell();
}

const size = ({ text, url }) => url ? media.size({ url }) : text.length < 1000 ? `${text.length} characters` : `${(text.length / 1000).toFixed(1)} k characters`;

/// Says which media the model takes.
export function offer(kinds) {
    taken = kinds;
    const own = Object.keys(NAMES).filter(takes), button = by('attach-media'), what = `Add ${own.map(kind => NAMES[kind]).join(' or ')}`;
    button.hidden = own.length === 0;
    button.title = what;
    button.querySelector('span').textContent = what;
    by('media').accept = own.map(kind => `${kind}/*`).join();
}

const takes = kind => taken === null || taken.includes(kind);

/// A file of a message that was sent: a picture, a sound, or a text to be folded out.
export const sent = file => file.url ? media.shown(file) : element('details', { class: 'file' }, [
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
    const face = file.url && media.kindOfUrl(file.url) === 'image' ? element('img', { src: file.url, alt: '' }) : icon(file.url ? 'sound' : 'file');
    return element('li', { class: 'chip' }, [face, element('span', {}, [file.name]), element('small', {}, [size(file)]), remove]);
}

function tell() {
    by('files').replaceChildren(...chosen.map(chip));
    by('files').hidden = chosen.length === 0;
}

/// What is in a file; throws where it cannot go with a message.
async function read(file) {
    const kind = media.kindOf(file);
    if (kind && !takes(kind)) throw new Error(`The model takes no ${NAMES[kind]}.`);
    if (kind) return media.read(file, kind);
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
            const next = await read(file);
            chosen = [...chosen, next];
            say(`${file.name} added`);
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
    for (const [button, field] of [['attach', 'file'], ['attach-media', 'media']]) {
        by(button).addEventListener('click', () => by(field).click());
        by(field).addEventListener('change', () => {
            take([...by(field).files]);
            by(field).value = '';
        });
    }
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

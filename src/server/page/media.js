// Pictures and sounds that go with messages: read from files that a person chose, made small enough, and shown.

import { element } from './dom.js';

// Pixels of the longer side of a picture, and bytes: of a file, of a picture that is sent as it is, of one as PNG, and of what is sent.
const LONGEST_SIDE = 2048, LARGEST_FILE = 50e6, LARGEST_PICTURE = 4e6, LARGEST_PNG = 2e6, LARGEST_SENT = 11e6;
// What servers read without another encoding.
const PLAIN = new Set(['image/png', 'image/jpeg', 'image/webp']);
const FORMATS = { mpeg: 'mp3', 'x-wav': 'wav', wave: 'wav', 'vnd.wave': 'wav', 'x-flac': 'flac', mp4: 'm4a', 'x-m4a': 'm4a' };
const URL_OF_DATA = /^data:(image|audio)\/(?!svg)([\w.+-]{1,60});base64,[A-Za-z0-9+/]+={0,2}$/;

/// What a file is taken as: `image`, `audio`, or null for a text. A drawing of SVG is a text.
export const kindOf = ({ type }) => type.startsWith('image/svg') ? null : /^(image|audio)\//.exec(type)?.[1] ?? null;

/// Whether a text is an address that has a picture or a sound in itself, and of which kind.
export const kindOfUrl = url => URL_OF_DATA.exec(url)?.[1] ?? null;

const mega = n => `${(n / 1e6).toFixed(1)} MB`;
const bytes = url => (url.length - url.indexOf(',')) * 3 / 4;
export const size = ({ url }) => bytes(url) < 1e5 ? `${Math.ceil(bytes(url) / 1e3)} kB` : mega(bytes(url));

function urlOf(blob) {
    const reader = new FileReader();
    return new Promise((resolve, reject) => {
        reader.onload = () => resolve(reader.result);
        reader.onerror = () => reject(reader.error);
        reader.readAsDataURL(blob);
    });
}

/// A picture that is not larger than need be.
async function shrunk(file) {
    const picture = await createImageBitmap(file).catch(() => { throw new Error(`${file.name} is no picture that this browser reads.`); });
    const { width, height } = picture, share = Math.min(1, LONGEST_SIDE / Math.max(width, height));
    if (share === 1 && PLAIN.has(file.type) && file.size <= LARGEST_PICTURE) return file;
    const canvas = element('canvas', { width: Math.max(1, Math.round(width * share)), height: Math.max(1, Math.round(height * share)) });
    const context = canvas.getContext('2d');
    context.imageSmoothingQuality = 'high';
    context.drawImage(picture, 0, 0, canvas.width, canvas.height);
    picture.close();
    const as = type => new Promise(resolve => canvas.toBlob(resolve, type, 0.92)), png = file.type === 'image/jpeg' ? null : await as('image/png');
    return png && png.size <= LARGEST_PNG ? png : as('image/jpeg');
}

/// A picture or a sound of a file; throws with a sentence where it cannot be sent.
export async function read(file, kind) {
    if (file.size > LARGEST_FILE) throw new Error(`${file.name} is larger than ${mega(LARGEST_FILE)}.`);
    const blob = kind === 'image' ? await shrunk(file) : file;
    if (!blob || blob.size > LARGEST_SENT) throw new Error(`${file.name} is too large: at most ${mega(LARGEST_SENT)} are sent.`);
    // Some systems give types with parameters, or none that is plain.
    const url = (await urlOf(blob)).replace(/^data:[^,]*?;base64,/, `data:${blob.type.split(';')[0]};base64,`);
    if (kindOfUrl(url) !== kind) throw new Error(`${file.name} is empty, or of no type that is known.`);
    return { name: file.name, url };
}

/// A picture or a sound of a message that was sent.
export function shown({ name, url }) {
    if (kindOfUrl(url) === 'image') return element('img', { class: 'medium', src: url, alt: name, title: name });
    return element('figure', { class: 'medium' }, [
        element('audio', { controls: '', preload: 'metadata', src: url, 'aria-label': name }), element('figcaption', {}, [name]),
    ]);
}

/// The part of a message of a request.
export function part({ url }) {
    if (kindOfUrl(url) === 'image') return { type: 'image_url', image_url: { url } };
    const [, , type] = URL_OF_DATA.exec(url);
    return { type: 'input_audio', input_audio: { data: url.slice(url.indexOf(',') + 1), format: FORMATS[type] ?? type } };
}

/// A picture or a sound of a part of a request's message, as `part` makes them; null for another part.
export function ofPart({ type, image_url: image, input_audio: sound }, n) {
    const url = type === 'image_url' ? image?.url ?? image : type === 'input_audio' ? `data:audio/${sound?.format};base64,${sound?.data}` : null;
    return url === null ? null : { name: `${type === 'image_url' ? 'picture' : 'sound'} ${n}`, url };
}

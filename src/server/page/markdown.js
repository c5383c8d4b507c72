// Markdown becomes HTML at the server (`POST /render`): asks for it, keeps what was answered, and tells where a block of a text ends, so
// that only the block that still changes is asked for again.

import { post, Refusal } from './api.js';

const KEPT = 400, LONGEST_KEPT = 100_000;

const known = new Map();
let isThere = true;

/// The HTML of a text, or null where it stays plain: the server does not render, or did not this time.
export async function render(text) {
    if (!isThere || !text.trim()) return null;
    const had = known.get(text);
    if (had !== undefined) {
        // What was used last is kept longest.
        known.delete(text);
        known.set(text, had);
        return had;
    }
    try {
        const { html } = await post('render', { text });
        if (typeof html !== 'string') return null;
        if (text.length < LONGEST_KEPT) known.set(text, html);
        if (known.size > KEPT) known.delete(known.keys().next().value);
        return html;
    } catch (error) {
        if (error instanceof Refusal && [404, 405, 501].includes(error.status)) isThere = false;
        return null;
    }
}

const LIST = /^ {0,3}(?:[-*+]|\d{1,9}[.)])(?:\s|$)/;
// Long enough to tell the mark of a list from a word.
const TOLD = 4;

/// Where the first block of a text ends and another one begins, or -1. A list with its gaps, a fence and a formula are one block.
export function boundary(text) {
    // Empty lines at the beginning belong to the first block.
    const start = Math.max(0, text.lastIndexOf('\n', text.search(/\S|$/)) + 1), isList = LIST.test(text.slice(start));
    let fence = '', isMath = false, isGap = false, at = start;
    while (at < text.length) {
        const end = text.indexOf('\n', at), line = text.slice(at, end < 0 ? text.length : end);
        if (isGap && (end >= 0 || line.length >= TOLD) && /^\S/.test(line) && !(isList && LIST.test(line))) return at;
        const mark = /^\s{0,3}(`{3,}|~{3,})/.exec(line)?.[1] ?? '';
        if (fence) {
            if (mark[0] === fence[0] && mark.length >= fence.length && line.trim() === mark) {
                fence = '';
                // What follows is another block, with or without a gap.
                isGap = !isList;
                at = end < 0 ? text.length : end + 1;
                continue;
            }
        } else if (mark) fence = mark;
        else {
            const marks = line.match(/\$\$/g)?.length ?? 0;
            isMath = isMath ? marks % 2 === 0 && !line.includes('\\]') : marks % 2 === 1 || (line.includes('\\[') && !line.includes('\\]'));
        }
        isGap = !fence && !isMath && line.trim() === '';
        at = end < 0 ? text.length : end + 1;
    }
    return -1;
}

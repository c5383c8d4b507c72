// The text of an answer as it is seen: Markdown that the server rendered, with the tokens laid over it. What is not rendered yet is plain.

import { following, element } from './dom.js';
import { nodes } from './clean.js';
import { boundary, render } from './markdown.js';
import { isRead, lay, reach, spanOf, walk } from './tokens.js';

// Time between two requests for a text that grows, at least this, and this many times what showing it took: a long block is dear.
const PAUSE_MS = 150, PAUSE_SHARE = 8;
// Elements in whose last line more text would follow.
const FLOWING = new Set(['P', 'LI', 'UL', 'OL', 'BLOCKQUOTE', 'DIV', 'PRE', 'CODE', 'H1', 'H2', 'H3', 'H4', 'H5', 'H6']);

// Texts far away from what is seen wait: a long conversation would ask for hundreds at once.
const near = new IntersectionObserver(entries => {
    for (const { target, isIntersecting } of entries) if (isIntersecting) {
        near.unobserve(target);
        target.prose.ready();
    }
}, { rootMargin: '600px' });

/// A part of the text with its element. `html` is what it was rendered to, `until` how much of it that was.
class Block {
    constructor(start) {
        this.start = start;
        this.html = null;
        this.until = -1;
        this.box = element('div', { class: 'block plain tail' });
        this.tail = this.box;
    }
}

export class Prose {
    constructor(box) {
        this.box = box;
        box.prose = this;
        box.addEventListener('keydown', walk);
        this.decoder = new TextDecoder();
        this.reset();
    }

    reset() {
        clearTimeout(this.timer);
        near.unobserve(this.box);
        this.text = '';
        this.tokens = [];
        this.blocks = [];
        this.timer = this.took = 0;
        // Answers to what was asked before are of no use.
        this.edition = {};
        this.isAsking = this.isWhole = false;
        this.load = this.waking = null;
        this.box.replaceChildren();
    }

    /// Shows a text that is complete, rendered when it is near what is seen. `load` gives its tokens.
    put(text, load) {
        this.reset();
        this.plain(text, false);
        this.load = load;
        near.observe(this.box);
    }

    /// Settled when a text that was stored is shown with its tokens.
    ready() {
        near.unobserve(this.box);
        if (this.load) this.waking ??= this.wake();
        return this.waking;
    }

    async wake() {
        const { edition } = this;
        const [tokens, html] = await Promise.all([this.load(), render(this.text)]);
        if (edition !== this.edition) return;
        if (tokens.length) this.tokens = tokens;
        following(() => this.fill(this.blocks[0] ?? this.begin(0), html, this.text.length));
    }

    /// Adds text with the entries of its tokens. A character of several tokens belongs to the last of them.
    add(text, entries) {
        const pieces = (entries ?? []).map(entry => this.decoder.decode(new Uint8Array(entry.bytes), { stream: true }));
        const isWhole = pieces.length > 0 && pieces.join('') === text;
        if (isWhole) pieces.forEach((piece, i) => piece && this.token(piece, entries[i]));
        else if (entries?.length) this.token(text, entries[0]);
        else if (text) this.plain(text);
    }

    /// Adds text without a token.
    plain(text, isGrowing = true) {
        this.tokens.push({ start: this.text.length, text, entry: null });
        this.append(text, text, isGrowing);
    }

    token(text, entry) {
        const token = { start: this.text.length, text, entry };
        this.tokens.push(token);
        this.append(text, spanOf(token, text), true);
        reach(this.box);
    }

    append(text, node, isGrowing) {
        (this.blocks.at(-1) ?? this.begin(0)).tail.append(node);
        this.text += text;
        if (isGrowing) this.schedule();
    }

    begin(start) {
        const block = new Block(start);
        this.blocks.push(block);
        this.box.append(block.box);
        return block;
    }

    /// Begins with a part of another answer.
    from(text, tokens) {
        this.reset();
        for (const { text: piece, entry } of tokens) if (entry) this.token(piece, entry); else this.plain(piece);
        if (this.text !== text) {
            this.reset();
            this.plain(text);
        }
    }

    end(i) {
        return this.blocks[i + 1]?.start ?? this.text.length;
    }

    schedule() {
        if (!this.timer && !this.isAsking) this.timer = setTimeout(() => this.ask(), Math.max(PAUSE_MS, PAUSE_SHARE * this.took));
    }

    /// Makes a block of what is complete in the last one. All of it is asked for at once: a fast model ends many blocks in a short time.
    split() {
        const last = this.blocks.at(-1);
        let at = last?.start ?? 0;
        for (let step; last && (step = boundary(this.text.slice(at))) >= 0;) at += step;
        if (!last || at === last.start) return;
        const next = this.begin(at);
        this.fill(last, last.html, last.until);
        this.fill(next, null, -1);
    }

    /// Asks for the first block that has changed, and later for the next.
    async ask() {
        this.timer = 0;
        this.took = following(() => this.split());
        const at = this.blocks.findIndex((block, i) => block.until < this.end(i)), block = this.blocks[at];
        if (!block) return;
        if (isRead(block.box)) return this.schedule();
        const { edition } = this, until = this.told(block, this.end(at));
        if (until <= block.until) return this.schedule();
        this.isAsking = true;
        const html = await render(this.text.slice(block.start, until));
        if (edition !== this.edition) return;
        this.isAsking = false;
        // Who has begun to read meanwhile is not disturbed.
        if (isRead(block.box)) return this.schedule();
        if (html === null) block.until = until;
        else this.took += following(() => this.fill(block, html, until));
        if (this.blocks.some((block, i) => block.until < this.end(i))) this.schedule();
        else if (this.isWhole) this.join();
    }

    /// How much of a block is asked for. The first letters of a line do not tell yet whether it begins another block.
    told(block, end) {
        const isComplete = this.isWhole || block !== this.blocks.at(-1);
        return isComplete ? end : end - (/\n[^\n]{0,3}$/.exec(this.text.slice(block.start))?.[0].length ?? 1) + 1;
    }

    /// Shows a block as it was rendered until a place, and what follows plain.
    fill(block, html, until) {
        const { box, start } = block, end = this.end(this.blocks.indexOf(block)), content = nodes(html ?? '');
        // Where nothing is left of a text, such as a lone tag, the text is shown.
        const isRendered = content.textContent.trim() !== '' || content.querySelector('hr, input') !== null;
        const source = isRendered ? this.text.slice(start, until) : '';
        lay(content, source, start, this.tokens.filter(token => token.start + token.text.length > start && token.start < until));
        box.classList.toggle('plain', !isRendered);
        box.classList.toggle('markdown', isRendered);
        box.replaceChildren(...isRendered ? [content] : []);
        block.tail = box;
        for (let last; (last = block.tail.lastElementChild) && FLOWING.has(last.tagName) && !last.matches('.scroll');) block.tail = last;
        box.classList.remove('tail');
        block.tail.classList.add('tail');
        // A space at the end is not in what was rendered, except in code.
        const rest = block.tail.closest('pre') ? source.length : source.trimEnd().length;
        block.tail.append(...this.pieces(start + rest, end));
        Object.assign(block, { html, until });
        reach(this.box);
    }

    /// Text from one place to another as spans of tokens.
    pieces(from, to) {
        const out = [];
        for (const token of this.tokens) {
            const start = Math.max(token.start, from), end = Math.min(token.start + token.text.length, to);
            if (start >= end) continue;
            const text = this.text.slice(start, end);
            out.push(token.entry ? spanOf(token, text) : text);
        }
        return out;
    }

    /// The text is complete: blocks that refer to each other are rendered together once.
    finish() {
        this.isWhole = true;
        if (this.text && !this.load) this.schedule();
    }

    /// The text goes on.
    async resume() {
        await this.ready();
        this.isWhole = false;
        this.load = null;
    }

    async join() {
        if (this.blocks.length < 2) return;
        const { edition } = this, had = this.blocks.map(({ html }) => html ?? '').join('');
        const html = await render(this.text);
        if (edition !== this.edition || html === null || html === had || this.blocks.some(({ box }) => isRead(box))) return;
        following(() => {
            this.blocks = [];
            const block = this.begin(0);
            this.fill(block, html, this.text.length);
            this.box.replaceChildren(block.box);
        });
    }
}

// Tokens of an answer, tinted by their probability, and what else the model considered for each.

import { by, element } from './dom.js';

// Highest probability of each tint, the strongest first; above the last there is none.
const TINTS = [0.1, 0.3, 0.5, 0.7, 0.9];

let shown = null;
let choose = () => {};

export const percent = logprob => {
    const value = 100 * Math.exp(logprob);
    return value >= 99.95 ? '100 %' : value >= 10 ? `${value.toFixed(1)} %` : value >= 0.01 ? `${value.toPrecision(2)} %` : '< 0.01 %';
};

/// White space as signs that are seen.
export const visible = text => text.replaceAll('\n', '↵').replaceAll('\t', '⇥').replaceAll(' ', '␣') || '∅';

/// Text of an answer as it grows.
export class Tokens {
    constructor(box) {
        this.box = box;
        this.text = '';
        this.decoder = new TextDecoder();
        box.addEventListener('keydown', event => this.key(event));
    }

    /// Adds text with the entries of its tokens. A character of several tokens belongs to the last of them.
    add(text, entries) {
        const pieces = (entries ?? []).map(entry => this.decoder.decode(new Uint8Array(entry.bytes), { stream: true }));
        const isWhole = pieces.length > 0 && pieces.join('') === text;
        if (isWhole) pieces.forEach((piece, i) => piece && this.token(piece, entries[i]));
        else if (entries?.length) this.token(text, entries[0]);
        else if (text) this.plain(text);
    }

    plain(text) {
        this.text += text;
        this.box.append(text);
    }

    token(text, entry) {
        const span = element('span', { class: 'token', tabindex: this.box.querySelector('.token') ? -1 : 0 }, [text]);
        const tint = TINTS.findIndex(limit => Math.exp(entry.logprob) < limit);
        if (tint >= 0) span.dataset.tint = tint;
        span.entry = entry;
        span.before = this.text;
        this.text += text;
        this.box.append(span);
    }

    key(event) {
        const span = event.target.closest('.token');
        if (!span) return;
        const all = [...this.box.querySelectorAll('.token')], at = all.indexOf(span);
        const places = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: all.length - 1 };
        if (event.key in places) {
            const next = all[Math.max(0, Math.min(all.length - 1, places[event.key]))];
            span.tabIndex = -1;
            next.tabIndex = 0;
            next.focus();
        } else if (event.key === 'ArrowDown' || event.key === 'Enter') {
            (by('tip').querySelector('button') ?? span).focus();
        } else return;
        event.preventDefault();
    }
}

function bar(entry, isChosen, span) {
    const share = element('span', { class: 'bar' });
    share.style.setProperty('--share', Math.exp(entry.logprob));
    const parts = [element('code', {}, [visible(entry.token)]), share, element('span', { class: 'share' }, [percent(entry.logprob)])];
    // What is a part of a character, or no text, cannot be continued.
    const isText = !entry.token.includes('\ufffd') && !/^<.+>$/.test(entry.token);
    if (isChosen || !isText) return element('li', { class: isChosen ? 'chosen' : null }, [element('div', {}, parts)]);
    const button = element('button', { title: 'Continue from this token' }, parts);
    button.addEventListener('click', () => { const from = span; hide(); choose(from, entry); });
    return element('li', {}, [button]);
}

function show(span) {
    if (!document.documentElement.classList.contains('coloured')) return;
    hide();
    shown = span;
    const { entry } = span, tip = by('tip');
    const others = entry.top_logprobs ?? [];
    const isChosen = other => other.id === entry.id;
    const rows = others.some(isChosen) ? others : [...others, entry];
    const rank = entry.rank ? `, rank ${entry.rank}` : '';
    tip.replaceChildren(
        element('p', {}, [`${percent(entry.logprob)}${rank}, token ${entry.id}`]),
        element('ol', {}, rows.map(other => bar(other, isChosen(other), span))),
    );
    tip.hidden = false;
    place();
    span.classList.add('shown');
    span.setAttribute('aria-describedby', 'tip');
}

/// Puts the alternatives beside their token, where that is seen.
function place() {
    if (!shown) return;
    const tip = by('tip'), span = shown, log = by('log').getBoundingClientRect();
    const box = span.getClientRects()[0] ?? span.getBoundingClientRect(), own = tip.getBoundingClientRect();
    if (box.bottom < log.top || box.top > log.bottom) return hide();
    const isAbove = box.bottom + own.height + 8 > innerHeight && box.top > own.height;
    tip.style.left = `${Math.max(8, Math.min(box.left, innerWidth - own.width - 8))}px`;
    tip.style.top = `${isAbove ? box.top - own.height - 2 : box.bottom + 2}px`;
}

export function hide() {
    shown?.classList.remove('shown');
    shown?.removeAttribute('aria-describedby');
    shown = null;
    by('tip').hidden = true;
}

/// Shows alternatives where the pointer or the focus is. `onChoose` gets the token and the alternative.
export function listen(onChoose) {
    choose = onChoose;
    const log = by('log'), tip = by('tip');
    let leaving = 0;
    const stay = () => clearTimeout(leaving);
    const leave = () => { stay(); leaving = setTimeout(() => { if (!tip.contains(document.activeElement)) hide(); }, 250); };
    const enter = event => {
        const span = event.target.closest?.('.token');
        if (!span) return;
        stay();
        if (span !== shown) show(span);
    };
    log.addEventListener('pointerover', enter);
    log.addEventListener('focusin', enter);
    log.addEventListener('pointerout', leave);
    log.addEventListener('focusout', leave);
    log.addEventListener('scroll', place);
    tip.addEventListener('pointerenter', stay);
    tip.addEventListener('pointerleave', leave);
    tip.addEventListener('focusout', leave);
    tip.addEventListener('focusin', stay);
    tip.addEventListener('keydown', event => {
        const all = [...tip.querySelectorAll('button')], at = all.indexOf(document.activeElement);
        const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
        if (event.key === 'Escape' || at + step < 0) shown?.focus();
        else if (step) all[Math.min(all.length - 1, at + step)]?.focus();
        else return;
        event.preventDefault();
    });
}

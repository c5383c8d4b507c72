// Tokens of an answer, laid over its text and tinted by their probability, and what else the model considered for each.

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

/// A span of a token. One token may have several, where the text that is shown is not what the model wrote.
export function spanOf(token, text) {
    const span = element('span', { class: 'token', tabindex: -1 }, [text]);
    const tint = TINTS.findIndex(limit => Math.exp(token.entry.logprob) < limit);
    if (tint >= 0) span.dataset.tint = tint;
    span.token = token;
    return span;
}

/// Lets the keyboard reach the tokens of a text: one of them by Tab, the others by arrows.
export const reach = box => { if (!box.querySelector('.token[tabindex="0"]')) box.querySelector('.token')?.setAttribute('tabindex', 0); };

export function walk(event) {
    const span = event.target.closest('.token');
    if (!span) return;
    const all = [...event.currentTarget.querySelectorAll('.token')], at = all.indexOf(span);
    const places = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: all.length - 1 };
    if (event.key in places && !event.altKey) {
        const next = all[Math.max(0, Math.min(all.length - 1, places[event.key]))];
        span.tabIndex = -1;
        next.tabIndex = 0;
        next.focus();
    } else if (event.key === 'ArrowDown' || event.key === 'Enter') {
        (by('tip').querySelector('button') ?? span).focus();
    } else return;
    event.preventDefault();
}

// White space between words is a token's too if it is in the same place of the source.
const WORDS = /\S+/g;
// A word that is further away is another one.
const FURTHEST = 400;

/// Lays tokens over nodes that were made of their text: what is shown has no marks of Markdown, and formulas look otherwise.
export function lay(root, source, start, tokens) {
    if (!tokens.length) return;
    const all = [], walker = document.createTreeWalker(root, NodeFilter.SHOW_TEXT);
    while (walker.nextNode()) if (!walker.currentNode.parentElement?.closest('math, .code-head')) all.push(walker.currentNode);
    let at = 0, n = 0;
    for (const node of all) {
        const text = node.data, places = new Array(text.length).fill(-1);
        let end = 0;
        for (const { 0: word, index } of text.matchAll(WORDS)) {
            const found = source.indexOf(word, at);
            if (found < 0 || found - at > FURTHEST) continue;
            for (let i = 0; i < word.length; i++) places[index + i] = start + found + i;
            // Spaces before the word.
            for (let i = 1; index - i >= end && /\s/.test(source[found - i] ?? ''); i++) places[index - i] = start + found - i;
            at = found + word.length;
            end = index + word.length;
        }
        const parts = [];
        let last = null;
        for (let i = 0; i < text.length; i++) {
            // Places grow, so the token of each is not far from that before.
            while (places[i] >= 0 && n < tokens.length - 1 && tokens[n + 1].start <= places[i]) n++;
            const token = places[i] >= 0 && tokens[n].start <= places[i] && places[i] < tokens[n].start + tokens[n].text.length ? tokens[n] : null;
            if (parts.length && token === last) parts.at(-1).text += text[i];
            else parts.push({ token, text: text[i] });
            last = token;
        }
        if (parts.some(({ token }) => token?.entry)) node.replaceWith(...parts.map(({ token, text }) => token?.entry ? spanOf(token, text) : text));
    }
    reach(root);
}

/// Tokens in the form in which they are stored, and back. Their texts one after the other are the text of the answer.
export const pack = tokens => tokens.map(({ text, entry }) =>
    entry ? [text, entry.id, entry.token, entry.logprob, entry.rank ?? 0, (entry.top_logprobs ?? []).map(({ id, token, logprob }) => [id, token, logprob])] : [text]);

export function unpack(all, text) {
    let start = 0;
    const tokens = all.map(([text, id, token, logprob, rank, others]) => {
        const top_logprobs = others?.map(([id, token, logprob]) => ({ id, token, logprob }));
        const out = { start, text, entry: others ? { id, token, logprob, rank, top_logprobs } : null };
        start += text.length;
        return out;
    });
    return tokens.map(({ text }) => text).join('') === text ? tokens : [];
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
    const { entry } = span.token, tip = by('tip');
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

/// Whether a person reads in a text now, so that it had better stay as it is.
export function isRead(box) {
    if (shown && box.contains(shown)) return true;
    const chosen = getSelection();
    return !chosen.isCollapsed && chosen.rangeCount > 0 && chosen.getRangeAt(0).intersectsNode(box);
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

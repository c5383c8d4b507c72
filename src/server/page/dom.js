// Elements of the page. Texts become text nodes, never markup.

export const by = id => document.getElementById(id);

/// An element with attributes and children; attributes that are null are left out.
export function element(name, attributes = {}, children = []) {
    const out = document.createElement(name);
    for (const [key, value] of Object.entries(attributes)) if (value != null) out.setAttribute(key, value);
    out.append(...children);
    return out;
}

export function button(text, what, onClick) {
    const out = element('button', { type: 'button', title: what }, [text]);
    out.addEventListener('click', onClick);
    return out;
}

/// Does something where Enter would send the form.
export const onEnter = (id, run) => by(id).addEventListener('keydown', event => {
    if (event.key !== 'Enter') return;
    event.preventDefault();
    run();
});

/// A drawing of the page's own set.
export const icon = name => by('icons').content.querySelector(`[data-icon="${name}"]`).cloneNode(true);

/// A button that is seen as a drawing, and read as its text.
export function iconButton(name, text, onClick) {
    const out = element('button', { type: 'button', class: 'icon', title: text }, [icon(name), element('span', { class: 'hidden' }, [text])]);
    out.addEventListener('click', onClick);
    return out;
}

/// Gives the buttons of the page their drawings.
export const drawIcons = () => { for (const box of document.querySelectorAll('[data-draw]')) box.prepend(icon(box.dataset.draw)); };

/// Tells readers of the screen.
export const say = text => { by('say').textContent = text; };

/// Lets a text field be as high as its text.
export function fit(area) {
    area.style.height = 'auto';
    area.style.height = `${area.scrollHeight + 2}px`;
}

// Whether the end of the conversation is what a person looks at.
let isAtEnd = true;

const below = log => log.scrollHeight - log.scrollTop - log.clientHeight;

/// Does something that adds to the conversation, and stays at its end if that is what is seen. Returns how long it took, in milliseconds.
export function following(add) {
    const began = performance.now();
    add();
    // What is under the pointer stays there while alternatives to it are shown.
    if (isAtEnd && by('tip').hidden) toEnd();
    return performance.now() - began;
}

export const toEnd = () => { by('log').scrollTop = by('log').scrollHeight; };

export function listenToScrolling() {
    const log = by('log');
    log.addEventListener('scroll', () => {
        isAtEnd = below(log) < 60;
        by('to-end').hidden = below(log) < 300;
    });
    by('to-end').addEventListener('click', toEnd);
}

/// What went wrong, in words.
export const words = error => error instanceof TypeError ? 'The server cannot be reached.' : error.message;

const DONE_MS = 1500;

/// Copies a text, also where pages without encryption may not use the clipboard. The button that was pressed shows that it is done.
export async function copy(text, pressed) {
    try {
        await navigator.clipboard.writeText(text);
    } catch {
        const area = element('textarea', { class: 'hidden', readonly: '' });
        area.value = text;
        document.body.append(area);
        area.select();
        document.execCommand('copy');
        area.remove();
    }
    say('Copied');
    pressed.classList.add('done');
    setTimeout(() => pressed.classList.remove('done'), DONE_MS);
}

/// Lets the browser save a text as a file.
export function download(name, text, kind) {
    const href = URL.createObjectURL(new Blob([text], { type: kind }));
    const link = element('a', { href, download: name });
    link.click();
    setTimeout(() => URL.revokeObjectURL(href), 10_000);
}

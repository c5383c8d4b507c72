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

/// Tells readers of the screen.
export function say(text) {
    by('say').textContent = text;
}

/// Lets a text field be as high as its text.
export function fit(area) {
    area.style.height = 'auto';
    area.style.height = `${area.scrollHeight + 2}px`;
}

/// Copies a text, also where pages without encryption may not use the clipboard.
export async function copy(text) {
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
}

// HTML that the server made of Markdown, as nodes to show. The server has removed what could do harm; this keeps only what is known once
// more, so that a fault there is no fault here, and adds what a reader needs: buttons to copy code, tables that scroll.

import { copy, element, iconButton } from './dom.js';

const TEXT = 'a abbr b blockquote br code dd del details div dl dt em h1 h2 h3 h4 h5 h6 hr i input ins kbd li mark ol p pre q s samp small span '
    + 'strong sub summary sup table tbody td tfoot th thead tr u ul';
const MATH = 'math menclose merror mfrac mi mmultiscripts mn mo mover mpadded mphantom mprescripts mroot mrow ms mspace msqrt mstyle msub '
    + 'msubsup msup mtable mtd mtext mtr munder munderover none semantics';
const OF_MATH = 'accent accentunder columnalign columnlines columnspacing depth dir display displaystyle fence form height largeop '
    + 'linethickness lspace mathvariant maxsize minsize movablelimits notation rowlines rowspacing rspace scriptlevel separator stretchy '
    + 'symmetric voffset width';
const set = text => new Set(text.split(' '));
const TAGS = set(`${TEXT} ${MATH}`), MATHS = set(MATH), ATTRIBUTES_OF_MATH = set(OF_MATH);
// Gone with what is in them; of others that are not known the content stays.
const GONE = set('script style template noscript iframe object embed svg textarea select title');
const ATTRIBUTES = {
    a: set('href title rel target'), code: set('class'), span: set('class'), ol: set('start'), td: set('align'), th: set('align'),
    input: set('type checked disabled'),
};

function isRight(tag, { name, value }) {
    if (!(MATHS.has(tag) ? ATTRIBUTES_OF_MATH : ATTRIBUTES[tag])?.has(name)) return false;
    if (name === 'class') return value.split(/\s+/).every(word => /^(hl|language)-/.test(word));
    return name !== 'href' || /^(https?:|mailto:)/i.test(value);
}

function cleanse(parent) {
    for (const node of [...parent.childNodes]) {
        if (node.nodeType === Node.TEXT_NODE) continue;
        const tag = node.localName;
        if (node.nodeType !== Node.ELEMENT_NODE || GONE.has(tag)) {
            node.remove();
            continue;
        }
        cleanse(node);
        if (!TAGS.has(tag)) node.replaceWith(...node.childNodes);
        else for (const attribute of [...node.attributes]) if (!isRight(tag, attribute)) node.removeAttribute(attribute.name);
    }
}

function addTo(box) {
    for (const link of box.querySelectorAll('a[href]')) {
        Object.assign(link, { target: '_blank', rel: 'noopener noreferrer nofollow' });
        // Where a link leads is not always what it says.
        if (link.textContent !== link.getAttribute('href')) link.title = link.getAttribute('href');
    }
    for (const input of box.querySelectorAll('input')) {
        Object.assign(input, { type: 'checkbox', disabled: true });
        input.setAttribute('aria-label', input.checked ? 'done' : 'to do');
        input.closest('li')?.classList.add('task');
    }
    for (const table of box.querySelectorAll('table')) {
        const scroll = element('div', { class: 'scroll', tabindex: 0, role: 'region', 'aria-label': 'Table' });
        table.replaceWith(scroll);
        scroll.append(table);
    }
    for (const pre of box.querySelectorAll('pre')) {
        const language = /(?:^|\s)language-(\S+)/.exec(pre.querySelector('code')?.className ?? '')?.[1] ?? '';
        const head = element('div', { class: 'code-head' }, [element('span', {}, [language]),
            iconButton('copy', 'Copy the code', ({ currentTarget }) => copy(pre.textContent.replace(/\n$/, ''), currentTarget))]);
        const frame = element('div', { class: 'code-box' }, [head]);
        pre.replaceWith(frame);
        pre.tabIndex = 0;
        frame.append(pre);
    }
}

/// Nodes of HTML from the server.
export function nodes(html) {
    // Nothing in this document loads or runs.
    const { body } = new DOMParser().parseFromString(html, 'text/html');
    cleanse(body);
    const out = document.createDocumentFragment();
    out.append(...body.childNodes);
    addTo(out);
    return out;
}

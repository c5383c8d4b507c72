// Calls of tools in an answer: what is called with what, and the result, which a person enters or an MCP server gives once the person agrees.

import { button, element, fit, words } from './dom.js';

/// A text in the form that is easier to read, if it is JSON.
function pretty(text) {
    try { return JSON.stringify(JSON.parse(text), null, 2); } catch { return text; }
}

export class Calls {
    /// `actions`: `changed`, `results` sends them, `runner` gives what runs a tool, if this page can.
    constructor(node, parts, actions) {
        this.node = node;
        this.parts = parts;
        this.actions = actions;
        this.shown = [];
    }

    take({ index, id, function: { name, arguments: more } }) {
        const { calls } = this.node;
        calls[index] ??= { id, name, arguments: '', result: '' };
        calls[index].arguments += more ?? '';
        this.show(index);
    }

    restore() {
        this.node.calls.forEach((call, i) => call && this.show(i));
    }

    show(index) {
        const call = this.node.calls[index];
        if (!this.shown[index]) {
            const given = element('pre', { class: 'code', tabindex: 0 });
            const result = element('textarea', { rows: 2, class: 'code', placeholder: 'What the tool gives' });
            result.value = call.result;
            result.addEventListener('input', () => this.set(index, result.value));
            const label = element('label', { class: 'row tall' }, [element('span', {}, ['Result']), result]);
            const bar = element('div', { class: 'buttons' });
            const box = element('section', { class: 'call', 'aria-label': `Call of ${call.name}` }, [element('h2', {}, [call.name]), given, bar, label]);
            this.shown[index] = { given, result, bar };
            this.parts.append(box);
        }
        this.shown[index].given.textContent = pretty(call.arguments);
    }

    set(index, text) {
        const { result } = this.shown[index];
        if (result.value !== text) result.value = text;
        fit(result);
        this.node.calls[index].result = text;
        this.node.stamp = Date.now();
        this.actions.changed();
    }

    /// The calls are complete.
    end() {
        if (!this.node.calls.length) return;
        this.parts.querySelector('.send-results')?.remove();
        const send = button('Send results', 'Give the results to the model', () => this.actions.results());
        send.className = 'send-results main';
        this.parts.append(send);
        this.offer();
    }

    /// Lets a person decide on each call that an MCP server can run.
    offer() {
        this.node.calls.forEach((call, index) => {
            const { bar } = this.shown[index], run = this.actions.runner(call.name);
            bar.replaceChildren();
            if (!run || call.result) return;
            const yes = button('Run', `Run ${call.name} with these arguments`, () => this.run(index, run));
            yes.className = 'main';
            bar.append(yes, button('Refuse', 'Tell the model that the call was refused', () => this.decide(index, 'The user refused this call.')));
        });
    }

    async run(index, run) {
        const { bar } = this.shown[index];
        const status = element('span', { class: 'quiet', role: 'status', tabindex: -1 }, ['Running …']);
        bar.replaceChildren(status);
        status.focus({ preventScroll: true });
        try {
            this.decide(index, await run(this.node.calls[index].arguments));
        } catch (error) {
            this.offer();
            bar.append(element('span', { class: 'fault', role: 'alert' }, [words(error)]));
            bar.firstElementChild.focus();
        }
    }

    /// The model goes on when every call has a result.
    decide(index, text) {
        this.set(index, text || '(nothing)');
        this.offer();
        if (this.node.calls.every(({ result }) => result)) this.actions.results();
        else this.parts.querySelector('.call .buttons button')?.focus();
    }
}

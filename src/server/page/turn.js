// One message of the conversation as it is seen: text, reasoning, calls of tools, denoising steps, numbers, buttons.

import { Buffer } from './diffusion.js';
import { button, copy, element, fit, say } from './dom.js';
import { Tokens } from './tokens.js';

const WHY = { length: 'at the maximum length', tool_calls: 'to call tools', content_filter: 'by a filter' };

/// A text in the form that is easier to read, if it is JSON.
function pretty(text) {
    try { return JSON.stringify(JSON.parse(text), null, 2); } catch { return text; }
}

export class Turn {
    /// `actions` are what its buttons do: `edit`, `again`, `results`.
    constructor(role, actions) {
        this.role = role;
        this.actions = actions;
        this.reasoning = '';
        this.calls = [];
        this.text = element('div', { class: 'text' });
        this.parts = element('div', { class: 'parts' }, [this.text]);
        this.foot = element('div', { class: 'foot' });
        this.box = element('article', { class: `turn ${role}`, 'aria-label': role === 'user' ? 'You' : 'Model' }, [this.parts, this.foot]);
        this.box.turn = this;
        this.tokens = new Tokens(this.text);
    }

    get content() {
        return this.tokens.text;
    }

    set content(text) {
        this.text.replaceChildren();
        this.tokens = new Tokens(this.text);
        this.tokens.plain(text);
    }

    /// Takes a chunk of the stream.
    take({ choices, diffusion }) {
        if (diffusion) this.step(diffusion);
        const { delta, logprobs } = choices?.[0] ?? {};
        const { content, reasoning_content: reasoning, tool_calls: calls } = delta ?? {};
        if (reasoning) this.think(reasoning);
        if (content) {
            this.endThinking();
            this.tokens.add(content, logprobs?.content);
        }
        for (const call of calls ?? []) this.call(call);
    }

    think(text) {
        if (!this.thoughts) {
            this.began = performance.now();
            this.summary = element('summary', {}, ['Reasoning …']);
            this.thoughts = element('div', { class: 'thoughts' });
            this.parts.prepend(element('details', { class: 'reasoning' }, [this.summary, this.thoughts]));
        }
        this.reasoning += text;
        this.thoughts.append(text);
    }

    endThinking() {
        if (!this.began) return;
        this.summary.textContent = `Reasoning, ${((performance.now() - this.began) / 1000).toFixed(1)} s`;
        this.began = 0;
    }

    call({ index, id, function: { name, arguments: more } }) {
        this.endThinking();
        if (!this.calls[index]) {
            const given = element('pre', { class: 'code' });
            const result = element('textarea', { rows: 2, class: 'code', placeholder: 'What the tool gives' });
            result.addEventListener('input', () => fit(result));
            const label = element('label', { class: 'row tall' }, [element('span', {}, ['Result']), result]);
            const box = element('section', { class: 'call', 'aria-label': `Call of ${name}` }, [element('h3', {}, [name]), given, label]);
            this.calls[index] = { id, name, arguments: '', given, result };
            this.parts.append(box);
        }
        const call = this.calls[index];
        call.arguments += more ?? '';
        call.given.textContent = pretty(call.arguments);
    }

    /// Takes a denoising step.
    step(step) {
        if (!this.buffer) {
            const box = element('div', { class: 'buffer' });
            this.parts.prepend(box);
            this.buffer = new Buffer(box);
        }
        this.text.hidden = true;
        this.buffer.take(step);
    }

    /// Forgets the text from a token on, and begins anew with another one in its place.
    branch(span, entry) {
        this.tokens.text = span.before;
        while (span.nextSibling) span.nextSibling.remove();
        span.remove();
        this.calls = [];
        this.parts.querySelectorAll('.call').forEach(box => box.remove());
        this.tokens.token(entry.token, { ...entry, top_logprobs: span.entry.top_logprobs });
        this.begin();
    }

    begin() {
        this.foot.replaceChildren();
        this.buffer?.box.remove();
        this.buffer = null;
        this.box.querySelector('.fault')?.remove();
        this.box.setAttribute('aria-busy', 'true');
    }

    /// The end of an answer, with its numbers.
    end(numbers, reason) {
        this.endThinking();
        if (this.buffer) {
            this.text.hidden = false;
            this.buffer.box.hidden = true;
        }
        this.box.removeAttribute('aria-busy');
        if (this.calls.length) {
            this.parts.querySelector('.send-results')?.remove();
            const send = button('Send results', 'Give the results to the model', () => this.actions.results(this));
            send.className = 'send-results main';
            this.parts.append(send);
        }
        const why = WHY[reason] ? `ended ${WHY[reason]}` : reason === 'stop' ? '' : reason;
        this.numbers = element('p', { class: 'numbers' }, [[...numbers, why].filter(Boolean).join(' · ')]);
        this.buttons();
    }

    fail(message) {
        this.parts.append(element('p', { class: 'fault', role: 'alert' }, [message]));
    }

    /// Shows numbers while the answer is under way.
    progress(text) {
        this.foot.textContent = text;
    }

    buttons() {
        const all = [
            button('Copy', 'Copy the text', async () => { await copy(this.content); say('Copied'); }),
            button('Edit', 'Change the text', () => this.edit()),
        ];
        if (this.role === 'assistant') all.push(button('Regenerate', 'Answer again', () => this.actions.again(this)));
        if (this.buffer) all.push(button('Replay', 'Show the denoising steps again', () => this.buffer.replay()));
        const row = element('div', { class: 'buttons' }, all);
        this.foot.replaceChildren(...[this.numbers, row].filter(Boolean));
    }

    /// Makes the text a field until it is saved or left.
    edit() {
        if (this.area) return this.area.focus();
        const area = this.area = element('textarea', { class: 'edit', 'aria-label': 'Text of the message' });
        area.value = this.content;
        const leave = () => {
            bar.remove();
            area.remove();
            this.area = null;
            this.text.hidden = false;
            this.buttons();
        };
        const save = () => { leave(); this.actions.edit(this, area.value); };
        const isUser = this.role === 'user';
        const bar = element('div', { class: 'buttons' }, [
            button(isUser ? 'Save and send' : 'Save', 'Ctrl+Enter', save), button('Cancel', 'Escape', leave)]);
        area.addEventListener('input', () => fit(area));
        area.addEventListener('keydown', event => {
            if (event.key === 'Escape') leave();
            else if (event.key === 'Enter' && (event.ctrlKey || event.metaKey)) save();
            else return;
            event.preventDefault();
            event.stopPropagation();
        });
        this.text.hidden = true;
        this.text.after(area, bar);
        this.foot.replaceChildren();
        fit(area);
        area.focus();
    }

    /// Its messages in a request.
    messages() {
        if (this.role === 'user') return [{ role: 'user', content: this.content }];
        const message = { role: 'assistant', content: this.content };
        if (this.reasoning) message.reasoning_content = this.reasoning;
        if (!this.calls.length) return [message];
        message.tool_calls = this.calls.map(({ id, name, arguments: given }) =>
            ({ id, type: 'function', function: { name, arguments: given } }));
        const results = this.calls.map(({ id, result }) => ({ role: 'tool', tool_call_id: id, content: result.value }));
        return [message, ...results];
    }
}
